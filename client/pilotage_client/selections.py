"""Selections of jobs as people write them: `12`, `12.3`, `12.0-99`, `w12`, and ranges of job ids such as `12-15`.

Rules
-----
`12` is the whole cluster 12 if it has several jobs, else job 12; `12.0` is its first job alone, as in condor_q. A range
without processes has job ids. `w12` is the workflow 12. The server says which jobs a cluster or a workflow has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.values.selections import JobSelection

MOST_JOBS = 1_000_000
"""The most jobs of one range."""

_WORKFLOW = re.compile(r"w(\d{1,18})", re.ASCII)
_FORM = re.compile(r"(?P<id>\d{1,18})(?:\.(?P<process>\d{1,9}))?(?:-(?P<last>\d{1,18}))?", re.ASCII)


def read_selections(texts: Iterable[str]) -> list[JobSelection | range]:
    """Return the selections, and plain ranges of job ids; raises InvalidInputError with every fault."""
    faults, found = Faults(), list[JobSelection | range]()
    for text in texts:
        with faults.within(""):
            found.append(_selection(text))
    faults.raise_any()
    return found


def names_workflow(text: str) -> bool:
    """Whether the text has the form of a workflow, such as "w12"."""
    return _WORKFLOW.fullmatch(text) is not None


def _selection(text: str) -> JobSelection | range:
    if names_workflow(text) and int(text[1:]):
        return JobSelection(int(text[1:]), workflow=True)
    match = _FORM.fullmatch(text)
    if match is None or int(match["id"]) == 0:
        why = (
            "is not a job: give 12 for a cluster or a job, 12.3 or 12.0-99 for jobs of cluster 12, 12-15 for job ids, "
            "w12 for a workflow"
        )
        raise InvalidInputError(Violation(text, why))
    first = int(match["id"] if match["process"] is None else match["process"])
    last = int(match["last"] or first)
    if not 0 <= last - first < MOST_JOBS:
        raise InvalidInputError(Violation(text, f"is not a range of at most {MOST_JOBS} jobs"))
    if match["process"] is not None:
        return JobSelection(int(match["id"]), (first, last))
    return JobSelection(first) if match["last"] is None else range(first, last + 1)
