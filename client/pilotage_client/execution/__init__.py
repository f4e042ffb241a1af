"""Calls of Python functions as jobs: `PilotageExecutor`, and `task` for functions with requirements."""
