"""Races between copies of one job: stragglers that get a copy, and the end of a race."""
