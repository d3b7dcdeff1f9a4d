"""Arrays, files and folders in; tasks and streams out. Everything is checked here, once."""
