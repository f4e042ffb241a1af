"""Reads and changes pools, bans, health and the views of the resource tree. One operation is one transaction."""
