"""The Python API: one `Client` for everything that users and operators do."""

from __future__ import annotations

from pilotage_client.grid_calls import GridCalls
from pilotage_client.job_calls import JobCalls
from pilotage_client.operator_calls import OperatorCalls
from pilotage_client.race_calls import RaceCalls
from pilotage_client.route_calls import RouteCalls


class Client(JobCalls, GridCalls, RaceCalls, RouteCalls, OperatorCalls):
    """A connection to a server in the name of one token; errors are `pilotage.errors`."""
