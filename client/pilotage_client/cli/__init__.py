"""The command line: parses options and prints results. The API, the readers and `up` do the work."""
