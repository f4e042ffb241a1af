"""Commands of operators about the service itself: its agents, the audit, and planned downtimes."""
