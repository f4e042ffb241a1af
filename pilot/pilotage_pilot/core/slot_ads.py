"""The live ads of a node's slots under a policy, and what its expressions come to in them.

Rules
-----
The library's ads are kept and changed in place, expressions are compiled once: a question costs its evaluation. What
an operator sets wins over the policy, the policy over the facts, and what a slot shows of its job over the policy but
never over a fact. A policy may be changed while jobs run; the slots stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.classad_evaluation import CURRENT_TIME, Ad, NoValue, Result
from pilotage.classads import AdValue, Expression, InvalidClassAdError, parse_value
from pilotage.folding import fold, folded_set
from pilotage_pilot.core.fact_ads import FactAds
from pilotage_pilot.core.judgement import JobAd, Knobs, SlotJudge, as_nice, as_number
from pilotage_pilot.core.layered_ad import Layer
from pilotage_pilot.core.moment import Moment
from pilotage_pilot.core.policy import DEFAULTS, REMEMBERING, SEATS, SHARING, Policy, SlotKey, compile_text
from pilotage_pilot.core.slot_entry import SlotEntry
from pilotage_pilot.core.slot_facts import NodeFacts, seconds

_IN_ADS = {
    "START": "Start",
    "RANK": "Rank",
    "IS_OWNER": "IsOwner",
    "PREEMPTION_REQUIREMENTS": "PreemptionRequirements",
    "SlotWeight": "SlotWeight",
    "MaxJobRetirementTime": "MaxJobRetirementTime",
    "MachineMaxVacateTime": "MachineMaxVacateTime",
    "GROUP_DYNAMIC_MACH_CONSTRAINT": "GroupDynamicMachConstraint",
}
"""The expressions that an ad shows to others, and what they are called there."""

_NAMES_IN_ADS = {fold(name): in_ad for name, in_ad in _IN_ADS.items() if fold(name) != fold(in_ad)}

_UNDERSTOOD = ("SlotWeight", "MaxJobRetirementTime", "MachineMaxVacateTime")
"""Those that an ad need not show where they are what everybody takes for granted."""


@dataclass(frozen=True, slots=True)
class _Said:
    """What a policy says of slots with the same key: its expressions, in the ad and for asking, and what is special."""

    knobs: Knobs
    expressions: Mapping[str, AdValue]
    own: Mapping[str, AdValue]


@dataclass(slots=True)
class _Asked:
    """The job that a slot's expressions are asked about, its own or its claim's last, and the time its ad tells."""

    job: JobAd | None = None
    time_s: int = 0


class SlotAds(FactAds):
    """The ads of a node's slots under `policy`; raises InvalidInputError when an expression in it is none."""

    def __init__(self, policy: Policy, node: NodeFacts) -> None:
        super().__init__(node, policy.listed(SHARING))
        self._asked: dict[str, _Asked] = {}
        self._said: dict[SlotKey, _Said] = {}
        self._wished: dict[str, str] = {}
        self._set: dict[str, str] = {}
        self._last_read: tuple[str, JobAd] | None = None
        self._take(policy)

    # What is told -----------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """End the ad of a slot, if there is one."""
        super().remove(name)
        self._asked.pop(name, None)

    def job_entered(self, name: str, job_ad: str, job_id: str, now: Moment) -> None:
        """Tell which job is in a slot; raises InvalidInputError when `job_ad` is no ad."""
        self._asked[name].job = self._read(job_ad)
        super().job_entered(name, job_ad, job_id, now)

    def claim_ended(self, name: str) -> None:
        """Tell that nobody holds a slot."""
        self._asked[name].job = None

    def set_attributes(self, expressions: Mapping[str, str]) -> dict[str, str]:
        """Set what operators want of the node, all of it; returns why not, by attribute that is refused."""
        settable = folded_set(self.settable)
        taken: dict[str, AdValue] = {}
        refused: dict[str, str] = {}
        for name, text in expressions.items():
            if fold(name) not in settable:
                refused[name] = "the node's policy does not list it as settable"
                continue
            try:
                taken[name] = parse_value(text)
            except InvalidClassAdError as error:
                refused[name] = "; ".join(violation.why for violation in error.violations)
        self._wished = dict(expressions)
        accepted = {fold(name): expressions[name] for name in taken}
        if accepted != self._set:
            self._set = accepted
            self._lay_common(Layer.OPERATOR, {_NAMES_IN_ADS.get(fold(name), name): taken[name] for name in taken})
            self._said = self._all_said(self._policy)
            for entry in self._entries.values():
                self._show_neighbours(entry)
        return refused

    def change_policy(self, policy: Policy) -> None:
        """Put another policy in force; raises InvalidInputError, and nothing has changed, if an expression is none.

        The slots stay as they are: what the policy says of their layout takes a restart (`layout_change`).
        """
        self._said = self._all_said(policy)
        self._take(policy)
        self._reshare(policy.listed(SHARING))
        for entry in self._entries.values():
            self._lay_policy(entry)
            self._lay_job(entry)
            self._show_neighbours(entry)
        self.set_attributes(self._wished)

    # What is asked ----------------------------------------------------------------------------------------------

    @property
    def settable(self) -> tuple[str, ...]:
        """The attributes that operators may set."""
        return self._policy.settable

    @property
    def preempts(self) -> bool:
        """Whether a slot with a job may prefer another."""
        return any(said.knobs.preempts for said in self._said.values())

    def judge(self, name: str, now: Moment) -> SlotJudge:
        """Return who answers what the slot's expressions come to, for the job in it or the last one of its claim."""
        return self._judge(name, self._asked[name].job, now)

    def starts(self, name: str, job_ad: str, now: Moment) -> bool | None:
        """Say whether a job may start in a slot; None = START is neither true nor false of it, or it has no ad."""
        try:
            return self._judge(name, self._read(job_ad), now).truth("START")
        except InvalidClassAdError:
            return None

    def rank(self, name: str, job_ad: str, now: Moment) -> float:
        """Return how much a slot likes a job; 0 where RANK comes to no number."""
        return as_number(self._judge(name, self._read(job_ad), now).value("RANK")) or 0.0

    def renice(self, name: str, job_ad: str, now: Moment) -> int:
        """Return the nice value of a job in a slot, 0 to 19."""
        return as_nice(self._judge(name, self._read(job_ad), now).value("JOB_RENICE_INCREMENT"))

    def _judge(self, name: str, job: JobAd | None, now: Moment) -> SlotJudge:
        entry, asked, time_s = self._read_entry(name), self._asked[name], seconds(now)
        live = _live(entry)
        if asked.time_s != time_s:
            asked.time_s = time_s
            live.set(CURRENT_TIME, time_s)
        return SlotJudge(self._said[entry.facts.key].knobs, live, job)

    def _read(self, job_ad: str) -> JobAd:
        if self._last_read is None or self._last_read[0] != job_ad:
            self._last_read = (job_ad, JobAd.read(job_ad))
        return self._last_read[1]

    # Layers -----------------------------------------------------------------------------------------------------

    def _take(self, policy: Policy) -> None:
        said = _shown(policy, None) | _sharing(policy)
        self._policy = policy
        self._seats = (_number(policy, "SLOTS_CONNECTED_TO_KEYBOARD"), _number(policy, "SLOTS_CONNECTED_TO_CONSOLE"))
        self._lay_common(Layer.POLICY, {name: value for name, value in said.items() if not _is_understood(name, value)})

    def _all_said(self, policy: Policy) -> dict[SlotKey, _Said]:
        """Return what a policy says of each of the slots; raises InvalidInputError."""
        common = _shown(policy, None)
        keys = {entry.facts.key for entry in self._entries.values()}
        return {key: self._of_key(policy, key, common) for key in keys}

    def _of_key(self, policy: Policy, key: SlotKey, common: Mapping[str, AdValue]) -> _Said:
        expressions = {name: _expression(name, text) for name, text in policy.expressions(key).items()}
        own = {name: value for name, value in _shown(policy, key).items() if value != common.get(name)}
        return _Said(Knobs.of(policy, key, self._set), expressions, own)

    def _new_live(self) -> Ad | None:
        return Ad({})

    def _lay_policy(self, entry: SlotEntry) -> None:
        key = entry.facts.key
        if key not in self._said:
            self._said[key] = self._of_key(self._policy, key, _shown(self._policy, None))
        self._asked.setdefault(entry.facts.name, _Asked())
        entry.part = None
        self._lay(entry, Layer.KNOBS, self._said[key].expressions)
        self._lay(entry, Layer.OWN_POLICY, self._said[key].own)

    def _remembered(self, entry: SlotEntry) -> dict[str, AdValue]:
        job = self._asked[entry.facts.name].job
        if job is None or not entry.job_id:
            return {}
        names = (name for name in self._policy.listed(REMEMBERING) if not entry.ad.has_fact(fold(name)))
        found = {name: _plain(job.ad.value(name)) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _value(self, entry: SlotEntry, name: str) -> AdValue | None:
        said = super()._value(entry, name)
        return _plain(_live(entry).value(name)) if isinstance(said, Expression) else said


def _live(entry: SlotEntry) -> Ad:
    assert entry.ad.live is not None, "every slot has an ad of the library's"
    return entry.ad.live


def _shown(policy: Policy, key: SlotKey | None) -> dict[str, AdValue]:
    """Return what a policy says in the ad of a slot, None = of any; raises InvalidInputError."""
    expressions = policy.expressions(key)
    said: dict[str, AdValue] = {
        shown: _expression(name, expressions[name]) for name, shown in _IN_ADS.items() if name in expressions
    }
    return said | {name: _published(name, text) for name, text in policy.published(key).items()}


def _sharing(policy: Policy) -> dict[str, AdValue]:
    """Return which attributes the slots show each other, for who is told of them without what the others show."""
    shared = policy.listed(SHARING)
    return {"SharedSlotAttributes": ", ".join(shared)} if shared else {}


def _expression(name: str, text: str) -> Expression:
    return Expression(compile_text(name, text).text)


def _published(name: str, text: str) -> AdValue:
    return parse_value(_expression(name, text).text)


def _is_understood(name: str, value: AdValue) -> bool:
    return name in _UNDERSTOOD and value == Expression(DEFAULTS[name])


def _number(policy: Policy, knob: str) -> int:
    """Return the number of a knob, the default where it is none."""
    try:
        said = parse_value(policy.text(knob) or SEATS[knob])
    except InvalidClassAdError:
        said = SEATS[knob]
    return int(said if isinstance(said, int | float) else SEATS[knob])


def _plain(result: Result) -> AdValue | None:
    """Return a result as an ad says it, None = it is undefined."""
    if isinstance(result, NoValue):
        return None if result is NoValue.UNDEFINED else Expression(result.value)
    return result
