"""Readers of published file formats. Each returns a `cldnet.data.dataset.Dataset` and executes nothing."""
