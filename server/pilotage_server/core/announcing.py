"""How many idle pilots are to answer when jobs have come to wait.

Rules
-----
Every job should find a pilot, and few pilots should come in vain: each idle slot that could take the jobs answers by
the same probability, so that a little more slots answer than there are jobs. Where nobody is known to be idle, all who
hear it answer.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

SPARE = 1.5
"""So many slots are called for each job: some of those that answer do not fit or come late."""

ANYWAY = 4
"""So many slots are called besides: that by chance none at all answers for a job happens once in 200 times or less."""


def answer_probability(jobs: int, idle_slots: Mapping[str, int], queues: Collection[str] | None) -> float:
    """Return by which probability an idle slot answers.

    `idle_slots` by queue; `queues` are those that can run the jobs, None = any may.
    """
    able = sum(count for queue, count in idle_slots.items() if queues is None or queue in queues)
    return 1.0 if able == 0 else min(1.0, (SPARE * jobs + ANYWAY) / able)
