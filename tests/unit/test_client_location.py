"""Where a command finds its server and its token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_client.location import UP_FILE, Location, Wishes, locate


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
    assert locate(Wishes(data=data), {}) == Location("127.0.0.1:1", "users")
    assert locate(Wishes(), {"PILOTAGE_DATA": str(data)}) == Location("127.0.0.1:1", "users")


def test_an_operators_command_takes_the_operators_token(data: Path) -> None:
    assert locate(Wishes(data=data, acts_as="operator"), {}).token == "operators"


def test_an_administrators_command_takes_the_administrators_token(data: Path) -> None:
    assert locate(Wishes(data=data, acts_as="admin"), {}).token == "admins"


def test_a_data_folder_that_is_named_wins_over_the_environment(data: Path) -> None:
    environment = {"PILOTAGE_SERVER": "env:2", "PILOTAGE_TOKEN": "from-env"}
    assert locate(Wishes(data=data), environment) == Location("127.0.0.1:1", "users")
    assert locate(Wishes(data=data, server="flag:3"), environment) == Location("flag:3", "from-env")


def test_the_environment_wins_over_the_data_folder_and_flags_over_both(data: Path, tmp_path: Path) -> None:
    environment = {"PILOTAGE_DATA": str(data), "PILOTAGE_SERVER": "env:2", "PILOTAGE_TOKEN": " from-env \n"}
    assert locate(Wishes(), environment) == Location("env:2", "from-env")
    assert locate(Wishes(acts_as="operator"), environment).token == "from-env"
    flag = tmp_path / "flag.token"
    flag.write_text("flags")
    assert locate(Wishes(server="flag:3", token_file=flag), environment) == Location("flag:3", "flags")


def test_a_token_of_the_data_folder_is_not_shown_to_another_server(data: Path) -> None:
    assert locate(Wishes(server="127.0.0.1:1", data=data), {}).token == "users"
    with pytest.raises(InvalidInputError, match="no token is known"):
        locate(Wishes(server="elsewhere:1", data=data), {})


def test_without_any_server_the_error_names_the_ways_to_name_one(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"pilotage up.*PILOTAGE_SERVER"):
        locate(Wishes(data=tmp_path), {})


def test_without_any_token_the_error_says_so(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="PILOTAGE_TOKEN"):
        locate(Wishes(server="x:1", data=tmp_path), {})


def test_an_unreadable_token_or_data_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"missing\.token"):
        locate(Wishes(server="x:1", token_file=tmp_path / "missing.token"), {})
    (tmp_path / UP_FILE).write_text("{")
    with pytest.raises(InvalidInputError, match=UP_FILE):
        locate(Wishes(data=tmp_path), {})
