"""Loads a node's policy from an HTCondor configuration file, after the defaults that it may append to."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.condor_config import (
    Asked,
    Configuration,
    InvalidConfigurationError,
    Surroundings,
    read_configuration,
    read_text,
)
from pilotage.condor_text import Definition, definitions, reference_graph, spelled_references, undefined_macros
from pilotage.errors import InvalidInputError, Violation
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.policy import (
    DEFAULTS,
    ON_REQUEST,
    PUBLISHING,
    REMEMBERING,
    REMOTE_SETTING,
    SEATS,
    SETTABLE,
    SHARING,
    Policy,
    compile_text,
    prologue,
)
from pilotage_pilot.core.slot_layout import Layout, lay_out

_SIZES = ("NUM_CPUS", "MEMORY", "NUM_SLOTS")
_DAEMONS = (
    "NEGOTIATOR.PREEMPTION_REQUIREMENTS",
    "STARTER.JOB_RENICE_INCREMENT",
    f"STARTD.{SETTABLE}",
    "IsOwner",
)
_SETTINGS = ("USER_JOB_WRAPPER", SETTABLE, *REMOTE_SETTING, *SEATS)
_SLOT_TYPES = 64
_VARIANTS = r"slot\d+_|slot_type_\d+_"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy and the slots that it lays out on the node it was loaded for."""

    policy: Policy
    layout: Layout


def load_policy(
    path: Path, node: Amounts, around: Surroundings | None = None, gpu_ids: tuple[str, ...] | None = None
) -> Loaded:
    """Return the policy in the file at `path` for a node of this size; without `gpu_ids` its GPUs are numbered from 0.

    In the file $(DETECTED_CORES) and $(DETECTED_MEMORY) are the node's, and $(SLOTS_CLAIMED) is an expression that
    counts the claimed ones of its slots (they must be shown: STARTD_SLOT_ATTRS = State).

    Raises
    ------
    InvalidInputError
        When the file cannot be read, an expression in it is none, or its slots do not fit the node; the violations
        say where and why.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    around = around or Surroundings()
    counted = node.cpus + 1
    found, policy = _read(path, node, counted, around)
    layout = _laid_out(path, policy, node, gpu_ids)
    if len(layout.slots) > counted:
        found, policy = _read(path, node, len(layout.slots), around)
    _check(path, found, policy, layout)
    return Loaded(policy, layout)


def _read(path: Path, node: Amounts, slots: int, around: Surroundings) -> tuple[Configuration, Policy]:
    first = around.prologue + prologue() + _node_macros(node, slots)
    found = read_configuration(path, _asked(), replace(around, prologue=first))
    return found, Policy(found.values)


def _asked() -> Asked:
    types = range(1, _SLOT_TYPES + 1)
    layout = [knob for number in types for knob in (f"SLOT_TYPE_{number}", f"NUM_SLOTS_TYPE_{number}")]
    layout += [f"SLOT_TYPE_{number}_PARTITIONABLE" for number in types]
    lists = (*PUBLISHING, *SHARING, *REMEMBERING)
    return Asked((*DEFAULTS, *ON_REQUEST, *_DAEMONS, *_SETTINGS, *lists, *_SIZES, *layout), PUBLISHING, _VARIANTS)


def _node_macros(node: Amounts, slots: int) -> str:
    claimed = " + ".join(f'(slot{number}_State =?= "Claimed")' for number in range(1, slots + 1))
    return "".join(
        f"{name} = {value}\n"
        for name, value in (
            ("DETECTED_CORES", node.cpus),
            ("DETECTED_CPUS", node.cpus),
            ("DETECTED_PHYSICAL_CPUS", node.cpus),
            ("DETECTED_MEMORY", node.memory_mib),
            ("NUM_CPUS", node.cpus),
            ("MEMORY", node.memory_mib),
            ("SLOTS_CLAIMED", f"({claimed})"),
        )
    )


def _laid_out(path: Path, policy: Policy, node: Amounts, gpu_ids: tuple[str, ...] | None) -> Layout:
    try:
        return lay_out(policy, node, gpu_ids)
    except InvalidInputError as error:
        raise _located(path, error.violations) from error


def _check(path: Path, found: Configuration, policy: Policy, layout: Layout) -> None:
    """Raise InvalidConfigurationError unless all that any slot evaluates is an expression."""
    texts = {
        (name, text)
        for slot in (None, *(slot.key for slot in layout.slots))
        for name, text in (policy.expressions(slot) | policy.published(slot)).items()
    }
    violations: list[Violation] = []
    broken: list[str] = []
    for name, text in sorted(texts):
        try:
            compile_text(name, text)
        except InvalidInputError as error:
            violations += error.violations
            broken.append(name)
    if violations:
        said = list(definitions(read_text(path)))
        lined = (Violation(_where(path, each.where, said), f"{each.where}: {each.why}") for each in violations)
        raise _missing_macros(path, found, broken, said) or InvalidConfigurationError(*lined)


def _where(path: Path, name: str, said: Iterable[Definition]) -> str:
    """Return the file, and the line of it that last defines the knob, where no other could be meant."""
    knob = re.compile(rf"(?:(?:{_VARIANTS}|\w+\.)?){re.escape(name)}", re.IGNORECASE)
    meant = [each for each in said if knob.fullmatch(each.name)]
    is_one = len({each.name.lower() for each in meant}) == 1
    return f"{path}, line {meant[-1].line}" if is_one else str(path)


def _missing_macros(
    path: Path, found: Configuration, broken: list[str], said: list[Definition]
) -> InvalidConfigurationError | None:
    """Return the error that says which macros make the expressions `broken`, None = it is not for want of macros."""
    graph = reference_graph(said)
    spelling = spelled_references(said)
    missing = sorted({macro for name in broken for macro in undefined_macros(name, graph, found.names)})
    if not missing:
        return None
    macros = ", ".join(spelling.get(macro, macro) for macro in missing)
    why = f"{', '.join(dict.fromkeys(broken))} cannot be read: nothing defines {macros}"
    return InvalidConfigurationError(Violation(_where(path, broken[0], said), why))


def _located(path: Path, violations: Iterable[Violation]) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        *(Violation(f"{path}: {each.where}".rstrip(": "), each.why) for each in violations)
    )
