"""The server: the queue, the pools and the leases."""
