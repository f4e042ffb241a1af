"""The policies of slots and jobs in their ads, ready to be evaluated against each other.

Rules
-----
- A slot has START, RANK, PREEMPTION_REQUIREMENTS and SlotWeight; a job has its requirements expression and its Rank. MY
  is the ad that contains the expression, TARGET the other one.
- Only True is true; a rank that is not a number is 0.
- A slot without START takes any job. Without RANK it ranks all equally. Without PREEMPTION_REQUIREMENTS no other user's
  job preempts.
- The server sets the location, the size, the isolation and the time of a slot, whatever its ad contains.
- A slot whose policy cannot be read, contains random(), or costs too much to evaluate, gets no jobs.

Source: HTCondor manual, startd policy.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeAlias

from pilotage.classads.evaluation import CURRENT_TIME, Ad, Result, evaluation_fault, is_true
from pilotage.classads.library import AdValue, InvalidClassAdError
from pilotage.classads.text import value_text
from pilotage.resources.parameters import ISOLATION
from pilotage.resources.tree import QueueId
from pilotage.text import fold, folded_set
from pilotage.values.amounts import Amounts
from pilotage.values.offers import SlotOffer
from pilotage_server.core.classads.evaluation import (
    EvaluationCache,
    JobExpressions,
    SlotExpression,
    evaluate_projections,
)
from pilotage_server.core.classads.parts import AdPartStore, ParsedAdPart
from pilotage_server.core.classads.views import (
    AdSnapshot,
    AdView,
    Names,
    expression_references,
    reference_closure,
    references_in,
)
from pilotage_server.core.containers import BoundedCache
from pilotage_server.core.identity import slot_weight
from pilotage_server.core.matching.job_views import USER_PRIORITY, JobSnapshot, JobView, JobViews
from pilotage_server.core.queueing.slot_offers import location_attributes, size_attributes, unset_attributes

TIMES = folded_set((CURRENT_TIME, "LastHeardFrom"))
REMOTE_USER_PRIORITY = fold("RemoteUserPrio")
MAX_POLICIES = 8192
MAX_EXPRESSIONS = 2048
"""The number of ads whose expressions are cached, for slots that have changed in plain values only."""

MAX_FAULTY_POLICIES = 256
"""Policies that cannot be used have a cache of their own, so that faulty or hostile pilots cannot fill the other."""

MOST_BYTES = 64 * 1024 * 1024
"""About the size of the cached policies, without the parts that they share."""

_OF_A_POLICY = 4096
"""Bytes that a policy takes in memory beside its ad."""

MAX_NAMES = 20_000
LONGEST_NAME = 255
MAX_JOB_NAMES = 250
"""The most job attributes that one policy may refer to; each of them may split task queues."""

_START, _RANK, _PREEMPTION, _WEIGHT = map(fold, ("Start", "Rank", "PreemptionRequirements", "SlotWeight"))
_EXPRESSIONS = frozenset({_START, _RANK, _PREEMPTION, _WEIGHT})
_NAME = re.compile(r"[a-z_]\w{0,254}", re.ASCII)


class EvaluationTime(NamedTuple):
    """When a policy is evaluated; `remote_user_priority` = that of the present job's account, None = no job."""

    now: datetime
    remote_user_priority: float | None = None

    def attributes(self) -> dict[str, AdValue]:
        """Return the time-dependent attributes of a slot's ad."""
        attributes: dict[str, AdValue] = dict.fromkeys(TIMES, int(self.now.timestamp()))
        if self.remote_user_priority is not None:
            attributes[REMOTE_USER_PRIORITY] = self.remote_user_priority
        return attributes


class PolicyExpressions(NamedTuple):
    """The expressions of a policy, "" = none; `fault` = why it gets no jobs, "" = it can be evaluated.

    `job_names` are the folded names of the job attributes that it refers to, as far as that is known.
    """

    start: str
    rank: str
    preemption_requirements: str
    weight_text: str
    job_names: frozenset[str]
    fault: str


class SlotPolicy:
    """The policy of a slot as it is offered.

    `expressions` None = they are to be read from the ad.
    """

    def __init__(
        self,
        size: Amounts,
        layers: Iterable[Mapping[str, AdValue]],
        fault: str = "",
        expressions: PolicyExpressions | None = None,
    ) -> None:
        self._layers = tuple(layers)
        self.size = size
        self.view = AdView(size_attributes(size), *self._layers, time_dependent=TIMES | {REMOTE_USER_PRIORITY})
        self.expressions = expressions or self._analyse(fault)
        self.start, self.rank, self.preemption_requirements, self.weight_text, self.job_names, self.fault = (
            self.expressions
        )

    def job_references(self, text: str) -> frozenset[str]:
        """Return the folded names of the job attributes that an expression of the slot refers to, as far as known."""
        found, refers = reference_closure(references_in(text, self.view.get), self.view.get)
        names = (refers.target | (refers.free - found.keys() - self.view.time_dependent)) - USER_PRIORITY
        return frozenset(name for name in names if _NAME.fullmatch(name))

    @property
    def is_dynamic(self) -> bool:
        """Whether references may change with plain values, because the policy evaluates texts."""
        return any(expression_references(text).is_dynamic for text in self.view.expressions())

    def resized(self, size: Amounts) -> SlotPolicy:
        """Return the policy of the same slot with another size."""
        return self if size == self.size else SlotPolicy(size, self._layers, expressions=self.expressions)

    def weight(self, amounts: Amounts) -> float:
        """Return the SlotWeight of a part of this size: its cores where the policy gives no number from 0."""
        if not self.weight_text:
            return float(amounts.cpus)
        part = AdSnapshot(AdView(size_attributes(amounts), *self._layers), dict)
        refers = part.references_of(self.weight_text)
        projection = part.projection(None if refers.is_dynamic else refers.my, refers.free)
        return slot_weight(evaluate_projections(self.weight_text, projection, None), float(amounts.cpus))

    def _analyse(self, fault: str) -> PolicyExpressions:
        start, rank = self._text(_START, "true"), self._text(_RANK, "0", "0.0")
        preemption = self._text(_PREEMPTION, "false")
        wanted = self.job_references(start) | self.job_references(rank) | self.job_references(preemption)
        weight = self._text(_WEIGHT, "Cpus")
        by_name = {"START": start, "RANK": rank, "PREEMPTION_REQUIREMENTS": preemption}
        fault = fault or self._randomness_fault(by_name) or self._cost_fault({**by_name, "SlotWeight": weight})
        if not fault and len(wanted) > MAX_JOB_NAMES:
            fault = f"refers to {len(wanted)} job attributes, and may refer to {MAX_JOB_NAMES}"
        return PolicyExpressions(start, rank, preemption, weight, wanted, fault)

    def _text(self, name: str, *defaults: str) -> str:
        """Return an expression of the ad; "" = there is none, or it equals the default."""
        value = self.view.get(name)
        text = "" if value is None else value_text(value)
        return "" if text in defaults else text

    def _randomness_fault(self, by_name: Mapping[str, str]) -> str:
        random = [name for name, text in by_name.items() if self.view.is_random(text)]
        return f"{' and '.join(random)} would change each time: random() is not allowed here" if random else ""

    def _cost_fault(self, by_name: Mapping[str, str]) -> str:
        """Return which expression costs too much for any job; "" = none."""
        ad = self._ad_of_expressions(by_name.values())
        for name, text in by_name.items():
            fault = evaluation_fault(text, ad) if text else None
            if fault is not None:
                return f"{name} costs too much to evaluate: {fault}"
        return ""

    def _ad_of_expressions(self, texts: Iterable[str]) -> Ad:
        """Return the part of the ad that these expressions refer to; an attribute that no ad can hold is left out."""
        ad = Ad({})
        for text in texts:
            found, refers = reference_closure(references_in(text, self.view.get), self.view.get)
            if refers.is_dynamic:
                found = {name: value for name in self.view.names() if (value := self.view.get(name)) is not None}
            for name, value in found.items():
                with suppress(InvalidClassAdError):
                    ad.set(name, value)
        return ad


class MatchPolicyEvaluator:
    """A slot's policy at one time, evaluated against one job after the other."""

    def __init__(self, policy: SlotPolicy, time: EvaluationTime, evaluations: EvaluationCache) -> None:
        self.policy = policy
        self._slot = AdSnapshot(policy.view, time.attributes)
        self._evaluations = evaluations
        self._jobs = JobExpressions(self._slot, evaluations)
        self._slot_expressions: dict[str, SlotExpression] = {}

    @property
    def rank_references(self) -> Names:
        """The job attributes that RANK refers to."""
        return self._slot_expression(self.policy.rank).job_names if self.policy.rank else frozenset()

    @property
    def start_references(self) -> Names:
        """The job attributes that START refers to."""
        return self._slot_expression(self.policy.start).job_names if self.policy.start else frozenset()

    def accepts(self, job: JobSnapshot) -> bool:
        """Whether START and the job's requirements expression are both true."""
        return self.starts(job) and self.meets_requirements(job)

    def starts(self, job: JobSnapshot) -> bool:
        """Whether START is true for the job."""
        start = self.policy.start
        return not start or is_true(self._slot_expression(start).value(job))

    @property
    def start_key(self) -> tuple[str, str]:
        """Equal for slots with the same results of START."""
        start = self.policy.start
        return (start, self._slot_expression(start).slot_key) if start else ("", "")

    def whole_class_rejects(self, job: JobSnapshot) -> bool:
        """Whether START is not true for the job, in this slot and in all with the same `start_key`."""
        start = self.policy.start
        return bool(start) and self._slot_expression(start).is_equal_within_class(job) and not self.starts(job)

    def meets_requirements(self, job: JobSnapshot) -> bool:
        """Whether the job's requirements expression is true for the slot."""
        return not job.requirements or is_true(self._jobs.value(job.requirements, job))

    def sees_all(self, job: JobSnapshot) -> bool:
        """Whether the result may depend on more of the job than its expression reads: the slot's ad may refer back."""
        return bool(job.requirements) and self._jobs.depends_on_whole_job(job.requirements, job)

    def rank(self, job: JobSnapshot) -> float:
        """Return RANK of the job."""
        return _number(self._slot_expression(self.policy.rank).value(job)) if self.policy.rank else 0.0

    @property
    def rank_key(self) -> tuple[str, str]:
        """Equal for slots with the same results of RANK."""
        rank = self.policy.rank
        return (rank, self._slot_expression(rank).slot_key) if rank else ("", "")

    def is_rank_constant(self, job: JobSnapshot) -> bool:
        """Whether RANK of the job is the same later, and for all slots with the same `rank_key`."""
        return self._slot_expression(self.policy.rank).is_equal_within_class(job) if self.policy.rank else True

    def rank_by_job(self, job: JobSnapshot) -> float:
        """Return the job's Rank of the slot."""
        return _number(self._jobs.value(job.rank, job)) if job.rank else 0.0

    def allows_preemption(self, job: JobSnapshot, server_wide: str = "") -> bool:
        """Whether PREEMPTION_REQUIREMENTS is true for the job, and the server's own as well; "" = it has none."""
        of_slot = self.policy.preemption_requirements
        texts = [text for text in (of_slot, server_wide) if text]
        return bool(of_slot) and all(is_true(self._slot_expression(text).value(job)) for text in texts)

    def differs_by_job(self, view: JobView) -> bool:
        """Whether jobs with this view have to be evaluated one by one."""
        start = self.policy.start
        return view.expressions_differ_by_job or (
            bool(start) and view.differs_by_job(self._slot_expression(start).job_names)
        )

    def _slot_expression(self, text: str) -> SlotExpression:
        expression = self._slot_expressions.get(text)
        if expression is None:
            expression = self._slot_expressions[text] = SlotExpression(text, self._slot, self._evaluations)
        return expression


_PolicyKey: TypeAlias = tuple[object, ...]


class SlotPolicies:
    """The policies of recently offered slots, with caches for their evaluation."""

    def __init__(self, most: int = MAX_POLICIES, most_bytes: int = MOST_BYTES) -> None:
        self.parts = AdPartStore()
        self.views = JobViews()
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self.evaluations = EvaluationCache()
        self._policies: OrderedDict[_PolicyKey, tuple[SlotPolicy, int]] = OrderedDict()
        self._faulty = BoundedCache[_PolicyKey, SlotPolicy](MAX_FAULTY_POLICIES, most_bytes // 16)
        self._expressions: dict[tuple[object, ...], PolicyExpressions] = {}
        self.names: frozenset[str] = frozenset()
        """The folded names of attributes that slots' ads have had."""

    def policy(self, slot: SlotOffer, queue: QueueId) -> SlotPolicy | None:
        """Return the policy of a slot of a pilot at that queue; None = parts of its ad are missing."""
        unset = tuple(unset_attributes(slot).values())
        key = (queue, slot.free, slot.isolation, slot.ad_parts, slot.ad_changes, unset)
        cached = self._policies.get(key)
        if cached is not None:
            self._policies.move_to_end(key)
            return cached[0]
        faulty = self._faulty.known.get(key)
        if faulty is not None:
            return faulty
        if self.parts.missing(slot.ad_parts):
            return None
        changes = ParsedAdPart(slot.ad_changes or "[]")
        policy = self._read(slot, queue, changes)
        size = changes.size + _OF_A_POLICY
        if policy.fault:
            self._faulty.put(key, policy, size)
        else:
            self._add(key, policy, size)
        return policy

    def _add(self, key: _PolicyKey, policy: SlotPolicy, size: int) -> None:
        self._policies[key] = policy, size
        self._bytes += size
        while len(self._policies) > self._most or self._bytes > self._most_bytes:
            _, (_, removed) = self._policies.popitem(last=False)
            self._bytes -= removed

    def evaluator(self, policy: SlotPolicy, time: EvaluationTime) -> MatchPolicyEvaluator:
        """Return an evaluator of a policy at one time."""
        return MatchPolicyEvaluator(policy, time, self.evaluations)

    def _read(self, slot: SlotOffer, queue: QueueId, changes: ParsedAdPart) -> SlotPolicy:
        parts = [self.parts.get(key) for key in reversed(slot.ad_parts)]
        layers = (
            location_attributes(queue) | {fold(ISOLATION): slot.isolation.value},
            changes.attributes,
            *(part.attributes for part in parts),
            unset_attributes(slot),
        )
        key = (slot.ad_parts, tuple(changes.attributes))
        is_plain = changes.is_plain and not changes.fault
        expressions = self._expressions.get(key) if is_plain else None
        if expressions is not None:
            return SlotPolicy(slot.free, layers, expressions=expressions)
        faults = [part.fault for part in (changes, *parts) if part.fault]
        policy = SlotPolicy(slot.free, layers, f"its ad cannot be read: {faults[0]}" if faults else "")
        self._note_names(policy)
        if is_plain and changes.attributes.keys().isdisjoint(_EXPRESSIONS) and not policy.is_dynamic:
            self._expressions[key] = policy.expressions
            if len(self._expressions) > MAX_EXPRESSIONS:
                del self._expressions[next(iter(self._expressions))]
        return policy

    def _note_names(self, policy: SlotPolicy) -> None:
        names = frozenset(name for name in policy.view.names() if len(name) <= LONGEST_NAME)
        if len(self.names) < MAX_NAMES and not names <= self.names:
            self.names |= names


def _number(value: Result) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
