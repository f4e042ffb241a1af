"""Whether a job that has ended counts as a failure of its route.

Rules
-----
A route's JobFailureTest is asked of the original with the end of its copy; only what is True is a failure, so a test
that comes to nothing is a success, and so is a job without a test, whatever its exit code. As with requirements, an ad
is MY for its own test, and the job TARGET. Source: HTCondor's Job Router.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classad_evaluation import Ad, compile_expression, evaluate, is_true
from pilotage.classads import AdValue
from pilotage.route_verdicts import JobScopes
from pilotage_agents.core.copies.copy_life import Weight
from pilotage_agents.core.routes.route_table import Route
from pilotage_agents.router.route_edges import CopyStatus

_COMPLETED = 4


def ended_ad(job: Mapping[str, AdValue], status: CopyStatus) -> dict[str, AdValue]:
    """Return the original's ad with the end of its copy, and what the copy's own ad says of its run."""
    signalled = status.signal is not None
    end: dict[str, AdValue] = {"JobStatus": _COMPLETED, "ExitBySignal": signalled, "RemoteWallClockTime": status.wall_s}
    end["RemoteUserCpu"] = status.cpu_s
    if status.signal is not None:
        end["ExitSignal"] = status.signal
    elif status.exit_code is not None:
        end["ExitCode"] = status.exit_code
    if status.started is not None:
        end["JobStartDate"] = int(status.started.timestamp())
    if status.ended is not None:
        end["CompletionDate"] = int(status.ended.timestamp())
    return {**job, **end, **(status.attributes or {})}


def weight_of(route: Route | None, ended: Mapping[str, AdValue]) -> Weight:
    """Return what the end of a job, with this ad, says of its route (None = it is not there any more)."""
    if route is None or route.failure_test is None:
        return Weight.SUCCESS
    scopes = JobScopes.of(ended)
    my = scopes.my if route.own is None else Ad(route.own)
    failed = is_true(evaluate(compile_expression(route.failure_test), my, scopes.target))
    return Weight.FAILURE if failed else Weight.SUCCESS
