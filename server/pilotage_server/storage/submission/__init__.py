"""Rows of submissions: shared descriptions of jobs, clusters, dependencies, and parts whose jobs are not stored yet."""
