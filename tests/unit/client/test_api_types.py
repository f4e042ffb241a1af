"""The types of the Python API: values of this project, never messages of the protocol."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from google.protobuf.message import Message

import pilotage_client
from pilotage.errors import InvalidInputError
from pilotage.v1 import (
    agent_service_pb2,
    audit_service_pb2,
    diagnosis_service_pb2,
    identity_service_pb2,
    jobs_pb2,
    node_service_pb2,
    notification_service_pb2,
    notifications_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
    values_pb2,
)
from pilotage_client.api import Client
from pilotage_client.job_sets import Job, JobSet
from pilotage_client.models import accounts, grid, operations, routes
from pilotage_client.models.reading import AsJson, value_of

SUBSCRIPTION = notification_service_pb2.Subscription(
    kind=notifications_pb2.RECIPIENT_KIND_URL,
    notifications=[notification_service_pb2.Notification(occasion=notifications_pb2.OCCASION_END)],
)
ROUTE = route_service_pb2.RouteOutline(name="north")
POOL_CHANGE = resource_service_pb2.PoolChange(gained=[values_pb2.QueueId()])
ANY_TEXT: Any = "S/C/Q"
METHODS = [
    name
    for name, member in inspect.getmembers(Client, callable)
    if not name.startswith("_") and name != "report_upload"  # a function that callers set
]


def types_in(hint: Any, seen: set[Any]) -> Iterator[Any]:
    """Yield all types that a hint names, also those of the fields of its values."""
    if isinstance(hint, list):  # the arguments of a Callable
        for each in hint:
            yield from types_in(each, seen)
        return
    if not get_args(hint):
        if hint in seen:
            return
        seen.add(hint)
        yield hint
    for each in get_args(hint):
        yield from types_in(each, seen)
    if is_dataclass(hint):
        hints = get_type_hints(hint)
        for each in fields(hint):
            yield from types_in(hints[each.name], seen)


def is_message(kind: Any) -> bool:
    return inspect.isclass(kind) and (issubclass(kind, Message) or kind.__module__.endswith("_pb2"))


def test_walk_finds_messages() -> None:
    assert any(map(is_message, types_in(dict[str, list[jobs_pb2.Job]], set())))


@pytest.mark.parametrize("name", METHODS)
def test_methods_take_and_return_values(name: str) -> None:
    hints = get_type_hints(inspect.unwrap(getattr(Client, name)))
    assert "return" in hints
    found = [kind for hint in hints.values() for kind in types_in(hint, set())]
    assert not [kind for kind in found if is_message(kind) or kind is Any]


@pytest.mark.parametrize("name", METHODS)
def test_iterators_come_from_generators(name: str) -> None:
    """`AsyncClient` makes asynchronous generators of these only."""
    method = inspect.unwrap(getattr(Client, name))
    returned = get_origin(get_type_hints(method)["return"])
    assert inspect.isgeneratorfunction(method) == (returned is Iterator)


@pytest.mark.parametrize(
    ("convert", "message"),
    [
        (accounts.joined_machine, identity_service_pb2.JoinResponse()),
        (accounts.share_report, share_service_pb2.ListSharesResponse(accounts=[share_service_pb2.AccountShare()])),
        (accounts.subscription_info, SUBSCRIPTION),
        (grid.node_attributes, node_service_pb2.NodeSettings(settings=[node_service_pb2.NodeSetting()])),
        (grid.pilot_info, pilot_service_pb2.Pilot()),
        (grid.queue_info, resource_service_pb2.QueueInfo()),
        (grid.slot_info, node_service_pb2.SlotInfo()),
        (operations.agent_info, agent_service_pb2.AgentReplica()),
        (operations.audit_record, audit_service_pb2.AuditEntry()),
        (operations.diagnosis, diagnosis_service_pb2.DiagnoseResponse(findings=[diagnosis_service_pb2.Finding()])),
        (operations.throttle_info, resource_service_pb2.Throttle()),
        (routes.race_cost_info, race_service_pb2.RaceCost()),
        (routes.race_info, race_service_pb2.Race(copies=[jobs_pb2.Job()])),
        (routes.routed_job_info, route_service_pb2.JobCopy()),
        (routes.router_info, route_service_pb2.Router(routes=[ROUTE], left_out=[route_service_pb2.LeftOutRoute()])),
        (partial(value_of, accounts.IdentityInfo), identity_service_pb2.WhoAmIResponse()),
        (partial(value_of, accounts.IssuedToken), identity_service_pb2.IssueTokenResponse()),
        (partial(value_of, accounts.RevocationInfo), identity_service_pb2.Revocation()),
        (partial(value_of, accounts.UsageTotal), share_service_pb2.UsageSum()),
        (partial(value_of, grid.PilotSecret), pilot_service_pb2.PilotCredential()),
        (partial(value_of, grid.PoolInfo), pool_service_pb2.Pool(queues=[values_pb2.QueueId()])),
        (partial(value_of, grid.RequestedReports), node_service_pb2.RequestReportsResponse()),
        (partial(value_of, operations.BanInfo), resource_service_pb2.BanInfo()),
        (partial(value_of, operations.DowntimeInfo), resource_service_pb2.Downtime()),
        (partial(value_of, operations.TreeChanges), resource_service_pb2.PutTreeResponse(changes=[POOL_CHANGE])),
        (partial(value_of, operations.TreeInfo), resource_service_pb2.GetTreeResponse()),
    ],
    ids=lambda each: type(each).__name__ if isinstance(each, Message) else "",
)
def test_values_have_fields_of_their_messages(convert: Callable[[Any], Any], message: Message) -> None:
    value = convert(message)
    if isinstance(value, AsJson):
        json.dumps(value.as_json())


@pytest.mark.parametrize(
    ("call", "where"),
    [
        (lambda client: client.usage(owners="alice"), "owners"),
        (lambda client: client.usage(by="day"), "by"),
        (lambda client: list(client.list_ads(attributes="Memory")), "attributes"),
        (lambda client: list(client.list_jobs(states="DONE")), "states"),
        (lambda client: list(client.outputs([1], "stdout")), "names"),
        (lambda client: client.subscriptions("12"), "jobs"),
        (lambda client: client.drain_pilots("abc", reason="r"), "stamps"),
        (lambda client: client.issue_token("a", "user", lifetime_s=1), "roles"),
        (
            lambda client: client.issue_token("a", [], lifetime_s=1, bounds=accounts.AgentLimits(ANY_TEXT)),
            "bounds.queues",
        ),
    ],
    ids=["owners", "by", "attributes", "states", "names", "jobs", "stamps", "roles", "bounds"],
)
def test_text_alone_is_no_list(call: Callable[[Client], object], where: str) -> None:
    with Client("127.0.0.1:1", "token") as client, pytest.raises(InvalidInputError, match="not a text alone") as raised:
        call(client)
    assert [each.where for each in raised.value.violations] == [where]


def test_all_public_names_can_be_imported() -> None:
    for name in pilotage_client.__all__:
        assert getattr(pilotage_client, name).__name__ == name


def test_handles_have_documented_methods() -> None:
    for kind in (Job, JobSet):
        assert not [
            name
            for name, member in inspect.getmembers(kind)
            if not name.startswith("_") and name not in dir(tuple) and not inspect.getdoc(member)
        ]
