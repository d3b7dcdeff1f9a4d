"""Experiments: specification, run, result files, table, page."""
