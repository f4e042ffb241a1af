"""The page of hold codes and reasons of failure, made from the enums."""

from __future__ import annotations

from pilotage.values.attempts import Outcome
from pilotage_server.core.attempts.leases import ENDS
from pilotage_server.core.jobs.states import TRANSITIONS, HoldCode, JobCause, JobState, hold_name
from support.reference.markdown import code, member_rows, table

_HEAD = """# Hold codes and reasons of failure

On this page you find why jobs are held or fail, by code. `make reference` writes it from the enums of the server.

## Hold codes

The codes are HTCondor's, with its numbers: `HoldReasonCode` in the ad of a held job, `LastHoldReasonCode` after its
release, and the names in `NumHoldsByReason`. `HoldReasonSubCode` and `HoldReason` say more; `pilotage why` shows
the reason.
"""

_FAILED = """## Why a job is FAILED

The event that ends the job has the cause; its `reason` is a text such as `exit code 3`, `signal 9` or `limit
exceeded: …`.
"""

_ATTEMPTS = """## Outcomes of attempts

The outcome of an attempt is what its pilot has reported, or the cause by which the server ended the attempt (`lease
lost`, `removed`, `held`, …). A lost attempt counts towards `attempt_limit`. What follows is a
[cause](job-states.md#causes).
"""


def page() -> str:
    """Return the text of the page."""
    codes = [(str(each.value), hold_name(each.value), text) for each, text in member_rows(HoldCode)]
    fatal = {cause for (_, cause), state in TRANSITIONS.items() if state is JobState.FAILED}
    causes = [(code(cause.value), text) for cause, text in member_rows(JobCause) if cause in fatal]
    return "\n".join(
        [
            _HEAD,
            *table(("code", "name", "means"), codes),
            _FAILED,
            *table(("cause", "means"), causes),
            _ATTEMPTS,
            *table(("outcome", "means", "what follows", "counts as lost"), map(_outcome, member_rows(Outcome))),
        ]
    )


def _outcome(row: tuple[Outcome, str]) -> tuple[str, ...]:
    outcome, text = row
    if outcome is Outcome.EXITED:
        follows, is_lost = code(JobCause.DONE, JobCause.FAILED, JobCause.RETRIED, JobCause.HELD), False
    else:
        cause, is_lost = ENDS[outcome]
        more = (JobCause.HELD,) if outcome is Outcome.EVICTED else ()
        follows = code(cause, *more)
    return code(outcome.value), text, follows, "yes" if is_lost else "no"
