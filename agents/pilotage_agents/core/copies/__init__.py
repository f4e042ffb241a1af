"""Copies of jobs: what their states mean, and what they are given and leave."""
