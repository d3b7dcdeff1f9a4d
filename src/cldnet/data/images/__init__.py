"""Folders of photos: which files there are, how they are decoded, and the cache of what was decoded."""
