"""Where a command finds its server and its token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.connection import UP_FILE, ServerAddress, ServerOptions, resolve_server


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "user.token").write_text("users\n")
    (tmp_path / "operator.token").write_text("operators\n")
    (tmp_path / "admin.token").write_text("admins\n")
    left = {
        "server": "127.0.0.1:1",
        "token_file": str(tmp_path / "user.token"),
        "operator_token_file": str(tmp_path / "operator.token"),
        "admin_token_file": str(tmp_path / "admin.token"),
    }
    (tmp_path / UP_FILE).write_text(json.dumps(left))
    return tmp_path


def test_what_up_left_in_its_data_folder_is_found(data: Path) -> None:
    assert resolve_server(ServerOptions(data=data), {}) == ServerAddress("127.0.0.1:1", "users")
    assert resolve_server(ServerOptions(), {"PILOTAGE_DATA": str(data)}) == ServerAddress("127.0.0.1:1", "users")


def test_an_operators_command_takes_the_operators_token(data: Path) -> None:
    assert resolve_server(ServerOptions(data=data, role="operator"), {}).token == "operators"


def test_an_administrators_command_takes_the_administrators_token(data: Path) -> None:
    assert resolve_server(ServerOptions(data=data, role="admin"), {}).token == "admins"


def test_a_data_folder_that_is_named_wins_over_the_environment(data: Path) -> None:
    environment = {"PILOTAGE_SERVER": "env:2", "PILOTAGE_TOKEN": "from-env"}
    assert resolve_server(ServerOptions(data=data), environment) == ServerAddress("127.0.0.1:1", "users")
    assert resolve_server(ServerOptions(data=data, server="flag:3"), environment) == ServerAddress("flag:3", "from-env")


def test_the_environment_wins_over_the_data_folder_and_flags_over_both(data: Path, tmp_path: Path) -> None:
    environment = {"PILOTAGE_DATA": str(data), "PILOTAGE_SERVER": "env:2", "PILOTAGE_TOKEN": " from-env \n"}
    assert resolve_server(ServerOptions(), environment) == ServerAddress("env:2", "from-env")
    assert resolve_server(ServerOptions(role="operator"), environment).token == "from-env"
    flag = tmp_path / "flag.token"
    flag.write_text("flags")
    assert resolve_server(ServerOptions(server="flag:3", token_file=flag), environment) == ServerAddress(
        "flag:3", "flags"
    )


def test_a_token_of_the_data_folder_is_not_shown_to_another_server(data: Path) -> None:
    assert resolve_server(ServerOptions(server="127.0.0.1:1", data=data), {}).token == "users"
    with pytest.raises(InvalidInputError, match="no token is set"):
        resolve_server(ServerOptions(server="elsewhere:1", data=data), {})


def test_without_any_server_the_error_names_the_ways_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"pilotage up.*PILOTAGE_SERVER"):
        resolve_server(ServerOptions(data=tmp_path), {})


def test_without_any_token_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="PILOTAGE_TOKEN"):
        resolve_server(ServerOptions(server="x:1", data=tmp_path), {})


def test_an_unreadable_token_or_data_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"missing\.token"):
        resolve_server(ServerOptions(server="x:1", token_file=tmp_path / "missing.token"), {})
    (tmp_path / UP_FILE).write_text("{")
    with pytest.raises(InvalidInputError, match=UP_FILE):
        resolve_server(ServerOptions(data=tmp_path), {})
