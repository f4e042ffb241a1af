"""The command that shows the agents: which replica leads, what it serves, and how its cycles go."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

import click

from pilotage import clock
from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, echo_json, echo_table, time_text, with_operator_client
from pilotage_client.models.operations import AgentInfo

_AGENT_HEADINGS = ("AGENT", "STATE", "HOST", "VERSION", "LAST SEEN", "LAST CYCLE", "FAILED", "SERVES")


@click.command()
@AS_JSON
@with_operator_client
def agents(client: Client, as_json: bool) -> None:
    """Show the agents: which replica leads, what it serves, its last cycle and its last error.

    Replicas that have ended or fallen silent are listed for some time.
    """
    found = client.agents()
    if as_json:
        for each in found:
            echo_json(each.as_json())
        return
    echo_table(_AGENT_HEADINGS, map(_agent_row, found), empty="no agent has called")
    now = clock.now()
    for each in found:
        if each.last_error and each.state != "ended":
            ago = _ago(each.last_error_time, now)
            over = "" if each.failures else ", and it has worked since"
            click.echo(f"{_name(each)} on {each.host} failed {ago}{over}: {each.last_error}")
    for name in _leaderless(found):
        click.echo(f"{name} has no leader: nothing acts")


def _agent_row(replica: AgentInfo) -> Sequence[object]:
    return (
        _name(replica),
        replica.state,
        replica.host,
        replica.version or "?",
        time_text(replica.last_seen),
        time_text(replica.last_cycle) or "-",
        replica.failures or "",
        _served(replica),
    )


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
