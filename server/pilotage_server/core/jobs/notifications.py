"""What subscriptions notify of, which texts users get, and when a failed delivery is tried again.

Rules
-----
- A failure or a hold is notified once for each subscription: the first one after its begin. A hold by the jobs' owner
  is none.
- The end is notified once: when no job is live, except those that stay blocked because a parent has ended badly. The
  subscription closes then, or earlier if it has nothing left to notify of.
- Subjects are made of numbers and states; texts of users, such as names and reasons, are in the text only.
- A delivery is tried for a day, with pauses that double up to an hour.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

from pilotage.backoff import backoff
from pilotage.job_description import render_text
from pilotage.notifications import NewSubscription, Occasion
from pilotage_server.core.jobs.record import JobRecord
from pilotage_server.core.jobs.states import FINAL, JobState

TRY_FOR = timedelta(days=1)
"""A notification that is not delivered within this time is given up."""

_FIRST_PAUSE, _LONGEST_PAUSE = timedelta(minutes=1), timedelta(hours=1)

MOST_LEASED = 4
"""The most notifications of one owner, and to one host, that are being delivered at a time."""


@dataclass(frozen=True, slots=True)
class NotificationRules:
    """`mail_domain` completes mail addresses without a domain, "" = they are refused.

    `max_open_of_owner` = the most open subscriptions of one owner.
    """

    mail_domain: str = ""
    max_open_of_owner: int = 1000


@dataclass(frozen=True, slots=True)
class Subscription:
    """A subscription of the owner of the jobs from `first` to `last`.

    `position` = events up to it came before the subscription, or have been examined. `left` = the occasions to come;
    none of them is left when it is closed. `check_end` = when to look whether the jobs have ended; None = after the
    next end of one of them.
    """

    id: int
    vo: str
    owner: str
    first: int
    last: int
    wanted: NewSubscription
    created: datetime
    position: int
    left: frozenset[Occasion]
    check_end: datetime | None = None
    closed: datetime | None = None


class JobOccurrence(NamedTuple):
    """An event that may matter to subscriptions: a job has failed, was held, or has ended otherwise."""

    position: int
    job_id: int
    state: JobState
    actor: str
    reason: str


class Occurrences:
    """Occurrences by job, in which subscriptions find theirs."""

    def __init__(self, found: Iterable[JobOccurrence]) -> None:
        self._by_state: dict[JobState, list[JobOccurrence]] = {}
        for each in sorted(found, key=lambda each: each.job_id):
            self._by_state.setdefault(each.state, []).append(each)

    def has_end(self, subscription: Subscription) -> bool:
        """Whether one of the jobs has ended since the subscription's position."""
        return any(next(self._within(state, subscription), None) is not None for state in FINAL & self._by_state.keys())

    def first(self, subscription: Subscription) -> Iterator[tuple[Occasion, JobOccurrence]]:
        """Yield the first failure and the first hold of which the subscription has to notify."""
        for occasion, state in ((Occasion.FAILURE, JobState.FAILED), (Occasion.HOLD, JobState.HELD)):
            if occasion in subscription.left:
                counted = [each for each in self._within(state, subscription) if _counts(each, subscription)]
                if counted:
                    yield occasion, min(counted)

    def _within(self, state: JobState, subscription: Subscription) -> Iterator[JobOccurrence]:
        found = self._by_state.get(state, [])
        for index in range(bisect_left(found, subscription.first, key=lambda each: each.job_id), len(found)):
            if found[index].job_id > subscription.last:
                return
            if found[index].position > subscription.position:
                yield found[index]


def _counts(found: JobOccurrence, subscription: Subscription) -> bool:
    return found.state is not JobState.HELD or found.actor != subscription.owner


def body_of_job(subscription: Subscription, occasion: Occasion, job: JobRecord, reason: str, now: datetime) -> str:
    """Return the body of the notification that a job has failed or was held."""
    what = "has failed" if occasion is Occasion.FAILURE else "is held"
    subject = f"job {job.id} {what}"
    name = render_text(job.name, job.cluster, job.process)
    described = {"id": job.id, "cluster": job.cluster, "process": job.process, "name": name, "reason": reason}
    text = f"Job {_named(job)} {what}: {reason}"
    return _body(subscription, occasion, now, subject, text, job=described)


def body_of_end(
    subscription: Subscription,
    counts: Mapping[JobState, int],
    whole: str,
    name: str,
    job: JobRecord | None,
    now: datetime,
) -> str:
    """Return the body of the notification that all jobs have ended.

    `whole` = the cluster or workflow that they are, such as "cluster 12", "" = they are neither; `name` = that of the
    workflow. `job` = the only job, None = there are several or none is left.
    """
    numbers = {state.value: counts[state] for state in JobState if counts.get(state)}
    if job is not None:
        subject = f"job {job.id} is {job.state}"
        text = f"Job {_named(job)} is {job.state}" + (f": {job.reason}" if job.reason else "")
    else:
        what, have = (whole, "has") if whole else (f"jobs {subscription.first}-{subscription.last}", "have")
        subject = f"{what} {have} ended"
        summary = ", ".join(f"{count} {state}" for state, count in numbers.items())
        text = f"{what.capitalize()}{f' ({name})' if name else ''} {have} ended: {summary or 'all removed'}"
    return _body(subscription, Occasion.END, now, subject, text, states=numbers)


def _named(job: JobRecord) -> str:
    name = render_text(job.name, job.cluster, job.process)
    return f"{job.id} ({name})" if name else str(job.id)


def _body(
    subscription: Subscription, occasion: Occasion, now: datetime, subject: str, text: str, **more: object
) -> str:
    fields = {
        "occasion": occasion.value,
        "subscription": subscription.id,
        "owner": subscription.owner,
        "vo": subscription.vo,
        "first_job": subscription.first,
        "last_job": subscription.last,
        "time": now.isoformat(timespec="seconds"),
        "subject": subject,
        "text": text,
        **more,
    }
    return json.dumps(fields)


def signature(body: str, secret: str) -> str:
    """Return the HMAC of the body with SHA-256, in hex digits; "" = there is no secret."""
    return hmac.new(secret.encode(), body.encode(), hashlib.sha256).hexdigest() if secret else ""


def next_try(made: datetime, tries: int, now: datetime) -> datetime | None:
    """Return when to try again after so many failed tries; None = the notification is given up."""
    due = now + backoff(tries, _FIRST_PAUSE, _LONGEST_PAUSE)
    return due if due < made + TRY_FOR else None


OwnerKey = tuple[str, str]
"""VO and owner."""


def choose_due(
    waiting: Sequence[tuple[int, OwnerKey, str]], leased: Iterable[tuple[OwnerKey, str]], most: int
) -> list[int]:
    """Return which notifications are delivered now, at most `most`: ids of those waiting with their owner and host.

    The owners take turns at each host, so that many notifications of one delay no other. Within a turn the order is
    that of `waiting`. `leased` = owner and host of those that are being delivered, which count as earlier turns.
    """
    owners, hosts, turns = Counter[OwnerKey](), Counter[str](), Counter[tuple[OwnerKey, str]]()
    for owner, host in leased:
        owners[owner] += 1
        hosts[host] += 1
        turns[owner, host] += 1
    in_turn: list[tuple[int, int]] = []
    for index, (_, owner, host) in enumerate(waiting):
        in_turn.append((turns[owner, host], index))
        turns[owner, host] += 1
    chosen: list[int] = []
    for _, index in sorted(in_turn):
        id_, owner, host = waiting[index]
        if len(chosen) < most and owners[owner] < MOST_LEASED and hosts[host] < MOST_LEASED:
            owners[owner] += 1
            hosts[host] += 1
            chosen.append(id_)
    return chosen
