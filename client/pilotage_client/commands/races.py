"""The command about races: copies of jobs that run on other sites, for the first good result to win."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import click

from pilotage.v1 import jobs_pb2, race_service_pb2
from pilotage_client.api import Client
from pilotage_client.running import AS_JSON, echo_json, echo_table, job_ids, moment, with_client
from pilotage_client.statuses import iso, state_name, time_of

_HEADINGS = ("JOB", "RACER", "STATE", "WHERE", "BEGAN", "ENDED", "WINNER", "LOST h", "WHY")
_COSTS = ("ACCOUNT", "RACES", "WON BY COPIES", "LOST h")


@click.command()
@click.argument("ids", nargs=-1, metavar="[ID...]")
@click.option("--open", "open_only", is_flag=True, help="Only those that go on.")
@click.option("--owner", default="", help='Only this owner\'s; "*" = all that you may see. Default: your own.')
@click.option("--costs", is_flag=True, help="What the races that have ended have cost, by account.")
@AS_JSON
@with_client
def races(client: Client, ids: Sequence[str], open_only: bool, owner: str, costs: bool, as_json: bool) -> None:
    """Show races of copies of jobs: of the named originals, or of yours."""
    if costs:
        _show_costs(client.race_costs(owner=owner), as_json=as_json)
        return
    # who names jobs means these, whosever they are
    found = client.races(job_ids(ids), owner=owner or ("*" if ids else ""), open_only=open_only)
    if as_json:
        for race in found:
            echo_json(_json(race))
        return
    echo_table(_HEADINGS, (row for race in found for row in _rows(race)), empty="no races")


def _rows(race: race_service_pb2.Race) -> Iterator[Sequence[object]]:
    """Yield a row for the original, and one for each copy."""
    job = race.original
    yield (
        job.id,
        "the job itself",
        state_name(job.state),
        _where(job),
        moment(time_of(race, "began")),
        moment(time_of(race, "ended")) or "-",
        race.winner or "-",
        f"{race.lost_core_s / 3600:.2f}",
        race.outcome or race.reason,
    )
    for copy in race.copies:
        times = (moment(time_of(copy, "started")) or "-", moment(time_of(copy, "ended")) or "-")
        yield ("", f"copy {copy.id}", state_name(copy.state), _where(copy), *times, "", "", copy.reason)


def _where(job: jobs_pb2.Job) -> str:
    return f"{job.queue.site}/{job.queue.ce}/{job.queue.queue}" if job.HasField("queue") else "-"


def _json(race: race_service_pb2.Race) -> dict[str, Any]:
    return {
        "job": race.original.id,
        "state": state_name(race.original.state),
        "site": race.original.queue.site or None,
        "owner": race.original.owner,
        "vo": race.original.vo,
        "reason": race.reason,
        "began": iso(time_of(race, "began")),
        "ended": iso(time_of(race, "ended")),
        "winner": race.winner or None,
        "outcome": race.outcome or None,
        "lost_core_s": race.lost_core_s,
        "copies": [_copy_json(copy) for copy in race.copies],
    }


def _copy_json(copy: jobs_pb2.Job) -> dict[str, Any]:
    return {
        "id": copy.id,
        "state": state_name(copy.state),
        "site": copy.queue.site or None,
        "reason": copy.reason or None,
        "submitted": iso(time_of(copy, "submitted")),
        "started": iso(time_of(copy, "started")),
        "ended": iso(time_of(copy, "ended")),
    }


def _show_costs(found: Sequence[race_service_pb2.RaceCost], *, as_json: bool) -> None:
    if as_json:
        for cost in found:
            account = cost.account
            whose = {"vo": account.vo, "group": account.group, "owner": account.owner}
            echo_json(
                {**whose, "races": cost.races, "won_by_copies": cost.won_by_copies, "lost_core_s": cost.lost_core_s}
            )
        return
    rows = (
        (
            f"{cost.account.vo}/{cost.account.group}/{cost.account.owner}",
            cost.races,
            cost.won_by_copies,
            f"{cost.lost_core_s / 3600:.2f}",
        )
        for cost in found
    )
    echo_table(_COSTS, rows, empty="no race has ended")
