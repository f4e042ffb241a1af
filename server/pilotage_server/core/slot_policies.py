"""What slots say of jobs, and jobs of slots: the policies in their ads, ready to be asked.

Rules
-----
A slot says START of a job, its RANK and PREEMPTION_REQUIREMENTS, and what its SlotWeight is; a job says its own
expression and its Rank. MY is the ad of who asks, TARGET the other's. Only True is yes; what is no number counts 0.
A slot without START takes any job, without RANK it likes all the same, without PREEMPTION_REQUIREMENTS no other
user drives its job out. Where a slot is, how large it is and what time it is says the server, whatever the slot's
ad says. A policy that cannot be read or is left to chance gets nothing. Source: HTCondor manual, startd policy.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from pilotage.ad_text import value_text
from pilotage.classad_evaluation import CURRENT_TIME, Result, is_true
from pilotage.classads import AdValue
from pilotage.folding import fold, folded_set
from pilotage.resource_tree import QueueId
from pilotage_server.core.accounting import slot_weight
from pilotage_server.core.ad_parts import AdPart, AdParts
from pilotage_server.core.ad_views import AdNow, AdView, Names
from pilotage_server.core.amounts import Amounts
from pilotage_server.core.evaluations import Evaluations, JobQuestions, SlotQuestion, evaluated
from pilotage_server.core.expression_reach import follow, refers_in, refers_to
from pilotage_server.core.job_views import USER_PRIORITY, JobNow, JobView, JobViews
from pilotage_server.core.slot_facts import place, sizes, unsaid
from pilotage_server.core.slots import SlotOffer

TIMES = folded_set((CURRENT_TIME, "LastHeardFrom"))
REMOTE_USER_PRIORITY = fold("RemoteUserPrio")
MOST_POLICIES = 8192
MOST_SAID = 2048
"""What policies say is kept of so many, for slots that have changed in plain values alone."""

MOST_BYTES = 256 * 1024 * 1024
"""About so many are taken by what slots' ads say beside their parts."""

MOST_NAMES = 20_000
MOST_JOB_NAMES = 250
"""Attributes of jobs that one policy may look for; each of them makes more task queues of all waiting jobs."""

_START, _RANK, _PREEMPTION, _WEIGHT = map(fold, ("Start", "Rank", "PreemptionRequirements", "SlotWeight"))
_EXPRESSIONS = frozenset({_START, _RANK, _PREEMPTION, _WEIGHT})
_NAME = re.compile(r"[a-z_]\w{0,254}", re.ASCII)


class Moment(NamedTuple):
    """When a slot is asked; `remote_user_priority` = that of who is charged for its job, None = there is none."""

    now: datetime
    remote_user_priority: float | None = None

    def attributes(self) -> dict[str, AdValue]:
        """Return what a slot's ad says of it."""
        told: dict[str, AdValue] = dict.fromkeys(TIMES, int(self.now.timestamp()))
        if self.remote_user_priority is not None:
            told[REMOTE_USER_PRIORITY] = self.remote_user_priority
        return told


class Said(NamedTuple):
    """What a policy says in expressions, "" = nothing; `fault` = why it gets nothing, "" = it can be asked.

    `job_names` are the folded names of what it looks for in jobs, as far as that can be told.
    """

    start: str
    rank: str
    preemption_requirements: str
    weight_text: str
    job_names: frozenset[str]
    fault: str


class SlotPolicy:
    """The policy of a slot as it is offered.

    `said` is what follows from its expressions alone; None = it is to be found out.
    """

    def __init__(
        self, size: Amounts, layers: Iterable[Mapping[str, AdValue]], fault: str = "", said: Said | None = None
    ) -> None:
        self._layers = tuple(layers)
        self.size = size
        self.view = AdView(sizes(size), *self._layers, passing=TIMES | {REMOTE_USER_PRIORITY})
        self.said = said or self._found_out(fault)
        self.start, self.rank, self.preemption_requirements, self.weight_text, self.job_names, self.fault = self.said

    def looked_for(self, text: str) -> frozenset[str]:
        """Return the folded names of what an expression of the slot looks for in jobs, as far as that can be told."""
        found, refers = follow(refers_in(text, self.view.get), self.view.get)
        names = (refers.target | (refers.free - found.keys() - self.view.passing)) - USER_PRIORITY
        return frozenset(name for name in names if _NAME.fullmatch(name))

    @property
    def reads_texts(self) -> bool:
        """Whether what it refers to may be another when plain values are: it evaluates texts."""
        return any(refers_to(text).is_dynamic for text in self.view.expressions())

    def resized(self, size: Amounts) -> SlotPolicy:
        """Return the policy of the same slot with another size."""
        return self if size == self.size else SlotPolicy(size, self._layers, said=self.said)

    def weight(self, amounts: Amounts) -> float:
        """Return the SlotWeight of a part of so much: its cores where the policy does not say a number from 0."""
        if not self.weight_text:
            return float(amounts.cpus)
        part = AdNow(AdView(sizes(amounts), *self._layers), dict)
        refers = part.refers_to(self.weight_text)
        told = part.excerpt(None if refers.is_dynamic else refers.my, refers.free)
        return slot_weight(evaluated(self.weight_text, told, None), float(amounts.cpus))

    def _found_out(self, fault: str) -> Said:
        start, rank = self._text(_START, "true"), self._text(_RANK, "0", "0.0")
        preemption = self._text(_PREEMPTION, "false")
        wanted = self.looked_for(start) | self.looked_for(rank) | self.looked_for(preemption)
        named = {"START": start, "RANK": rank, "PREEMPTION_REQUIREMENTS": preemption}
        fault = fault or self._chance(named) or _curiosity(len(wanted))
        return Said(start, rank, preemption, self._text(_WEIGHT), wanted, fault)

    def _text(self, name: str, *taken_for_granted: str) -> str:
        """Return an expression of the ad; "" = there is none, or only what would hold without."""
        value = self.view.get(name)
        text = "" if value is None else value_text(value)
        return "" if text in taken_for_granted else text

    def _chance(self, named: Mapping[str, str]) -> str:
        by_chance = [name for name, text in named.items() if self.view.is_left_to_chance(text)]
        return f"{' and '.join(by_chance)} would be another each time: random() is refused here" if by_chance else ""


def _curiosity(wanted: int) -> str:
    return f"looks for {wanted} attributes of jobs, and may for {MOST_JOB_NAMES}" if wanted > MOST_JOB_NAMES else ""


class SlotJudge:
    """A slot's policy at one time, asked of one job after the other."""

    def __init__(self, policy: SlotPolicy, moment: Moment, evaluations: Evaluations) -> None:
        self.policy = policy
        self._slot = AdNow(policy.view, moment.attributes)
        self._evaluations = evaluations
        self._jobs = JobQuestions(self._slot, evaluations)
        self._questions: dict[str, SlotQuestion] = {}

    @property
    def ranks_by(self) -> Names:
        """What RANK looks for in jobs."""
        return self._question(self.policy.rank).wanted if self.policy.rank else frozenset()

    @property
    def starts_by(self) -> Names:
        """What START looks for in jobs."""
        return self._question(self.policy.start).wanted if self.policy.start else frozenset()

    def takes(self, job: JobNow) -> bool:
        """Whether START and the job's expression are both true."""
        return self.starts(job) and self.suits(job)

    def starts(self, job: JobNow) -> bool:
        """Whether START is true of the job."""
        start = self.policy.start
        return not start or is_true(self._question(start).answer(job))

    @property
    def start_reaches(self) -> tuple[str, str]:
        """What is equal for slots that START makes alike."""
        start = self.policy.start
        return (start, self._question(start).reaches) if start else ("", "")

    def all_alike_refuse(self, job: JobNow) -> bool:
        """Whether START is not true of the job in this slot, nor in any that is alike."""
        start = self.policy.start
        return bool(start) and self._question(start).is_the_same_for_alike(job) and not self.starts(job)

    def suits(self, job: JobNow) -> bool:
        """Whether the job's expression is true of the slot."""
        return not job.requirements or is_true(self._jobs.answer(job.requirements, job))

    def sees_all(self, job: JobNow) -> bool:
        """Whether what suits the job may depend on more of it than its expression sees: slots' ads may ask back."""
        return bool(job.requirements) and self._jobs.sees_all(job.requirements, job)

    def rank(self, job: JobNow) -> float:
        """Return RANK of the job."""
        return _number(self._question(self.policy.rank).answer(job)) if self.policy.rank else 0.0

    @property
    def rank_reaches(self) -> tuple[str, str]:
        """What is equal for slots that RANK makes alike."""
        rank = self.policy.rank
        return (rank, self._question(rank).reaches) if rank else ("", "")

    def rank_lasts(self, job: JobNow) -> bool:
        """Whether RANK of the job is the same later, and for any slot that is alike."""
        return self._question(self.policy.rank).is_the_same_for_alike(job) if self.policy.rank else True

    def rank_by(self, job: JobNow) -> float:
        """Return what the slot is to the job's Rank."""
        return _number(self._jobs.answer(job.rank, job)) if job.rank else 0.0

    def gives_way(self, job: JobNow, server_wide: str = "") -> bool:
        """Whether PREEMPTION_REQUIREMENTS is true of the job, and with it that of the server; "" = that has none."""
        own = self.policy.preemption_requirements
        return bool(own) and all(is_true(self._question(text).answer(job)) for text in (own, server_wide) if text)

    def asks_singly(self, view: JobView) -> bool:
        """Whether jobs that have this in common have to be asked one by one."""
        start = self.policy.start
        return view.asks_itself_singly or (bool(start) and view.is_asked_singly(self._question(start).wanted))

    def _question(self, text: str) -> SlotQuestion:
        question = self._questions.get(text)
        if question is None:
            question = self._questions[text] = SlotQuestion(text, self._slot, self._evaluations)
        return question


class SlotPolicies:
    """The policies of slots that were offered lately, with what is remembered to ask them quickly."""

    def __init__(self, most: int = MOST_POLICIES, most_bytes: int = MOST_BYTES) -> None:
        self.parts = AdParts()
        self.views = JobViews()
        self._most = most
        self._most_bytes = most_bytes
        self._bytes = 0
        self.evaluations = Evaluations()
        self._policies: OrderedDict[tuple[object, ...], tuple[SlotPolicy, int]] = OrderedDict()
        self._said: dict[tuple[object, ...], Said] = {}
        self.names: frozenset[str] = frozenset()
        """The folded names of attributes that slots' ads have had."""

    def policy(self, slot: SlotOffer, queue: QueueId) -> SlotPolicy | None:
        """Return the policy of a slot of a pilot at that queue; None = parts of its ad are missing."""
        key = (queue, slot.free, slot.ad_parts, slot.ad_changes, tuple(unsaid(slot).values()))
        kept = self._policies.get(key)
        if kept is not None:
            self._policies.move_to_end(key)
            return kept[0]
        if self.parts.missing(slot.ad_parts):
            return None
        changes = AdPart(slot.ad_changes or "[]")
        policy = self._read(slot, queue, changes)
        self._policies[key] = policy, changes.size
        self._bytes += changes.size
        while len(self._policies) > self._most or self._bytes > self._most_bytes:
            _, (_, size) = self._policies.popitem(last=False)
            self._bytes -= size
        return policy

    def ask(self, policy: SlotPolicy, moment: Moment) -> SlotJudge:
        """Return a policy, to be asked at that moment."""
        return SlotJudge(policy, moment, self.evaluations)

    def _read(self, slot: SlotOffer, queue: QueueId, changes: AdPart) -> SlotPolicy:
        parts = [self.parts.part(key) for key in reversed(slot.ad_parts)]
        layers = (place(queue), changes.attributes, *(part.attributes for part in parts), unsaid(slot))
        key = (slot.ad_parts, tuple(changes.attributes))
        is_plain = changes.is_plain and not changes.fault
        said = self._said.get(key) if is_plain else None
        if said is not None:
            return SlotPolicy(slot.free, layers, said=said)
        faults = [part.fault for part in (changes, *parts) if part.fault]
        policy = SlotPolicy(slot.free, layers, f"its ad cannot be read: {faults[0]}" if faults else "")
        self._note_names(policy)
        if is_plain and changes.attributes.keys().isdisjoint(_EXPRESSIONS) and not policy.reads_texts:
            self._said[key] = policy.said
            if len(self._said) > MOST_SAID:
                del self._said[next(iter(self._said))]
        return policy

    def _note_names(self, policy: SlotPolicy) -> None:
        names = frozenset(policy.view.names())
        if len(self.names) < MOST_NAMES and not names <= self.names:
            self.names |= names


def _number(value: Result) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
