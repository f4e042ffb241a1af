"""What a slot's expressions come to: compiled once, asked often.

Rules
-----
Only True itself is true and only False itself is false: undefined, an error, a number or a text are neither. For
vanilla jobs the `_VANILLA` variant is tried first and counts where it comes to a boolean. What an operator sets under
the name of an expression takes its place. Source: HTCondor's startd (reference of its expressions and conventions).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from pilotage.classad_evaluation import (
    CURRENT_TIME,
    Ad,
    CompiledExpression,
    NoValue,
    Result,
    compile_expression,
    evaluate,
)
from pilotage.classad_references import references
from pilotage.classad_text import calls, with_time_from
from pilotage.classads import Expression
from pilotage.folding import fold, folded_set
from pilotage_pilot.core.policy import DEFAULTS, VANILLA, Policy, SlotKey, compile_text

_REMEMBERED = 1024
_VANILLA_UNIVERSE = 5
_DRIVING = ("IS_OWNER", "WANT_SUSPEND", "SUSPEND", "PREEMPT", "KILL")
"""The expressions that move a slot when they come true."""

_BUILT_IN_TRUTHS = {"START": True, "CONTINUE": True, "WANT_VACATE": True} | dict.fromkeys(
    ("IS_OWNER", "WANT_SUSPEND", "SUSPEND", "PREEMPT", "KILL", "WANT_HOLD", "PREEMPTION_REQUIREMENTS"), False
)
_BUILT_IN_NUMBERS = {name: float(text) for name, text in DEFAULTS.items() if text.replace(".", "").isdigit()}

_VARIANTS = {name.removesuffix("_VANILLA"): name for name in VANILLA}
_GENTLEST, _WORST_NICE = 0, 19
_NICE_OF_NONSENSE = 10


@dataclass(frozen=True, slots=True)
class Knobs:
    """The expressions of one slot, ready to be asked.

    `polls` = time or the node may move the slot; `preempts` = it may prefer another job to the one that it has.
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
    """The ad of a job in a slot, read once."""

    ad: Ad
    is_vanilla: bool

    @classmethod
    def read(cls, text: str) -> JobAd:
        """Return the ad that `text` says; none is an empty one. Raises InvalidClassAdError."""
        ad = Ad.read(text) if text else Ad({})
        universe = ad.value("JobUniverse")
        return cls(ad, universe == _VANILLA_UNIVERSE or isinstance(universe, NoValue))


class SlotJudge:
    """Answers what the expressions of a slot come to, in its ad as it is, and in that of the job in it."""

    def __init__(self, knobs: Knobs, my: Ad, job: JobAd | None) -> None:
        self._knobs = knobs
        self._my = my
        self._target = None if job is None else job.ad
        self._is_vanilla = job is None or job.is_vanilla

    @property
    def polls(self) -> bool:
        """Whether time or the node may move the slot."""
        return self._knobs.polls

    def value(self, name: str) -> Result:
        """Return what the expression comes to; undefined where the policy has none of this name."""
        compiled = self._knobs.compiled.get(name)
        return NoValue.UNDEFINED if compiled is None else evaluate(compiled, self._my, self._target)

    def truth(self, name: str) -> bool | None:
        """Return True or False where the expression comes to that, else None."""
        variant = _VARIANTS.get(name)
        if self._is_vanilla and variant is not None:
            said = self.value(variant)
            if isinstance(said, bool):
                return said
        said = self.value(name)
        return said if isinstance(said, bool) else None

    def number(self, name: str) -> float | None:
        """Return the number that the expression comes to, with true as 1; None = it is none."""
        return as_number(self.value(name))

    def text(self, name: str) -> str | None:
        """Return the text that the expression comes to; None = it is none."""
        said = self.value(name)
        return said if isinstance(said, str) else None

    def job_number(self, attribute: str) -> float | None:
        """Return a number of the job's ad, in which the slot's is TARGET; None = there is none."""
        if self._target is None:
            return None
        return as_number(evaluate(compile_expression(f"MY.{attribute}"), self._target, self._my))


class BuiltInJudge:
    """Answers as HTCondor's defaults do: every job may start, none is disturbed."""

    polls = False

    def truth(self, name: str) -> bool | None:
        """Return what the default is."""
        return _BUILT_IN_TRUTHS.get(name)

    def number(self, name: str) -> float | None:
        """Return what the default is."""
        return _BUILT_IN_NUMBERS.get(name)

    def text(self, name: str) -> str | None:
        """Return None: the defaults have no texts."""
        return None

    def job_number(self, attribute: str) -> float | None:
        """Return None: the job's ad is not read."""
        return None


def as_number(result: Result) -> float | None:
    """Return a result as a finite number, true as 1; None = it is none."""
    if isinstance(result, int | float) and math.isfinite(result):
        return float(result)
    return None


def as_nice(result: Result) -> int:
    """Return the nice value that a result stands for, as HTCondor's starter takes it: 0 to 19, 10 for nonsense."""
    if isinstance(result, bool) or not isinstance(result, int):
        return _NICE_OF_NONSENSE
    return min(max(result, _GENTLEST), _WORST_NICE)


def _constant(compiled: Mapping[str, CompiledExpression]) -> dict[str, Result]:
    """Return what those expressions come to that depend on nothing but one another."""
    waiting = {fold(name): name for name in compiled}
    ad, constant = Ad({}), dict[str, Result]()
    while ready := [each for each in waiting if not _depends_on(compiled[waiting[each]].text) - folded_set(constant)]:
        for each in ready:
            name = waiting.pop(each)
            constant[name] = evaluate(compiled[name], ad)
            ad.set(name, Expression(compiled[name].text))
    return constant


@lru_cache(maxsize=_REMEMBERED)
def _depends_on(text: str) -> frozenset[str]:
    """Return the folded names that an expression refers to; the slot's ad has none of the shape of some of them."""
    timed = with_time_from(CURRENT_TIME, text)
    said = references(timed)
    unforeseen = {f"{name}()" for name in calls(timed) if name == "random"} | ({"eval()"} if said.is_dynamic else set())
    return said.in_my | {f"target.{name}" for name in said.target} | unforeseen
