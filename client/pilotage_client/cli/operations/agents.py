"""The command that shows the agents: which replica leads, what it serves, and how its cycles go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from pilotage import clock
from pilotage.v1 import agent_service_pb2
from pilotage_client.api import Client
from pilotage_client.cli.options import with_operator_client
from pilotage_client.cli.show.columns import Column, Listing, View, local_time, view_options
from pilotage_client.cli.show.operator_outputs import AgentJson
from pilotage_client.models import iso, time_of


def _name(replica: agent_service_pb2.AgentReplica) -> str:
    """Return the kind of the agent and its scope, which for queues is in the column SERVES."""
    name = replica.turn.agent
    return name.partition(" of ")[0] if replica.queues else name


def _served(replica: agent_service_pb2.AgentReplica) -> str:
    parts = [", ".join(replica.queues)]
    if replica.ce_types:
        parts.append(f"CEType {', '.join(replica.ce_types)}")
    if replica.bounds:
        parts.append(f"bound to {', '.join(replica.bounds)}")
    return "; ".join(filter(None, parts))


def _state(replica: agent_service_pb2.AgentReplica) -> str:
    return agent_service_pb2.AgentState.Name(replica.state).removeprefix("AGENT_STATE_").lower()


def _leaderless(found: Sequence[agent_service_pb2.AgentReplica]) -> list[str]:
    """Return the agents of which a replica runs or has fallen silent, and none leads."""
    leading = {each.turn.agent for each in found if each.state == agent_service_pb2.AGENT_STATE_LEADER}
    wanted = {each.turn.agent for each in found if each.state != agent_service_pb2.AGENT_STATE_ENDED}
    return sorted(wanted - leading)


def _ago(time: datetime | None, now: datetime) -> str:
    if time is None:
        return ""
    minutes = max(0, int((now - time).total_seconds() // 60))
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min ago" if hours else f"{minutes} min ago"


def _agent_json(replica: agent_service_pb2.AgentReplica) -> AgentJson:
    status = replica.status
    return {
        "agent": replica.turn.agent,
        "replica": replica.turn.holder,
        "state": _state(replica),
        "host": replica.place,
        "owner": replica.owner or None,
        "version": status.version or None,
        "queues": list(replica.queues),
        "ce_types": list(replica.ce_types),
        "bounds": list(replica.bounds),
        "since": iso(time_of(replica, "since")),
        "last_seen": iso(time_of(replica, "last_seen")),
        "last_cycle": iso(time_of(status, "last_cycle")),
        "last_success": iso(time_of(status, "last_success")),
        "failures": status.failures,
        "last_error": status.last_error or None,
        "last_error_time": iso(time_of(status, "last_error_time")),
    }


AGENTS = Listing(
    AgentJson,
    _agent_json,
    Column("name", "AGENT", value=_name, priority=0, shortest=12),
    Column("state", priority=1, state=True),
    Column("host", priority=2, shortest=12),
    Column("version", text=lambda version: version or "?", priority=7),
    Column("last_seen", priority=5),
    Column("last_cycle", text=lambda time: local_time(time) or "-", priority=3),
    Column("failures", "FAILED", text=lambda failures: str(failures or ""), priority=4),
    Column("serves", value=_served, priority=6, shortest=16),
    empty="no agent has called",
)


@click.command()
@view_options(AGENTS)
@with_operator_client
def agents(client: Client, view: View) -> None:
    """Show the agents: which replica leads, what it serves, its last cycle and its last error.

    Replicas that have ended or fallen silent are listed for some time.
    """
    found = client.agents()
    AGENTS.echo(found, view)
    if view.as_json:
        return
    now = clock.now()
    for each in found:
        if each.status.last_error and each.state != agent_service_pb2.AGENT_STATE_ENDED:
            ago = _ago(time_of(each.status, "last_error_time"), now)
            over = "" if each.status.failures else ", and it has worked since"
            click.echo(f"{_name(each)} on {each.place} failed {ago}{over}: {each.status.last_error}")
    for name in _leaderless(found):
        click.echo(f"{name} has no leader: nothing acts")


COMMANDS = (agents,)
