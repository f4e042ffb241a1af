"""A node's policy: HTCondor's expressions by name, for each slot, with the defaults that they append to.

Rules
-----
Texts only: configuration files are read by `pilotage_pilot.policy`, expressions mean what HTCondor's library says
(`pilotage.classad_evaluation`). What holds for one slot wins over what holds for its type, and that over the rest.
Sources: HTCondor manual, startd policy configuration; the defaults are those of its 25.x releases, but for
IS_OWNER, which recipes for whole machines take to be `START =?= False`, and for the keyboard, which policies for
machines that people sit at take to be every slot's.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.classad_evaluation import Ad, CompiledExpression, Result, compile_expression, evaluate
from pilotage.classads import InvalidClassAdError, expression_from_old_syntax
from pilotage.errors import InvalidInputError, Violation

DEFAULTS = {
    "START": "True",
    "RANK": "0.0",
    "IS_OWNER": "(START =?= False)",
    "WANT_SUSPEND": "False",
    "SUSPEND": "False",
    "CONTINUE": "True",
    "PREEMPT": "False",
    "WANT_VACATE": "True",
    "KILL": "False",
    "WANT_HOLD": "False",
    "MaxJobRetirementTime": "0",
    "MachineMaxVacateTime": "600",
    "CLAIM_WORKLIFE": "1200",
    "JOB_RENICE_INCREMENT": "0",
    "PREEMPTION_REQUIREMENTS": "False",
    "SlotWeight": "Cpus",
    "POLLING_INTERVAL": "5",
    "UPDATE_INTERVAL": "300",
}
"""Every node has these; in the order in which people read them."""

VANILLA = tuple(f"{name}_VANILLA" for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE", "PREEMPT", "WANT_VACATE", "KILL"))
"""Tried before the plain names for vanilla jobs, and used where they come to a boolean: undefined is "not said"."""

UNSAID = "undefined"

ON_REQUEST = (*VANILLA, "WANT_HOLD_REASON", "WANT_HOLD_SUBCODE", "GROUP_DYNAMIC_MACH_CONSTRAINT")
"""Part of a policy only where it defines them."""

PUBLISHING = ("STARTD_ATTRS", "STARTD_EXPRS")
"""Knobs that list what a slot's ad says besides; the second is the older name, and both count."""

SHARING = ("STARTD_SLOT_ATTRS", "STARTD_SLOT_EXPRS")
"""Knobs that list which of a slot's attributes the others' ads show."""

REMEMBERING = ("STARTD_JOB_ATTRS", "STARTD_JOB_EXPRS")
"""Knobs that list which of the running job's attributes its slot's ad shows."""

SETTABLE = "SETTABLE_ATTRS_ADMINISTRATOR"
"""The knob that lists what an operator may set from afar, where one of `REMOTE_SETTING` is on."""

REMOTE_SETTING = ("ENABLE_PERSISTENT_CONFIG", "ENABLE_RUNTIME_CONFIG")

SEATS = {"SLOTS_CONNECTED_TO_KEYBOARD": "4096", "SLOTS_CONNECTED_TO_CONSOLE": "4096"}
"""Up to which slot the people at the machine are noticed; the defaults are more slots than a node has."""

_OTHER_NAMES = {"is_owner": ("isowner",)}
_DAEMONS = {
    "preemption_requirements": "negotiator",
    "job_renice_increment": "starter",
    SETTABLE.lower(): "startd",
}
_SEPARATOR = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class SlotKey:
    """Which slot is asked about: its number and its type's, both from 1; no type = the policy lays out none."""

    slot_id: int
    type_id: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One expression of a policy for one slot and job: its text, as the configuration has it, and what it is."""

    text: str
    value: Result


@dataclass(frozen=True, slots=True)
class Policy:
    """A node's policy; `texts` are the expanded knobs by their names in lower case."""

    texts: Mapping[str, str]

    def text(self, name: str, slot: SlotKey | None = None) -> str | None:
        """Return what the knob `name` says for `slot`, None = nothing."""
        for key in _keys(name.lower(), slot):
            if key in self.texts:
                return self.texts[key]
        return DEFAULTS.get(name)

    def listed(self, knobs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names that the list knobs hold, each once, in their order."""
        members = [member for knob in knobs for member in _SEPARATOR.split(self.text(knob) or "") if member]
        return tuple({member.lower(): member for member in members}.values())

    @property
    def settable(self) -> tuple[str, ...]:
        """The attributes that an operator may set from afar."""
        return self.listed((SETTABLE,)) if any(is_yes(self.text(knob)) for knob in REMOTE_SETTING) else ()

    def expressions(self, slot: SlotKey | None = None) -> dict[str, str]:
        """Return the expressions that drive `slot`, by name."""
        found = {name: self.text(name, slot) for name in (*DEFAULTS, *ON_REQUEST)}
        return {name: text for name, text in found.items() if text is not None and not _is_unsaid(name, text)}

    def published(self, slot: SlotKey | None = None) -> dict[str, str]:
        """Return the attributes that the policy adds to `slot`'s ad; what it lists and does not define is left out."""
        found = {name: self.text(name, slot) for name in self.listed(PUBLISHING)}
        return {name: text for name, text in found.items() if text is not None}


def prologue() -> str:
    """Return configuration text with the defaults, which a policy's text comes after and may append to."""
    lines = [f"{name} = {text}" for name, text in DEFAULTS.items()]
    lines += [f"{name} = {text}" for name, text in SEATS.items()]
    lines += [f"{name} = {UNSAID}" for name in VANILLA]
    return "\n".join(lines) + "\n"


def is_yes(text: str | None) -> bool:
    """Say whether a knob that is on or off is on, as HTCondor's parser reads it."""
    return (text or "").strip().lower() in ("true", "t", "yes", "1")


def compile_text(name: str, text: str) -> CompiledExpression:
    """Return the expression that the knob `name` says; raises InvalidInputError."""
    try:
        return compile_expression(expression_from_old_syntax(text))
    except InvalidClassAdError as error:
        reason = "; ".join(violation.why for violation in error.violations)
        raise InvalidInputError(Violation(name, f"{reason}: {text}")) from error


def evaluate_all(policy: Policy, slot: SlotKey, my: Ad, target: Ad | None) -> dict[str, Evaluated]:
    """Return what each of the slot's expressions is with the slot's ad and the job's; None = there is no job.

    Raises
    ------
    InvalidInputError
        When one is no expression; the violations name every such one.
    """
    violations: list[Violation] = []
    found: dict[str, Evaluated] = {}
    for name, text in policy.expressions(slot).items():
        try:
            found[name] = Evaluated(text, evaluate(compile_text(name, text), my, target))
        except InvalidInputError as error:
            violations += error.violations
    if violations:
        raise InvalidInputError(*violations)
    return found


def _keys(name: str, slot: SlotKey | None) -> list[str]:
    names = (name, *_OTHER_NAMES.get(name, ()))
    keys: list[str] = []
    if slot is not None:
        keys += [f"slot{slot.slot_id}_{each}" for each in names]
    if slot is not None and slot.type_id is not None:
        keys += [f"slot_type_{slot.type_id}_{each}" for each in names]
    if name in _DAEMONS:
        keys.append(f"{_DAEMONS[name]}.{name}")
    return [*keys, name]


def _is_unsaid(name: str, text: str) -> bool:
    return name in VANILLA and text == UNSAID
