"""Subscriptions are made, listed and removed; events turn into notifications, which the notifier delivers.

Rules
-----
Nothing of this is done when jobs change. A periodic task of every server reads the event feed from a cursor, but only
while subscriptions are open. The cursor, the subscriptions and the new notifications change in one transaction, by
compare and set of the cursor: a crash or another server neither loses nor doubles one. The end of jobs is read from
their states, so that no event of it can be missed.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta

from pilotage.errors import InvalidInputError, NotFoundError, QuotaExceededError, Violation
from pilotage.notifications import DELIVERY_LEASE, NewSubscription, Occasion, RecipientKind, complete_mail
from pilotage.values.jobs import ALL_OWNERS
from pilotage.values.notifications import DeliveryReport, DueNotification
from pilotage.values.selections import JobSelection
from pilotage_server.core.identity import AGENT_NAMES, Holder, Identity, Role
from pilotage_server.core.jobs import notifications as core
from pilotage_server.core.jobs.changes import may_change
from pilotage_server.core.jobs.notifications import NotificationRules, Occurrences, Subscription
from pilotage_server.operations.jobs.clusters import extent_of
from pilotage_server.operations.jobs.conditions import visible_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.transaction import Transaction
from pilotage_server.storage.events import first_after
from pilotage_server.storage.jobs import load_jobs
from pilotage_server.storage.leadership import active_agents
from pilotage_server.storage.notifications import outbox
from pilotage_server.storage.notifications import subscriptions as stored
from pilotage_server.storage.notifications.outbox import NewNotification, NotificationRecord
from pilotage_server.storage.submission.clusters import count_by_state, load_first_job
from pilotage_server.storage.submission.dependencies import lasting_futile_blocks
from pilotage_server.storage.submission.parts import has_jobs_in_parts
from pilotage_server.storage.submission.workflows import load_workflow

WINDOW = 10_000
"""The most positions of the feed that one transaction examines."""

MOST_CONCERNED = 100
"""The most subscriptions that one transaction examines: others wait for it."""

CHECK_AGAIN = timedelta(seconds=5)
"""The pause until an end is checked again that no event announces: the jobs that are left are blocked or not stored.

Also while very many events are still to be examined.
"""

MOST_LISTED = 1000


def check_subscriptions(
    transaction: Transaction, rules: NotificationRules, owner: Holder, wanted: Sequence[NewSubscription]
) -> tuple[list[NewSubscription | None], list[str]]:
    """Return new subscriptions of an owner with complete addresses, and warnings.

    None = the server cannot complete the mail address, or the owner has too many open subscriptions; a warning says so.
    """
    complete = [_complete(each, owner.owner, rules.mail_domain) for each in wanted]
    warnings = [_no_address(each) for each, whole in zip(wanted, complete, strict=True) if whole is None]
    present = stored.count_open(transaction.session, owner.vo, owner.owner)
    room = max(0, rules.max_open_of_owner - present)
    excess = [index for index, whole in enumerate(complete) if whole is not None][room:]
    for index in excess:
        complete[index] = None
    if excess:
        why = _at_bound(owner, present, rules)
        warnings.append(f"{len(excess)} of {len(wanted)} subscriptions are left out: {why}")
    if active_agents(transaction.session, transaction.now).isdisjoint(AGENT_NAMES[Role.NOTIFIER]):
        warnings.append("no notifier runs now: notifications wait until one does, for a day at most")
    return complete, list(dict.fromkeys(warnings))


def _at_bound(owner: Holder, present: int, rules: NotificationRules) -> str:
    have = f"has {present} open subscriptions, and may have {rules.max_open_of_owner}"
    hint = "remove some" if present else "one subscription can be of all jobs"
    return f"{owner.owner} of the VO {owner.vo} {have}; {hint}"


def _complete(wanted: NewSubscription, owner: str, domain: str) -> NewSubscription | None:
    if wanted.kind is not RecipientKind.MAIL:
        return wanted
    address = complete_mail(wanted.address, owner, domain)
    return replace(wanted, address=address) if address else None


def _no_address(wanted: NewSubscription) -> str:
    missing = f"{wanted.address!r} has no domain" if wanted.address else "no mail address is given"
    hint = "give the whole address (notify_user in a submit file)"
    return f"no mail will be sent: {missing}, and the server has no mail domain; {hint}"


def add_subscriptions(
    transaction: Transaction, owner: Holder, wanted: Iterable[tuple[range, NewSubscription]]
) -> list[Subscription]:
    """Store checked subscriptions for ids of jobs of this owner."""
    position = stored.newest_position(transaction.session)
    new = [
        Subscription(
            id=0,
            vo=owner.vo,
            owner=owner.owner,
            first=ids[0],
            last=ids[-1],
            wanted=each,
            created=transaction.now,
            position=position,
            left=each.occasions,
            check_end=transaction.now,
        )
        for ids, each in wanted
    ]
    ids_of_new = stored.insert_subscriptions(transaction.session, new)
    return [replace(each, id=id_) for each, id_ in zip(new, ids_of_new, strict=True)]


def subscribe(
    transaction: Transaction, state: ServerState, identity: Identity, jobs: JobSelection, wanted: NewSubscription
) -> tuple[Subscription, list[str]]:
    """Make a subscription of the owner of existing jobs; returns warnings, too.

    Raises
    ------
    NotFoundError
        The caller cannot see one of the jobs, or it is a race copy.
    InvalidInputError
        The server cannot complete the mail address.
    QuotaExceededError
        The owner has as many open subscriptions as allowed.
    """
    ids = extent_of(transaction, identity, jobs)
    first = load_first_job(transaction.session, ids.start)
    if first is None or first.id not in ids:
        raise NotFoundError("job", str(jobs))
    owner = Holder(first.vo, first.owner)
    rules, present = state.rules.notifications, stored.count_open(transaction.session, owner.vo, owner.owner)
    if present >= rules.max_open_of_owner:
        raise QuotaExceededError(_at_bound(owner, present, rules))
    (complete,), warnings = check_subscriptions(transaction, rules, owner, [wanted])
    if complete is None:
        raise InvalidInputError(Violation("", warnings[0]))
    (made,) = add_subscriptions(transaction, owner, [(ids, complete)])
    return made, warnings


@dataclass(frozen=True, slots=True)
class ListedSubscription:
    """A subscription with its notifications, the oldest first."""

    subscription: Subscription
    notifications: tuple[NotificationRecord, ...] = ()


def list_subscriptions(
    transaction: Transaction, identity: Identity, jobs: Sequence[JobSelection], owner: str = ""
) -> list[ListedSubscription]:
    """Return the newest subscriptions that the caller may see, with their notifications.

    `jobs` empty = for any jobs. `owner` "" = the caller's, "*" = of all owners. Raises NotFoundError for unknown jobs.
    """
    ranges = [extent_of(transaction, identity, each) for each in jobs]
    visible = visible_jobs(identity, owner or (ALL_OWNERS if jobs else ""))
    if visible is None:
        return []
    found = stored.find_subscriptions(transaction.session, visible.vo, visible.owner, ranges, MOST_LISTED)
    of: dict[int, list[NotificationRecord]] = {}
    for each in outbox.load_notifications(transaction.session, [one.id for one in found]):
        of.setdefault(each.subscription, []).append(each)
    return [ListedSubscription(each, tuple(of.get(each.id, ()))) for each in found]


def unsubscribe(transaction: Transaction, identity: Identity, ids: Sequence[int]) -> None:
    """Remove subscriptions, with what is not delivered yet; raises NotFoundError, and then removes none."""
    owners = stored.lock_owners(transaction.session, ids)
    for id_ in ids:
        vo, owner = owners.get(id_, ("", ""))
        if id_ not in owners or not may_change(identity, owner, vo):
            raise NotFoundError("subscription", str(id_))
    stored.delete_subscriptions(transaction.session, ids)


@dataclass(frozen=True, slots=True)
class EventScan:
    """New events, and open subscriptions that they or a due check concern; `more` = events or subscriptions are left.

    `cursor` is the position before and `up_to` the one after these events. `is_whole` = they concern no others.
    """

    cursor: int
    up_to: int
    occurrences: Occurrences
    concerned: tuple[int, ...]
    is_whole: bool
    more: bool


def scan_events(transaction: Transaction, _state: ServerState) -> EventScan | None:
    """Return what open subscriptions have to be compared with, at most `WINDOW` positions; None = nothing is new."""
    session = transaction.session
    work = stored.find_work(session)
    if work is None:
        return None
    newest, first = stored.newest_position(session), first_after(session, work.position)
    if first is None and (work.check_end is None or work.check_end > transaction.now):
        return None
    after = work.position if first is None else first - 1  # a restore leaves a gap
    up_to = max(after, min(newest, after + WINDOW))
    occurrences = Occurrences(stored.occurrences_between(session, after, up_to))
    concerned = [each.id for each in stored.load_open(session) if _is_concerned(transaction, each, occurrences)]
    is_whole = len(concerned) <= MOST_CONCERNED
    more = up_to < newest or not is_whole
    return EventScan(work.cursor, up_to, occurrences, tuple(concerned[:MOST_CONCERNED]), is_whole, more)


def make_notifications(transaction: Transaction, _state: ServerState, scan: EventScan) -> None:
    """Store the notifications that follow from a scan, unless another server has been faster.

    While other subscriptions are left the cursor stays, and the next scan reads the same events for them.
    """
    session = transaction.session
    if not stored.swap_cursor(session, scan.cursor, scan.up_to if scan.is_whole else scan.cursor):
        return
    changed: list[Subscription] = []
    new: list[NewNotification] = []
    for each in stored.lock_open(session, scan.concerned):
        now_left = _notify_of_jobs(transaction, each, scan.occurrences, new)
        checked = _check_end(transaction, now_left, scan, new)
        changed.append(replace(checked, position=max(checked.position, scan.up_to)))
    stored.update_subscriptions(session, changed)
    outbox.insert_notifications(session, new, transaction.now)


def _is_concerned(transaction: Transaction, each: Subscription, occurrences: Occurrences) -> bool:
    has_job = next(occurrences.first(each), None) is not None
    return has_job or _must_check_end(transaction, each, occurrences)


def _must_check_end(transaction: Transaction, each: Subscription, occurrences: Occurrences) -> bool:
    is_due = each.check_end is not None and each.check_end <= transaction.now
    return is_due or occurrences.has_end(each)


def _notify_of_jobs(
    transaction: Transaction, of: Subscription, occurrences: Occurrences, new: list[NewNotification]
) -> Subscription:
    """Add the notifications of the first failure and the first hold to `new`; return what is left to notify of."""
    for occasion, event in occurrences.first(of):
        of = replace(of, left=of.left - {occasion})
        job = load_jobs(transaction.session, [event.job_id]).get(event.job_id)
        if job is not None:  # else retention was faster than a server that was down
            body = core.body_of_job(of, occasion, job, event.reason, transaction.now)
            new.append(NewNotification(of.id, occasion, body))
    return of


def _check_end(transaction: Transaction, of: Subscription, scan: EventScan, new: list[NewNotification]) -> Subscription:
    """Close a subscription that notifies of nothing more: its jobs have ended, or nothing is left to notify of."""
    session = transaction.session
    if not of.left:
        return replace(of, check_end=None, closed=transaction.now)
    if not _must_check_end(transaction, of, scan.occurrences):
        return of
    if stored.has_moving_job(session, of):
        return replace(of, check_end=None)
    if not _rest_stays_blocked(transaction, of) or has_jobs_in_parts(session, of.vo, of.owner, of.first, of.last):
        return replace(of, check_end=transaction.now + CHECK_AGAIN)
    if of.left - {Occasion.END}:
        # The states are newer than the events that were examined: no event of before the end may be missed.
        newest = stored.newest_position(session)
        if newest > scan.up_to + WINDOW:
            return replace(of, check_end=transaction.now + CHECK_AGAIN)
        later = stored.occurrences_between(session, scan.up_to, newest)
        of = _notify_of_jobs(transaction, of, Occurrences(later), new)
    if Occasion.END in of.left:
        new.append(NewNotification(of.id, Occasion.END, _end_of(transaction, of)))
    return replace(of, left=frozenset(), check_end=None, closed=transaction.now)


def _rest_stays_blocked(transaction: Transaction, of: Subscription) -> bool:
    """Whether the live jobs, which are all blocked, cannot run any more; also if there are none."""
    blocks = stored.live_blocks(transaction.session, of)
    return lasting_futile_blocks(transaction.session, blocks).issuperset(blocks)


def _end_of(transaction: Transaction, of: Subscription) -> str:
    session, ids = transaction.session, range(of.first, of.last + 1)
    job = load_jobs(session, ids).get(of.first) if len(ids) == 1 else None
    return core.body_of_end(of, count_by_state(session, ids), *_whole(transaction, ids), job, transaction.now)


def _whole(transaction: Transaction, ids: range) -> tuple[str, str]:
    """Return the workflow or cluster that has exactly these jobs, "" = none, and the name of the workflow."""
    workflow = load_workflow(transaction.session, ids.start)
    if workflow is not None and workflow.ids == ids:
        return f"workflow {JobSelection(ids.start, workflow=True)}", workflow.name
    first = load_first_job(transaction.session, ids.start)
    return (f"cluster {ids.start}" if first is not None and first.ids == ids else ""), ""


def has_due_notifications(transaction: Transaction, identity: Identity) -> bool:
    """Whether notifications of the VOs in the caller's bounds are due."""
    return outbox.has_due_notifications(transaction.session, transaction.now, identity.bounds.vos)


def take_notifications(transaction: Transaction, identity: Identity, most: int) -> list[DueNotification]:
    """Lease at most `most` due notifications, of the VOs in the caller's bounds, and return them."""
    session, now = transaction.session, transaction.now
    waiting = outbox.waiting_notifications(session, now, identity.bounds.vos)
    chosen = core.choose_due(waiting, outbox.leased_notifications(session, now), most)
    leased = outbox.lease_notifications(session, chosen, now, now + DELIVERY_LEASE) if chosen else []
    due = []
    for each in leased:
        body = json.dumps({"id": each.id, **json.loads(each.body)})
        sign = core.signature(body, each.secret)
        due.append(DueNotification(each.id, each.kind, each.address, body, sign, each.tries))
    return due


def record_deliveries(transaction: Transaction, identity: Identity, reports: Sequence[DeliveryReport]) -> None:
    """Record the results of tries; those of unknown notifications and of earlier tries change nothing."""
    session, now = transaction.session, transaction.now
    made = outbox.lock_undelivered(session, (each.id for each in reports), identity.bounds.vos)
    for each in reports:
        if each.id not in made:
            continue
        retry = None if not each.error or each.is_permanent else core.next_try(made[each.id], each.tries, now)
        delivered = None if each.error else now
        outbox.record_try(session, each.id, each.tries, error=each.error, due=retry, delivered=delivered)


def remove_closed_subscriptions(transaction: Transaction, state: ServerState) -> int:
    """Remove a batch of subscriptions that closed as long ago as finished jobs are kept; return how many.

    Those with notifications that may still be delivered stay.
    """
    kept = state.rules.retention
    return stored.delete_closed_subscriptions(transaction.session, transaction.now - kept.finished_jobs, kept.batch)


def give_up_old_notifications(transaction: Transaction, _state: ServerState) -> int:
    """Give up the notifications that no notifier has delivered for too long; return how many."""
    return outbox.give_up(transaction.session, transaction.now, transaction.now - core.TRY_FOR)
