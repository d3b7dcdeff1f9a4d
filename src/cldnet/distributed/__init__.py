"""Learn beyond one machine: shards on Dask, Ray or processes, and training under torchrun."""
