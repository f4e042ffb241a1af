"""The conditions of partial indexes, as SQL.

Queries use these very texts, so that planners see that the index serves.
"""

LIVE_JOB = "state NOT IN ('DONE', 'FAILED', 'REMOVED')"
"""Jobs that keep their pool and their task queue alive."""

WAITING_JOB = "state = 'WAITING' AND lease_until IS NULL"
"""Jobs that a match may take: they wait, and no attempt of theirs lingers at a pilot."""

LEASED_JOB = "state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"
"""Jobs that hold a lease."""

LINGERING_JOB = "state IN ('WAITING', 'HELD', 'REMOVED') AND lease_until IS NOT NULL"
"""Jobs that were taken from a pilot which may be running them until then."""

HELD_JOB = "state = 'HELD'"
"""Jobs that are held."""

WATCHED_JOB = "watch > 0 AND state NOT IN ('DONE', 'FAILED', 'REMOVED')"
"""Jobs whose policies are to be looked at."""

UNREPORTED = "NOT reported"
"""Attempts that a pilot still has to answer for."""
