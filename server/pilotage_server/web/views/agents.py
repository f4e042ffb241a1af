"""The agents: which replica leads, and what its last cycle did."""

from __future__ import annotations

from pilotage.v1 import agent_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit

_KINDS = {"LEADER": "good", "STANDBY": "wait", "SILENT": "bad", "ENDED": "off"}
"""The kind of each state of a replica, which has a colour."""


async def collect_agents(visit: Visit) -> Shown:
    """Return the replicas, and the names of the agents without a leader."""
    found = await visit.calls("AgentService/ListAgents", agent_service_pb2.ListAgentsRequest())
    replicas = [(each, _state(each)) for each in found.replicas]
    leading = {each.turn.agent for each, state in replicas if state == "LEADER"}
    wanted = {each.turn.agent for each, state in replicas if state != "ENDED"}
    return {"replicas": replicas, "leaderless": sorted(wanted - leading), "kinds": _KINDS}


def _state(replica: agent_service_pb2.AgentReplica) -> str:
    return agent_service_pb2.AgentState.Name(replica.state).removeprefix("AGENT_STATE_")


AGENTS = PageView("/agents", "Agents", ("AgentService/ListAgents",), "agents.html", collect_agents)
