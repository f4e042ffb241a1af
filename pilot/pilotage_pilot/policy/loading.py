"""Loads a node's policy from an HTCondor configuration file, and reloads it on request.

The defaults are read before the file, so that the file may append to them.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from pilotage.condor.config import (
    Configuration,
    ConfigurationContext,
    InvalidConfigurationError,
    KnobRequest,
    read_configuration,
    read_text,
)
from pilotage.condor.text import Definition, definitions, reference_graph, spelled_references, undefined_macros
from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage.job_description import Value
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.events import PolicyRefused, PolicyReloaded
from pilotage_pilot.core.policy import (
    CONSOLE_SLOTS,
    DEFAULTS,
    JOB_ATTRIBUTES,
    ON_REQUEST,
    PUBLISHED_ATTRIBUTES,
    REMOTE_SETTING,
    SETTABLE,
    SHARED_ATTRIBUTES,
    Policy,
    compile_text,
    prologue,
)
from pilotage_pilot.core.slots.layout import Layout, lay_out, layout_change

_SIZES = ("NUM_CPUS", "MEMORY", "NUM_SLOTS")
_DAEMONS = (
    "NEGOTIATOR.PREEMPTION_REQUIREMENTS",
    "STARTER.JOB_RENICE_INCREMENT",
    f"STARTD.{SETTABLE}",
    "IsOwner",
)
_SETTINGS = ("USER_JOB_WRAPPER", SETTABLE, *REMOTE_SETTING, *CONSOLE_SLOTS)
_INDISPENSABLE = ("START", "SUSPEND", "CONTINUE", "PREEMPT", "KILL", "WANT_SUSPEND", "WANT_VACATE")
"""Expressions that may not be empty: HTCondor's startd does not run without them."""

_SLOT_TYPES = 64
_LAYOUT = tuple(
    knob.format(number)
    for number in range(1, _SLOT_TYPES + 1)
    for knob in ("SLOT_TYPE_{}", "NUM_SLOTS_TYPE_{}", "SLOT_TYPE_{}_PARTITIONABLE")
)
_VARIANTS = r"slot\d+_|slot_type_\d+_"


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy and its layout on the node."""

    policy: Policy
    layout: Layout


def load_policy(
    path: Path, node: Amounts, context: ConfigurationContext | None = None, gpu_ids: tuple[str, ...] | None = None
) -> Loaded:
    """Return the policy in the file at `path` for a node of this size; without `gpu_ids` its GPUs are numbered from 0.

    $(DETECTED_CORES) and $(DETECTED_MEMORY) are the node's. $(SLOTS_CLAIMED) is an expression that counts its claimed
    slots; it needs STARTD_SLOT_ATTRS = State.

    Raises
    ------
    InvalidInputError
        When the file cannot be read, an expression is invalid, or the slots do not fit the node; the violations say
        where and why.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    context = context or ConfigurationContext()
    counted = node.cpus + 1
    found, policy = _read(path, node, counted, context)
    _check_empty(path, found, policy)
    layout = _laid_out(path, found, policy, node, gpu_ids)
    if len(layout.slots) > counted:
        found, policy = _read(path, node, len(layout.slots), context)
    _check(path, found, policy, layout)
    return Loaded(policy, layout)


def _read(path: Path, node: Amounts, slots: int, context: ConfigurationContext) -> tuple[Configuration, Policy]:
    first = context.prologue + prologue() + _node_macros(node, slots)
    lists = (*PUBLISHED_ATTRIBUTES, *SHARED_ATTRIBUTES, *JOB_ATTRIBUTES)
    found = read_configuration(
        path,
        KnobRequest(
            (*DEFAULTS, *ON_REQUEST, *_DAEMONS, *_SETTINGS, *lists, *_SIZES, *_LAYOUT), PUBLISHED_ATTRIBUTES, _VARIANTS
        ),
        replace(context, prologue=first),
    )
    return found, Policy(found.values)


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


def _check_empty(path: Path, found: Configuration, policy: Policy) -> None:
    """Raise InvalidConfigurationError for a knob that must have a text, or that lost it by an undefined macro."""
    defined = list(definitions(read_text(path)))
    names = (*DEFAULTS, *ON_REQUEST, "IsOwner", *_SIZES, *_LAYOUT, *policy.listed(PUBLISHED_ATTRIBUTES))
    knob = re.compile(rf"(?:{_VARIANTS}|\w+\.)?(?:{'|'.join(map(re.escape, names))})", re.IGNORECASE)
    emptied = {each.name: each for each in defined if each.name.lower() in found.emptied and knob.fullmatch(each.name)}
    missing = _missing_macros(path, found, list(emptied), defined)
    if missing is not None:
        raise missing
    for name in _INDISPENSABLE:
        if found.get(name) is None:
            why = f"{name} is empty: it must be an expression, such as {DEFAULTS[name]}"
            raise InvalidConfigurationError(Violation(_where(path, name, defined), why))


def _laid_out(
    path: Path, found: Configuration, policy: Policy, node: Amounts, gpu_ids: tuple[str, ...] | None
) -> Layout:
    try:
        return lay_out(policy, node, gpu_ids)
    except InvalidInputError as error:
        defined = list(definitions(read_text(path)))
        knobs = [each.where for each in error.violations if each.where]
        located = (
            Violation(_where(path, each.where, defined), f"{each.where}: {each.why}".removeprefix(": "))
            for each in error.violations
        )
        raise _missing_macros(path, found, knobs, defined) or InvalidConfigurationError(*located) from error


def _check(path: Path, found: Configuration, policy: Policy, layout: Layout) -> None:
    """Raise InvalidConfigurationError if an expression of any slot is invalid."""
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
        defined = list(definitions(read_text(path)))
        located = (Violation(_where(path, each.where, defined), f"{each.where}: {each.why}") for each in violations)
        raise _missing_macros(path, found, broken, defined) or InvalidConfigurationError(*located)


def _where(path: Path, name: str, defined: Iterable[Definition]) -> str:
    """Return the file, with the line of the knob's last definition if it is unambiguous."""
    knob = re.compile(rf"(?:(?:{_VARIANTS}|\w+\.)?){re.escape(name)}", re.IGNORECASE)
    meant = [each for each in defined if knob.fullmatch(each.name)]
    is_one = len({each.name.lower() for each in meant}) == 1
    return f"{path}, line {meant[-1].line}" if is_one else str(path)


def _missing_macros(
    path: Path, found: Configuration, broken: list[str], defined: list[Definition]
) -> InvalidConfigurationError | None:
    """Return the error that names the undefined macros of the `broken` expressions; None = there are none."""
    graph = reference_graph(defined)
    spelling = spelled_references(defined)
    missing = sorted({macro for name in broken for macro in undefined_macros(name, graph, found.names)})
    if not missing:
        return None
    macros = ", ".join(spelling.get(macro, macro) for macro in missing)
    why = f"{', '.join(dict.fromkeys(broken))} cannot be read: nothing defines {macros}"
    return InvalidConfigurationError(Violation(_where(path, broken[0], defined), why))


log = structlog.get_logger()

_WRAPPER = "USER_JOB_WRAPPER"


@dataclass(frozen=True, slots=True)
class PolicySource:
    """The file of a policy and the node that it is for; `allow_commands` = it may run commands."""

    path: Path
    node: Amounts
    gpu_ids: tuple[str, ...] = ()
    allow_commands: bool = False

    def load(self) -> tuple[Loaded, Path | None]:
        """Return the policy and its job wrapper (None = none); raises as `load_policy`."""
        context = ConfigurationContext(allow_commands=self.allow_commands)
        loaded = load_policy(self.path, self.node, context, self.gpu_ids)
        return loaded, job_wrapper(loaded.policy, self.path)


class PolicyKeeper:
    """Holds the active policy; raises as `load_policy` if the first one cannot be loaded."""

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._loaded, self.wrapper = source.load()
        self._fault: str | None = None

    @property
    def policy(self) -> Policy:
        """The active policy."""
        return self._loaded.policy

    @property
    def layout(self) -> Layout:
        """The slots of the node; a restart of the pilot is needed to change them."""
        return self._loaded.layout

    def attributes(self) -> dict[str, Value]:
        """Return the node's attributes about the policy."""
        attributes: dict[str, Value] = {"Policy": str(self._source.path)}
        return attributes | ({"PolicyFault": self._fault} if self._fault is not None else {})

    async def reload(self) -> PolicyReloaded | PolicyRefused:
        """Reload the policy; one that cannot be loaded changes nothing."""
        try:
            found, wrapper = await asyncio.to_thread(self._source.load)
        except PilotageError as error:
            self._fault = str(error)
            return PolicyRefused(self._fault)
        self._fault = layout_change(self.layout, found.layout)
        if self._fault is not None:
            log.warning("slots not changed", why=self._fault)
        self._loaded = Loaded(found.policy, self.layout)
        self.wrapper = wrapper
        return PolicyReloaded(found.policy)


def job_wrapper(policy: Policy, path: Path) -> Path | None:
    """Return the job wrapper of the policy in the file at `path`; None = none.

    Raises
    ------
    InvalidInputError
        When the pilot cannot run it.
    """
    text = (policy.text(_WRAPPER) or "").strip()
    if not text:
        return None
    wrapper = Path(text)
    if not wrapper.is_absolute():
        raise _unfit(path, f"{text} is no absolute path")
    if not wrapper.is_file():
        raise _unfit(path, f"there is no file {text}")
    if not os.access(wrapper, os.R_OK | os.X_OK):
        raise _unfit(path, f"{text} may not be read and executed by the pilot")
    return wrapper


def _unfit(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(Violation(f"{path}: {_WRAPPER}", why))
