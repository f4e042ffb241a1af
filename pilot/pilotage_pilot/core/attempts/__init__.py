"""The attempts that a pilot runs: their leases, payloads and ends. Starts no process: it returns instructions."""
