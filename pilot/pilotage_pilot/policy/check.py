"""`pilotage-pilot check`: shows what a policy's expressions are, and what they come to for a slot and a job."""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pilotage import clock
from pilotage.classad_evaluation import Ad, NoValue, Result
from pilotage.classads import AdValue, Expression, InvalidClassAdError, parse_value
from pilotage.condor_config import Surroundings as ReadingSurroundings
from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage.job_file import read_job_file
from pilotage.new_job_ad import new_job_ad, overlaid
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.policy import Evaluated, evaluate_all
from pilotage_pilot.core.quiet_node import quiet_slot_ad
from pilotage_pilot.core.slot_facts import NodeFacts
from pilotage_pilot.core.slot_layout import Layout, StaticSlot
from pilotage_pilot.node.identity import identity
from pilotage_pilot.node.probe import Probe, Stated, Surroundings
from pilotage_pilot.policy.loading import load_policy

_WRONG = 2
_LONGEST_NAME = 24


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of a policy; `job` = None: no job is there."""

    policy: Path
    job: Path | None
    slot_id: int
    changes: Mapping[str, AdValue]
    node: Amounts
    allow_commands: bool = False


def add_check_command(parser: argparse.ArgumentParser) -> None:
    """Give the parser of `check` its options."""
    parser.add_argument("policy", type=Path, metavar="POLICY", help="HTCondor configuration file")
    parser.add_argument("--job", type=Path, metavar="FILE", help="the job's attributes, as condor_q -long prints them")
    parser.add_argument("--slot", type=int, default=1, metavar="N", help="number of the slot, from 1 (default: 1)")
    parser.add_argument("--set", action="append", default=[], metavar="Attr=EXPR", help="in the slot's ad; repeatable")
    parser.add_argument("--cpus", type=int, metavar="CPUS", help="cores of the node asked about, instead of this one's")
    parser.add_argument("--memory-mib", type=int, metavar="MIB", help="its memory")
    parser.add_argument("--allow-commands", action="store_true", help="let the policy's text run commands")
    parser.add_argument("--json", action="store_true", help="one JSON object: name to text and value")


def check(options: argparse.Namespace) -> int:
    """Print what is asked for; returns 0, or 2 after one line on the standard error that says what is wrong."""
    try:
        answers = ask(_question(options))
    except InvalidInputError as error:
        return _refuse("; ".join(str(violation) for violation in error.violations))
    except PilotageError as error:
        return _refuse(str(error))
    sys.stdout.write(_as_json(answers) if options.json else _as_text(answers))
    return 0


def ask(question: Question) -> dict[str, Evaluated]:
    """Return what each expression of the policy is for the slot and the job.

    Raises
    ------
    InvalidInputError
        When the policy, the job or a change cannot be read, or the slot does not exist.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    around = ReadingSurroundings(allow_commands=question.allow_commands)
    loaded = load_policy(question.policy, question.node, around)
    slot = _slot(loaded.layout, question)
    now = Moment(clock.now(), clock.boot_time_s())
    node = NodeFacts.of(socket.gethostname(), question.node, loaded.layout, identity())
    slot_ad = overlaid(quiet_slot_ad(loaded.policy, slot, loaded.layout, node, now), question.changes)
    new_job = new_job_ad(int(now.utc.timestamp()))
    job_ad = Ad(overlaid(new_job, read_job_file(question.job))) if question.job else None
    return evaluate_all(loaded.policy, slot.key, Ad(slot_ad), job_ad)


def _slot(layout: Layout, question: Question) -> StaticSlot:
    try:
        return layout.slot(question.slot_id)
    except InvalidInputError as error:
        size = f"asked about a node of {question.node.cpus} cores; --cpus says another size"
        violations = (Violation("--slot", f"{each.why} ({size})") for each in error.violations)
        raise InvalidInputError(*violations) from error


def _question(options: argparse.Namespace) -> Question:
    return Question(
        policy=options.policy,
        job=options.job,
        slot_id=options.slot,
        changes=_changes(options.set),
        node=_node(options.cpus, options.memory_mib),
        allow_commands=options.allow_commands,
    )


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
    surroundings = Surroundings(dict(os.environ), Path.cwd())
    probe = Probe(surroundings, queue=Stated(), operator=Stated(cpus=cpus, memory_mib=memory_mib))
    return probe.share(clock.now().timestamp(), clock.boot_time_s()).amounts


def _refuse(why: str) -> int:
    sys.stderr.write(f"pilotage-pilot: {' '.join(why.split())}\n")
    return _WRONG


def _as_json(answers: Mapping[str, Evaluated]) -> str:
    said = {name: {"text": answer.text, "value": _plain(answer.value)} for name, answer in answers.items()}
    return json.dumps(said, indent=2) + "\n"


def _as_text(answers: Mapping[str, Evaluated]) -> str:
    lines = (
        f"{name:{_LONGEST_NAME}} {json.dumps(_plain(answer.value))}\n    {' '.join(answer.text.split())}\n"
        for name, answer in answers.items()
    )
    return "".join(lines)


def _plain(value: Result) -> bool | int | float | str:
    if isinstance(value, NoValue):
        return str(value.value)
    return value.text if isinstance(value, Expression) else value
