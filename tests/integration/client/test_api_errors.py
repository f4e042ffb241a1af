"""Each method of the Python API raises the errors that its text names, and no others."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage import clock, errors
from pilotage.errors import (
    FeedPositionLostError,
    InvalidInputError,
    InvalidJobError,
    InvalidTreeError,
    NotFoundError,
    PermissionDeniedError,
    PilotageError,
    ServerUnreachableError,
    StateConflictError,
    UnauthenticatedError,
)
from pilotage.job_description import InputFile, JobDescription
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage.resources.tree import QueueId
from pilotage.values.jobs import JobCondition
from pilotage_client.api import Client
from pilotage_client.joining import new_join_token
from pilotage_client.models import JobFile
from pilotage_server.core.identity import Role
from support.processes import free_address
from support.wire_grid import WireGrid

Call = Callable[[Client], Any]

NO_JOB = 10**15
TRUE = JobDescription("/bin/true")
FILE = JobFile("out", "0" * 64)
BAD_STATE = JobCondition(states=frozenset({"NO"}))
MAIL = NewSubscription(RecipientKind.MAIL, "", frozenset({Occasion.END}))
SOON = clock.now() + timedelta(hours=1)
NODE = ("SITE", "no-node")

ADMIN, OPERATOR, USER = Role.ADMIN, Role.OPERATOR, Role.USER

FAILING: list[tuple[Role, type[PilotageError], str, Call]] = [
    (USER, NotFoundError, "ad", lambda c: c.ad(NO_JOB)),
    (USER, NotFoundError, "attempts", lambda c: c.attempts([NO_JOB])),
    (OPERATOR, InvalidInputError, "audit", lambda c: c.audit(who="\0")),
    (OPERATOR, InvalidInputError, "ban", lambda c: c.ban(["NO"], reason="power")),
    (OPERATOR, InvalidInputError, "ban", lambda c: c.ban("SITE", reason="")),
    (OPERATOR, NotFoundError, "cancel_downtime", lambda c: c.cancel_downtime(NO_JOB)),
    (USER, InvalidInputError, "clusters", lambda c: c.clusters(states=["NO"])),
    (USER, NotFoundError, "clusters", lambda c: c.clusters(workflow=NO_JOB)),
    (USER, InvalidInputError, "count_jobs", lambda c: c.count_jobs(BAD_STATE)),
    (USER, NotFoundError, "description", lambda c: c.description(NO_JOB)),
    (OPERATOR, InvalidInputError, "drain_pilots", lambda c: c.drain_pilots(place=["NO"], reason="power")),
    (USER, InvalidJobError, "dry_run", lambda c: c.dry_run(JobDescription(""))),
    (USER, InvalidInputError, "edit", lambda c: c.edit(waiting(c), JobDescription(""))),
    (USER, NotFoundError, "edit", lambda c: c.edit(NO_JOB, TRUE)),
    (USER, StateConflictError, "edit", lambda c: c.edit(removed(c), TRUE)),
    (USER, InvalidInputError, "eligible_nodes", lambda c: c.eligible_nodes(level="Rack")),
    (USER, FeedPositionLostError, "event_pages", lambda c: c.event_pages(after=NO_JOB, until_now=True)),
    (USER, NotFoundError, "events", lambda c: c.events(NO_JOB)),
    (USER, NotFoundError, "explain", lambda c: c.explain(NO_JOB)),
    (USER, NotFoundError, "explain_routes", lambda c: c.explain_routes(NO_JOB)),
    (USER, NotFoundError, "fetch_files", lambda c: c.fetch_files(waiting(c), [FILE], Path("/tmp/no"))),
    (USER, NotFoundError, "fetch_output", lambda c: c.fetch_output(NO_JOB, Path())),
    (USER, InvalidInputError, "find_jobs", lambda c: c.find_jobs(["x"])),
    (USER, InvalidInputError, "find_jobs", lambda c: c.find_jobs("12")),
    (USER, NotFoundError, "find_jobs", lambda c: c.find_jobs([str(NO_JOB)])),
    (USER, FeedPositionLostError, "follow", lambda c: c.follow(after=NO_JOB, until_now=True)),
    (USER, NotFoundError, "follow_output", lambda c: c.follow_output(NO_JOB)),
    (USER, StateConflictError, "follow_output", lambda c: c.follow_output(waiting(c), follow=False)),
    (OPERATOR, NotFoundError, "give_up_router", lambda c: c.give_up_router("no")),
    (USER, InvalidInputError, "hold", lambda c: c.hold([waiting(c)], only=BAD_STATE)),
    (OPERATOR, InvalidInputError, "hold_place", lambda c: c.hold_place([], reason="power")),
    (ADMIN, InvalidInputError, "issue_token", lambda c: c.issue_token("ann", ["no"], lifetime_s=60)),
    (USER, NotFoundError, "jobs", lambda c: c.jobs([NO_JOB])),
    (ADMIN, InvalidInputError, "join", lambda c: with_join_token(c).join("")),
    (USER, InvalidInputError, "list_ads", lambda c: c.list_ads(JobCondition(where="a =="))),
    (USER, InvalidInputError, "list_jobs", lambda c: c.list_jobs(states=["NO"])),
    (USER, InvalidInputError, "list_jobs", lambda c: c.list_jobs(states="DONE")),
    (OPERATOR, InvalidInputError, "open_place", lambda c: c.open_place([])),
    (OPERATOR, NotFoundError, "open_place", lambda c: c.open_place("SITE")),
    (USER, NotFoundError, "output_files", lambda c: c.output_files(NO_JOB)),
    (USER, NotFoundError, "output_listing", lambda c: c.output_listing(waiting(c), attempt=5)),
    (USER, NotFoundError, "outputs", lambda c: c.outputs([NO_JOB])),
    (OPERATOR, NotFoundError, "pilot_log", lambda c: c.pilot_log("no")),
    (USER, InvalidInputError, "pilots", lambda c: c.pilots(states=["NO"])),
    (
        OPERATOR,
        InvalidInputError,
        "plan_downtime",
        lambda c: c.plan_downtime("SITE", start=SOON, end=SOON, reason=""),
    ),
    (OPERATOR, InvalidTreeError, "put_tree", lambda c: c.put_tree("{", "json")),
    (USER, NotFoundError, "read_output", lambda c: c.read_output(waiting(c), FILE)),
    (OPERATOR, InvalidInputError, "register_pilot", lambda c: c.register_pilot(None)),
    (OPERATOR, NotFoundError, "register_pilot", lambda c: c.register_pilot(QueueId("no", "no", "no"))),
    (USER, InvalidInputError, "release", lambda c: c.release([1], only=BAD_STATE)),
    (USER, InvalidInputError, "remove", lambda c: c.remove([1], only=BAD_STATE)),
    (USER, NotFoundError, "request_reports", lambda c: c.request_reports(NODE)),
    (USER, InvalidInputError, "reschedule", lambda c: c.reschedule([1], only=BAD_STATE)),
    (OPERATOR, InvalidInputError, "revoke_pilots", lambda c: c.revoke_pilots(reason="stolen")),
    (USER, InvalidInputError, "revoke_token", lambda c: c.revoke_token("broken", reason="stolen")),
    (OPERATOR, InvalidInputError, "revoke_token_id", lambda c: c.revoke_token_id("jti", reason="")),
    (USER, InvalidInputError, "revoke_tokens_of", lambda c: c.revoke_tokens_of(reason="")),
    (USER, InvalidInputError, "search_jobs", lambda c: c.search_jobs(BAD_STATE)),
    (USER, InvalidInputError, "search_jobs", lambda c: c.search_jobs(JobCondition(since=SOON.replace(tzinfo=None)))),
    (USER, InvalidInputError, "select", lambda c: c.select("x")),
    (USER, NotFoundError, "select", lambda c: c.select(NO_JOB)),
    (OPERATOR, InvalidInputError, "set_node_attributes", lambda c: c.set_node_attributes([NODE], {"X": "1 +"})),
    (OPERATOR, NotFoundError, "set_node_attributes", lambda c: c.set_node_attributes([NODE], {"X": "1"})),
    (OPERATOR, InvalidInputError, "set_shares", lambda c: c.set_shares(factors={"no account": 1})),
    (USER, InvalidInputError, "slots", lambda c: c.slots("a ==")),
    (USER, NotFoundError, "standard_files", lambda c: c.standard_files(NO_JOB)),
    (USER, NotFoundError, "stream_output", lambda c: c.stream_output(waiting(c), FILE)),
    (USER, InvalidJobError, "submit", lambda c: c.submit(JobDescription(""))),
    (USER, InvalidJobError, "submit", lambda c: c.submit("hello.toml")),  # type: ignore[arg-type]
    (USER, InvalidJobError, "submit", lambda c: c.submit(JobDescription("/bin/cat", input_files=(InputFile("no"),)))),
    (USER, InvalidInputError, "submit", lambda c: c.submit(JobDescription("/bin/true", after=(str(NO_JOB),)))),
    (USER, InvalidInputError, "subscribe", lambda c: c.subscribe("x", MAIL)),
    (USER, NotFoundError, "subscribe", lambda c: c.subscribe(str(NO_JOB), MAIL)),
    (USER, InvalidInputError, "subscriptions", lambda c: c.subscriptions(["x"])),
    (OPERATOR, InvalidInputError, "unban", lambda c: c.unban([])),
    (OPERATOR, NotFoundError, "unban", lambda c: c.unban("SITE")),
    (USER, NotFoundError, "unsubscribe", lambda c: c.unsubscribe([NO_JOB])),
    (USER, InvalidInputError, "usage", lambda c: c.usage(["planet"])),
    (USER, NotFoundError, "wait", lambda c: c.wait([NO_JOB], 0)),
]

FINE: dict[str, Call] = {
    "agents": lambda c: c.agents(),
    "bans": lambda c: c.bans(),
    "diagnose": lambda c: c.diagnose(),
    "downtimes": lambda c: c.downtimes(),
    "node_attributes": lambda c: c.node_attributes(),
    "pools": lambda c: c.pools(),
    "queues": lambda c: c.queues(),
    "race_costs": lambda c: c.race_costs(),
    "races": lambda c: c.races(),
    "revocations": lambda c: c.revocations(),
    "routers": lambda c: c.routers(),
    "shares": lambda c: c.shares(),
    "throttles": lambda c: c.throttles(),
    "tree": lambda c: c.tree(),
    "who_am_i": lambda c: c.who_am_i(),
}
"""Calls of the methods that no argument lets fail."""

OF_OPERATORS = {
    *("agents", "audit", "ban", "bans", "cancel_downtime", "diagnose", "downtimes", "drain_pilots", "give_up_router"),
    *("issue_token", "node_attributes", "pilot_log", "plan_downtime", "put_tree"),
    *("register_pilot", "revoke_pilots", "set_node_attributes", "throttles", "tree", "unban"),
}
"""The methods that a user's token does not allow."""

WITHOUT_SERVER = {"close", "job", "located", "reconnected", "report_upload"}
ALL: dict[str, Call] = FINE | {name: call for _, _, name, call in FAILING}
SHOWN = [f"{name}-{error.__name__}-{index}" for index, (_, error, name, _) in enumerate(FAILING)]
PROVOKED = {"InvalidInputError", "InvalidTreeError", "NotFoundError", "StateConflictError", "FeedPositionLostError"}


def waiting(client: Client) -> int:
    """Submit a job that waits for ever, and return its id."""
    return client.submit(JobDescription("/bin/true", requirements={"SoftwareTag": "on no queue"})).job_ids[0]


def removed(client: Client) -> int:
    """Submit and remove a job, and return its id."""
    job_id = waiting(client)
    client.remove([job_id])
    return job_id


def with_join_token(client: Client) -> Client:
    """Return a connection of a machine that joins."""
    return Client(client.server, new_join_token(client, ["worker"]).jwt)


def outcome(call: Call, client: Client) -> Any:
    """Return the result of a call, or its error; an iterator is read."""
    try:
        result = call(client)
        return list(result) if isinstance(result, Iterator) else result
    except Exception as error:
        return error


def named_errors(method: str) -> set[str]:
    """Return the names of the errors in the text of a method."""
    return set(re.findall(r"\b[A-Z]\w+Error\b", inspect.getdoc(getattr(Client, method)) or ""))


@pytest.mark.parametrize(("role", "error", "name", "call"), FAILING, ids=SHOWN)
def test_method_raises_what_its_text_names(
    grid: WireGrid, role: Role, error: type[PilotageError], name: str, call: Call
) -> None:
    with Client(grid.server.address, grid.server.token(role, vo=grid.vo)) as client:
        raised = outcome(call, client)
    assert type(raised) is error, raised
    assert {each.__name__ for each in error.__mro__} & named_errors(name), f"{name} does not name {error.__name__}"


def test_table_has_each_method_and_each_error() -> None:
    methods = {name for name, each in inspect.getmembers(Client) if callable(each) and not name.startswith("_")}
    assert methods - WITHOUT_SERVER == ALL.keys()
    seen = {(name, each.__name__) for _, error, name, _ in FAILING for each in error.__mro__}
    seen.add(("search_jobs", "StateConflictError"))  # it needs a million jobs
    assert not [(name, each) for name in ALL for each in named_errors(name) & PROVOKED if (name, each) not in seen]
    assert not [(name, each) for name in ALL for each in named_errors(name) if not hasattr(errors, each)]


def test_missing_role_and_broken_token_are_errors_of_their_own(grid: WireGrid) -> None:
    with Client(grid.server.address, grid.server.token(USER, vo=grid.vo)) as user:
        refused = {name: outcome(ALL[name], user) for name in OF_OPERATORS}
    assert not {name: each for name, each in refused.items() if not isinstance(each, PermissionDeniedError)}
    with Client(grid.server.address, "broken") as stranger:
        found = {name: outcome(call, stranger) for name, call in FINE.items()}
    assert not {name: each for name, each in found.items() if not isinstance(each, UnauthenticatedError)}


def test_dead_server_is_an_error_of_its_own() -> None:
    with Client(free_address(), "token") as client, ThreadPoolExecutor(len(FINE)) as threads:
        found = list(threads.map(lambda call: outcome(call, client), FINE.values()))
    assert not [each for each in found if not isinstance(each, ServerUnreachableError)]
