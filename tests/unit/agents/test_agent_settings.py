"""The agents' configuration and command line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage_agents.app import JOB_ROUTER, build_agents
from pilotage_agents.batch_systems.settings import LocalBatchSystemSettings
from pilotage_agents.main import run
from pilotage_agents.settings import read_settings

GOOD = """
server = "127.0.0.1:1"
token_file = "agent.token"
[site_director]
folder = "director"
[site_director.batch_systems.here]
type = "local"
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "agents.toml"
    path.write_text(text)
    return path


def test_relative_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    settings = read_settings(written(tmp_path, GOOD))
    assert settings.token_file == tmp_path / "agent.token"
    assert settings.site_director is not None
    assert settings.site_director.folder == tmp_path / "director"
    assert settings.site_director.batch_systems == {"here": LocalBatchSystemSettings(type="local")}
    assert settings.pool_cleanup is None


def test_every_fault_of_a_configuration_is_named_with_its_place(tmp_path: Path) -> None:
    text = GOOD.replace('"local"', '"slurmm"') + "[pool_cleanup]\ngrace_s = -1\nfoo = 1\n"
    with pytest.raises(InvalidInputError) as caught:
        read_settings(written(tmp_path, text))
    places = [violation.where.rpartition(": ")[2] for violation in caught.value.violations]
    assert places == ["site_director.batch_systems.here", "pool_cleanup.grace_s", "pool_cleanup.foo"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("server = ", "agents.toml"),
        (GOOD.replace("127.0.0.1:1", "nowhere"), '"nowhere" is not an address'),
        ("server = '127.0.0.1:1'\ntoken_file = 'x'\n", "site_director: the configuration has no such section"),
    ],
)
def test_a_configuration_that_cannot_be_used_ends_the_command_with_a_line_that_says_why(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str
) -> None:
    assert run(["run", "--config", str(written(tmp_path, text))]) == 2
    assert words in capsys.readouterr().err


SLURM = GOOD.replace('"local"', '"slurm"')


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('sbatch_options = ["-Mbig"]', "sbatch_options.0: set `cluster` instead"),
        ('sbatch_options = ["--clusters=big"]', "set `cluster` instead"),
        ('cluster = "big,small"', "cluster: "),
        ('ssh = { host = "-oProxyCommand=evil" }', "ssh.host: "),
        ('ssh = { host = "user@host extra" }', "ssh.host: "),
        ('ssh = { host = "login", folder = "scratch" }', "ssh.folder: "),
        ('ssh = { host = "login", identity_file = "key" }', "ssh.identity_file: "),
        ("ssh = { folder = '/scratch' }", "ssh.host: "),
    ],
)
def test_a_batch_system_that_cannot_be_reached_so_is_refused_with_its_place(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(written(tmp_path, f"{SLURM}{line}\n"))
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("submit = { queue_size = 3 }", "submit.queue_size: "),
        ('submit = { "+PilotageStamp" = "1" }', "submit.+PilotageStamp"),
        ('submit = { "MY.pilotagestamp" = "1" }', "submit.MY.pilotagestamp"),
        ('submit = { "two words" = "x" }', "submit.two words"),
        ('submit = { accounting_group = "x\\nqueue 1000" }', "submit.accounting_group: "),
        ("schedd = 'a\"b'", "schedd: "),
    ],
)
def test_a_submit_description_that_htcondor_would_misread_is_refused_with_its_place(
    tmp_path: Path, line: str, words: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(written(tmp_path, GOOD.replace('"local"', '"htcondor"') + line + "\n"))
    assert words in str(caught.value)


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["site-director", "--once", "--config", str(tmp_path / "no.toml")]) == 2
    assert (
        capsys.readouterr().err == f"pilotage-agents: {tmp_path}/no.toml: cannot be read: No such file or directory\n"
    )


def test_a_token_that_cannot_be_read_ends_a_single_round_with_a_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, GOOD)
    assert run(["site-director", "--once", "--config", str(config)]) == 1
    assert str(tmp_path / "agent.token") in capsys.readouterr().err


def test_a_server_that_is_not_there_ends_a_single_round_with_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "agent.token").write_text("token")
    assert run(["site-director", "--dry-run", "--config", str(written(tmp_path, GOOD))]) == 3


def test_draining_needs_no_file_where_the_environment_names_server_and_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_TOKEN", "token")
    assert run(["drain", "-s", "350", "-n", "61", "--once"]) == 3


def test_what_is_said_on_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, GOOD + "[drain_controller]\nsetpoint = 100\nwidth = 4\n")
    settings = read_settings(path, {"drain_controller": {"setpoint": 350}}).drain_controller
    assert settings is not None
    assert (settings.setpoint, settings.width, settings.negotiation_delay_s) == (350, 4, 61)


def test_draining_without_any_option_shows_how_it_is_used_and_does_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain"]) == 1
    assert "usage: pilotage-agents drain" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["-s", "-5"], "drain_controller.setpoint: input should be greater than or equal to 0"),
        (["-n", "nan"], "drain_controller.negotiation_delay_s: "),
    ],
)
def test_options_that_cannot_be_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], words: str
) -> None:
    assert run(["drain", *options, "--config", str(written(tmp_path, GOOD))]) == 2
    assert words in capsys.readouterr().err


def test_without_file_or_environment_it_is_said_what_is_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER", "127.0.0.1:1")
    monkeypatch.delenv("PILOTAGE_TOKEN", raising=False)
    assert run(["drain", "-s", "350"]) == 2
    assert "--config: name a configuration, or set PILOTAGE_TOKEN" in capsys.readouterr().err


@pytest.mark.parametrize("tokens", ["", 'token = "x"\ntoken_file = "y"\n'])
def test_a_file_has_a_token_or_names_the_file_that_has_it(tmp_path: Path, tokens: str) -> None:
    with pytest.raises(InvalidInputError, match="token_file or a token"):
        read_settings(written(tmp_path, f'server = "127.0.0.1:1"\n{tokens}'))


async def test_a_job_router_whose_rounds_fail_comes_back_as_often_as_it_looks_after_copies(tmp_path: Path) -> None:
    router = '[job_router]\nfolder = "router"\ntable = "routes"\ninterval_s = 7\n'
    settings = read_settings(written(tmp_path, f'server = "127.0.0.1:1"\ntoken_file = "agent.token"\n{router}'))
    endpoint = Endpoint.parse(settings.server)
    async with open_async_channel(endpoint) as channel:
        (agent,) = build_agents(settings, JOB_ROUTER, endpoint, channel)
    assert agent.after_failure.longest == timedelta(seconds=7)
