"""Rows of submissions: shared descriptions of jobs, dependencies of jobs, and parts whose jobs are not stored yet."""
