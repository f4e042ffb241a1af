"""Serves requests for jobs: matches in memory, then claims in the database. One operation is one transaction."""
