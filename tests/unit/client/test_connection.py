"""How a command finds its server and its token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage_client.connection import UP_FILE, ServerAddress, ServerOptions, resolve_server
from pilotage_client.contexts import Context, load_contexts


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
    with pytest.raises(
        InvalidInputError, match=r"missing\.token: the token cannot be read: No such file or directory$"
    ):
        resolve_server(ServerOptions(server="x:1", token_file=tmp_path / "missing.token"), {})
    (tmp_path / UP_FILE).write_text("{")
    with pytest.raises(InvalidInputError, match=UP_FILE):
        resolve_server(ServerOptions(data=tmp_path), {})


@pytest.fixture
def joined(tmp_path: Path) -> dict[str, str]:
    """Return an environment with two contexts, of which `near` is the current one."""
    environment = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    load_contexts(environment).put("far", Context("far:1", "authority of far", "fars", queue="workers/here/default"))
    load_contexts(environment).put("near", Context("near:2", token="nears"))
    return environment


def test_contexts_are_used_after_options_and_environment(joined: dict[str, str], data: Path) -> None:
    near, far = ServerAddress("near:2", "nears"), ServerAddress("far:1", "fars", b"authority of far")
    up = ServerAddress("127.0.0.1:1", "users")
    assert resolve_server(ServerOptions(), joined) == near
    assert resolve_server(ServerOptions(), {**joined, "PILOTAGE_CONTEXT": "far"}) == far
    others = {"PILOTAGE_SERVER": "x:3", "PILOTAGE_TOKEN": "x"}
    assert resolve_server(ServerOptions(context="far"), {**joined, **others}) == far
    assert resolve_server(ServerOptions(), {**joined, "PILOTAGE_TOKEN": "x"}) == ServerAddress("near:2", "x")
    assert resolve_server(ServerOptions(), {**joined, "PILOTAGE_DATA": str(data)}) == up
    assert resolve_server(ServerOptions(data=data), {**joined, "PILOTAGE_CONTEXT": "far"}) == up
    assert resolve_server(ServerOptions(), {**joined, **others}) == ServerAddress("x:3", "x")
    for options, environment in (
        (ServerOptions(context="far", server="x:3"), {}),
        (ServerOptions(), {"PILOTAGE_CONTEXT": "far", "PILOTAGE_SERVER": "x:3"}),
    ):
        with pytest.raises(InvalidInputError, match=r"give one|set one"):
            resolve_server(options, {**joined, **environment})
    with pytest.raises(NotFoundError, match="moon"):
        resolve_server(ServerOptions(context="moon"), joined)


def test_commands_change_the_contexts(joined: dict[str, str]) -> None:
    contexts = load_contexts(joined)
    assert contexts.file.stat().st_mode & 0o777 == 0o600
    contexts.use("far")
    assert load_contexts(joined).current == "far"
    load_contexts(joined).remove("far")
    assert (load_contexts(joined).current, list(load_contexts(joined).by_name)) == ("", ["near"])
    with pytest.raises(InvalidInputError, match="is no name"):
        contexts.put("../up", Context("x:1"))


def test_joining_again_keeps_other_tokens_and_other_servers(joined: dict[str, str]) -> None:
    load_contexts(joined).put("far", Context("far:1", "authority of far", director_token="works", queue="workers/a/b"))
    assert load_contexts(joined).by_name["far"] == Context(
        "far:1", "authority of far", token="fars", director_token="works", queue="workers/a/b"
    )
    load_contexts(joined).put("far", Context("far:1", "authority of far", token="new"))
    found = load_contexts(joined).by_name["far"]
    assert (found.token, found.director_token, found.queue) == ("new", "works", "workers/a/b")
    with pytest.raises(InvalidInputError, match="far: is the context of far:1: give another name"):
        load_contexts(joined).put("far", Context("far:2"))
    load_contexts(joined).put("far", Context("far:1", "another authority", token="new"))
    assert load_contexts(joined).by_name["far"].director_token == ""


@pytest.mark.parametrize(
    ("text", "mode", "why"),
    [
        ("current = ", 0o600, "is damaged: Invalid value"),
        ("currant = 'a'", 0o600, "is damaged: it has other keys"),
        ("[contexts.a]\nserver = 5", 0o600, "is damaged: the context a has a value that is no text"),
        ("[contexts.a]\ntoken = 'x'", 0o600, "is damaged: the context a has no server"),
        ("", 0o640, r"is open to others \(mode 640\), and holds tokens: chmod 600 it"),
    ],
)
def test_unusable_contexts_are_a_sentence(joined: dict[str, str], text: str, mode: int, why: str) -> None:
    file = load_contexts(joined).file
    file.write_text(text)
    file.chmod(mode)
    with pytest.raises(InvalidInputError, match=rf"contexts\.toml: {why}"):
        resolve_server(ServerOptions(), joined)
