"""Processes, work directories, limits and output of jobs."""
