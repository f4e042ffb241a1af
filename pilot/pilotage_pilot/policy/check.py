"""`pilotage-pilot check`: prints a policy's expressions and their values for a slot and a job, or for live slots."""

from __future__ import annotations

import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from pilotage import clock
from pilotage.classads.evaluation import Ad, NoValue, Result
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, parse_value
from pilotage.classads.text import new_job_ad, overlaid
from pilotage.command_line.groups import examples
from pilotage.condor.config import ConfigurationContext as ReadingSurroundings
from pilotage.condor.job_file import read_job_file
from pilotage.errors import InvalidInputError, Violation
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import NodeFacts
from pilotage_pilot.core.ads.policy_ads import unattended_slot_ad
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import Evaluated, evaluate_all
from pilotage_pilot.core.slots.layout import Layout, StaticSlot
from pilotage_pilot.node.node import identity
from pilotage_pilot.node.resources import Probe, ProbeContext, Stated
from pilotage_pilot.policy.live import print_live
from pilotage_pilot.policy.loading import load_policy

_LONGEST_NAME = 24


_PATH = click.Path(path_type=Path)


@click.command(
    epilog=examples(
        "pilotage-pilot check whole-machine.conf",
        "pilotage-pilot check whole-machine.conf --job job.ad --slot 2 --set LoadAvg=0.9 --cpus 8",
    )
)
@click.argument("policy", type=_PATH)
@click.option("--job", type=_PATH, metavar="FILE", help="The job's attributes, as condor_q -long prints them.")
@click.option("--slot", type=int, default=1, show_default=True, metavar="N", help="Number of the slot, from 1.")
@click.option("--set", "changes", multiple=True, metavar="Attr=EXPR", help="Slot attribute; repeatable.")
@click.option("--cpus", type=int, metavar="CPUS", help="Cores of the node; default: this node's.")
@click.option("--memory-mib", type=int, metavar="MIB", help="Memory of the node; default: this node's.")
@click.option("--allow-commands", is_flag=True, help="Allow the policy to run commands.")
@click.option(
    "--slots", "live", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE",
    help="Live slots, as `pilotage policy try` sends them; - = the standard input.",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object of names to texts and values.")
def check(
    policy: Path,
    job: Path | None,
    slot: int,
    changes: tuple[str, ...],
    cpus: int | None,
    memory_mib: int | None,
    allow_commands: bool,
    live: Path | None,
    as_json: bool,
) -> int:
    """Evaluate POLICY, an HTCondor configuration file, for a slot and a job."""
    if live is not None:
        print_live(policy, live, ReadingSurroundings(allow_commands=allow_commands))
        return 0
    node = _node(cpus, memory_mib)
    answers = ask(policy, slot, _changes(changes), node, job=job, allow_commands=allow_commands)
    if as_json:
        output = {name: {"text": answer.text, "value": _plain(answer.value)} for name, answer in answers.items()}
        sys.stdout.write(json.dumps(output, indent=2) + "\n")
    else:
        sys.stdout.writelines(
            f"{name:{_LONGEST_NAME}} {json.dumps(_plain(answer.value))}\n    {' '.join(answer.text.split())}\n"
            for name, answer in answers.items()
        )
    return 0


def ask(
    policy: Path,
    slot_id: int,
    changes: Mapping[str, AdValue],
    node: Amounts,
    *,
    job: Path | None = None,
    allow_commands: bool = False,
) -> dict[str, Evaluated]:
    """Return the value of each expression of the policy for the slot and the job; `job` None = without a job.

    `changes` are attributes of the slot that replace its own.

    Raises
    ------
    InvalidInputError
        When the policy, the job or a change cannot be read, or the slot does not exist.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    around = ReadingSurroundings(allow_commands=allow_commands)
    loaded = load_policy(policy, node, around)
    slot = _slot(loaded.layout, slot_id, node)
    now = Now(clock.now(), clock.boot_time_s())
    facts = NodeFacts.of(socket.gethostname(), node, loaded.layout, identity())
    slot_ad = overlaid(
        unattended_slot_ad(loaded.policy, slot, loaded.layout, facts, now, clock.utc_offset_s()), changes
    )
    new_job = new_job_ad(int(now.utc.timestamp()))
    job_ad = Ad(overlaid(new_job, read_job_file(job))) if job else None
    return evaluate_all(loaded.policy, slot.key, Ad(slot_ad), job_ad)


def _slot(layout: Layout, slot_id: int, node: Amounts) -> StaticSlot:
    try:
        return layout.slot(slot_id)
    except InvalidInputError as error:
        size = f"on a node of {node.cpus} cores; --cpus sets another size"
        violations = (Violation("--slot", f"{each.why} ({size})") for each in error.violations)
        raise InvalidInputError(*violations) from error


def _changes(texts: Sequence[str]) -> dict[str, AdValue]:
    changes: dict[str, AdValue] = {}
    for text in texts:
        name, is_assigned, value = text.partition("=")
        name = name.strip()
        if not is_assigned or not name.isidentifier():
            raise InvalidInputError(Violation(f"--set {text}", "is not of the form Attr=EXPR"))
        try:
            changes = overlaid(changes, {name: parse_value(value)})
        except InvalidClassAdError as error:
            why = "; ".join(violation.why for violation in error.violations)
            raise InvalidInputError(Violation(f"--set {text}", why)) from error
    return changes


def _node(cpus: int | None, memory_mib: int | None) -> Amounts:
    if min(cpus or 1, memory_mib or 1) < 1:
        raise InvalidInputError(Violation("--cpus, --memory-mib", "a node has at least one of each"))
    context = ProbeContext(dict(os.environ), Path.cwd())
    probe = Probe(context, queue=Stated(), operator=Stated(cpus=cpus, memory_mib=memory_mib))
    return probe.share(clock.now().timestamp(), clock.boot_time_s()).amounts


def _plain(value: Result) -> bool | int | float | str:
    if isinstance(value, NoValue):
        return str(value.value)
    return value.text if isinstance(value, Expression) else value
