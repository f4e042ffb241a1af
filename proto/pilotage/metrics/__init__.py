"""Metrics and health checks for operators: the table of metrics, their values, and the endpoint that serves them."""
