"""Rows about the identities of callers; rows of agents' leadership and of pilots are elsewhere."""
