"""NotificationService: subscriptions of users, and their notifications for the notifier."""

from __future__ import annotations

import json
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import notification_service_pb2, notification_service_pb2_grpc
from pilotage.values.wire.fields import Fields, all_from_wire
from pilotage.values.wire.notifications import (
    due_to_wire,
    occasions_to_wire,
    recipient_kind_to_wire,
    report_from_wire,
    subscription_from_wire,
)
from pilotage.values.wire.selections import selection_from_wire
from pilotage_server.operations.jobs.notifications import (
    ListedSubscription,
    has_due_notifications,
    list_subscriptions,
    record_deliveries,
    subscribe,
    take_notifications,
    unsubscribe,
)
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import check_count, check_not_empty
from pilotage_server.storage.notifications.outbox import NotificationRecord

MOST_DELIVERIES = 1000
"""The most notifications of one call of the notifier."""

MOST_SELECTIONS = 100
"""The most selections of jobs of one listing."""


def listed_to_wire(listed: ListedSubscription) -> notification_service_pb2.Subscription:
    """Return the message of a subscription, without its secret."""
    of = listed.subscription
    return notification_service_pb2.Subscription(
        id=of.id,
        owner=of.owner,
        vo=of.vo,
        first_job=of.first,
        last_job=of.last,
        kind=recipient_kind_to_wire(of.wanted.kind),
        address=of.wanted.address,
        occasions=occasions_to_wire(of.wanted.occasions),
        created=time_to_wire(of.created),
        closed=time_to_wire(of.closed),
        notifications=map(_notification_to_wire, listed.notifications),
    )


def _notification_to_wire(record: NotificationRecord) -> notification_service_pb2.Notification:
    (occasion,) = occasions_to_wire([record.occasion])
    return notification_service_pb2.Notification(
        id=record.id,
        occasion=occasion,
        text=json.loads(record.body)["text"],
        made=time_to_wire(record.made),
        tries=record.tries,
        error=record.error,
        delivered=time_to_wire(record.delivered),
        due=time_to_wire(record.due),
    )


class NotificationServicer(notification_service_pb2_grpc.NotificationServiceServicer):
    """Makes, lists and removes subscriptions, and leases notifications."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def Subscribe(
        self, request: notification_service_pb2.SubscribeRequest, context: Any
    ) -> notification_service_pb2.SubscribeResponse:
        identity = caller()
        fields = Fields(request)
        jobs = fields("jobs", selection_from_wire)
        wanted = fields("subscription", subscription_from_wire)
        fields.done()

        def make(transaction: Any, state: Any) -> notification_service_pb2.SubscribeResponse:
            made, warnings = subscribe(transaction, state, identity, jobs, wanted)
            return notification_service_pb2.SubscribeResponse(
                subscription=listed_to_wire(ListedSubscription(made)), warnings=warnings
            )

        return await self._transactions.once(
            identity, "Subscribe", request, notification_service_pb2.SubscribeResponse, make
        )

    async def ListSubscriptions(
        self, request: notification_service_pb2.ListSubscriptionsRequest, context: Any
    ) -> notification_service_pb2.ListSubscriptionsResponse:
        identity = caller()
        fields = Fields(request)
        fields("jobs", lambda jobs: _check_most(jobs, MOST_SELECTIONS))
        jobs = fields("jobs", lambda jobs: all_from_wire(jobs, selection_from_wire))
        owner = fields.text("owner")
        fields.done()

        def find(transaction: Any, _: Any) -> notification_service_pb2.ListSubscriptionsResponse:
            found = list_subscriptions(transaction, identity, jobs, owner)
            return notification_service_pb2.ListSubscriptionsResponse(subscriptions=map(listed_to_wire, found))

        return await self._transactions.read(find)

    async def Unsubscribe(
        self, request: notification_service_pb2.UnsubscribeRequest, context: Any
    ) -> notification_service_pb2.UnsubscribeResponse:
        identity, ids = caller(), tuple(request.ids)
        fields = Fields(request)
        fields("ids", check_not_empty)
        fields("ids", check_count)
        fields.done()

        def remove(transaction: Any, _: Any) -> notification_service_pb2.UnsubscribeResponse:
            unsubscribe(transaction, identity, ids)
            return notification_service_pb2.UnsubscribeResponse()

        return await self._transactions.once(
            identity, "Unsubscribe", request, notification_service_pb2.UnsubscribeResponse, remove
        )

    async def TakeNotifications(
        self, request: notification_service_pb2.TakeNotificationsRequest, context: Any
    ) -> notification_service_pb2.TakeNotificationsResponse:
        identity, most = caller(), request.most
        if not 1 <= most <= MOST_DELIVERIES:
            raise InvalidInputError(Violation("most", f"{most} is not a number from 1 to {MOST_DELIVERIES}"))
        if not await self._transactions.read(lambda transaction, _: has_due_notifications(transaction, identity)):
            return notification_service_pb2.TakeNotificationsResponse()  # most calls of a notifier write nothing
        due = await self._transactions.write(lambda transaction, _: take_notifications(transaction, identity, most))
        return notification_service_pb2.TakeNotificationsResponse(notifications=map(due_to_wire, due))

    async def ReportDeliveries(
        self, request: notification_service_pb2.ReportDeliveriesRequest, context: Any
    ) -> notification_service_pb2.ReportDeliveriesResponse:
        identity = caller()
        fields = Fields(request)
        fields("reports", lambda reports: _check_most(reports, MOST_DELIVERIES))
        reports = fields("reports", lambda reports: all_from_wire(reports, report_from_wire))
        fields.done()
        await self._transactions.write(lambda transaction, _: record_deliveries(transaction, identity, reports))
        return notification_service_pb2.ReportDeliveriesResponse()


def _check_most(things: Any, most: int) -> None:
    if len(things) > most:
        raise InvalidInputError(Violation("", f"names {len(things)}, and one call may name {most}"))
