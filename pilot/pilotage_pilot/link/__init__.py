"""The pilot's link to the server."""
