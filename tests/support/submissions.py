"""Builders for submissions: who calls, what he submits; say only what matters."""

from __future__ import annotations

from typing import Any

from pilotage.job_description import JobDescription
from pilotage.resources.tree import QueueId
from pilotage_server.core.identity import Identity, PilotCredential, Role


def a_user(owner: str = "alice", vo: str = "lhcb", *groups: str) -> Identity:
    """Return somebody who submits jobs."""
    return Identity(owner, vo, groups or ("users",), frozenset({Role.USER}))


def an_operator(owner: str = "olga", vo: str = "lhcb") -> Identity:
    """Return somebody who sees the jobs of all."""
    return Identity(owner, vo, ("ops",), frozenset({Role.OPERATOR}))


def a_pilot_identity(stamp: str = "p1", queue: str = "A/ce/q") -> Identity:
    """Return a pilot as the server knows it by its credential."""
    return Identity(f"pilot:{stamp}", "", (), frozenset({Role.PILOT}), PilotCredential(stamp, QueueId.parse(queue)))


def a_description(executable: str = "/bin/true", **fields: Any) -> JobDescription:
    """Return a description of a small job."""
    return JobDescription(executable, **fields)
