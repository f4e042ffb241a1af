"""Task queues: their keys, the index of waiting jobs, and the queues that they may run on."""
