"""Fair share, quotas and running limits. Computes shares and orders accounts; stores nothing."""
