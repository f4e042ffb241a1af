"""Notifications: which events and ends make them, over several servers and crashes, and how they are handed out."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from functools import partial
from typing import Any

import pytest

from pilotage.errors import NotFoundError, QuotaExceededError
from pilotage.job_description import JobDescription
from pilotage.notifications import ALL_OCCASIONS, DELIVERY_LEASE, NewSubscription, Occasion, RecipientKind
from pilotage.values.dependencies import Dependency, DependencyKind
from pilotage.values.jobs import SubmittedJobs
from pilotage.values.leadership import Leadership
from pilotage.values.notifications import DeliveryReport, DueNotification, SubmittedSubscription
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import AgentBounds, Identity, Role
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.notifications import MOST_LEASED, TRY_FOR, NotificationRules
from pilotage_server.core.rules import Rules
from pilotage_server.operations.jobs.new_jobs import PART_JOBS, store_part
from pilotage_server.operations.jobs.notifications import (
    CHECK_AGAIN,
    MOST_CONCERNED,
    WINDOW,
    ListedSubscription,
    give_up_old_notifications,
    list_subscriptions,
    make_notifications,
    record_deliveries,
    remove_closed_subscriptions,
    scan_events,
    subscribe,
    take_notifications,
    unsubscribe,
)
from pilotage_server.operations.jobs.submission import submit_jobs, subscribe_to_new_jobs
from pilotage_server.operations.leadership import take_leadership
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.transaction import Transaction
from support.grid import Grid, a_slot
from support.jobs import a_user, an_operator
from support.virtual_clock import VirtualClock

END, FAILURE, HOLD = Occasion
ALICE, BOB = a_user("alice"), a_user("bob")
NOTIFIER = Identity("notifier:test", "", (), frozenset({Role.NOTIFIER}))
TRUE = JobDescription("/bin/true")


def hook(*occasions: Occasion, path: str = "", host: str = "hooks.example.org", secret: str = "") -> NewSubscription:
    """Return a subscription with a URL; no occasions = all."""
    return NewSubscription(RecipientKind.URL, f"https://{host}/{path}", frozenset(occasions) or ALL_OCCASIONS, secret)


class NotifiedJobs:
    """A grid with a pilot, and with a notifier that takes all notifications and delivers none by itself."""

    def __init__(self, database: Database, clock: VirtualClock, **rules: Any) -> None:
        self.grid = Grid(database, clock, rules=Rules(notifications=NotificationRules(**rules)))
        self.pilot = self.grid.start_pilot()
        self.warnings: Sequence[str] = ()
        """Those of the last submission."""

    def submit(
        self,
        *wanted: NewSubscription,
        count: int = 1,
        dependencies: Sequence[Dependency] = (),
        user: Identity = ALICE,
        descriptions: Sequence[JobDescription] = (),
        workflow: str = "",
        **fields: Any,
    ) -> list[int]:
        """Submit jobs with subscriptions for all of them."""
        described = descriptions or [JobDescription("/bin/true", count=count, **fields)]
        subscriptions = [SubmittedSubscription(0, len(described) - 1, each) for each in wanted]
        groups = single_groups(described)

        def submit(transaction: Transaction, state: ServerState) -> SubmittedJobs:
            done = submit_jobs(transaction, state, user, groups, dependencies=dependencies, workflow=workflow)
            return subscribe_to_new_jobs(transaction, state, user, groups, subscriptions, done)

        submitted = self.grid.write(submit)
        self.warnings = submitted.warnings
        return list(submitted.job_ids)

    def store_parts(self, submission: int) -> None:
        """Store the rest of a long submission."""
        while self.grid.write(lambda transaction, state: store_part(transaction, state, submission)):
            pass

    def subscribe(self, jobs: JobSelection, wanted: NewSubscription, user: Identity = ALICE) -> int:
        made, _ = self.grid.write(lambda transaction, state: subscribe(transaction, state, user, jobs, wanted))
        return made.id

    def run(self, job: int, exit_code: int = 0) -> None:
        """Run the only waiting job."""
        match = self.pilot.take(a_slot())
        assert match.job_id == job
        self.pilot.finish(match, exit_code)

    def run_all(self, exit_codes: Iterable[int]) -> None:
        """Run the waiting jobs in their order."""
        for exit_code in exit_codes:
            self.pilot.finish(self.pilot.take(a_slot()), exit_code)

    def make(self) -> None:
        """Make notifications, as a server does each second."""
        while (scan := self.grid.read(scan_events)) is not None:
            self.grid.write(partial(make_notifications, scan=scan))
            if not scan.more:
                return

    def take(self, most: int = 100, notifier: Identity = NOTIFIER) -> list[DueNotification]:
        return self.grid.write(lambda transaction, _: take_notifications(transaction, notifier, most))

    def report(self, *reports: DeliveryReport, notifier: Identity = NOTIFIER) -> None:
        self.grid.write(lambda transaction, _: record_deliveries(transaction, notifier, reports))

    def notified(self) -> list[tuple[str, str]]:
        """Make and take all notifications, and return occasion and subject of each."""
        self.make()
        taken = self.take()
        self.report(*(DeliveryReport(each.id, each.tries) for each in taken))
        bodies = [json.loads(each.body) for each in taken]
        return [(body["occasion"], body["subject"]) for body in bodies]

    def listed(self, *jobs: JobSelection, user: Identity = ALICE, owner: str = "") -> list[ListedSubscription]:
        return self.grid.read(lambda transaction, _: list_subscriptions(transaction, user, jobs, owner))


@pytest.fixture
def jobs(database: Database, clock: VirtualClock) -> NotifiedJobs:
    return NotifiedJobs(database, clock)


def test_end_of_job_notifies_once(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END), name="fit")
    assert jobs.notified() == []
    jobs.run(job)
    jobs.make()
    (due,) = jobs.take()
    body = json.loads(due.body)
    assert body["id"] == due.id
    assert (body["text"], body["first_job"], body["states"]) == (f"Job {job} (fit) is DONE", job, {"DONE": 1})
    assert (due.kind, due.address) == (RecipientKind.URL, "https://hooks.example.org/")
    jobs.grid.change(JobChange.RESCHEDULE, job)
    jobs.run(job)
    assert jobs.notified() == []


def test_end_of_cluster_comes_with_its_last_job(jobs: NotifiedJobs) -> None:
    first, *_, last = jobs.submit(hook(END), count=3)
    jobs.run_all([0, 1])
    assert jobs.notified() == []
    jobs.grid.change(JobChange.HOLD, last)
    assert jobs.notified() == []
    jobs.grid.change(JobChange.REMOVE, last)
    jobs.make()
    (due,) = jobs.take()
    assert json.loads(due.body)["text"] == f"Cluster {first} has ended: 1 DONE, 1 FAILED, 1 REMOVED"


def test_only_first_failure_and_first_hold_notify(jobs: NotifiedJobs) -> None:
    first, second, third, fourth = jobs.submit(hook(FAILURE, HOLD), count=4)
    jobs.run_all([1, 0])
    jobs.grid.change(JobChange.HOLD, third)
    assert jobs.notified() == [("failure", f"job {first} has failed"), ("hold", f"job {third} is held")]
    jobs.grid.change(JobChange.RELEASE, third)
    jobs.grid.change(JobChange.HOLD, third, fourth)
    assert jobs.notified() == []
    assert second


def test_events_of_one_moment_notify_of_the_earliest(jobs: NotifiedJobs) -> None:
    first, second = jobs.submit(hook(FAILURE, END), count=2)
    matches = [jobs.pilot.take(a_slot()) for _ in range(2)]
    jobs.pilot.finish(matches[1], 1)
    jobs.pilot.finish(matches[0], 1)
    assert jobs.notified() == [("failure", f"job {second} has failed"), ("end", f"cluster {first} has ended")]


def test_hold_by_the_owner_is_none(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(HOLD))
    jobs.grid.change(JobChange.HOLD, job, user=ALICE)
    jobs.submit(hook(HOLD), hold=True)
    assert jobs.notified() == []


def test_retried_failure_is_none(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(), retries=1)
    jobs.run(job, 1)
    assert jobs.notified() == []
    jobs.run(job, 1)
    assert jobs.notified() == [("failure", f"job {job} has failed"), ("end", f"job {job} is FAILED")]


def test_jobs_that_have_ended_notify_of_the_end_at_once(jobs: NotifiedJobs) -> None:
    first, _ = jobs.submit(count=2)
    jobs.run_all([1, 0])
    jobs.subscribe(JobSelection(first), hook())
    assert jobs.notified() == [("end", f"cluster {first} has ended")]
    (listed,) = jobs.listed()
    assert listed.subscription.closed is not None


def test_subscription_of_part_of_a_cluster_sees_that_part(jobs: NotifiedJobs) -> None:
    first = jobs.submit(count=4)[0]
    jobs.subscribe(JobSelection(first, (1, 2)), hook())
    jobs.run_all([1])
    assert jobs.notified() == []
    jobs.run_all([0, 1])
    expected = [("failure", f"job {first + 2} has failed"), ("end", f"jobs {first + 1}-{first + 2} have ended")]
    assert jobs.notified() == expected
    for asked, found in (((0, 0), 0), ((2, 3), 1)):
        assert len(jobs.listed(JobSelection(first, asked))) == found


def test_crash_loses_and_doubles_no_notification(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook())
    jobs.run(job, 1)

    scan = jobs.grid.read(scan_events)
    assert scan is not None

    def crash(transaction: Any, state: Any) -> None:
        make_notifications(transaction, state, scan)
        raise RuntimeError("killed before the commit")

    with pytest.raises(RuntimeError):
        jobs.grid.write(crash)
    assert jobs.take() == []
    jobs.grid = jobs.grid.restarted()
    assert len(jobs.notified()) == 2
    assert jobs.notified() == []


@pytest.mark.parametrize("most", [3, MOST_CONCERNED])
def test_servers_at_once_make_each_notification_once(
    jobs: NotifiedJobs, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("pilotage_server.operations.jobs.notifications.MOST_CONCERNED", most)
    for _ in range(8):
        jobs.submit(hook(FAILURE, END))
    jobs.run_all([1] * 8)
    scans = [scan for _ in range(4) if (scan := jobs.grid.read(scan_events)) is not None]
    with ThreadPoolExecutor(4) as servers:
        made = [servers.submit(jobs.grid.write, partial(make_notifications, scan=scan)) for scan in scans]
        for each in made:
            each.result()
    listed = jobs.listed()
    assert sum(len(each.notifications) for each in listed) == 2 * min(most, 8)
    with ThreadPoolExecutor(4) as servers:
        for each in [servers.submit(jobs.make) for _ in range(4)]:
            each.result()
    listed = jobs.listed()
    assert [len(each.notifications) for each in listed] == [2] * 8


def test_events_before_the_subscription_do_not_count(jobs: NotifiedJobs) -> None:
    jobs.submit(hook())  # the cursor moves
    (other, _) = jobs.submit(count=2)
    jobs.pilot.take(a_slot())
    jobs.run_all([1])
    jobs.subscribe(JobSelection(other), hook(FAILURE))
    jobs.make()
    assert not [each for each in jobs.take() if json.loads(each.body)["first_job"] == other]


def test_without_open_subscriptions_events_are_not_read(jobs: NotifiedJobs) -> None:
    assert jobs.grid.read(scan_events) is None
    jobs.run_all(0 for _ in jobs.submit(count=3))
    assert jobs.grid.read(scan_events) is None
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    assert jobs.notified() == [("end", f"job {job} is DONE")]
    jobs.run_all(0 for _ in jobs.submit(count=3))
    assert jobs.grid.read(scan_events) is None


def test_many_events_are_examined_in_windows(jobs: NotifiedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    assert WINDOW > 10
    monkeypatch.setattr("pilotage_server.operations.jobs.notifications.WINDOW", 3)
    first = jobs.submit(hook(), count=5)[0]
    jobs.run_all([0, 0, 1, 1, 0])
    expected = [("failure", f"job {first + 2} has failed"), ("end", f"cluster {first} has ended")]
    assert jobs.notified() == expected


def test_end_waits_while_very_many_events_are_to_be_examined(
    jobs: NotifiedJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pilotage_server.operations.jobs.notifications.WINDOW", 3)
    first = jobs.submit(hook(), count=5)[0]
    jobs.run_all([0, 0, 0, 0, 1])
    scan = jobs.grid.read(scan_events)
    assert scan is not None
    jobs.grid.write(partial(make_notifications, scan=scan))
    assert jobs.take() == []
    jobs.grid.clock.advance(CHECK_AGAIN)
    assert jobs.notified() == [("failure", f"job {first + 4} has failed"), ("end", f"cluster {first} has ended")]


def test_long_submission_has_not_ended_before_it_is_stored(jobs: NotifiedJobs) -> None:
    ids = jobs.submit(hook(END), count=PART_JOBS + 1)
    jobs.grid.change(JobChange.REMOVE, *ids[:PART_JOBS])
    assert jobs.notified() == []
    jobs.store_parts(ids[0])
    jobs.grid.change(JobChange.REMOVE, ids[-1])
    assert jobs.notified() == [("end", f"cluster {ids[0]} has ended")]


def after_ok(description: int, *parents: int, existing: Sequence[int] = ()) -> Dependency:
    return Dependency(description, DependencyKind.AFTER_OK, tuple(map(JobSelection, existing)), parents)


def test_workflow_ends_when_the_rest_stays_blocked(jobs: NotifiedJobs) -> None:
    dependencies = [after_ok(1, 0), after_ok(2, 1), after_ok(3, 2, 1)]
    first, *_ = jobs.submit(hook(), descriptions=[TRUE] * 4, dependencies=dependencies, workflow="My Flow")
    jobs.run(first)
    jobs.grid.advance()
    assert jobs.notified() == []
    jobs.run(first + 1, 1)
    jobs.grid.advance()
    jobs.make()
    failure, end = (json.loads(each.body) for each in jobs.take())
    assert (failure["occasion"], failure["subject"]) == ("failure", f"job {first + 1} has failed")
    assert (end["occasion"], end["subject"]) == ("end", f"workflow w{first} has ended")
    assert end["text"] == f"Workflow w{first} (My Flow) has ended: 1 DONE, 1 FAILED, 2 BLOCKED"


def test_jobs_that_may_still_be_freed_have_not_ended(jobs: NotifiedJobs) -> None:
    (outside,) = jobs.submit()
    dependencies = [after_ok(0, existing=[outside]), after_ok(1, 0)]
    first, second = jobs.submit(hook(END), descriptions=[TRUE] * 2, dependencies=dependencies)
    assert jobs.notified() == []
    jobs.run(outside)  # its children are not freed yet
    jobs.grid.clock.advance(CHECK_AGAIN)
    assert jobs.notified() == []
    jobs.grid.advance()
    jobs.run(first)
    jobs.grid.advance()
    jobs.run(second)
    assert jobs.notified() == [("end", f"jobs {first}-{second} have ended")]


def test_outside_parent_that_fails_ends_the_blocked_jobs(jobs: NotifiedJobs) -> None:
    (outside,) = jobs.submit()
    (job,) = jobs.submit(hook(END), descriptions=[TRUE], dependencies=[after_ok(0, existing=[outside])])
    assert jobs.notified() == []
    jobs.run(outside, 1)
    jobs.grid.advance()
    jobs.grid.clock.advance(CHECK_AGAIN)
    assert jobs.notified() == [("end", f"job {job} is BLOCKED")]


def test_notification_is_leased_retried_and_given_up(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    jobs.make()
    (first,) = jobs.take()
    assert jobs.take() == []
    jobs.grid.clock.advance(DELIVERY_LEASE)
    (again,) = jobs.take()  # the notifier is gone
    assert (again.id, again.tries) == (first.id, 2)
    jobs.report(DeliveryReport(first.id, 1))  # too late: the second try is under way
    jobs.report(DeliveryReport(again.id, 2, "503 Service Unavailable"))
    assert jobs.take() == []
    pauses, began = [], jobs.grid.clock()
    while (shown := jobs.listed()[0].notifications[0]).due is not None:
        pauses.append(shown.due - jobs.grid.clock())
        jobs.grid.clock.advance(pauses[-1])
        (due,) = jobs.take()
        jobs.report(DeliveryReport(due.id, due.tries, "still 503"))
    assert pauses[0] == timedelta(minutes=2)
    assert max(pauses) == timedelta(hours=1)
    assert TRY_FOR - timedelta(hours=1) <= jobs.grid.clock() - began <= TRY_FOR
    assert (shown.error, shown.delivered) == ("still 503", None)


def test_notification_that_no_notifier_takes_is_given_up(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    jobs.make()
    jobs.grid.clock.advance(TRY_FOR)
    assert jobs.grid.write(give_up_old_notifications) == 0
    jobs.grid.clock.advance(timedelta(seconds=1))
    assert jobs.grid.write(give_up_old_notifications) == 1
    assert jobs.take() == []
    assert jobs.listed()[0].notifications[0].error == "no notifier has run"


def test_subscription_that_is_removed_meanwhile_is_not_notified(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    scan = jobs.grid.read(scan_events)
    assert scan is not None
    (listed,) = jobs.listed()
    jobs.grid.write(lambda transaction, _: unsubscribe(transaction, ALICE, [listed.subscription.id]))
    jobs.grid.write(partial(make_notifications, scan=scan))
    assert jobs.notified() == []


def test_permanent_error_is_not_retried(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    jobs.make()
    (due,) = jobs.take()
    jobs.report(DeliveryReport(due.id, due.tries, "a private address", is_permanent=True))
    (shown,) = jobs.listed()[0].notifications
    assert (shown.due, shown.delivered, shown.error) == (None, None, "a private address")


def test_host_that_never_answers_delays_no_other(jobs: NotifiedJobs) -> None:
    users = [a_user(f"user{number}") for number in range(4)]
    for user in users:
        for _ in range(3):
            jobs.submit(hook(END, host="slow.example.org"), user=user)
    for _ in range(MOST_LEASED + 1):
        jobs.submit(hook(END, host="slow.example.org"), user=BOB)
    jobs.submit(hook(END, host="fast.example.org"), user=BOB)
    for _ in range(10):
        jobs.submit(hook(END, host="busy.example.org"), user=ALICE)
    jobs.run_all([0] * 28)
    jobs.make()
    hosts = [each.address.split("/")[2] for each in jobs.take()]
    assert hosts.count("slow.example.org") == MOST_LEASED
    assert hosts.count("fast.example.org") == 1
    assert hosts.count("busy.example.org") == MOST_LEASED
    assert jobs.take() == []


def test_owners_take_turns_at_a_host(jobs: NotifiedJobs) -> None:
    def submit(*users: Identity) -> None:
        for user in users:
            jobs.submit(hook(END), user=user)
        jobs.run_all([0] * len(users))
        jobs.make()

    def owners(taken: Sequence[DueNotification]) -> list[str]:
        return [json.loads(each.body)["owner"] for each in taken]

    submit(*[ALICE] * (2 * MOST_LEASED))
    first, *others = jobs.take()
    assert len(others) == MOST_LEASED - 1
    submit(BOB, BOB)
    for done, next_owner in zip((first, *others), ("bob", "bob", "alice"), strict=False):
        jobs.report(DeliveryReport(done.id, done.tries))
        assert owners(jobs.take()) == [next_owner]


def test_owner_with_many_hosts_delays_no_other(jobs: NotifiedJobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pilotage_server.storage.notifications.outbox._MOST_WAITING", MOST_LEASED)
    for number in range(2 * MOST_LEASED):
        jobs.submit(hook(END, host=f"host{number}.example.org"), user=ALICE)
    jobs.submit(hook(END), user=BOB)
    jobs.run_all([0] * (2 * MOST_LEASED + 1))
    jobs.make()
    assert "bob" in {json.loads(each.body)["owner"] for each in jobs.take()}


def test_request_is_signed_with_the_secret(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END, secret="wine"), hook(END, path="unsigned"))
    jobs.run(job)
    jobs.make()
    signed, unsigned = jobs.take()
    assert signed.signature == hmac.new(b"wine", signed.body.encode(), hashlib.sha256).hexdigest()
    assert unsigned.signature == ""


def test_notifier_of_a_vo_sees_no_others(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    jobs.make()
    other = Identity("n", "", (), frozenset({Role.NOTIFIER}), bounds=AgentBounds(vos=("elsewhere",)))
    assert jobs.take(notifier=other) == []
    mine = Identity("n", "", (), frozenset({Role.NOTIFIER}), bounds=AgentBounds(vos=(ALICE.vo.upper(),)))
    (due,) = jobs.take(notifier=mine)
    jobs.report(DeliveryReport(due.id, due.tries), notifier=other)
    assert jobs.listed()[0].notifications[0].delivered is None
    jobs.report(DeliveryReport(due.id, due.tries), notifier=mine)
    assert jobs.listed()[0].notifications[0].delivered is not None


@pytest.mark.any_database
@pytest.mark.parametrize(
    ("given", "domain", "completed"),
    [
        ("", "example.org", "alice@example.org"),
        ("bob", "example.org", "bob@example.org"),
        ("bob@cern.ch", "", "bob@cern.ch"),
        ("", "", None),
        ("bob", "", None),
    ],
)
def test_mail_domain_completes_addresses(
    database: Database, clock: VirtualClock, given: str, domain: str, completed: str | None
) -> None:
    jobs = NotifiedJobs(database, clock, mail_domain=domain)
    wanted = NewSubscription(RecipientKind.MAIL, given, frozenset({END}))
    jobs.submit(wanted)
    found = [each.subscription.wanted.address for each in jobs.listed()]
    assert found == ([] if completed is None else [completed])


@pytest.mark.any_database
def test_owner_with_a_foreign_domain_is_no_mail_address(database: Database, clock: VirtualClock) -> None:
    jobs = NotifiedJobs(database, clock, mail_domain="example.org")
    jobs.submit(NewSubscription(RecipientKind.MAIL), user=a_user("4711@iam"))
    assert jobs.listed(user=a_user("4711@iam")) == []


def test_open_subscriptions_of_an_owner_are_bounded(database: Database, clock: VirtualClock) -> None:
    jobs = NotifiedJobs(database, clock, max_open_of_owner=2)
    (job,) = jobs.submit(hook(END), hook(END), hook(END))
    assert "1 of 3 subscriptions are left out: alice of the VO" in jobs.warnings[0]
    assert jobs.warnings[0].endswith("has 0 open subscriptions, and may have 2; one subscription can be of all jobs")
    assert len(jobs.listed()) == 2
    with pytest.raises(QuotaExceededError, match=r"alice of the VO .* remove some"):
        jobs.subscribe(JobSelection(job), hook(END))
    jobs.submit(hook(END), user=BOB)
    jobs.run_all([0, 0])
    jobs.make()
    jobs.subscribe(JobSelection(job), hook(END))
    assert len(jobs.listed()) == 3


def test_callers_see_and_remove_their_own_only(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    subscription = jobs.listed()[0].subscription.id
    assert jobs.listed(user=BOB, owner="alice") == []
    for act in (
        lambda: jobs.subscribe(JobSelection(job), hook(END), BOB),
        lambda: jobs.listed(JobSelection(job), user=BOB),
        lambda: jobs.grid.write(lambda transaction, _: unsubscribe(transaction, BOB, [subscription])),
    ):
        with pytest.raises(NotFoundError):
            act()
    assert len(jobs.listed(user=an_operator(), owner="*")) == 1
    jobs.subscribe(JobSelection(job), hook(END), an_operator())
    assert len(jobs.listed()) == 2  # the second one is of the owner too


def test_unsubscribing_drops_what_is_not_delivered(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.run(job)
    jobs.make()
    (listed,) = jobs.listed()
    jobs.grid.write(lambda transaction, _: unsubscribe(transaction, ALICE, [listed.subscription.id]))
    assert jobs.take() == []
    assert jobs.listed() == []


def test_closed_subscriptions_are_removed_after_delivery(jobs: NotifiedJobs) -> None:
    (job,) = jobs.submit(hook(END))
    jobs.submit(hook(END), user=BOB)
    jobs.run(job)
    jobs.make()
    jobs.grid.clock.advance(jobs.grid.state.rules.retention.finished_jobs + timedelta(seconds=1))
    assert jobs.grid.write(remove_closed_subscriptions) == 0
    jobs.notified()
    assert jobs.grid.write(remove_closed_subscriptions) == 1
    assert jobs.listed() == []
    assert len(jobs.listed(user=BOB)) == 1


@pytest.mark.any_database
def test_owner_is_warned_unless_a_notifier_runs(jobs: NotifiedJobs) -> None:
    subscriptions = [SubmittedSubscription(0, 0, hook(END))]

    def warnings() -> tuple[str, ...]:
        groups = single_groups([TRUE])
        return jobs.grid.read(
            lambda transaction, state: subscribe_to_new_jobs(
                transaction,
                state,
                ALICE,
                groups,
                subscriptions,
                SubmittedJobs((), ()),
            )
        ).warnings

    assert any("no notifier runs" in warning for warning in warnings())
    subscriptions.append(SubmittedSubscription(0, 0, NewSubscription(RecipientKind.MAIL)))
    assert any("no mail will be sent: no mail address is given" in warning for warning in warnings())
    leadership = Leadership("notifier", "one")
    jobs.grid.write(lambda transaction, _: take_leadership(transaction, leadership, timedelta(hours=1), "host"))
    assert not any("notifier" in warning for warning in warnings())
