"""How a command finds its server and its token."""

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
    up_file = {
        "server": "127.0.0.1:1",
        "token_file": str(tmp_path / "user.token"),
        "operator_token_file": str(tmp_path / "operator.token"),
        "admin_token_file": str(tmp_path / "admin.token"),
    }
    (tmp_path / UP_FILE).write_text(json.dumps(up_file))
    return tmp_path


def test_finds_server_in_data_folder_of_up(data: Path) -> None:
    assert resolve_server(ServerOptions(data=data), {}) == ServerAddress("127.0.0.1:1", "users")
    assert resolve_server(ServerOptions(), {"PILOTAGE_DATA": str(data)}) == ServerAddress("127.0.0.1:1", "users")


@pytest.mark.parametrize(("role", "token"), [("operator", "operators"), ("admin", "admins")])
def test_role_selects_the_token(data: Path, role: str, token: str) -> None:
    assert resolve_server(ServerOptions(data=data, role=role), {}).token == token


def test_data_option_overrides_environment(data: Path) -> None:
    environment = {"PILOTAGE_SERVER": "env:2", "PILOTAGE_TOKEN": "from-env"}
    assert resolve_server(ServerOptions(data=data), environment) == ServerAddress("127.0.0.1:1", "users")
    assert resolve_server(ServerOptions(data=data, server="option:3"), environment) == ServerAddress(
        "option:3", "from-env"
    )


def test_environment_overrides_its_data_folder_and_options_override_both(data: Path, tmp_path: Path) -> None:
    environment = {"PILOTAGE_DATA": str(data), "PILOTAGE_SERVER": "env:2", "PILOTAGE_TOKEN": " from-env \n"}
    assert resolve_server(ServerOptions(), environment) == ServerAddress("env:2", "from-env")
    assert resolve_server(ServerOptions(role="operator"), environment).token == "from-env"
    token_path = tmp_path / "option.token"
    token_path.write_text("options")
    assert resolve_server(ServerOptions(server="option:3", token_file=token_path), environment) == ServerAddress(
        "option:3", "options"
    )


def test_authority_is_read_from_the_option_or_the_environment(data: Path, tmp_path: Path) -> None:
    (tmp_path / "one.pem").write_bytes(b"one")
    (tmp_path / "other.pem").write_bytes(b"other")
    environment = {"PILOTAGE_CA": str(tmp_path / "one.pem")}
    given = ServerOptions(server="127.0.0.1:1", ca_file=tmp_path / "other.pem")
    assert resolve_server(ServerOptions(server="127.0.0.1:1"), {**environment, "PILOTAGE_TOKEN": "x"}).root_ca == b"one"
    assert resolve_server(given, {**environment, "PILOTAGE_TOKEN": "x"}).root_ca == b"other"
    with pytest.raises(InvalidInputError, match=r"none\.pem: the authority of the server cannot be read: No such file"):
        resolve_server(ServerOptions(ca_file=tmp_path / "none.pem", data=data), {})


def test_token_of_data_folder_is_not_sent_to_another_server(data: Path) -> None:
    assert resolve_server(ServerOptions(server="127.0.0.1:1", data=data), {}).token == "users"
    with pytest.raises(InvalidInputError, match="no token is set"):
        resolve_server(ServerOptions(server="elsewhere:1", data=data), {})


def test_missing_server_error_names_the_alternatives(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"pilotage up.*PILOTAGE_SERVER"):
        resolve_server(ServerOptions(data=tmp_path), {})


def test_missing_token_error_names_the_variable(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="PILOTAGE_TOKEN"):
        resolve_server(ServerOptions(server="x:1", data=tmp_path), {})


def test_names_unreadable_token_and_data_files(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"missing\.token"):
        resolve_server(ServerOptions(server="x:1", token_file=tmp_path / "missing.token"), {})
    (tmp_path / UP_FILE).write_text("{")
    with pytest.raises(InvalidInputError, match=UP_FILE):
        resolve_server(ServerOptions(data=tmp_path), {})
