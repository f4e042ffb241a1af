"""Selection of jobs, pilots, slots and queues by options, and what is done with many of them at once."""
