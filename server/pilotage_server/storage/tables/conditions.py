"""The conditions of partial indexes, as SQL.

Queries use these very texts, so that planners see that the index serves. A database looks at a condition again
whenever a column in it is written: those that a job's every step would touch are few, and say first what is cheap.
"""

LIVE_JOB = "ended IS NULL"
"""Jobs in a state that is not final: they keep their pool and their task queue alive."""

WAITING_JOB = "state = 'WAITING' AND lease_until IS NULL"
"""Jobs that a match may take: they wait, and no attempt of theirs lingers at a pilot."""

TIMED_JOB = "lease_until IS NOT NULL"
"""Jobs that hold a lease or linger."""

LEASED_JOB = "lease_until IS NOT NULL AND state IN ('MATCHED', 'RUNNING', 'SUSPENDED', 'COMPLETING')"
"""Jobs that hold a lease; the index on TIMED_JOB serves."""

LINGERING_JOB = "lease_until IS NOT NULL AND state IN ('WAITING', 'HELD', 'REMOVED', 'DONE')"
"""Jobs that were taken from a pilot which may be running them until then; the index on TIMED_JOB serves."""

HELD_JOB = "hold_code IS NOT NULL"
"""Jobs that are held."""

WATCHED_JOB = "watch > 0 AND ended IS NULL"
"""Jobs whose policies are to be looked at."""

RACING_JOB = "race > 0"
"""Jobs that take part in a race, or took part as copies."""

LIVE_REPEATABLE_JOB = "race_set > 0 AND ended IS NULL"
"""Jobs that may be repeated and have not ended."""

OPEN_RACE = "ended IS NULL"
"""Races that go on."""

ENDED_JOB = "ended IS NOT NULL"
"""Jobs in a final state."""

UNREPORTED = "NOT reported"
"""Attempts that a pilot still has to answer for."""

TAKEN = "reported IS FALSE AND ended IS NOT NULL"
"""Attempts that were taken from a pilot which still has to answer for them.

It does not say NOT reported, so that no planner takes the index of all unreported ones for these few.
"""

EMPTY = "came_back_empty"
"""Pilots that never ran a job and ended for want of work or of time, or because their batch system ended them."""
