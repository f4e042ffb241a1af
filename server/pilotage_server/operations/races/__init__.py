"""Starts and ends races between copies of jobs. One operation is one transaction."""
