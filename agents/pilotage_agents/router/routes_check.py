"""`pilotage-agents routes check`: shows a table's routes, those left out and why, and what each says to one job."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from pilotage import clock
from pilotage.ad_text import value_text
from pilotage.classad_evaluation import CURRENT_TIME
from pilotage.classads import AdValue
from pilotage.errors import InvalidInputError, Violation
from pilotage.folding import fold
from pilotage.job_file import read_job_file
from pilotage.new_job_ad import new_job_ad, overlaid
from pilotage.route_verdicts import JobScopes
from pilotage_agents.core.failure_rate import FailureRate
from pilotage_agents.core.routes.route_copies import copy_of
from pilotage_agents.core.routes.route_table import InvalidRoutesError, Route, RouteTable
from pilotage_agents.core.routes.routing import Occupancy, Verdict, chosen, verdicts
from pilotage_agents.router.route_files import read_route_file
from pilotage_agents.router.route_targets import read_targets

_ON_ROUTE = re.compile(r"(?P<name>.+)=(?P<copies>\d+)(?:,(?P<idle>\d+)(?:,(?P<failed>\d+))?)?")


def add_check_options(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `routes check` its options."""
    parser.add_argument("table", type=Path, metavar="FILE", help="a list of ClassAds, or HTCondor configuration")
    parser.add_argument("--targets", type=Path, metavar="FILE", help="where routes go to, a TOML file")
    parser.add_argument("--job", type=Path, metavar="FILE", help="a job's attributes, as condor_q -long prints them")
    parser.add_argument(
        "--on-route",
        action="append",
        default=[],
        metavar="NAME=COPIES[,IDLE[,FAILED]]",
        help="what if a route had so many copies, so many of them idle, and so many had just failed; repeatable",
    )
    parser.add_argument(
        "--constraint", default="", metavar="EXPR", help="what every job must fulfil, where the table does not say it"
    )
    parser.add_argument("--allow-commands", action="store_true", help="let the table's text run commands")
    parser.add_argument("--json", action="store_true", help="one JSON object")


def check_routes(options: argparse.Namespace) -> int:
    """Print what is asked for; returns 0, or 1 where a route is left out or the job can go along none.

    Raises
    ------
    InvalidInputError
        When the table, the targets, the job or an option cannot be read.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    table = read_route_file(options.table, constraint=options.constraint, allow_commands=options.allow_commands)
    if options.targets is not None:
        table = table.aimed(read_targets(options.targets))
    now = clock.now()
    occupied = _occupied(options.on_route, table, now)
    job = None if options.job is None else _job(options.job, now)
    said = _Said(table) if job is None else _Said.of(table, job, occupied)
    if options.json:
        sys.stdout.write(json.dumps(_as_object(said), indent=2) + "\n")
    else:
        sys.stdout.writelines(f"{line}\n" for line in _lines(said))
    return 1 if (table.left_out if job is None else said.copied is None) else 0


@dataclass(frozen=True, slots=True)
class _Copied:
    """How a copy differs from its job: what it says otherwise or besides, as text, and what it does not say."""

    set: dict[str, str]
    removed: tuple[str, ...]

    @classmethod
    def of(cls, job: Mapping[str, AdValue], copy: Mapping[str, AdValue]) -> Self:
        """Return how `copy` differs from `job`."""
        before = {fold(name): value for name, value in job.items()}
        said = {fold(name) for name in copy}
        changed = {
            name: value_text(value)
            for name, value in copy.items()
            if fold(name) not in before or value_text(before[fold(name)]) != value_text(value)
        }
        return cls(changed, tuple(name for name in job if fold(name) not in said))


@dataclass(frozen=True, slots=True)
class _Said:
    """What a table says, and what of a job; without one `judged` is None.

    `way` None = it takes no route; `copied` None = then, or because the copy cannot be made, as `fault` says.
    """

    table: RouteTable
    judged: tuple[Verdict, ...] | None = None
    way: Route | None = None
    copied: _Copied | None = None
    fault: str | None = None

    @classmethod
    def of(cls, table: RouteTable, job: Mapping[str, AdValue], occupied: Mapping[str, Occupancy]) -> Self:
        """Return what the table says of the job with these attributes; raises InvalidClassAdError."""
        judged = verdicts(table, JobScopes.of(job), occupied)
        way = chosen(judged, round_robin=table.round_robin, turn=0)
        if way is None:
            return cls(table, judged)
        try:
            return cls(table, judged, way, _Copied.of(job, copy_of(job, way, table)))
        except InvalidRoutesError as error:
            return cls(table, judged, way, fault=str(error))


def _job(path: Path, now: datetime) -> dict[str, AdValue]:
    """Return the attributes of the job in the file, over those of a job that has just been queued."""
    now_s = int(now.timestamp())
    return overlaid({**new_job_ad(now_s), CURRENT_TIME: now_s}, read_job_file(path))


def _occupied(texts: Sequence[str], table: RouteTable, now: datetime) -> dict[str, Occupancy]:
    """Return what the options say of routes; raises InvalidInputError."""
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
            raise InvalidInputError(Violation(where, "an option before it is about the same route"))
        rate = FailureRate(route.limits.failure_rate, now).counted(failed=int(found["failed"] or 0))
        occupied[route.name] = Occupancy(int(found["copies"]), int(found["idle"] or 0), rate)
    return occupied


def _lines(told: _Said) -> Iterator[str]:
    said = {verdict.route.name: verdict for verdict in told.judged or ()}
    for route in told.table.routes:
        yield f"{route.name} -> {_goes_to(route)}"
        verdict = said.get(route.name)
        yield from (f"    {line}" for line in (_about(route) if verdict is None else _about_job(verdict)))
    for left_out in told.table.left_out:
        yield f"{left_out.name}: left out: {left_out.reason}"
    yield from _about_all(told.table) if told.judged is None else _about_way(told, told.judged)


def _about_way(told: _Said, judged: Sequence[Verdict]) -> Iterator[str]:
    if told.way is None:
        yield "The job takes no route."
        return
    others = [verdict.route.name for verdict in judged if verdict.takes_it and verdict.route is not told.way]
    in_turn = f", in turn with {', '.join(others)}" if others and told.table.round_robin else ""
    yield f"The job takes {told.way.name}{in_turn}."
    if told.fault is not None:
        yield f"    its copy cannot be made: {told.fault}"
    if told.copied is not None:
        yield from (f"    {name} = {' '.join(text.split())}" for name, text in told.copied.set.items())
        yield from (f"    without {name}" for name in told.copied.removed)


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


def _about_job(verdict: Verdict) -> Iterator[str]:
    if verdict.takes_it:
        yield "takes the job"
    yield from (f"{obstacle.kind}: {obstacle.why}" for obstacle in verdict.obstacles)


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


def _as_object(told: _Said) -> dict[str, Any]:
    table = told.table
    said = {verdict.route.name: verdict for verdict in told.judged or ()}
    answer: dict[str, Any] = {
        "routes": [_route_object(route, said.get(route.name)) for route in table.routes],
        "left_out": [asdict(left_out) for left_out in table.left_out],
        "constraint": table.constraint,
        "round_robin": table.round_robin,
        "max_jobs": table.max_jobs,
        "before": [asdict(transform) for transform in table.before],
        "after": [asdict(transform) for transform in table.after],
    }
    if told.judged is None:
        return answer
    copied = None if told.copied is None else asdict(told.copied)
    return {**answer, "taken": told.way.name if told.way else None, "copy": copied, "copy_fault": told.fault}


def _route_object(route: Route, verdict: Verdict | None) -> Mapping[str, Any]:
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
    return answer if verdict is None else {**answer, "obstacles": [asdict(each) for each in verdict.obstacles]}
