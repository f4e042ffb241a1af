"""The active resource tree on the server: pools, their mappings to queues, bans."""
