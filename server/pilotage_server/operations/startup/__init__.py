"""Loads the server's state from the database at its start. One operation is one transaction."""
