"""Search of jobs by a condition, such as all that failed on a node since a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pilotage.errors import InvalidInputError
from pilotage.values.jobs import JobCondition
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.conditions import condition_faults
from pilotage_server.core.resources.bans import TreeNode, find_node
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.jobs import search_jobs as stored_search

MOST_FOUND = 1_000_000
"""The most jobs that a search returns."""


@dataclass(frozen=True, slots=True)
class JobsFound:
    """Runs of ids in their order; `more` = there are jobs that are not among them."""

    runs: tuple[range, ...]
    more: bool


def checked_condition(state: ServerState, identity: Identity, condition: JobCondition) -> JobCondition:
    """Return the condition with names in the spelling of the tree, and with the owner if the caller is a user.

    Raises
    ------
    InvalidInputError
        The condition contradicts itself, or would need all jobs to be read.
    """
    if not identity.sees_everything:
        condition = replace(condition, owner=condition.owner or identity.owner)
    faults = list(condition_faults(condition))
    if faults:
        raise InvalidInputError(*faults)
    if not condition.site:
        return condition
    wanted = TreeNode(condition.site, condition.ce or None, condition.queue or None)
    try:
        found = find_node(state.tree.queues, wanted)
    except InvalidInputError:  # jobs may have run at a place that is no longer in the tree
        return condition
    return replace(condition, site=found.site, ce=found.ce or "", queue=found.queue or "")


def search_jobs(transaction: Transaction, state: ServerState, identity: Identity, condition: JobCondition) -> JobsFound:
    """Return the jobs that meet the condition and that the caller may change; raises as `checked_condition`."""
    vo = None
    if not identity.sees_everything:
        if condition.owner not in ("", identity.owner):
            return JobsFound((), more=False)
        vo = identity.vo
    ids = stored_search(transaction.session, checked_condition(state, identity, condition), vo, MOST_FOUND + 1)
    return JobsFound(tuple(_runs(ids[:MOST_FOUND])), len(ids) > MOST_FOUND)


def _runs(ids: Sequence[int]) -> list[range]:
    runs: list[range] = []
    for job_id in ids:
        if runs and runs[-1].stop == job_id:
            runs[-1] = range(runs[-1].start, job_id + 1)
        else:
            runs.append(range(job_id, job_id + 1))
    return runs
