"""The pilot: a process on a worker node that pulls jobs and runs them."""
