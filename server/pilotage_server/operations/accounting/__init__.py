"""Charges use and changes shares, quotas and limits. One operation is one transaction."""
