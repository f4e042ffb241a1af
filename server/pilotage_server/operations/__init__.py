"""Use cases: one operation is one transaction, load, decide, store."""
