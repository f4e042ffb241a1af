"""The live ads of a node's slots under a policy, and the evaluation of its expressions in them.

Rules
-----
The library's ads are changed in place and expressions are compiled once: an evaluation costs nothing else.
An operator's value wins over the policy, the policy over the facts. The attributes of a slot's job win over the policy
but never over a fact. The policy may change while jobs run; the slots stay.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from pilotage.classads.evaluation import CURRENT_TIME, Ad, NoValue, Result
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, parse_value
from pilotage.classads.text import overlaid
from pilotage.text import fold, folded_set
from pilotage_pilot.core.ads.attributes import (
    LAST_CLAIM_END,
    NodeFacts,
    NodeSample,
    SlotFacts,
    cpu_busy_attributes,
    unix_seconds,
)
from pilotage_pilot.core.ads.layered_ad import Layer, SlotEntry
from pilotage_pilot.core.ads.node_ads import BuiltInAds, FactAds
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import (
    CONSOLE_SLOTS,
    CPU_BUSY,
    DEFAULTS,
    JOB_ATTRIBUTES,
    SHARED_ATTRIBUTES,
    JobAd,
    Knobs,
    Policy,
    SlotKey,
    SlotPolicyEvaluator,
    as_nice,
    as_number,
    compile_text,
)
from pilotage_pilot.core.slots.layout import Layout, StaticSlot
from pilotage_pilot.core.slots.machine import SlotMachine

_IN_ADS = {
    "START": "Start",
    "RANK": "Rank",
    "IS_OWNER": "IsOwner",
    "PREEMPTION_REQUIREMENTS": "PreemptionRequirements",
    "SlotWeight": "SlotWeight",
    "MaxJobRetirementTime": "MaxJobRetirementTime",
    "MachineMaxVacateTime": "MachineMaxVacateTime",
    "GROUP_DYNAMIC_MACH_CONSTRAINT": "GroupDynamicMachConstraint",
    CPU_BUSY: "CpuBusy",
}
"""Expressions that an ad publishes, and their attribute names."""

_NAMES_IN_ADS = {fold(name): in_ad for name, in_ad in _IN_ADS.items() if fold(name) != fold(in_ad)}

_UNDERSTOOD = ("SlotWeight", "MaxJobRetirementTime", "MachineMaxVacateTime")
"""Expressions that are not published if they have their default."""


@dataclass(frozen=True, slots=True)
class _SlotPolicy:
    """The policy of slots with one key: compiled knobs, expressions for the ad, and `own` attributes of these slots."""

    knobs: Knobs
    expressions: Mapping[str, AdValue]
    own: Mapping[str, AdValue]


@dataclass(slots=True)
class _EvaluatedJob:
    """The job for a slot's expressions, its own or its claim's last one, and the time in its ad.

    `cpu_busy_since` = when the slot's CpuBusy became true, None = it is not.
    """

    job: JobAd | None = None
    time_s: int = 0
    cpu_busy_since: Now | None = None


class SlotAds(FactAds):
    """The ads of a node's slots under `policy`; raises InvalidInputError if an expression is invalid."""

    def __init__(self, policy: Policy, node: NodeFacts) -> None:
        super().__init__(node, policy.listed(SHARED_ATTRIBUTES))
        self._evaluated: dict[str, _EvaluatedJob] = {}
        self._slot_policies: dict[SlotKey, _SlotPolicy] = {}
        self._requested: dict[str, str] = {}
        self._set: dict[str, str] = {}
        self._last_read: tuple[str, JobAd] | None = None
        self._take(policy)

    # Changes ----------------------------------------------------------------------------------------------------

    def remove(self, name: str) -> None:
        """Remove the ad of a slot, if it exists."""
        super().remove(name)
        self._evaluated.pop(name, None)

    def job_entered(self, name: str, job_ad: str, job_id: str, now: Now) -> None:
        """Set the job of a slot; raises InvalidInputError if `job_ad` is invalid."""
        self._evaluated[name].job = self._read(job_ad)
        super().job_entered(name, job_ad, job_id, now)

    def claim_ended(self, name: str) -> None:
        """Forget the last job of a slot's claim."""
        self._evaluated[name].job = None

    def set_attributes(self, expressions: Mapping[str, str]) -> dict[str, str]:
        """Replace all attributes that operators set; returns the reasons of refused ones."""
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
        self._requested = dict(expressions)
        accepted = {fold(name): expressions[name] for name in taken}
        if accepted != self._set:
            self._set = accepted
            self._lay_common(Layer.OPERATOR, {_NAMES_IN_ADS.get(fold(name), name): taken[name] for name in taken})
            self._slot_policies = self._all_slot_policies(self._policy)
            for entry in self._entries.values():
                self._show_neighbours(entry)
        return refused

    def change_policy(self, policy: Policy) -> None:
        """Activate another policy; raises InvalidInputError and changes nothing if an expression is invalid.

        The layout stays: a change of it needs a restart (`layout_change`).
        """
        self._slot_policies = self._all_slot_policies(policy)
        self._take(policy)
        self._reshare(policy.listed(SHARED_ATTRIBUTES))
        for entry in self._entries.values():
            self._lay_policy(entry)
            self._lay_job(entry)
            self._show_neighbours(entry)
        self.set_attributes(self._requested)

    # Evaluation -------------------------------------------------------------------------------------------------

    @property
    def settable(self) -> tuple[str, ...]:
        """The attributes that operators may set."""
        return self._policy.settable

    @property
    def uses_claim_ends(self) -> bool:
        """Whether the policy reads when the last claims of slots ended."""
        return self._policy.mentions(LAST_CLAIM_END)

    @property
    def preempts(self) -> bool:
        """Whether an occupied slot may prefer another job."""
        return any(policy.knobs.preempts for policy in self._slot_policies.values())

    def evaluator(self, name: str, now: Now) -> SlotPolicyEvaluator:
        """Return the evaluator of the slot's expressions, for its job or its claim's last one."""
        return self._evaluator(name, self._evaluated[name].job, now)

    def starts(self, name: str, job_ad: str, now: Now) -> bool | None:
        """Whether a job may start in a slot; None = START is not a boolean, or the job's ad is invalid."""
        try:
            return self._evaluator(name, self._read(job_ad), now).truth("START")
        except InvalidClassAdError:
            return None

    def rank(self, name: str, job_ad: str, now: Now) -> float:
        """Return the slot's RANK of a job; 0 if it is not a number."""
        return as_number(self._evaluator(name, self._read(job_ad), now).value("RANK")) or 0.0

    def renice(self, name: str, job_ad: str, now: Now) -> int:
        """Return the nice value of a job in a slot, 0 to 19."""
        return as_nice(self._evaluator(name, self._read(job_ad), now).value("JOB_RENICE_INCREMENT"))

    def _evaluator(self, name: str, job: JobAd | None, now: Now) -> SlotPolicyEvaluator:
        entry, evaluated, time_s = self._read_entry(name), self._evaluated[name], unix_seconds(now)
        live = _live(entry)
        if evaluated.time_s != time_s:
            evaluated.time_s = time_s
            live.set(CURRENT_TIME, time_s)
        return SlotPolicyEvaluator(self._slot_policies[entry.facts.key].knobs, live, job)

    def _read(self, job_ad: str) -> JobAd:
        if self._last_read is None or self._last_read[0] != job_ad:
            self._last_read = (job_ad, JobAd.read(job_ad))
        return self._last_read[1]

    # Layers -----------------------------------------------------------------------------------------------------

    def _take(self, policy: Policy) -> None:
        shared = policy.listed(SHARED_ATTRIBUTES)
        values = _shown(policy, None) | ({"SharedSlotAttributes": ", ".join(shared)} if shared else {})
        self._policy = policy
        self._seats = (_number(policy, "SLOTS_CONNECTED_TO_KEYBOARD"), _number(policy, "SLOTS_CONNECTED_TO_CONSOLE"))
        understood = {
            name for name, value in values.items() if name in _UNDERSTOOD and value == Expression(DEFAULTS[name])
        }
        self._lay_common(Layer.POLICY, {name: value for name, value in values.items() if name not in understood})

    def _all_slot_policies(self, policy: Policy) -> dict[SlotKey, _SlotPolicy]:
        """Return the policy of each slot key; raises InvalidInputError."""
        common = _shown(policy, None)
        keys = {entry.facts.key for entry in self._entries.values()}
        return {key: self._slot_policy_of(policy, key, common) for key in keys}

    def _slot_policy_of(self, policy: Policy, key: SlotKey, common: Mapping[str, AdValue]) -> _SlotPolicy:
        expressions = {name: _expression(name, text) for name, text in policy.expressions(key).items()}
        own = {name: value for name, value in _shown(policy, key).items() if value != common.get(name)}
        return _SlotPolicy(Knobs.of(policy, key, self._set), expressions, own)

    def _new_live(self) -> Ad | None:
        return Ad({})

    def _lay_policy(self, entry: SlotEntry) -> None:
        key = entry.facts.key
        if key not in self._slot_policies:
            self._slot_policies[key] = self._slot_policy_of(self._policy, key, _shown(self._policy, None))
        self._evaluated.setdefault(entry.facts.name, _EvaluatedJob())
        entry.part_key = None
        self._lay(entry, Layer.KNOBS, self._slot_policies[key].expressions)
        self._lay(entry, Layer.OWN_POLICY, self._slot_policies[key].own)

    def _lay_cpu_busy(self, entry: SlotEntry, now: Now) -> None:
        if CPU_BUSY not in self._slot_policies[entry.facts.key].expressions and not entry.cpu_busy:
            return
        evaluated = self._evaluated[entry.facts.name]
        is_busy = self.evaluator(entry.facts.name, now).truth(CPU_BUSY) is True
        evaluated.cpu_busy_since = (evaluated.cpu_busy_since or now) if is_busy else None
        entry.cpu_busy = cpu_busy_attributes(evaluated.cpu_busy_since)
        self._lay_readings(entry)

    def _remembered(self, entry: SlotEntry) -> dict[str, AdValue]:
        job = self._evaluated[entry.facts.name].job
        if job is None or not entry.job_id:
            return {}
        names = (name for name in self._policy.listed(JOB_ATTRIBUTES) if not entry.ad.has_fact(fold(name)))
        found = {name: _plain(job.ad.value(name)) for name in names}
        return {name: value for name, value in found.items() if value is not None}

    def _value(self, entry: SlotEntry, name: str) -> AdValue | None:
        values = super()._value(entry, name)
        return _plain(_live(entry).value(name)) if isinstance(values, Expression) else values


def _live(entry: SlotEntry) -> Ad:
    assert entry.ad.live is not None, "every slot has an ad of the library's"
    return entry.ad.live


def _shown(policy: Policy, key: SlotKey | None) -> dict[str, AdValue]:
    """Return the attributes of a policy for a slot's ad; `key` None = for all slots. Raises InvalidInputError."""
    expressions = policy.expressions(key)
    values: dict[str, AdValue] = {
        shown: _expression(name, expressions[name]) for name, shown in _IN_ADS.items() if name in expressions
    }
    return values | {name: parse_value(_expression(name, text).text) for name, text in policy.published(key).items()}


def policy_attributes(policy: Policy, key: SlotKey) -> dict[str, AdValue]:
    """Return all that a policy adds to the ad of a slot, also expressions by their knobs' names.

    Raises InvalidInputError.
    """
    knobs: dict[str, AdValue] = {name: _expression(name, text) for name, text in policy.expressions(key).items()}
    return overlaid(knobs, _shown(policy, key))


def _expression(name: str, text: str) -> Expression:
    return Expression(compile_text(name, text).text)


def _number(policy: Policy, knob: str) -> int:
    """Return the number of a knob, or its default."""
    try:
        values = parse_value(policy.text(knob) or CONSOLE_SLOTS[knob])
    except InvalidClassAdError:
        values = CONSOLE_SLOTS[knob]
    return int(values if isinstance(values, int | float) else CONSOLE_SLOTS[knob])


def _plain(result: Result) -> AdValue | None:
    """Return a result as a value for an ad, None = undefined."""
    if isinstance(result, NoValue):
        return None if result is NoValue.UNDEFINED else Expression(result.value)
    return result


_UNTOUCHED_S = 24 * 3600
"""Idle time of a quiet node's keyboard, in seconds."""


def unattended_slot_ad(
    policy: Policy, slot: StaticSlot, layout: Layout, node: NodeFacts, now: Now, utc_offset_s: int = 0
) -> dict[str, AdValue]:
    """Return the ad of a slot on a node with this layout, without jobs, load or users.

    Raises
    ------
    InvalidInputError
        When the policy publishes an invalid expression.
    """
    ads = SlotAds(policy, node)
    slots = layout.slots if slot in layout.slots else (slot,)
    for each in slots:
        ads.add(SlotFacts.of(each))
        ads.show(each.name, SlotMachine(now, dynamic=True))
    idle = NodeSample(now.boot_s, keyboard_idle_s=_UNTOUCHED_S, console_idle_s=_UNTOUCHED_S, utc_offset_s=utc_offset_s)
    ads.sample(idle, now)
    return ads.plain(slot.name, now)


NodeAds: TypeAlias = SlotAds | BuiltInAds
"""Both have the same interface, except `change_policy`."""
