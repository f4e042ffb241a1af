"""Starts race copies of stragglers: `planning` decides, `racer` talks to the server."""
