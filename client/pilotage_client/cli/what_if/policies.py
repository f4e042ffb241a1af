"""`pilotage policy try`: what a policy would say now on live slots, for their jobs and for jobs that wait."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import click

from pilotage.classads.evaluation import Ad
from pilotage.classads.text import ad_text, new_job_ad, overlaid
from pilotage.clock import now
from pilotage.condor.job_file import read_job_file
from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.text import count_text
from pilotage.values.jobs import ALL_OWNERS, JobCondition
from pilotage_client.api import Client
from pilotage_client.cli.options import AS_JSON, echo_json, with_operator_client
from pilotage_client.cli.selection.filters import ads_of_jobs
from pilotage_client.cli.show.explanation_outputs import TriedPolicyJson
from pilotage_client.cli.show.tables import echo_table
from pilotage_client.models.grid import SlotDetails
from pilotage_client.up.processes import program

_LONGEST_S = 300
_MOST_JOBS = 20
_JOBS_A_CALL = 1000
_TRUTHS = ("WANT_SUSPEND", "SUSPEND", "CONTINUE", "PREEMPT", "KILL")


@dataclass(frozen=True, slots=True)
class _LiveGrid:
    """Live slots, the ads of their jobs by id, and the ads of waiting jobs."""

    slots: Sequence[SlotDetails]
    running: dict[int, str]
    waiting: Sequence[str]


@click.command("try")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--slot", "nodes", multiple=True, metavar="[SITE/]NODE", help="Only the slots of this node; repeatable.")
@click.option("--where", "--constraint", default="", metavar="EXPR", help="Only slots whose ad makes this true.")
@click.option(
    "--job",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="START for this job, in place of the newest waiting ones: attributes as condor_q -long prints them.",
)
@click.option(
    "--jobs", "most_jobs", type=click.IntRange(0, _JOBS_A_CALL), default=_MOST_JOBS, show_default=True,
    help="How many of the newest waiting jobs are tried.",
)  # fmt: skip
@click.option("--allow-commands", is_flag=True, help="Allow the policy to run commands on this machine.")
@AS_JSON
@with_operator_client
def try_policy(
    client: Client,
    file: Path,
    nodes: Sequence[str],
    where: str,
    job: Path | None,
    most_jobs: int,
    allow_commands: bool,
    as_json: bool,
) -> None:
    """Show what START, SUSPEND, PREEMPT and KILL of a policy file would say now on live slots; it changes nothing."""
    slots = [
        info
        for info in client.slots(where, ads_wanted=True)
        if not nodes or info.node in nodes or f"{info.site}/{info.node}" in nodes
    ]
    if nodes and not slots:
        raise NotFoundError("slot on the node", ", ".join(nodes))
    waiting = [_job_of(job)] if job is not None else list(islice(_waiting(client), most_jobs))
    grid = _LiveGrid(slots, _running(client, slots), waiting)
    said = _evaluated(file, grid, allow_commands=allow_commands)
    if as_json:
        for info, answer in zip(slots, said, strict=True):
            echo_json(_as_json(info, answer))
        return
    _show(grid, said)


def _job_of(file: Path) -> str:
    return ad_text(overlaid(new_job_ad(int(now().timestamp())), read_job_file(file)))


def _waiting(client: Client) -> Iterable[str]:
    return client.list_ads(JobCondition(frozenset({"WAITING"}), owner=ALL_OWNERS), newest_first=True)


def _running(client: Client, slots: Sequence[SlotDetails]) -> dict[int, str]:
    """Return the ads of the jobs in these slots, as far as the caller may see them."""
    ids = sorted({info.job_id for info in slots if info.job_id})
    found: dict[int, str] = {}
    for ad in client.list_ads(ads_of_jobs(ids)) if ids else ():
        number = Ad.read(ad).value("PilotageJobId")
        if isinstance(number, int):
            found[number] = ad
    return found


def _evaluated(file: Path, grid: _LiveGrid, *, allow_commands: bool) -> list[dict[str, Any]]:
    """Return what `pilotage-pilot check` says for each slot; raises InvalidInputError with its message."""
    given = {
        "slots": [{"ad": info.ad, "job": grid.running.get(info.job_id)} for info in grid.slots],
        "jobs": list(grid.waiting),
    }
    command = [program("pilotage-pilot"), "check", str(file), "--slots", "-"]
    command += ["--allow-commands"] if allow_commands else []
    try:
        done = subprocess.run(
            command, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=_LONGEST_S
        )
    except subprocess.TimeoutExpired as error:
        why = f"its evaluation takes longer than {_LONGEST_S} s; try fewer slots or jobs (--slot, --constraint, --jobs)"
        raise WorldError(f"{file}: {why}", transient=False) from error
    if done.returncode != 0:
        lines = (line.removeprefix("pilotage-pilot: ") for line in done.stderr.strip().splitlines())
        raise InvalidInputError(*(Violation("", line) for line in [*lines] or ["it failed"]))
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def _as_json(info: SlotDetails, said: dict[str, Any]) -> TriedPolicyJson:
    return {
        "slot": info.name,
        "node": info.node,
        "site": info.site,
        "state": info.state,
        "activity": info.activity,
        "job": info.job_id or None,
        "values": said["values"],
        "jobs": len(said["starts"]),
        "starts": sum(each is True for each in said["starts"]),
        "starts_now": sum(said["starts_now"]),
    }


def _show(grid: _LiveGrid, said: Sequence[dict[str, Any]]) -> None:
    rows: list[tuple[object, ...]] = []
    for info, each in zip(grid.slots, map(_as_json, grid.slots, said), strict=True):
        truths = [_truth(each["values"][name]) if info.job_id else "" for name in _TRUTHS]
        name = f"{info.name}@{info.node}"
        rows.append((name, info.state, info.job_id or "", each["starts"], each["starts_now"], *truths))
    echo_table(("SLOT", "STATE", "JOB", "START", "NOW", *_TRUTHS), rows, empty="no slots")
    of_all = f"of {count_text(len(grid.waiting), 'job')}"
    click.echo(f"START counts the jobs that the policy would start, {of_all}; NOW those that the present one starts.")
    for node, present, laid_out in _other_layouts(grid.slots, said):
        click.echo(f"{node} has {present} slots, and the policy lays out {laid_out}: a restarted pilot has these.")


def _other_layouts(slots: Sequence[SlotDetails], said: Sequence[dict[str, Any]]) -> Iterable[tuple[str, int, int]]:
    """Yield the nodes on which the policy lays out another number of slots, with both numbers."""
    static = Counter(
        (info.node, info.pilot, each["slots"])
        for info, each in zip(slots, said, strict=True)
        if Ad.read(info.ad).value("DynamicSlot") is not True
    )
    return ((node, present, laid_out) for (node, _, laid_out), present in static.items() if present != laid_out)


def _truth(value: bool | None) -> str:
    return "-" if value is None else str(value).lower()
