"""Commands that revoke tokens and pilots, and show revocations."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import jwt
import pytest

from pilotage import clock
from pilotage_server.core.identity import Role
from support.commands import KEYS, WAIT_TIMEOUT_S, Command, environment_of
from support.server import RunningServer, request_id
from support.wire_grid import WireGrid


@pytest.fixture
def command(shared_server: RunningServer, tmp_path: Path) -> Callable[[str], Command]:
    """Return a function that returns the command line of the holder of a token."""
    return lambda token: Command(environment_of(tmp_path, PILOTAGE_SERVER=shared_server.address, PILOTAGE_TOKEN=token))


@pytest.fixture
def operator(command: Callable[[str], Command], shared_server: RunningServer) -> Command:
    return command(shared_server.token(Role.OPERATOR, owner="olga"))


def jti(token: str) -> str:
    return str(jwt.decode(token, options={"verify_signature": False})["jti"])


def test_token_in_a_file_is_revoked(
    command: Callable[[str], Command], shared_server: RunningServer, operator: Command, tmp_path: Path
) -> None:
    stolen = shared_server.token(owner="frank")
    (tmp_path / "token").write_text(f"{stolen}\n")
    user = command(shared_server.token(owner="frank"))
    (made,) = user.json_objects("token", "revoke", tmp_path / "token", "--reason", "lost laptop")
    assert list(made) == KEYS["token revoke"]
    assert (made["kind"], made["subject"], made["owner"]) == ("token", jti(stolen), "frank")
    assert made in user.json_objects("token", "revocations")
    assert made in operator.json_objects("token", "revocations")
    refused = command(stolen).run("whoami")
    assert refused.returncode == 2
    assert "revoked by frank" in refused.stderr
    assert "lost laptop" in refused.stderr
    assert jti(stolen) in operator("token", "revocations")


def test_token_from_standard_input_is_revoked(
    command: Callable[[str], Command], shared_server: RunningServer, operator: Command
) -> None:
    stolen = shared_server.token(owner="grace")
    done = subprocess.run(
        ["pilotage", "token", "revoke", "-", "--reason", "seen in a log"],
        env=operator.environment,
        input=stolen,
        capture_output=True,
        text=True,
        timeout=WAIT_TIMEOUT_S,
        check=True,
    )
    assert done.stdout == f"token {jti(stolen)} of grace revoked\n"
    assert command(stolen).run("whoami").returncode == 2


def test_tokens_of_an_owner_and_an_id_are_revoked(
    command: Callable[[str], Command], shared_server: RunningServer, operator: Command
) -> None:
    token, other = shared_server.token(owner="heidi"), shared_server.token(owner="ivan")
    assert operator("token", "revoke", "--owner", "heidi", "--reason", "left") == "all tokens of heidi revoked\n"
    (line,) = (each for each in operator("token", "revocations").splitlines() if " heidi " in each)
    next_year = clock.now().astimezone().year + 1
    assert f"  {next_year}-" in line  # it ends with the longest token that there may be
    operator("token", "revoke", "--id", jti(other), "--reason", "seen in a log")
    user = command(shared_server.token(owner="judy"))
    assert "all tokens of judy" in user("token", "revoke", "--mine", "--reason", "lost laptop")
    for revoked in (command(token), command(other), user):
        assert revoked.run("whoami").returncode == 2


@pytest.mark.parametrize(
    "arguments",
    [
        ("token", "revoke", "--reason", "x"),
        ("token", "revoke", "--mine", "--owner", "x", "--reason", "x"),
        ("token", "revoke", "--mine", "--vo", "x", "--reason", "x"),
        ("token", "revoke", "--mine", "--issuer", "x", "--reason", "x"),
        ("token", "revoke", "--mine"),
        ("token", "--owner", "x", "revoke", "--mine", "--reason", "x"),
        ("token", "--owner", "x"),
        ("token", "revoke", "/no/such/file", "--reason", "x"),
        ("pilots", "--ended", "revoke", "SITE", "--reason", "x"),
        ("pilots", "revoke", "SITE", "OTHER", "--reason", "x"),
        ("pilots", "revoke", "SITE"),
        ("pilots", "revoke", "SITE/", "--reason", "x"),
        ("pilots", "revoke", "NOWHERE", "--reason", "x"),
    ],
)
def test_unclear_orders_are_rejected(operator: Command, arguments: tuple[str, ...]) -> None:
    assert operator.run(*arguments).returncode == 2


def test_pilots_are_revoked_by_stamp_and_place(shared_server: RunningServer, operator: Command) -> None:
    grid = WireGrid(shared_server)
    grid.put_tree()
    first, second = grid.start_pilot(), grid.start_pilot()
    assert operator("pilots", "revoke", first.stamp, "--reason", "stolen") == "1 pilot revoked\n"
    unknown = request_id()
    done = operator.run("pilots", "revoke", first.stamp, unknown, "--reason", "again")
    assert (done.returncode, done.stderr) == (1, f"no live pilot {unknown}\n")
    (counted,) = operator.json_objects("pilots", "revoke", "site/CE1", "--reason", "site broken into")
    assert list(counted) == KEYS["pilots revoke"]
    assert counted["revoked"] >= 1
    shown = {info["stamp"]: info for info in operator.json_objects("pilots")}
    assert shown[second.stamp]["reason"] == "revoked by olga: site broken into"
    assert shown[second.stamp]["state"] == "LOST"
    assert shown[second.stamp]["credential_ends"]
    grid.close()
