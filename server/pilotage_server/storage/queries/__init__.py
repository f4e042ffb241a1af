"""Reads over many jobs with bounded work: those that meet a condition, and how long others have waited."""
