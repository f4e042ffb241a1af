"""Notifications between the server and the notifier, and subscriptions of a submission."""

from __future__ import annotations

from typing import NamedTuple

from pilotage.notifications import NewSubscription, RecipientKind


class SubmittedSubscription(NamedTuple):
    """A subscription for the jobs of the descriptions from `first` to `last`, by index in their submission."""

    first: int
    last: int
    wanted: NewSubscription


class DueNotification(NamedTuple):
    """A notification to deliver now: `body` is JSON, `signature` "" = none, `tries` counts this try from 1."""

    id: int
    kind: RecipientKind
    address: str
    body: str
    signature: str
    tries: int


class DeliveryReport(NamedTuple):
    """The result of one try; `error` "" = it is delivered, `is_permanent` = another try cannot succeed."""

    id: int
    tries: int
    error: str = ""
    is_permanent: bool = False
