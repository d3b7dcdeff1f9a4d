"""What a practitioner meets every day: `python -m benchmarks.everyday`."""
