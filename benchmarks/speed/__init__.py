"""How fast CLDNet is, beside what people use today and beside what the machine can do: `python -m benchmarks.speed`."""
