"""The command that shows the agents: which replica leads, what it serves, and how its cycles go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from pilotage import clock
from pilotage_client.api import Client
from pilotage_client.cli.options import with_operator_client
from pilotage_client.cli.show.columns import Column, Listing, View, local_time, view_options
from pilotage_client.cli.show.operator_outputs import AgentJson
from pilotage_client.models.operations import AgentInfo


def _name(replica: AgentInfo) -> str:
    """Return the kind of the agent and its scope, which for queues is in the column SERVES."""
    return replica.agent.partition(" of ")[0] if replica.queues else replica.agent


def _served(replica: AgentInfo) -> str:
    parts = [", ".join(replica.queues)]
    if replica.ce_types:
        parts.append(f"CEType {', '.join(replica.ce_types)}")
    if replica.bounds:
        parts.append(f"bound to {', '.join(replica.bounds)}")
    return "; ".join(filter(None, parts))


def _leaderless(found: Sequence[AgentInfo]) -> list[str]:
    """Return the agents of which a replica runs or has fallen silent, and none leads."""
    leading = {each.agent for each in found if each.state == "leader"}
    wanted = {each.agent for each in found if each.state != "ended"}
    return sorted(wanted - leading)


def _ago(time: datetime | None, now: datetime) -> str:
    if time is None:
        return ""
    minutes = max(0, int((now - time).total_seconds() // 60))
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min ago" if hours else f"{minutes} min ago"


AGENTS = Listing(
    AgentJson,
    AgentInfo.as_json,
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
        if each.last_error and each.state != "ended":
            ago = _ago(each.last_error_time, now)
            over = "" if each.failures else ", and it has worked since"
            click.echo(f"{_name(each)} on {each.host} failed {ago}{over}: {each.last_error}")
    for name in _leaderless(found):
        click.echo(f"{name} has no leader: nothing acts")
