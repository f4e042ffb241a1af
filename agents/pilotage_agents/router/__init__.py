"""The job router: what it knows, asks and tells, around the decisions in `core.routes` and `core.copies`."""
