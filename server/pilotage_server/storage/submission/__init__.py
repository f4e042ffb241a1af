"""Rows of submissions: shared descriptions of jobs, and parts whose jobs are not stored yet."""
