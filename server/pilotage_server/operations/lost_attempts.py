"""Attempts that were lost: the job waits again, or has failed when it was the last that it had."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pilotage_server.core.job_record import JobRecord
from pilotage_server.core.jobs import JobCause
from pilotage_server.core.leases import history, is_last
from pilotage_server.operations.job_steps import Move, steps
from pilotage_server.operations.world import World
from pilotage_server.storage.attempts import load_history
from pilotage_server.storage.engine import Unit


@dataclass(frozen=True, slots=True)
class Loss:
    """A job whose attempt was lost, and how."""

    job: JobRecord
    cause: JobCause
    reason: str


def lose(unit: Unit, world: World, losses: Sequence[Loss], *, actor: str) -> tuple[JobRecord | None, ...]:
    """Give the jobs back, or let them fail at the limit of attempts; None = somebody else has moved that one."""
    return steps(unit, world, [move_of_loss(unit, world, loss, actor) for loss in losses])


def move_of_loss(unit: Unit, world: World, loss: Loss, actor: str) -> Move:
    """Return the step of a job whose attempt was lost; what is told of the attempt is in the database already."""
    spent = {"spent_attempts": loss.job.spent_attempts + 1}
    if not is_last(loss.job.spent_attempts, world.rules.attempt_limit):
        return Move(loss.job, loss.cause, actor, loss.reason, spent)
    return Move(loss.job, JobCause.ATTEMPTS_EXHAUSTED, actor, _story(unit, loss), spent)


def _story(unit: Unit, loss: Loss) -> str:
    """Return all that happened to the job, for its owner to judge whose fault it was."""
    *before, last = load_history(unit.session, loss.job.id)
    told = last._replace(outcome=last.outcome or loss.cause.value, reason=last.reason or loss.reason)
    spent = loss.job.spent_attempts + 1
    return f"{spent} {'attempt was' if spent == 1 else 'attempts were'} lost: {history((*before, told))}"
