"""Settings of the pilot: sources, errors, pools and tokens."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pytest
import structlog

from pilotage.errors import InvalidInputError, WorldError
from pilotage.settings import load_settings
from pilotage.values.containers import RuntimeKind
from pilotage.values.isolation import Isolation
from pilotage_pilot.app import container_rules, read_pool_ids, read_secret
from pilotage_pilot.command_line import run
from pilotage_pilot.link.server_link import queue_of_token
from pilotage_pilot.settings import PilotSettings


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    """Undo the logging configuration that a command sets for the process."""
    yield
    structlog.reset_defaults()


def read(path: Path, options: Mapping[str, object]) -> PilotSettings:
    return load_settings(PilotSettings, path, options)


NEEDED = {"server": ["localhost:4711"], "token": "t"}


def a_file(folder: Path, **settings: object) -> Path:
    path = folder / "pilot.json"
    path.write_text(json.dumps({**NEEDED, **settings}))
    return path


def test_options_override_environment_and_environment_overrides_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = a_file(tmp_path, cpus=1, max_idle_s=1, grace_s=1, queue={"cpus": 8})
    monkeypatch.setenv("PILOTAGE_PILOT_MAX_IDLE_S", "2")
    monkeypatch.setenv("PILOTAGE_PILOT_GRACE_S", "2")
    settings = read(path, {"grace_s": "3"})
    assert (settings.cpus, settings.max_idle_s, settings.grace_s, settings.queue.cpus) == (1, 2, 3, 8)


def test_relative_paths_in_file_start_from_its_folder(
    tmp_path: Path,
) -> None:
    path = tmp_path / "pilot.json"
    path.write_text(json.dumps({"server": ["a:1"], "token_file": "token", "pools_file": "/work/pools.json"}))
    settings = read(path, {"scratch": "here"})
    assert settings.token_file == tmp_path / "token"
    assert (settings.pools_file, settings.scratch) == (Path("/work/pools.json"), Path("here"))


def test_reads_toml_file(tmp_path: Path) -> None:
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
def test_wrong_setting_is_rejected_with_its_path(tmp_path: Path, wrong: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidInputError, match=where):
        read(a_file(tmp_path, **wrong), {})


def test_missing_configuration_prints_one_line_and_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--config", str(tmp_path / "absent.json")]) == 2
    assert (
        capsys.readouterr().err
        == f"pilotage-pilot: {tmp_path}/absent.json: cannot be read: No such file or directory\n"
    )


def test_token_without_queue_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["run", "--config", str(a_file(tmp_path, scratch=str(tmp_path)))]) == 2
    assert "token" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["pilot.json"]


def test_check_reads_settings_without_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = a_file(tmp_path)
    assert run(["run", "--config", str(file), "--scratch", str(tmp_path / "scratch"), "--check-settings"]) == 0
    assert capsys.readouterr().out == ""
    assert run(["run", "--config", str(file), "--cpus", "0", "--set", "queue.cpu=1", "--check-settings"]) == 2
    assert [line.rpartition(": ")[0] for line in capsys.readouterr().err.splitlines()] == [
        "pilotage-pilot: --set queue.cpu",
        "pilotage-pilot: --cpus",
    ]
    assert list(tmp_path.iterdir()) == [file]


def test_glidein_ends_at_earliest_known_end(tmp_path: Path) -> None:
    now = datetime(2026, 11, 20, 12, tzinfo=UTC)
    settings = read(a_file(tmp_path, lifetime_s=500, ends_at="2026-11-20T12:05:00Z"), {})
    assert settings.lifetime(5400.0, now, 5000.0).ends_boot_s == 5300
    assert settings.lifetime(5200.0, now, 5000.0).ends_boot_s == 5200
    assert read(a_file(tmp_path), {}).lifetime(None, now, 5000.0).ends_boot_s is None


def test_policy_and_its_commands_are_off_by_default(tmp_path: Path) -> None:
    default = read(a_file(tmp_path), {})
    assert (default.policy, default.policy_commands) == (None, False)
    configured = load_settings(
        PilotSettings, a_file(tmp_path, policy_commands=True, sample_s=1), {"policy": Path("site.conf")}
    )
    assert (configured.policy, configured.policy_commands, configured.rules().sample_s) == (Path("site.conf"), True, 1)


def test_long_poll_is_shorter_with_policy(tmp_path: Path) -> None:
    default = read(a_file(tmp_path), {})
    with_policy = read(a_file(tmp_path), {"policy": Path("site.conf")})
    configured = read(a_file(tmp_path, wait_s=5), {})
    assert [settings.rules().wait_s for settings in (default, with_policy, configured)] == [60, 20, 5]


def test_reads_pools_as_json_list_or_lines(tmp_path: Path) -> None:
    path = tmp_path / "pools"
    path.write_text('["a", "b"]')
    assert read_pool_ids(path) == ("a", "b")
    path.write_text("a\n\nb\n")
    assert read_pool_ids(path) == ("a", "b")
    path.write_text("[broken")
    with pytest.raises(WorldError, match="list of pools"):
        read_pool_ids(path)


@pytest.mark.parametrize("token", ["", "a.b.c", "a.e30.c", "a.W10.c"])
def test_token_without_queue_is_rejected(token: str) -> None:
    with pytest.raises(InvalidInputError, match="no queue"):
        queue_of_token(token)


def test_reads_all_settings_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"server": ["a:1"], "token": "t", "pools": ["p1", "p2"], "ca": "PEM", "cpus": 2}
    monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(config)))
    settings = read(Path("-"), {"cpus": 3})
    assert (settings.pools, settings.ca, settings.cpus) == (("p1", "p2"), "PEM", 3)


@pytest.mark.parametrize("name", ["ca", "pools"])
def test_value_and_file_of_one_setting_are_rejected(tmp_path: Path, name: str) -> None:
    value = {"ca": "PEM", "pools": ["p"]}[name]
    path = tmp_path / "pilot.json"
    path.write_text(json.dumps({"server": ["a:1"], "token": "t", name: value, f"{name}_file": "x"}))
    with pytest.raises(InvalidInputError, match=f"give either {name} or {name}_file"):
        read(path, {})


def settings_with_token_file(path: Path) -> PilotSettings:
    return PilotSettings(server=("127.0.0.1:1",), token_file=path)


def test_used_secret_is_removed_with_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text("first\n")
    secret = read_secret(settings_with_token_file(path))
    assert secret.text == "first"
    assert "first" not in repr(secret)
    for _ in ("used", "gone"):
        secret.discard()
        assert not path.exists()


def test_missing_token_file_is_named_in_error(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match="no-such-file: No such file"):
        read_secret(settings_with_token_file(tmp_path / "no-such-file"))


def test_isolation_is_the_strongest_unless_it_is_set(tmp_path: Path) -> None:
    settings = read(a_file(tmp_path), {})
    assert (settings.isolation, settings.writable_paths) == (None, ())
    assert settings.hidden_paths == (Path("~"), Path("/run/user"), Path("/run/munge"))
    assert settings.payload_uids == (1_900_000_000, 1_901_048_575)
    chosen = read(a_file(tmp_path, isolation="uid", payload_uids=[70_000, 70_099], hidden_paths=["~/keys"]), {})
    assert (chosen.isolation, chosen.payload_uids, chosen.hidden_paths) == (
        Isolation.UID,
        (70_000, 70_099),
        (Path("~/keys"),),
    )


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"isolation": "container"}, "namespace"),
        ({"payload_uids": [0, 10]}, "greater than or equal to 1"),
        ({"payload_uids": [20, 10]}, "the first uid is above the last one"),
        ({"hidden_paths": ["secrets"]}, "secrets is neither absolute nor below ~"),
        ({"writable_paths": ["/"]}, "the root of the file system cannot be given"),
        ({"payload_processes": 1}, "greater than or equal to 8"),
        ({"payload_accounts": ["a"], "account_command": ["b"]}, "give either payload_accounts or account_command"),
        ({"payload_accounts": ["a", "a"]}, "names an account twice"),
    ],
)
def test_wrong_isolation_settings_are_errors(tmp_path: Path, setting: dict[str, object], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        read(a_file(tmp_path, **setting), {})


def test_container_runtimes_are_tried_in_order_unless_they_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PILOTAGE_PILOT_CONTAINER_RUNTIMES")
    rules = container_rules(read(a_file(tmp_path, scratch="/scratch"), {}))
    assert rules.runtimes == (RuntimeKind.APPTAINER, RuntimeKind.SINGULARITY, RuntimeKind.PODMAN)
    assert rules.cache == Path(f"/scratch/pilotage-images-{os.geteuid()}")
    assert (rules.binds, rules.cache_mib, rules.timeout_s) == ((Path("/cvmfs"),), 20_480, 900.0)
    given = {
        "container_runtimes": ["podman"],
        "container_options": {"podman": ["--storage-driver", "vfs"]},
        "image_cache": "/images",
        "image_cache_mib": 7,
    }
    chosen = container_rules(read(a_file(tmp_path, **given), {}))
    assert (chosen.runtimes, chosen.cache, chosen.cache_mib) == ((RuntimeKind.PODMAN,), Path("/images"), 7)
    assert chosen.options == {RuntimeKind.PODMAN: ("--storage-driver", "vfs")}


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"container_runtimes": ["docker"]}, "apptainer"),
        ({"container_options": {"docker": []}}, "apptainer"),
        ({"container_binds": ["software"]}, "neither absolute"),
        ({"image_cache_mib": 0}, "greater than or equal to 1"),
        ({"image_timeout_s": 0}, "greater than 0"),
    ],
)
def test_wrong_container_settings_are_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: dict[str, object], why: str
) -> None:
    monkeypatch.delenv("PILOTAGE_PILOT_CONTAINER_RUNTIMES")
    with pytest.raises(InvalidInputError, match=why):
        read(a_file(tmp_path, **setting), {})
