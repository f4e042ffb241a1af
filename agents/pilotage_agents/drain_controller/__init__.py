"""Drains nodes for multicore jobs, as Fallow does: `planning` decides, `controller` talks to the server."""
