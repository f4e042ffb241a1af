"""Calls about subscriptions to notifications, and the subscriptions of a submission."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.job_description import JobDescription
from pilotage.notifications import NewSubscription
from pilotage.v1 import notification_service_pb2
from pilotage.values.notifications import SubmittedSubscription
from pilotage.values.wire.notifications import subscription_to_wire
from pilotage.values.wire.selections import selection_to_wire
from pilotage_client import models
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.dependencies import read_parent
from pilotage_client.models.reading import listed


def resolve_subscriptions(
    descriptions: Sequence[JobDescription], of_all: Sequence[NewSubscription] = ()
) -> tuple[list[JobDescription], list[SubmittedSubscription]]:
    """Return the descriptions without their subscriptions, and these: those `of_all` jobs, and one for each cluster.

    The server leaves out the last ones if they are too many. Descriptions of one cluster that follow each other with
    equal subscriptions share them.

    Raises
    ------
    InvalidInputError
        With every invalid subscription.
    """
    faults = Faults()
    runs: list[tuple[int, int, tuple[NewSubscription, ...]]] = []
    for index, description in enumerate(descriptions):
        for each in description.notify:
            faults.unless(not each.fault, f"descriptions[{index}].notify", each.fault)
        first = index
        if runs and description.continues_cluster and runs[-1][2] == description.notify:
            first, *_ = runs.pop()
        runs.append((first, index, description.notify))
    for each in of_all:
        faults.unless(not each.fault, "notify", each.fault)
    faults.raise_any()
    found = [SubmittedSubscription(0, len(descriptions) - 1, each) for each in of_all]
    found += (SubmittedSubscription(first, last, each) for first, last, wanted in runs for each in wanted)
    return [replace(each, notify=()) if each.notify else each for each in descriptions], found


class NotificationCalls(Connection):
    """Calls about subscriptions to notifications."""

    def subscribe(self, jobs: str, subscription: NewSubscription) -> tuple[models.accounts.SubscriptionInfo, list[str]]:
        """Subscribe for existing jobs, such as "12" or "12.0-99"; returns the subscription and warnings.

        If the jobs have ended, only the end is notified, at once. Raises NotFoundError, InvalidInputError.
        """
        if subscription.fault:
            raise InvalidInputError(Violation("", subscription.fault))
        request = notification_service_pb2.SubscribeRequest(
            request_id=new_request_id(),
            jobs=selection_to_wire(read_parent(jobs)),
            subscription=subscription_to_wire(subscription),
        )
        answer = self._notifications.Subscribe(request)
        return models.accounts.subscription_info(answer.subscription), list(answer.warnings)

    def subscriptions(self, jobs: Sequence[str] = (), *, owner: str = "") -> list[models.accounts.SubscriptionInfo]:
        """Return the newest 1,000 subscriptions with their notifications, newest first; `jobs` empty = for any jobs.

        `owner` empty = the caller, "*" = all visible ones. Raises InvalidInputError.
        """
        selections = [selection_to_wire(read_parent(each)) for each in listed("jobs", jobs)]
        request = notification_service_pb2.ListSubscriptionsRequest(jobs=selections, owner=owner)
        return list(
            map(models.accounts.subscription_info, self._notifications.ListSubscriptions(request).subscriptions)
        )

    def unsubscribe(self, ids: Sequence[int]) -> None:
        """Remove subscriptions, and what is not delivered yet; raises NotFoundError."""
        request = notification_service_pb2.UnsubscribeRequest(request_id=new_request_id(), ids=ids)
        self._notifications.Unsubscribe(request)
