"""Subscriptions and notifications ↔ wire."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage.rpc.wire import enum_from_wire, enum_to_wire
from pilotage.v1 import job_service_pb2, notification_service_pb2, notifications_pb2
from pilotage.values.notifications import DeliveryReport, DueNotification, SubmittedSubscription
from pilotage.values.wire.fields import Fields, all_from_wire, reason_from_wire


def occasions_to_wire(occasions: Collection[Occasion]) -> list[notifications_pb2.Occasion.ValueType]:
    """Return the numbers of occasions, in their usual order."""
    return [enum_to_wire(notifications_pb2.Occasion, each.name) for each in Occasion if each in occasions]


def occasions_from_wire(numbers: Iterable[int]) -> frozenset[Occasion]:
    """Return the occasions with these numbers."""
    names = [enum_from_wire(notifications_pb2.Occasion, number) for number in numbers]
    return frozenset(Occasion[name] for name in names if name)


def recipient_kind_to_wire(kind: RecipientKind) -> notifications_pb2.RecipientKind.ValueType:
    """Return the number of a kind of recipients."""
    number: notifications_pb2.RecipientKind.ValueType = enum_to_wire(notifications_pb2.RecipientKind, kind.name)
    return number


def recipient_kind_from_wire(number: int) -> RecipientKind:
    """Return the kind of recipients with this number."""
    name = enum_from_wire(notifications_pb2.RecipientKind, number)
    if not name:
        raise InvalidInputError(Violation("", "is missing"))
    return RecipientKind[name]


def subscription_to_wire(wanted: NewSubscription) -> notifications_pb2.NewSubscription:
    """Return the message of a wanted subscription."""
    return notifications_pb2.NewSubscription(
        kind=recipient_kind_to_wire(wanted.kind),
        address=wanted.address,
        occasions=occasions_to_wire(wanted.occasions),
        secret=wanted.secret,
    )


def subscription_from_wire(message: notifications_pb2.NewSubscription) -> NewSubscription:
    """Return the valid subscription of a message."""
    fields = Fields(message)
    wanted = NewSubscription(
        fields("kind", recipient_kind_from_wire),
        fields.text("address"),
        fields("occasions", occasions_from_wire),
        fields.text("secret"),
    )
    fields.done()
    if wanted.fault:
        raise InvalidInputError(Violation("", wanted.fault))
    return wanted


def submitted_subscription_to_wire(submitted: SubmittedSubscription) -> job_service_pb2.SubmittedSubscription:
    """Return the message of a subscription of a submission."""
    return job_service_pb2.SubmittedSubscription(
        first_description=submitted.first,
        last_description=submitted.last,
        subscription=subscription_to_wire(submitted.wanted),
    )


def submitted_subscriptions_from_wire(
    messages: Collection[job_service_pb2.SubmittedSubscription], descriptions: int
) -> tuple[SubmittedSubscription, ...]:
    """Return the subscriptions of a submission with so many descriptions; raises InvalidInputError with all faults."""

    def take(message: job_service_pb2.SubmittedSubscription) -> SubmittedSubscription:
        first, last = message.first_description, message.last_description
        if not 0 <= first <= last < descriptions:
            why = f"{first} to {last} are not indexes of descriptions (0 to {descriptions - 1})"
            raise InvalidInputError(Violation("", why))
        fields = Fields(message)
        wanted = fields("subscription", subscription_from_wire)
        fields.done()
        return SubmittedSubscription(first, last, wanted)

    faults = Faults()
    with faults.within("subscriptions"):
        taken = all_from_wire(messages, take)
    faults.raise_any()
    return taken


def due_to_wire(due: DueNotification) -> notification_service_pb2.DueNotification:
    """Return the message of a notification to deliver."""
    return notification_service_pb2.DueNotification(
        id=due.id,
        kind=recipient_kind_to_wire(due.kind),
        address=due.address,
        body=due.body,
        signature=due.signature,
        tries=due.tries,
    )


def due_from_wire(message: notification_service_pb2.DueNotification) -> DueNotification:
    """Return the notification of a message."""
    kind = recipient_kind_from_wire(message.kind)
    return DueNotification(message.id, kind, message.address, message.body, message.signature, message.tries)


def report_to_wire(report: DeliveryReport) -> notification_service_pb2.DeliveryReport:
    """Return the message of a result."""
    return notification_service_pb2.DeliveryReport(
        id=report.id, tries=report.tries, error=report.error, permanent=report.is_permanent
    )


def report_from_wire(message: notification_service_pb2.DeliveryReport) -> DeliveryReport:
    """Return the result of a message; a long error is cut."""
    fields = Fields(message)
    report = DeliveryReport(
        fields.count("id"), fields.count("tries"), fields("error", reason_from_wire), message.permanent
    )
    fields.done()
    return report
