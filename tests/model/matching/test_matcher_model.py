"""The matcher chooses the same jobs as the reference matcher, for any waiting jobs and any pilot."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TypeAlias

from hypothesis import event
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from pilotage.accounts import Quota, QuotaUnit
from pilotage.resources.requirements import JobNeeds
from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account, GroupId
from pilotage.values.amounts import Amounts
from pilotage.values.isolation import Isolation
from pilotage.values.offers import OccupiedSlot, SlotOffer
from pilotage_server.core.matching.matcher import Reservation
from pilotage_server.core.queueing.task_queue import TaskQueue, Traits
from pilotage_server.core.queueing.waiting_jobs import QueueHead
from pilotage_server.core.resources.tree import ActiveTree
from pilotage_server.core.rules import RunningLimit, Sharing
from support.match_bench import MatchedJob, MatcherComparison
from support.trees import a_tree
from support.virtual_clock import START

SINGLES = 3
"""How many jobs of a task queue a slot looks at one by one: task queues of the model have more."""

RANK_EFFORT = 100
"""A call of the model ends with a rest after it has judged two slots for jobs with a Rank."""

QUEUES = (QueueId("CERN", "ce", "long"), QueueId("CERN", "ce", "short"), QueueId("RAL", "ce", "long"))
WEAKER = {"ForVO": {"cms": {"Isolation": "owner"}}}
CERN = {"ces": {"ce": {"queues": {"long": {}, "short": {"CPUTime": 1000, "Isolation": "namespace", **WEAKER}}}}}
RAL = {"VOs": ["lhcb"], "ces": {"ce": {"queues": {"long": {"Platform": "x86"}}}}}
TREES = (
    ActiveTree(1, a_tree(sites={"CERN": CERN, "RAL": RAL})),
    ActiveTree(2, a_tree(sites={"CERN": CERN, "RAL": {**RAL, "VOs": ["cms"]}})),
)

accounts = st.builds(
    Account, st.sampled_from(["lhcb", "cms"]), st.sampled_from(["prod", "users"]), st.sampled_from(["a", "b", "c"])
)
needs = st.builds(
    JobNeeds,
    sites=st.sampled_from([(), (), (), ("cern",), ("ral",)]),
    platforms=st.sampled_from([(), (), (), ("arm",)]),
    cpu_time_s=st.sampled_from([None, None, 500, 2000.5, 2100]),
    cpus=st.sampled_from([None, None, 1, 2, 4]),
    memory_mib=st.sampled_from([None, None, 1000, 1001, 4000]),
    gpus=st.sampled_from([None, None, None, None, 1]),
    wall_time_s=st.sampled_from([None, None, 600, 610, 3600]),
)
attributes = st.dictionaries(st.sampled_from(["kind", "urgency"]), st.integers(1, 3), max_size=2).map(
    lambda values: tuple(sorted((name, json.dumps(value)) for name, value in values.items()))
)
plain_traits = st.builds(
    Traits,
    account=accounts,
    pool_id=st.sampled_from(["", "", "p", "q"]),
    needs=needs,
    attributes=attributes,
)
particular_traits = st.builds(
    Traits,
    account=accounts,
    pool_id=st.sampled_from(["", "", "p", "q"]),
    needs=needs,
    attributes=attributes,
    accounting=st.sampled_from(["", "prod", "prod.c"]),
    requirements_expression=st.sampled_from(
        [
            "",
            "TARGET.Cpus >= 2",
            "TARGET.Kind =?= MY.kind",
            'TARGET.Name == "s1"',
            "TARGET.Start",
            "MY.SubmittorPrio > 1",
            "MY.ProcId % 2 == 1",
            "MY.kind =?= 1",
        ]
    ),
    rank=st.sampled_from(["", "", "", "TARGET.Cpus"]),
    escaped=st.sampled_from([(), (), (), ("kind",)]),
)
ranking_traits = st.builds(
    Traits,
    account=accounts,
    pool_id=st.just(""),
    needs=st.just(JobNeeds()),
    attributes=attributes,
    requirements_expression=st.sampled_from(
        ["", "", "TARGET.Cpus >= 2", "MY.ProcId % 2 == 1", 'TARGET.Name == "s1"', 'TARGET.Name == "s2"']
    ),
    rank=st.sampled_from(["TARGET.Cpus", "-TARGET.Cpus", 'TARGET.Name == "s1"', "TARGET.Kind - MY.kind"]),
)
"""Traits of jobs that rank slots and go nearly everywhere."""

individual_traits = st.builds(
    Traits, account=accounts, pool_id=st.just(""), needs=st.just(JobNeeds()), escaped=st.just(("kind",))
)
"""Traits of jobs that go nearly everywhere, and that some slots tell apart."""

traits = st.one_of(plain_traits, particular_traits, ranking_traits, individual_traits)
counts = st.integers(1, 6)
limits = st.dictionaries(
    st.sampled_from(
        [
            RunningLimit("CERN", None, None, "owner", "a", 3),
            RunningLimit("CERN", None, None, "kind", "2", 2),
            RunningLimit("CERN", None, None, "vo", "cms", 4),
        ]
    ),
    st.just(0),
    max_size=2,
)
sharings = st.builds(
    Sharing,
    priority_factors=st.dictionaries(accounts, st.sampled_from([0.5, 2.0]), max_size=2),
    group_quotas=st.dictionaries(
        st.sampled_from([GroupId("lhcb", "prod"), GroupId("lhcb", "users"), GroupId("cms", "users")]),
        st.sampled_from([Quota(2.0), Quota(3.0, QuotaUnit.CORES), Quota(0.5)]),
        max_size=2,
    ),
    group_accept_surplus=st.booleans(),
    group_sort_expression=st.sampled_from(
        ["", "", "-GroupResourcesInUse", 'ifThenElse(AccountingGroup == "prod", undefined, GroupResourcesInUse)']
    ),
)
ads = st.sampled_from(
    [
        "",
        "",
        "[Start = TARGET.kind =?= 1]",
        "[Start = TARGET.urgency =!= 2; Rank = TARGET.urgency]",
        "[Rank = TARGET.kind * 2 + (TARGET.urgency =?= 1); Kind = 2]",
        "[Start = TARGET.SubmittorPrio < 2; SlotWeight = 2 * Cpus]",
        "[Kind = 3; SlotWeight = 0.5]",
        "[Rank = TARGET.kind; PreemptionRequirements = RemoteUserPrio > TARGET.SubmittorPrio]",
        "[PreemptionRequirements = TARGET.urgency =!= 2]",
    ]
)
individual_ads = st.sampled_from(["", "", "[Start = TARGET.kind =?= 1]", "[Start = TARGET.ProcId % 2 == 0; Kind = 2]"])
"""The ads of slots of which some tell jobs apart that others take as they come."""

preempting_ads = st.sampled_from(
    [
        "[Rank = TARGET.kind]",
        "[PreemptionRequirements = true]",
        "[PreemptionRequirements = TARGET.urgency =!= 2]",
        "[PreemptionRequirements = RemoteUserPrio > TARGET.SubmittorPrio]",
        "[Rank = TARGET.kind; PreemptionRequirements = RemoteUserPrio >= TARGET.SubmittorPrio]",
        "[Start = TARGET.ProcId % 2 == 0; PreemptionRequirements = RemoteUserPrio >= TARGET.SubmittorPrio]",
    ]
)
presents = st.tuples(
    accounts,
    st.builds(OccupiedSlot, st.just(1), st.integers(1, 9), st.sampled_from([0.0, 0.0, 1.0, 2.0]), st.booleans()),
)
"""The users of occupied slots with what the slots report of their jobs."""


@st.composite
def slots(draw: st.DrawFn, name: str) -> SlotOffer:
    partitionable = draw(st.booleans())
    return SlotOffer(
        name,
        Amounts(
            draw(st.sampled_from([8, 2, 1])), draw(st.sampled_from([16000, 1000, 4000, 0])), 0, draw(st.integers(0, 1))
        ),
        partitionable=partitionable,
        time_left=draw(st.sampled_from([None, None, timedelta(minutes=10), timedelta(seconds=640), timedelta(days=1)])),
        cpu_power=draw(st.sampled_from([0.0, 1.0, 3.3, 1e308])),
        max_jobs=draw(st.sampled_from([0, 0, 1, 2])),
        declined_task_queues=frozenset(draw(st.sets(st.integers(1, 4), max_size=1))),
        ad_changes=draw(ads),
        claim=draw(st.one_of(st.none(), st.none(), accounts)),
        ahead=0 if partitionable else draw(st.sampled_from([0, 0, 0, 3])),
    )


@st.composite
def pilots(draw: st.DrawFn) -> tuple[QueueId, tuple[str, ...], list[SlotOffer]]:
    """Return a batch queue, VOs, and slots, some of them equal."""
    kinds = [draw(slots(f"s{number}")) for number in range(draw(st.integers(1, 3)))]
    alike = draw(st.integers(0, 2))
    offered = [*kinds, *(SlotOffer(f"t{number}", kinds[-1].free) for number in range(alike))]
    level = draw(st.sampled_from([Isolation.NAMESPACE, Isolation.NONE, Isolation.OWNER]))
    bound = draw(st.one_of(st.none(), accounts)) if level is Isolation.OWNER else None
    owner = None if bound is None else bound.owner_id
    offered = [slot._replace(isolation=level, bound_to=owner) for slot in offered]
    return draw(st.sampled_from(QUEUES)), draw(st.sampled_from([(), (), ("lhcb",), ("CMS", "lhcb")])), offered


PilotSlots: TypeAlias = tuple[QueueId, tuple[str, ...], list[SlotOffer]]


@st.composite
def roomy_pilots(draw: st.DrawFn, ads: st.SearchStrategy[str], most: int = 4) -> PilotSlots:
    """Return a batch queue that admits all VOs, and slots with these ads that most jobs fit in."""
    sizes = st.builds(Amounts, st.sampled_from([8, 4, 2, 1]), st.just(16000), st.just(0), st.just(1))
    offered = [
        SlotOffer(f"s{number}", draw(sizes), ad_changes=draw(ads)) for number in range(draw(st.integers(1, most)))
    ]
    return QUEUES[0], (), offered


@st.composite
def equal_slots(draw: st.DrawFn) -> PilotSlots:
    """Return a batch queue that admits all VOs, and equal slots without ads that most jobs fit in."""
    slot = SlotOffer("s0", Amounts(draw(st.sampled_from([8, 1])), 16000, 0, 1), ahead=draw(st.sampled_from([0, 0, 1])))
    return QUEUES[0], (), [slot._replace(name=f"s{number}") for number in range(draw(st.integers(2, 4)))]


class MatcherModel(RuleBasedStateMachine):
    """The same waiting jobs twice: one served by the matcher, one by the reference matcher."""

    @initialize(sharing=sharings, limits=limits, queues=st.lists(st.tuples(traits, counts), min_size=3, max_size=8))
    def begin(self, sharing: Sharing, limits: dict[RunningLimit, int], queues: list[tuple[Traits, int]]) -> None:
        self.reference = MatcherComparison(sharing, TREES[0], dict(limits), SINGLES)
        self.server = MatcherComparison(sharing, TREES[0], dict(limits), SINGLES, rank_effort=RANK_EFFORT)
        self.now = START
        self.last_job = 0
        for each, count in queues:
            self.add(each, count)

    @rule(traits=traits, count=counts)
    def add(self, traits: Traits, count: int) -> None:
        number = len(self.reference.jobs) + 1
        self._each(lambda state: state.add(TaskQueue(number, traits)))
        for _ in range(count):
            self.add_jobs(number - 1, 0, 1)

    @rule(place=st.integers(0, 9), priority=st.integers(-1, 2), count=st.sampled_from([1, 1, 2, 5]))
    def add_jobs(self, place: int, priority: int, count: int) -> None:
        number = place % len(self.reference.jobs) + 1
        if self.reference.index.get(number) is None:
            return
        heads = [QueueHead(priority, self.last_job + each) for each in range(1, count + 1)]
        self.last_job += count
        self._each(lambda state: state.add_jobs(number, heads))

    @rule(place=st.integers(0, 9), which=st.integers(0, 5))
    def remove_job(self, place: int, which: int) -> None:
        number = place % len(self.reference.jobs) + 1
        self._each(lambda state: state.remove_job(number, which))

    @rule(pilot=st.one_of(pilots(), roomy_pilots(individual_ads, most=8), roomy_pilots(st.just("")), equal_slots()))
    def match(self, pilot: PilotSlots) -> None:
        expected = self.reference.match_by_reference(*pilot, self.now)
        rests = self.server.rests
        choices = self.server.chosen(*pilot, self.now)
        if self.server.rests > rests:
            event("matched: with a rest" if choices else "matched: with a rest, without a job")
        self._count(choices, pilot[2])
        assert self.server.claim(choices, self.now) == expected
        assert self.server.jobs == self.reference.jobs

    @rule(pilot=roomy_pilots(individual_ads), other=roomy_pilots(individual_ads), is_other_first=st.booleans())
    def match_beside(self, pilot: PilotSlots, other: PilotSlots, is_other_first: bool) -> None:
        """Choose for two requests before the database is asked, as two threads do; each waiting job stays known."""
        self._evaluate_group_order()
        choices, others = self.server.chosen(*pilot, self.now), self.server.chosen(*other, self.now)
        self._charge([*choices, *others])
        for chosen in (others, choices) if is_other_first else (choices, others):
            given = self.server.claim(chosen, self.now)
            self._follow(chosen, given)
            if None in given:
                event("two threads: a certain job was missed")
            if any(job and job.job_id != choice.head.job_id for choice, job in zip(chosen, given, strict=True)):
                event("two threads: another job than the reserved one")
        for number in self.server.jobs:
            waiting = self.server.index.get(number)
            assert waiting is None or not (waiting.taken or waiting.has_open_matches)

    @rule(pilot=pilots())
    def match_and_undo(self, pilot: PilotSlots) -> None:
        """Undo a match, as a failed transaction does."""
        self._evaluate_group_order()
        choices = self.server.chosen(*pilot, self.now)
        self.server.matcher.unreserve(choices, self.now)
        self._charge(choices)
        self._follow(choices, [None] * len(choices))
        self.server.matcher.check()

    @rule(
        pilot=st.one_of(pilots(), roomy_pilots(preempting_ads), roomy_pilots(preempting_ads)),
        present=st.lists(presents, min_size=5, max_size=5),
    )
    def vacate(self, pilot: PilotSlots, present: list[tuple[Account, OccupiedSlot]]) -> None:
        queue, vos, offered = pilot
        present = present[: len(offered)]
        slots = [slot._replace(occupied=job, ahead=0) for slot, (_, job) in zip(offered, present, strict=True)]
        users = [user for user, _ in present]
        vacates = self.reference.vacates_by_reference(queue, vos, slots, users, self.now)
        assert self.server.vacates(queue, vos, slots, users, self.now) == vacates
        for vacate in vacates:
            event("vacated by rank" if vacate.by_rank else "vacated by priority")

    @rule(pool=st.sampled_from(["p", "q"]), queues=st.sets(st.sampled_from(QUEUES)))
    def map_pool(self, pool: str, queues: set[QueueId]) -> None:
        self._each(lambda state: state.map_pool(pool, queues, self.now))

    @rule(tree=st.sampled_from(TREES))
    def change_tree(self, tree: ActiveTree) -> None:
        self._each(lambda state: state.activate_tree(tree))

    @rule(place=st.integers(0, 9))
    def remove_task_queue(self, place: int) -> None:
        """Remove a task queue without waiting jobs."""
        number = place % len(self.reference.jobs) + 1
        if not self.reference.jobs[number]:
            self._each(lambda state: state.index.remove([number]))

    @rule(seconds=st.sampled_from([0.4, 1.0, 3600.0]))
    def wait(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    @rule(account=accounts)
    def end_run(self, account: Account) -> None:
        self._each(lambda state: state.shares.end_runs(account, 1, self.now))

    def _evaluate_group_order(self) -> None:
        """Evaluate the operators' order of groups in both states: at its first use in a tick it is fixed."""
        for state in (self.reference, self.server):
            shares = state.shares.round(self.now)
            for account in state.index.accounts():
                shares.share(account)

    def _charge(self, choices: Sequence[Reservation]) -> None:
        """Charge in the state of the reference what was reserved."""
        for choice in choices:
            self.reference.shares.start_run(choice.task_queue.account, choice.weight, self.now)

    def _follow(self, choices: Sequence[Reservation], given: Sequence[MatchedJob | None]) -> None:
        """Apply to the state of the reference the jobs that were given for the choices; None = none."""
        for choice, job in zip(choices, given, strict=True):
            if job is None:
                self.reference.shares.end_runs(choice.task_queue.account, choice.weight, self.now)
            else:
                self.reference.remove_matched(choice.task_queue, job)

    def _count(self, choices: Sequence[Reservation], offered: Sequence[SlotOffer]) -> None:
        """Show in the statistics of Hypothesis what a search has met."""
        certain = {choice.task_queue.id for choice in choices if choice.job_id is not None}
        if certain:
            event("matched: certain jobs")
        if certain & {choice.task_queue.id for choice in choices if choice.job_id is None}:
            event("matched: certain jobs beside first ones of the same task queue")
        if any(choice.task_queue.traits.rank for choice in choices) and len(offered) > 1:
            event("matched: a job that ranks several slots")
        if any(choice.slot != offered[0].name for choice in choices[:1] if choice.task_queue.traits.rank):
            event("matched: the first job to a later slot that it ranks higher")

    def _each(self, act: Callable[[MatcherComparison], object]) -> None:
        act(self.reference)
        act(self.server)
        self.server.matcher.check()


TestMatcherModel = MatcherModel.TestCase
