"""Shares and use of accounts, identities, tokens and subscriptions."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from pilotage.accounts import Quota
from pilotage.notifications import Occasion, RecipientKind
from pilotage.resources.queue_id import QueueId
from pilotage.rpc.wire import queue_from_wire
from pilotage.v1 import identity_service_pb2, notification_service_pb2, share_service_pb2
from pilotage.values.wire.notifications import occasions_from_wire, recipient_kind_from_wire
from pilotage_client.models.reading import AsJson, value_of

USAGE_KEYS = tuple(
    name.removeprefix("USAGE_KEY_").lower() for name, number in share_service_pb2.UsageKey.items() if number
)
"""The keys by which use is summed."""


@dataclass(frozen=True, slots=True)
class GroupShareInfo(AsJson):
    """A group's use and quota; `group` "" = the jobs without a group.

    `used_core_s` are weighted core seconds, decayed; `cores` the weighted cores in use. The parts are of all use and of
    all entitlement in the VO, 0 to 1. `sort_value` is that of the operators' order of groups, None = it has none;
    `goes_last` = why it goes after all others.
    """

    vo: str
    group: str
    quota: Quota
    quota_is_set: bool
    entitled_cores: float
    entitled_part: float
    used_core_s: float
    used_part: float
    cores: float
    waiting: int
    sort_value: float | None
    goes_last: str

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; texts may be empty."""
        return AsJson.as_json(self) | {"group": self.group, "goes_last": self.goes_last}


@dataclass(frozen=True, slots=True)
class AccountShareInfo(AsJson):
    """An account's use and priority; a greater `user_priority` is worse, and twice the factor gives half the share.

    `used_core_s` are weighted core seconds, decayed; `cores` the weighted cores in use.
    """

    vo: str
    group: str
    owner: str
    user_priority: float
    priority_factor: float
    priority_factor_is_set: bool
    used_core_s: float
    cores: float
    waiting: int

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `group` may be empty."""
        return AsJson.as_json(self) | {"group": self.group}


@dataclass(frozen=True, slots=True)
class ShareReport(AsJson):
    """The shares of groups, by name or in the operators' order, and of accounts in the order of matching.

    `half_life_s` is the time after which a use counts half, `pie_cores` the weighted cores of all slots that count.
    `surplus_accepted` = groups may use more than they are entitled to, after all others.
    """

    time: datetime
    half_life_s: float
    pie_cores: float
    surplus_accepted: bool
    group_sort_expression: str
    groups: tuple[GroupShareInfo, ...]
    accounts: tuple[AccountShareInfo, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; `group_sort_expression` may be empty."""
        return AsJson.as_json(self) | {"group_sort_expression": self.group_sort_expression}


@dataclass(frozen=True, slots=True)
class UsageTotal(AsJson):
    """What some ended attempts have used together: by result their number and core seconds; CPU and GPU seconds.

    `keys` are the values of the requested keys, in their order. `interrupted` ones were evicted, lost, removed or held.
    """

    keys: tuple[str, ...]
    done: int
    failed: int
    interrupted: int
    done_core_s: float
    failed_core_s: float
    interrupted_core_s: float
    cpu_s: float
    gpu_s: float


@dataclass(frozen=True, slots=True)
class AgentLimits(AsJson):
    """What an agent's token is bound to: patterns of queues, VOs, and names of turns; empty = not bound."""

    queues: tuple[str, ...] = ()
    vos: tuple[str, ...] = ()
    turns: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class IdentityInfo(AsJson):
    """The caller as the server sees it, when its token expires, and the server's release."""

    owner: str
    vo: str
    groups: tuple[str, ...]
    roles: tuple[str, ...]
    expires: datetime | None
    server_version: str
    bounds: AgentLimits

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys, without the bounds."""
        fields = AsJson.as_json(self)
        del fields["bounds"]
        return fields


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A token, a secret.

    `authority` is the fingerprint (SHA-256) of the authority of the server's certificate, "" = the chain has none.
    """

    token: str = field(repr=False)
    expires: datetime
    authority: str


@dataclass(frozen=True, slots=True)
class JoinedMachine:
    """The tokens of a machine, both secrets, and the queue of a worker; "" and None = the machine is no such thing."""

    user_token: str = field(repr=False)
    director_token: str = field(repr=False)
    queue: QueueId | None
    expires: datetime


@dataclass(frozen=True, slots=True)
class RevocationInfo(AsJson):
    """A revocation of one token, of an owner's tokens until then, or of pilots (`kind` "token", "owner", "pilots").

    At `expires` no revoked token can be valid any more, and the record is removed.
    """

    kind: str
    subject: str
    issuer: str
    owner: str
    vo: str
    by: str
    made: datetime
    expires: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class NotificationInfo(AsJson):
    """Something that has happened, and its delivery; `due` None = no other try: it is delivered, or given up."""

    id: int
    occasion: Occasion
    text: str
    made: datetime
    tries: int
    error: str
    delivered: datetime | None
    due: datetime | None

    @property
    def is_given_up(self) -> bool:
        """Whether it is not delivered, and will not be."""
        return self.delivered is None and self.due is None


@dataclass(frozen=True, slots=True)
class SubscriptionInfo(AsJson):
    """A subscription for the jobs `first_job` to `last_job`; `closed` None = it may still notify."""

    id: int
    owner: str
    vo: str
    first_job: int
    last_job: int
    kind: RecipientKind
    address: str
    occasions: tuple[Occasion, ...]
    created: datetime
    closed: datetime | None
    notifications: tuple[NotificationInfo, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the documented keys; the occasions are `on`."""
        return self._renamed({"occasions": "on"})


def share_report(message: share_service_pb2.ListSharesResponse) -> ShareReport:
    """Convert shares from the wire."""
    accounts = (
        value_of(AccountShareInfo, each, vo=each.account.vo, group=each.account.group, owner=each.account.owner)
        for each in message.accounts
    )
    return value_of(ShareReport, message, accounts=tuple(accounts))


def joined_machine(message: identity_service_pb2.JoinResponse) -> JoinedMachine:
    """Convert the tokens of a machine from the wire."""
    queue = queue_from_wire(message.queue) if message.HasField("queue") else None
    return value_of(JoinedMachine, message, queue=queue)


def subscription_info(message: notification_service_pb2.Subscription) -> SubscriptionInfo:
    """Convert a subscription from the wire."""
    occasions = occasions_from_wire(message.occasions)
    return value_of(
        SubscriptionInfo,
        message,
        kind=recipient_kind_from_wire(message.kind),
        occasions=tuple(occasion for occasion in Occasion if occasion in occasions),
        notifications=tuple(map(_notification_info, message.notifications)),
    )


def _notification_info(message: notification_service_pb2.Notification) -> NotificationInfo:
    (occasion,) = occasions_from_wire([message.occasion])
    return value_of(NotificationInfo, message, occasion=occasion)
