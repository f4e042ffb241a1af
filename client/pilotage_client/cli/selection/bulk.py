"""Changes of many jobs: what will be changed is said first, and what was changed, refused or left afterwards."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import click

from pilotage.errors import PilotageError
from pilotage.text import count_text
from pilotage.values.jobs import ChangeResult
from pilotage_client.api import Client
from pilotage_client.cli.options import echo_json
from pilotage_client.cli.selection.filters import ads_of_jobs
from pilotage_client.job_calls import runs_of

ASKED_ABOVE = 100
"""A change of more jobs is confirmed at a terminal."""

MOST_LINES = 20
"""The largest number of changed jobs, and of refusals, that are printed one by one."""

JOBS_A_CALL = 1000
"""Jobs that are changed in one call: so many may be in doubt if it fails."""

_TARGETS: Mapping[str, str] = {"remove": "REMOVED", "hold": "HELD", "release": "WAITING", "reschedule": "WAITING"}
"""The state that a change leads to: a job that is refused in this state was so already."""


def ranges(ids: Sequence[int]) -> str:
    """Return ids in the form that commands accept: "3-7 9"."""
    found = ((run.first, run.first + run.count - 1) for run in runs_of(ids))
    return " ".join(str(first) if first == last else f"{first}-{last}" for first, last in found)


def owners_text(owners: Mapping[str, int]) -> str:
    """Return whose jobs they are: the owner's name if there is only one."""
    if len(owners) == 1:
        return f"of {next(iter(owners)).partition('/')[2]}"
    return f"of {len(owners)} owners"


def is_confirmed(
    client: Client, jobs: Sequence[int], name: str, owners: Mapping[str, int] | None = None, *, yes: bool
) -> bool:
    """Say on the standard error how many jobs of whom a change touches; above `ASKED_ABOVE` a terminal is asked.

    `owners` None = they are not known yet. Returns whether to go on.
    """
    if owners is None:
        owners = client.count_jobs(ads_of_jobs(jobs), len(jobs)).owners
    click.echo(f"pilotage: {name} changes {count_text(len(jobs), 'job')} {owners_text(owners)}", err=True)
    is_asked = len(jobs) > ASKED_ABOVE and not yes and sys.stdin.isatty()
    return not is_asked or click.confirm("Go on?", err=True)


@dataclass(slots=True)
class ChangedJobs:
    """What came of a change: the results of the jobs so far."""

    name: str
    results: list[ChangeResult] = field(default_factory=list)

    @property
    def refusals(self) -> list[str]:
        """The reasons why jobs were not changed, without those that were so already."""
        return [each.refusal for each in self.results if each.refusal and not self._was_so(each)]

    @property
    def summary(self) -> str:
        """How many jobs were changed, were so already, and were refused."""
        already = sum(map(self._was_so, self.results))
        changed = sum(not each.refusal for each in self.results)
        parts = [f"{changed:,} changed"]
        parts += [f"{already:,} {'was' if already == 1 else 'were'} {_TARGETS[self.name]} already"] if already else []
        parts += [f"{len(self.refusals):,} refused"] if self.refusals else []
        return f"{self.name}: {', '.join(parts)}"

    def _was_so(self, result: ChangeResult) -> bool:
        return bool(result.refusal) and result.state == _TARGETS[self.name]


def change_all(name: str, jobs: Sequence[int], act: Callable[[Sequence[int]], list[ChangeResult]]) -> ChangedJobs:
    """Change jobs, call by call. If it stops, it says on the standard error what is done and how to go on."""
    changed = ChangedJobs(name)
    try:
        for start in range(0, len(jobs), JOBS_A_CALL):
            changed.results += act(jobs[start : start + JOBS_A_CALL])
    except (PilotageError, KeyboardInterrupt):
        if len(jobs) > 1:
            done = len(changed.results)
            doubtful = min(JOBS_A_CALL, len(jobs) - done)
            left = f"of {doubtful:,} it is not known, and {len(jobs) - done - doubtful:,} are as they were"
            click.echo(f"pilotage: {name} stopped: {done:,} of {len(jobs):,} jobs are done; {left}", err=True)
            click.echo(f"pilotage: the same command again changes the others; they are {ranges(jobs[done:])}", err=True)
        raise
    return changed


def show_changes(changed: ChangedJobs, *, as_json: bool) -> None:
    """Print the state of each changed job, of many in one line for each state, each refusal, and then a summary."""
    results = changed.results
    if as_json:
        for result in results:
            echo_json({"id": result.job_id, "state": result.state, "refusal": result.refusal or None})
        return
    ids_of: dict[str, list[int]] = {}
    refused = [result for result in results if result.refusal]
    for result in refused[:MOST_LINES]:
        click.echo(f"pilotage: {result.refusal}", err=True)
    if len(refused) > MOST_LINES:
        click.echo(f"pilotage: {len(refused) - MOST_LINES:,} more were refused; --json shows each", err=True)
    for result in results:
        if result.refusal:
            continue
        if len(results) <= MOST_LINES:
            click.echo(f"job {result.job_id} is {result.state}")
        else:
            ids_of.setdefault(result.state, []).append(result.job_id)
    for state, ids in ids_of.items():
        click.echo(f"{count_text(len(ids), 'job')} {'is' if len(ids) == 1 else 'are'} {state}: {ranges(ids)}")
    if refused and len(results) > 1:
        click.echo(f"pilotage: {changed.summary}", err=True)
