"""Leases of attempts, and how reports change attempts and jobs. It does not read or write the database."""
