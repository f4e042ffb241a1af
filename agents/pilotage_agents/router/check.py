"""`pilotage-agents routes check`: shows a table's routes, those left out, and the decision of each about one job."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

import click

from pilotage import clock
from pilotage.classads.evaluation import CURRENT_TIME
from pilotage.classads.library import AdValue
from pilotage.classads.text import new_job_ad, overlaid, value_text
from pilotage.command_line.groups import examples
from pilotage.condor.job_file import read_job_file
from pilotage.errors import InvalidInputError, Violation
from pilotage.programs import ProgramExit
from pilotage.routes import JobScopes
from pilotage.text import fold
from pilotage_agents.router.core.apply import routed_ad
from pilotage_agents.router.core.failure_rate import FailureRate
from pilotage_agents.router.core.route_selection import Occupancy, RouteDecision, chosen_route, route_decisions
from pilotage_agents.router.core.table import InvalidRoutesError, Route, RouteTable
from pilotage_agents.router.table_file import read_route_file, read_targets

_ON_ROUTE = re.compile(r"(?P<name>.+)=(?P<copies>\d+)(?:,(?P<idle>\d+)(?:,(?P<failed>\d+))?)?")


_PATH = click.Path(path_type=Path)


@click.command(
    "check",
    epilog=examples(
        "pilotage-agents routes check routes.txt",
        "pilotage-agents routes check routes.txt --job job.ad --on-route Site_X=20,5",
    ),
)
@click.argument("table", type=_PATH, metavar="FILE")
@click.option("--targets", type=_PATH, metavar="FILE", help="Where routes go to, a TOML file.")
@click.option("--job", type=_PATH, metavar="FILE", help="A job's attributes, as condor_q -long prints them.")
@click.option(
    "--on-route",
    multiple=True,
    metavar="NAME=COPIES[,IDLE[,FAILED]]",
    help="Assume that a route has this many routed jobs, idle ones, and recent failures; repeatable.",
)
@click.option(
    "--constraint",
    default="",
    metavar="EXPR",
    help="What every job must fulfil, if the table does not define it.",
)
@click.option("--allow-commands", is_flag=True, help="Allow commands in the table, such as include command.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object.")
def check_routes(
    table: Path,
    targets: Path | None,
    job: Path | None,
    on_route: tuple[str, ...],
    constraint: str,
    allow_commands: bool,
    as_json: bool,
) -> int:
    """Show the routes of FILE, and which of them take a job.

    FILE is a list of ClassAds, or HTCondor configuration. Exits 1 if a route is left out or no route accepts the job.
    """
    read = read_route_file(table, constraint=constraint, allow_commands=allow_commands)
    if targets is not None:
        read = read.with_targets(read_targets(targets))
    now = clock.now()
    occupied = _occupied(on_route, read, now)
    attributes = None if job is None else _job(job, now)
    result = _CheckResult(read) if attributes is None else _CheckResult.of(read, attributes, occupied)
    if as_json:
        sys.stdout.write(json.dumps(_as_object(result), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(result))
    is_negative = read.left_out if attributes is None else result.changes is None
    return ProgramExit.FAILED if is_negative else ProgramExit.DONE


@dataclass(frozen=True, slots=True)
class _AdChanges:
    """How a routed job differs from its original: new or changed attributes, as text, and removed ones."""

    set: dict[str, str]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, job: Mapping[str, AdValue], ad: Mapping[str, AdValue]) -> Self:
        """Return how `ad` differs from `job`."""
        before = {fold(name): value for name, value in job.items()}
        present = {fold(name) for name in ad}
        changed = {
            name: value_text(value)
            for name, value in ad.items()
            if fold(name) not in before or value_text(before[fold(name)]) != value_text(value)
        }
        return cls(changed, tuple(name for name in job if fold(name) not in present))


@dataclass(frozen=True, slots=True)
class _CheckResult:
    """The result for a table, and for a job; without a job `decisions` is None.

    `way` None = no route accepts the job; `changes` None = then, or because the ad cannot be made, as `fault` says.
    """

    table: RouteTable
    decisions: tuple[RouteDecision, ...] | None = None
    way: Route | None = None
    changes: _AdChanges | None = None
    fault: str | None = None

    @classmethod
    def of(cls, table: RouteTable, job: Mapping[str, AdValue], occupied: Mapping[str, Occupancy]) -> Self:
        """Return the result for the job with these attributes; raises InvalidClassAdError."""
        decisions = route_decisions(table, JobScopes.of(job), occupied)
        way = chosen_route(decisions, round_robin=table.round_robin, turn=0)
        if way is None:
            return cls(table, decisions)
        try:
            return cls(table, decisions, way, _AdChanges.of(job, routed_ad(job, way, table)))
        except InvalidRoutesError as error:
            return cls(table, decisions, way, fault=str(error))


def _job(path: Path, now: datetime) -> dict[str, AdValue]:
    """Return the attributes of the job in the file, over those of a job that has just been queued."""
    now_s = int(now.timestamp())
    return overlaid({**new_job_ad(now_s), CURRENT_TIME: now_s}, read_job_file(path))


def _occupied(texts: Sequence[str], table: RouteTable, now: datetime) -> dict[str, Occupancy]:
    """Return the occupancy of routes by the options; raises InvalidInputError."""
    routes = {fold(route.name): route for route in table.routes}
    occupied: dict[str, Occupancy] = {}
    for text in texts:
        where, found = f"--on-route {text}", _ON_ROUTE.fullmatch(text)
        if found is None:
            raise InvalidInputError(Violation(where, "is not of the form NAME=COPIES[,IDLE[,FAILED]]"))
        route = routes.get(fold(found["name"]))
        if route is None:
            raise InvalidInputError(Violation(where, "the table has no route of this name in use"))
        if route.name in occupied:
            raise InvalidInputError(Violation(where, "the same route was given before"))
        rate = FailureRate(route.limits.failure_rate, now).counted(failed=int(found["failed"] or 0))
        occupied[route.name] = Occupancy(int(found["copies"]), int(found["idle"] or 0), rate)
    return occupied


def _lines(result: _CheckResult) -> Iterator[str]:
    decisions = {decision.route.name: decision for decision in result.decisions or ()}
    for route in result.table.routes:
        yield f"{route.name} -> {_goes_to(route)}"
        decision = decisions.get(route.name)
        yield from (f"    {line}" for line in (_about(route) if decision is None else _about_job(decision)))
    for left_out in result.table.left_out:
        yield f"{left_out.name}: left out: {left_out.reason}"
    yield from _about_all(result.table) if result.decisions is None else _about_choice(result, result.decisions)


def _about_choice(result: _CheckResult, decisions: Sequence[RouteDecision]) -> Iterator[str]:
    if result.way is None:
        yield "The job takes no route."
        return
    others = [
        decision.route.name for decision in decisions if decision.is_accepted and decision.route is not result.way
    ]
    in_turn = f", in turn with {', '.join(others)}" if others and result.table.round_robin else ""
    yield f"The job takes {result.way.name}{in_turn}."
    if result.fault is not None:
        yield f"    its routed ad cannot be made: {result.fault}"
    if result.changes is not None:
        yield from (f"    {name} = {' '.join(text.split())}" for name, text in result.changes.set.items())
        yield from (f"    without {name}" for name in result.changes.removed)


def _goes_to(route: Route) -> str:
    return str(route.target) if route.target else route.grid_resource or "no GridResource"


def _about(route: Route) -> Iterator[str]:
    limits = route.limits
    idle = "any number" if limits.max_idle_jobs is None else f"at most {limits.max_idle_jobs}"
    yield f"takes jobs if {route.requirements}" if route.requirements else "takes any job"
    yield f"at most {limits.max_jobs} copies, {idle} of them idle; throttled above {limits.failure_rate:g} failures/s"
    if route.failure_test:
        yield f"a job has failed if {route.failure_test}"
    yield from (" ".join(change.split()) for change in route.changes)
    yield from (f"note: {note}" for note in route.notes)


def _about_job(decision: RouteDecision) -> Iterator[str]:
    if decision.is_accepted:
        yield "takes the job"
    yield from (f"{obstacle.kind}: {obstacle.why}" for obstacle in decision.obstacles)


def _about_all(table: RouteTable) -> Iterator[str]:
    if table.constraint is not None:
        yield f"Every job must fulfil: {table.constraint}"
    if table.max_jobs is not None:
        yield f"All routes together have at most {table.max_jobs} copies."
    for when, transforms in (("before", table.before), ("after", table.after)):
        for transform in transforms:
            only = f" if {transform.requirements}" if transform.requirements else ""
            yield f"{transform.name}, {when} each route{only}:"
            yield from (f"    {' '.join(change.split())}" for change in transform.changes)
    how = "each in turn gets the next job" if table.round_robin else "the first gets it"
    yield f"Of several routes that take a job {how}."


def _as_object(result: _CheckResult) -> dict[str, Any]:
    table = result.table
    decisions = {decision.route.name: decision for decision in result.decisions or ()}
    answer: dict[str, Any] = {
        "routes": [_route_object(route, decisions.get(route.name)) for route in table.routes],
        "left_out": [asdict(left_out) for left_out in table.left_out],
        "constraint": table.constraint,
        "round_robin": table.round_robin,
        "max_jobs": table.max_jobs,
        "before": [asdict(transform) for transform in table.before],
        "after": [asdict(transform) for transform in table.after],
    }
    if result.decisions is None:
        return answer
    changes = None if result.changes is None else asdict(result.changes)
    return {**answer, "taken": result.way.name if result.way else None, "copy": changes, "copy_fault": result.fault}


def _route_object(route: Route, decision: RouteDecision | None) -> Mapping[str, Any]:
    answer: dict[str, Any] = {
        "name": route.name,
        "target": str(route.target) if route.target else None,
        "grid_resource": route.grid_resource,
        "requirements": route.requirements,
        "max_jobs": route.limits.max_jobs,
        "max_idle_jobs": route.limits.max_idle_jobs,
        "failure_rate": route.limits.failure_rate,
        "failure_test": route.failure_test,
        "changes": list(route.changes),
        "notes": list(route.notes),
    }
    return answer if decision is None else {**answer, "obstacles": [asdict(each) for each in decision.obstacles]}
