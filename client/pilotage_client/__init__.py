"""The user's side: Python API, command line, readers of job languages."""
