"""Where a pilot's settings come from, and what is said of wrong ones."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from pilotage.errors import InvalidInputError, WorldError
from pilotage.settings import load_settings
from pilotage_pilot.app import read_pool_ids
from pilotage_pilot.link.server_link import queue_of_token
from pilotage_pilot.main import run
from pilotage_pilot.settings import PilotSettings


@pytest.fixture(autouse=True)
def logs_as_before() -> Iterator[None]:
    """Undo what a command does to the log of the whole process."""
    yield
    structlog.reset_defaults()


def read(path: Path, options: Mapping[str, object]) -> PilotSettings:
    return load_settings(PilotSettings, path, options)


NEEDED = {"server": ["localhost:4711"], "token": "t"}


def a_file(folder: Path, **settings: object) -> Path:
    path = folder / "pilot.json"
    path.write_text(json.dumps({**NEEDED, **settings}))
    return path


def test_options_win_over_the_environment_and_that_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_file(tmp_path, cpus=1, max_idle_s=1, grace_s=1, queue={"cpus": 8})
    monkeypatch.setenv("PILOTAGE_PILOT_MAX_IDLE_S", "2")
    monkeypatch.setenv("PILOTAGE_PILOT_GRACE_S", "2")
    settings = read(path, {"grace_s": "3"})
    assert (settings.cpus, settings.max_idle_s, settings.grace_s, settings.queue.cpus) == (1, 2, 3, 8)


def test_relative_paths_in_the_file_start_from_its_folder_and_others_from_where_the_pilot_starts(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pilot.json"
    path.write_text(json.dumps({"server": ["a:1"], "token_file": "token", "pools_file": "/work/pools.json"}))
    settings = read(path, {"scratch": "here"})
    assert settings.token_file == tmp_path / "token"
    assert (settings.pools_file, settings.scratch) == (Path("/work/pools.json"), Path("here"))


def test_settings_may_be_toml(tmp_path: Path) -> None:
    path = tmp_path / "pilot.toml"
    path.write_text('server = ["a:1", "b:2"]\ntoken = "t"\n[queue]\nmemory_mib = 100\n')
    assert read(path, {}).queue.memory_mib == 100


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"cpu": 8}, "cpu"),
        ({"cpus": -1}, "cpus"),
        ({"queue": {"cores": 8}}, "queue.cores"),
        ({"token_file": "/x"}, "token"),
        ({"server": []}, "server"),
        ({"ends_at": "2026-01-01T00:00:00"}, "ends_at"),
        ({"sample_s": 0}, "sample_s"),
        ({"broker": "http://host:PASSWORD@x"}, "broker: is not a URL such as mqtt"),
    ],
)
def test_a_wrong_setting_is_refused_with_its_place(tmp_path: Path, wrong: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidInputError, match=where):
        read(a_file(tmp_path, **wrong), {})


def test_a_wrong_configuration_is_one_line_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--config", str(tmp_path / "absent.json")]) == 2
    assert (
        capsys.readouterr().err
        == f"pilotage-pilot: {tmp_path}/absent.json: cannot be read: No such file or directory\n"
    )


def test_a_token_that_names_no_queue_is_a_wrong_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["run", "--config", str(a_file(tmp_path, scratch=str(tmp_path)))]) == 2
    assert "token" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pilot.json"]


def test_the_earliest_end_that_anybody_knows_is_the_glideins(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    settings = read(a_file(tmp_path, lifetime_s=500, ends_at="2026-11-20T12:05:00Z"), {})
    assert settings.lifetime(5400.0, now, 5000.0).ends_boot_s == 5300
    assert settings.lifetime(5200.0, now, 5000.0).ends_boot_s == 5200
    assert read(a_file(tmp_path), {}).lifetime(None, now, 5000.0).ends_boot_s is None


def test_a_pilot_has_no_policy_and_lets_none_run_commands_unless_it_is_told(tmp_path: Path) -> None:
    plain = read(a_file(tmp_path), {})
    assert (plain.policy, plain.policy_commands) == (None, False)
    told = load_settings(
        PilotSettings, a_file(tmp_path, policy_commands=True, sample_s=1), {"policy": Path("site.conf")}
    )
    assert (told.policy, told.policy_commands, told.rules().sample_s) == (Path("site.conf"), True, 1)


def test_requests_wait_longer_where_no_policy_is_to_hear_how_the_node_is(tmp_path: Path) -> None:
    plain, told = (
        read(a_file(tmp_path), {}),
        read(a_file(tmp_path, wait_s=5), {}),
    )
    with_policy = read(a_file(tmp_path), {"policy": Path("site.conf")})
    assert [each.rules().wait_s for each in (plain, with_policy, told)] == [60, 20, 5]


def test_pools_are_read_as_a_list_or_as_lines(tmp_path: Path) -> None:
    path = tmp_path / "pools"
    path.write_text('["a", "b"]')
    assert read_pool_ids(path) == ("a", "b")
    path.write_text("a\n\nb\n")
    assert read_pool_ids(path) == ("a", "b")
    path.write_text("[broken")
    with pytest.raises(WorldError, match="list of pools"):
        read_pool_ids(path)


@pytest.mark.parametrize("token", ["", "a.b.c", "a.e30.c", "a.W10.c"])
def test_what_is_no_pilots_token_says_so(token: str) -> None:
    with pytest.raises(InvalidInputError, match="no queue"):
        queue_of_token(token)


def test_a_pilot_without_files_is_given_everything_in_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"server": ["a:1"], "token": "t", "pools": ["p1", "p2"], "ca": "PEM", "cpus": 2}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(given)))
    settings = read(Path("-"), {"cpus": 3})
    assert (settings.pools, settings.ca, settings.cpus) == (("p1", "p2"), "PEM", 3)


@pytest.mark.parametrize("name", ["ca", "pools"])
def test_what_is_given_is_given_once(tmp_path: Path, name: str) -> None:
    value = {"ca": "PEM", "pools": ["p"]}[name]
    path = tmp_path / "pilot.json"
    path.write_text(json.dumps({"server": ["a:1"], "token": "t", name: value, f"{name}_file": "x"}))
    with pytest.raises(InvalidInputError, match=f"give either {name} or {name}_file"):
        read(path, {})
