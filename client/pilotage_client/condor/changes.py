"""condor_rm, condor_hold and condor_release: changes of the jobs that a command line names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import click

from pilotage.classads.evaluation import Ad
from pilotage.errors import InvalidInputError, Violation
from pilotage.values.jobs import ChangeResult
from pilotage_client.api import Client
from pilotage_client.condor.arguments import ONE_QUEUE, CondorOption, done, ignored, read_arguments, refused, silent
from pilotage_client.condor.selection import ENDED_STATES, WantedJobs, read_wanted, wanted_ads
from pilotage_client.models import LIVE_STATES

CHANGE_OPTIONS: tuple[CondorOption, ...] = (
    *done("constraint:1 reason:2", 1),
    *done("all:1"),
    *ignored("name:1 pool:1 addr:2", ONE_QUEUE, 1),
    *ignored("subcode:3", "a hold by its owner has the subcode 0", 1),
    *silent("debug:1"),
    *refused("long:2 totals:2", "each command prints what it has done"),
    *refused("graceful:1 fast:2", "a payload gets SIGTERM and then SIGKILL in any case"),
)

REMOVE_OPTIONS: tuple[CondorOption, ...] = (*done("forcex:6"), *CHANGE_OPTIONS)


@dataclass(frozen=True, slots=True)
class CondorChange:
    """A change: the word for it ("hold"), the words that it was made ("held"), and the states that it suits."""

    act: Callable[[Client, Sequence[int], str], list[ChangeResult]]
    word: str
    made: str
    states: tuple[str, ...]


_NOT_HELD = tuple(state for state in LIVE_STATES if state != "HELD")
_CHANGES: Mapping[str, CondorChange] = MappingProxyType(
    {
        "condor_rm": CondorChange(Client.remove, "remove", "marked for removal", LIVE_STATES),
        "condor_hold": CondorChange(Client.hold, "hold", "held", _NOT_HELD),
        "condor_release": CondorChange(Client.release, "release", "released", ("HELD",)),
    }
)


def condor_rm(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Remove jobs; with -forcex also say so of jobs that have ended."""
    return _change("condor_rm", REMOVE_OPTIONS, words, note)


def condor_hold(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Hold jobs."""
    return _change("condor_hold", CHANGE_OPTIONS, words, note)


def condor_release(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Release held jobs."""
    return _change("condor_release", CHANGE_OPTIONS, words, note)


def _change(command: str, options: Sequence[CondorOption], words: Sequence[str], note: Callable[[str], None]) -> int:
    arguments = read_arguments(words, options, note)
    wanted = read_wanted(arguments.others, arguments.values("constraint"))
    if not wanted.is_restricted and not arguments.has("all"):
        raise InvalidInputError(Violation(command, "names no jobs; give ids, an owner, -constraint EXPR or -all"))
    with Client.located() as client:
        changer = _Changer(client, _CHANGES[command], arguments.value("reason"), is_forced=arguments.has("forcex"))
        if arguments.has("all") or not (wanted.ids or wanted.owners):
            changer.change_all(wanted, f"jobs matching constraint {wanted.constraint}" if wanted.constraint else "jobs")
        for owner in wanted.owners:
            changer.change_all(replace(wanted, ids=(), owners=(owner,)), f"jobs of user {owner}")
        for each in wanted.ids:
            one = replace(wanted, ids=(each,), owners=())
            if each.processes is None:
                changer.change_all(one, f"jobs in cluster {each.id}")
            else:
                changer.change_job(one, str(each))
    return 1 if changer.failed else 0


class _Changer:
    """Makes one kind of change and prints what HTCondor's tools print; `failed` = something was not found or refused.

    `is_forced` = jobs that have ended count as removed.
    """

    def __init__(self, client: Client, change: CondorChange, reason: str, *, is_forced: bool) -> None:
        self._client = client
        self._change = change
        self._reason = reason
        self._is_forced = is_forced
        self.failed = False

    def change_all(self, wanted: WantedJobs, what: str) -> None:
        """Change the wanted jobs that the change suits."""
        ids = self._ids(wanted, self._change.states)
        results = self._change.act(self._client, ids, self._reason) if ids else []
        if any(not each.refusal for each in results):
            click.echo(f"All {what} have been {self._change.made}")
        elif self._is_forced and self._ids(wanted, ENDED_STATES):
            click.echo(f"All {what} have been {_FORCED}")
        else:
            self._fail(f"Couldn't find/{self._change.word} all {what}")

    def change_job(self, wanted: WantedJobs, name: str) -> None:
        """Change one job."""
        ids = self._ids(wanted, ())
        results = self._change.act(self._client, ids, self._reason) if ids else []
        if not results:
            self._fail(f"Job {name} not found")
        elif not results[0].refusal:
            click.echo(f"Job {name} {self._change.made}")
        elif self._is_forced and results[0].state in ENDED_STATES:
            click.echo(f"Job {name} {_FORCED}")
        elif results[0].state in ENDED_STATES:
            self._fail(f"Job {name} not found")
        elif results[0].state == "HELD":
            self._fail(f"Job {name} already held")
        elif self._change.word == "release":
            self._fail(f"Job {name} not held to be released")
        else:
            self._fail(f"Couldn't {self._change.word} job {name}: {results[0].refusal}")

    def _ids(self, wanted: WantedJobs, states: Sequence[str]) -> list[int]:
        ads = wanted_ads(self._client, wanted, states, ("PilotageJobId",))
        return [value for ad in ads if isinstance(value := Ad.read(ad).value("PilotageJobId"), int)]

    def _fail(self, message: str) -> None:
        click.echo(message, err=True)
        self.failed = True


_FORCED = "removed locally (remote state unknown)"
