"""A node's policy: HTCondor's expressions by name for each slot, their defaults, and their evaluation.

Rules
-----
A policy holds texts only: `pilotage_pilot.policy` reads the files, `pilotage.classads.evaluation` gives the meaning.
A value for one slot wins over one for its type, and that over the general one.
Only the boolean True is true and only False is false: undefined, errors, numbers and strings are neither. For vanilla
jobs the `_VANILLA` variant is evaluated first and counts if it is a boolean. An operator's value replaces the policy's.
Sources: HTCondor manual, startd policy configuration. The defaults are those of its 25.x releases, except IS_OWNER
(`START =?= False`, as recipes for whole machines assume) and the keyboard (connected to every slot).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage.classads.evaluation import (
    CURRENT_TIME,
    Ad,
    CompiledExpression,
    NoValue,
    Result,
    compile_expression,
    evaluate,
)
from pilotage.classads.library import Expression, InvalidClassAdError, expression_from_old_syntax
from pilotage.classads.references import references
from pilotage.classads.tokens import calls, with_time_from
from pilotage.errors import InvalidInputError, Violation
from pilotage.text import fold, folded_set

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
"""The expressions of every node, in reading order."""

VANILLA = tuple(f"{name}_VANILLA" for name in ("WANT_SUSPEND", "SUSPEND", "CONTINUE", "PREEMPT", "WANT_VACATE", "KILL"))
"""Evaluated first for vanilla jobs, and used if they are booleans; undefined by default."""

UNDEFINED = "undefined"

CPU_BUSY = "CpuBusy"
"""The expression whose value and duration a slot's ad shows as CpuBusyValue and CpuBusyTime."""

ON_REQUEST = (*VANILLA, CPU_BUSY, "WANT_HOLD_REASON", "WANT_HOLD_SUBCODE", "GROUP_DYNAMIC_MACH_CONSTRAINT")
"""Expressions without a default."""

PUBLISHED_ATTRIBUTES = ("STARTD_ATTRS", "STARTD_EXPRS")
"""Knobs that list additional attributes of a slot's ad; the second is an old name, both count."""

SHARED_ATTRIBUTES = ("STARTD_SLOT_ATTRS", "STARTD_SLOT_EXPRS")
"""Knobs that list the attributes which slots show in each other's ads."""

JOB_ATTRIBUTES = ("STARTD_JOB_ATTRS", "STARTD_JOB_EXPRS")
"""Knobs that list the job's attributes which its slot's ad shows."""

SETTABLE = "SETTABLE_ATTRS_ADMINISTRATOR"
"""The knob that lists what an operator may set remotely, if one of `REMOTE_SETTING` is on."""

REMOTE_SETTING = ("ENABLE_PERSISTENT_CONFIG", "ENABLE_RUNTIME_CONFIG")

CONSOLE_SLOTS = {"SLOTS_CONNECTED_TO_KEYBOARD": "4096", "SLOTS_CONNECTED_TO_CONSOLE": "4096"}
"""The number of slots with keyboard and console; the defaults exceed any node."""

_OTHER_NAMES = {"is_owner": ("isowner",)}
_DAEMONS = {
    "preemption_requirements": "negotiator",
    "job_renice_increment": "starter",
    SETTABLE.lower(): "startd",
}
_SEPARATOR = re.compile(r"[\s,]+")


@dataclass(frozen=True, slots=True)
class SlotKey:
    """A slot's number and the number of its type, both from 1; no type = not laid out by the policy."""

    slot_id: int
    type_id: int | None = None


@dataclass(frozen=True, slots=True)
class Evaluated:
    """One expression of a policy for one slot and job: its text in the configuration, and its value."""

    text: str
    value: Result


@dataclass(frozen=True, slots=True)
class Policy:
    """A node's policy; `texts` are the expanded knobs by their names in lower case."""

    texts: Mapping[str, str]

    def text(self, name: str, slot: SlotKey | None = None) -> str | None:
        """Return the text of the knob `name` for `slot`, None = undefined."""
        for key in _keys(name.lower(), slot):
            if key in self.texts:
                return self.texts[key]
        return DEFAULTS.get(name)

    def listed(self, knobs: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names in the list knobs, in order, without duplicates."""
        members = [member for knob in knobs for member in _SEPARATOR.split(self.text(knob) or "") if member]
        return tuple({member.lower(): member for member in members}.values())

    @property
    def settable(self) -> tuple[str, ...]:
        """The attributes that an operator may set remotely."""
        return self.listed((SETTABLE,)) if any(is_yes(self.text(knob)) for knob in REMOTE_SETTING) else ()

    def mentions(self, attribute: str) -> bool:
        """Whether any of its texts contains the name of an attribute."""
        return any(attribute.lower() in text.lower() for text in self.texts.values())

    def expressions(self, slot: SlotKey | None = None) -> dict[str, str]:
        """Return the expressions that drive `slot`, by name."""
        found = {name: self.text(name, slot) for name in (*DEFAULTS, *ON_REQUEST)}
        return {
            name: text
            for name, text in found.items()
            if text is not None and not (name in VANILLA and text == UNDEFINED)
        }

    def published(self, slot: SlotKey | None = None) -> dict[str, str]:
        """Return the attributes that the policy adds to `slot`'s ad; undefined ones are left out."""
        found = {name: self.text(name, slot) for name in self.listed(PUBLISHED_ATTRIBUTES)}
        return {name: text for name, text in found.items() if text is not None}


def prologue() -> str:
    """Return configuration text with the defaults, to be read before the policy's text."""
    lines = [f"{name} = {text}" for name, text in DEFAULTS.items()]
    lines += [f"{name} = {text}" for name, text in CONSOLE_SLOTS.items()]
    lines += [f"{name} = {UNDEFINED}" for name in VANILLA]
    return "\n".join(lines) + "\n"


def is_yes(text: str | None) -> bool:
    """Whether a boolean knob is true, as HTCondor's parser reads it."""
    return (text or "").strip().lower() in ("true", "t", "yes", "1")


def compile_text(name: str, text: str) -> CompiledExpression:
    """Return the compiled expression of the knob `name`; raises InvalidInputError."""
    try:
        return compile_expression(expression_from_old_syntax(text))
    except InvalidClassAdError as error:
        reason = "; ".join(violation.why for violation in error.violations)
        raise InvalidInputError(Violation(name, f"{reason}: {text}")) from error


def evaluate_all(policy: Policy, slot: SlotKey, my: Ad, target: Ad | None) -> dict[str, Evaluated]:
    """Return the value of each of the slot's expressions with the slot's ad and the job's; None = no job.

    Raises
    ------
    InvalidInputError
        When expressions are invalid; the violations name all of them.
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


_CACHE_SIZE = 1024
_VANILLA_UNIVERSE = 5
_DRIVING = ("IS_OWNER", "WANT_SUSPEND", "SUSPEND", "PREEMPT", "KILL")
"""The expressions that change a slot's state when they become true."""

_BUILT_IN_TRUTHS = {"START": True, "CONTINUE": True, "WANT_VACATE": True} | dict.fromkeys(
    ("IS_OWNER", "WANT_SUSPEND", "SUSPEND", "PREEMPT", "KILL", "WANT_HOLD", "PREEMPTION_REQUIREMENTS"), False
)
_BUILT_IN_NUMBERS = {name: float(text) for name, text in DEFAULTS.items() if text.replace(".", "").isdigit()}

_VARIANTS = {name.removesuffix("_VANILLA"): name for name in VANILLA}
_GENTLEST, _WORST_NICE = 0, 19
_INVALID_NICE = 10


@dataclass(frozen=True, slots=True)
class Knobs:
    """The compiled expressions of one slot.

    `polls` = its state may change without an event; `preempts` = it may prefer another job to its own.
    """

    compiled: Mapping[str, CompiledExpression]
    polls: bool
    preempts: bool

    @classmethod
    def of(cls, policy: Policy, slot: SlotKey, operators: Mapping[str, str]) -> Knobs:
        """Return the expressions of `slot`; `operators` are by folded name. Raises InvalidInputError."""
        texts = policy.expressions(slot)
        compiled = {name: compile_text(name, text) for name, text in texts.items()}
        compiled |= {name: compile_expression(operators[fold(name)]) for name in texts if fold(name) in operators}
        constant = _constant(compiled)
        moving = [name for name in compiled if name.removesuffix("_VANILLA") in _DRIVING]
        polls = any(constant.get(name) is not False for name in moving)
        preempts = "RANK" not in constant or constant.get("PREEMPTION_REQUIREMENTS", True) is True
        return cls(compiled, polls, preempts)


@dataclass(frozen=True, slots=True)
class JobAd:
    """The parsed ad of a job in a slot."""

    ad: Ad
    is_vanilla: bool

    @classmethod
    def read(cls, text: str) -> JobAd:
        """Return the ad in `text`; an empty text is an empty ad. Raises InvalidClassAdError."""
        ad = Ad.read(text) if text else Ad({})
        universe = ad.value("JobUniverse")
        return cls(ad, universe == _VANILLA_UNIVERSE or isinstance(universe, NoValue))


class SlotPolicyEvaluator:
    """Evaluates the expressions of a slot in its present ad, with the ad of its job."""

    def __init__(self, knobs: Knobs, my: Ad, job: JobAd | None) -> None:
        self._knobs = knobs
        self._my = my
        self._target = None if job is None else job.ad
        self._is_vanilla = job is None or job.is_vanilla

    @property
    def polls(self) -> bool:
        """Whether the slot's state may change without an event."""
        return self._knobs.polls

    def value(self, name: str) -> Result:
        """Return the expression's value; undefined if the policy does not have it."""
        compiled = self._knobs.compiled.get(name)
        return NoValue.UNDEFINED if compiled is None else evaluate(compiled, self._my, self._target)

    def truth(self, name: str) -> bool | None:
        """Return the expression's value if it is a boolean, else None."""
        variant = _VARIANTS.get(name)
        if self._is_vanilla and variant is not None:
            value = self.value(variant)
            if isinstance(value, bool):
                return value
        value = self.value(name)
        return value if isinstance(value, bool) else None

    def number(self, name: str) -> float | None:
        """Return the expression's value as a number, true as 1; None = not a number."""
        return as_number(self.value(name))

    def text(self, name: str) -> str | None:
        """Return the expression's value if it is a string, else None."""
        value = self.value(name)
        return value if isinstance(value, str) else None

    def job_number(self, attribute: str) -> float | None:
        """Return a number of the job's ad, with the slot's ad as TARGET; None = not a number."""
        if self._target is None:
            return None
        return as_number(evaluate(compile_expression(f"MY.{attribute}"), self._target, self._my))


class BuiltInPolicyEvaluator:
    """Returns HTCondor's defaults: every job may start, none is preempted."""

    polls = False

    def truth(self, name: str) -> bool | None:
        """Return the default."""
        return _BUILT_IN_TRUTHS.get(name)

    def number(self, name: str) -> float | None:
        """Return the default."""
        return _BUILT_IN_NUMBERS.get(name)

    def text(self, name: str) -> str | None:
        """Return None: the defaults have no texts."""
        return None

    def job_number(self, attribute: str) -> float | None:
        """Return None: the job's ad is not read."""
        return None


def as_number(result: Result) -> float | None:
    """Return a result as a finite number, true as 1; None = not a number."""
    if isinstance(result, int | float) and math.isfinite(result):
        return float(result)
    return None


def as_nice(result: Result) -> int:
    """Return the nice value of a result as HTCondor's starter does: 0 to 19, 10 if invalid."""
    if isinstance(result, bool) or not isinstance(result, int):
        return _INVALID_NICE
    return min(max(result, _GENTLEST), _WORST_NICE)


def _constant(compiled: Mapping[str, CompiledExpression]) -> dict[str, Result]:
    """Return the values of the expressions that depend on nothing but each other."""
    pending = {fold(name): name for name in compiled}
    ad, constant = Ad({}), dict[str, Result]()
    while ready := [each for each in pending if not _depends_on(compiled[pending[each]].text) - folded_set(constant)]:
        for each in ready:
            name = pending.pop(each)
            constant[name] = evaluate(compiled[name], ad)
            ad.set(name, Expression(compiled[name].text))
    return constant


@lru_cache(maxsize=_CACHE_SIZE)
def _depends_on(text: str) -> frozenset[str]:
    """Return the folded names that an expression refers to, with marks such as `random()` that no ad defines."""
    timed = with_time_from(CURRENT_TIME, text)
    found = references(timed)
    unknown = {f"{name}()" for name in calls(timed) if name == "random"} | ({"eval()"} if found.is_dynamic else set())
    return found.in_my | {f"target.{name}" for name in found.target} | unknown
