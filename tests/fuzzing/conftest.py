"""These are parts of ``tests/fuzz.py``, which finds them beside itself; pytest has nothing to collect here."""

collect_ignore_glob = ["*.py"]
