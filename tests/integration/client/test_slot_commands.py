"""`pilotage slots` in all its output forms, and its errors, with a running server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pilotage.v1 import matcher_service_pb2, values_pb2
from pilotage_server.core.identity import Role
from support.commands import Command, environment_of
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid

pytestmark = pytest.mark.process

AMOUNTS = values_pb2.Amounts(cpus=1, memory_mib=2000)


def a_slot(name: str, ad: str) -> matcher_service_pb2.SlotState:
    return matcher_service_pb2.SlotState(
        name=name, state="Unclaimed", activity="Idle", amounts=AMOUNTS, free=AMOUNTS, ad=ad
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server(tmp_path_factory.mktemp("slots") / "data") as running:
        grid = WireGrid(running)
        grid.put_tree()
        slots = [a_slot("slot1", '[ Fast = true; Kind = "old" ]'), a_slot("slot2", "[ Fast = Cpus > 1 ]")]
        node = matcher_service_pb2.NodeState(name="node1", amounts=AMOUNTS, slots=slots)
        grid.start_pilot().heartbeat(node=node)
        yield running
        grid.close()


@pytest.fixture
def pilotage(server: RunningServer, tmp_path: Path) -> Command:
    return Command(environment_of(tmp_path, PILOTAGE_SERVER=server.address, PILOTAGE_TOKEN=server.token(Role.USER)))


def test_af_prints_values_in_the_given_order(pilotage: Command) -> None:
    attributes = ["Name", "Fast", "Kind", "Memory * 2", "Name"]
    assert pilotage("slots", "--af", *attributes).splitlines() == [
        "slot1@node1 true old 4000 slot1@node1",
        "slot2@node1 false undefined 4000 slot2@node1",
    ]
    assert pilotage.json_objects("slots", "--af", "Fast", "Kind") == [
        {"Fast": True, "Kind": "old"},
        {"Fast": False, "Kind": "undefined"},
    ]


def test_long_prints_whole_ads(pilotage: Command) -> None:
    first, second = pilotage("slots", "--long").split("\n\n")
    assert "Fast = true\n" in first
    assert "Fast = Cpus > 1\n" in second
    ads = pilotage.json_objects("slots", "--long")
    assert [(ad["Name"], ad["Fast"], ad["Memory"]) for ad in ads] == [
        ("slot1@node1", True, 2000),
        ("slot2@node1", "Cpus > 1", 2000),
    ]


@pytest.mark.parametrize(("options", "printed"), [([], "no slots\n"), (["--long"], ""), (["--json"], "")])
def test_no_matching_slot_is_no_error(pilotage: Command, options: list[str], printed: str) -> None:
    assert pilotage("slots", "--constraint", "Fast && Cpus > 1", *options) == printed


def test_constraint_that_is_not_boolean_matches_no_slot(pilotage: Command) -> None:
    for constraint in ("NoSuchThing", '"true"', "1", "Kind + 1"):
        assert pilotage("slots", "--constraint", constraint) == "no slots\n"
    (only,) = pilotage.json_objects("slots", "--constraint", "fast")
    assert only["name"] == "slot1"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--constraint", "(("], "constraint: ( is not closed"),
        (["--constraint", "1; Cpus"], "constraint: a semicolon inside a value"),
        (["--constraint", "random() > 0"], "constraint: random functions are not allowed"),
        (["--af"], "--af needs attributes to print"),
        (["--af", "Name", "--long"], "--af and --long cannot be combined"),
        (["--af:jx", "Name"], "--af: has no qualifier x"),
        (["--state", "claimd"], "did you mean Claimed?"),
        (["--site", "SITF"], "the tree has no site SITF; did you mean SITE?"),
        (["--af", "Name", "((", "1 +"], "--af ((: ( is not closed\n--af 1 +: "),
    ],
)
def test_invalid_slots_command_exits_with_2(pilotage: Command, arguments: list[str], message: str) -> None:
    done = pilotage.run("slots", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_direct_shows_the_answer_and_its_age(server: RunningServer, pilotage: Command) -> None:
    grid = WireGrid(server)
    pilot = grid.start_pilot()
    before = matcher_service_pb2.NodeState(name="node3", amounts=AMOUNTS, slots=[a_slot("old", "[]")])
    pilot.heartbeat(node=before)
    command = pilotage.start("slots", "--direct", "node3", "--af", "Name")
    while not pilot.heartbeat().commands:
        pass  # the command has not asked yet
    now = matcher_service_pb2.NodeState(name="node3", amounts=AMOUNTS, slots=[a_slot("new", "[]")])
    pilot.heartbeat(node=now)
    printed, notes = command.communicate(timeout=30)
    assert (command.returncode, printed) == (0, "new@node3\n")
    assert re.fullmatch(rf"pilot {pilot.stamp} on node3 answered \d+\.\d s ago\n", notes)
    (slot,) = [slot for slot in pilotage.json_objects("slots") if slot["node"] == "node3"]
    assert slot["answered"]
    grid.close()


def test_direct_names_the_pilot_that_does_not_answer(server: RunningServer, pilotage: Command) -> None:
    grid = WireGrid(server)
    pilot = grid.start_pilot()
    pilot.heartbeat(node=matcher_service_pb2.NodeState(name="node4", amounts=AMOUNTS, slots=[a_slot("slot1", "[]")]))
    done = pilotage.run("slots", "--direct", "node4", "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert re.search(rf"pilot {pilot.stamp} did not answer within 0.5 s; it last called \d+ s ago; ", done.stderr)
    assert "--timeout" in done.stderr
    grid.close()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--direct", "nowhere"], "--direct: nowhere: it has no live pilot"),
        (["--direct", "SITE/nowhere"], "SITE/nowhere"),
        (["--timeout", "3"], "--timeout belongs to --direct"),
        (["--direct", "node1", "--timeout", "soon"], "--timeout"),
    ],
)
def test_invalid_direct_request_exits_with_2(pilotage: Command, arguments: list[str], message: str) -> None:
    done = pilotage.run("slots", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert message in done.stderr


def test_unreachable_server_exits_with_3(pilotage: Command) -> None:
    for arguments in (["slots"], ["shares"], ["shares", "set-factor", "sky//ann", "2"], ["node", "list"]):
        done = pilotage.run(*arguments, "--server", "127.0.0.1:1")
        assert (done.returncode, done.stdout) == (3, "")
        assert "127.0.0.1:1" in done.stderr


def test_slots_prints_thousands_of_slots(server: RunningServer, pilotage: Command) -> None:
    grid = WireGrid(server)
    ad = f'[ Filler = "{"x" * 2000}" ]'
    slots = [a_slot(f"many{number}", ad) for number in range(3000)]
    node = matcher_service_pb2.NodeState(name="node2", amounts=AMOUNTS, slots=slots)
    grid.start_pilot().heartbeat(node=node)
    lines = pilotage("slots", "--long", "--constraint", "Filler =!= undefined").splitlines()
    assert sum(line.startswith("Name = ") for line in lines) == 3000
    assert [json.loads(line)["node"] for line in pilotage("slots", "--json").splitlines()].count("node2") == 3000
    grid.close()
