"""Serves job routers: hands jobs out, records what became of them. One operation is one transaction."""
