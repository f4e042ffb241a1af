"""Metrics and probes for operators: the table of all metrics, their values, and the endpoint that serves them."""
