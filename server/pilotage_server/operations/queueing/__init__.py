"""Keeps the index of task queues in step with the database and with other servers."""
