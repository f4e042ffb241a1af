"""The agents' configuration and command line."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.rpc.channel import Endpoint, open_async_channel
from pilotage.settings import load_settings
from pilotage_agents.app import JOB_ROUTER, build_agents
from pilotage_agents.batch_systems.settings import LocalBatchSystemSettings
from pilotage_agents.main import run
from pilotage_agents.settings import AgentSettings

GOOD = """
server = "127.0.0.1:1"
token_file = "agent.token"
[site_director]
folder = "director"
[site_director.batch_systems.here]
type = "local"
"""


def read_settings(file: Path) -> AgentSettings:
    return load_settings(AgentSettings, file, {})


def config_file(folder: Path, text: str) -> Path:
    path = folder / "agents.toml"
    path.write_text(text)
    return path


def test_relative_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    settings = read_settings(config_file(tmp_path, GOOD))
    assert settings.token_file == tmp_path / "agent.token"
    assert settings.site_director is not None
    assert settings.site_director.folder == tmp_path / "director"
    assert settings.site_director.batch_systems == {"here": LocalBatchSystemSettings(type="local")}
    assert settings.pool_cleanup is None


def test_names_every_fault_with_its_location(tmp_path: Path) -> None:
    systems = '[site_director.batch_systems.slurm]\ntype = "slurm"\nacount = "a"\n[site_director.batch_systems.bare]\n'
    text = GOOD.replace('"local"', '"slurmm"') + systems + "[pool_cleanup]\ngrace_s = -1\nfoo = 1\n"
    with pytest.raises(InvalidInputError) as caught:
        read_settings(config_file(tmp_path, text))
    faults = [str(violation).partition(": ")[2] for violation in caught.value.violations]
    assert faults == [
        "site_director.batch_systems.here.type: is 'slurmm', not one of 'local', 'slurm', 'htcondor', 'command'",
        "site_director.batch_systems.slurm.acount: is no setting; did you mean account?",
        "site_director.batch_systems.bare.type: field required",
        "pool_cleanup.grace_s: input should be greater than or equal to 0",
        "pool_cleanup.foo: is no setting",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("server = ", "agents.toml"),
        (GOOD.replace("127.0.0.1:1", "nowhere"), '"nowhere" is not an address'),
        ("server = '127.0.0.1:1'\ntoken_file = 'x'\n", "site_director: the configuration has no such section"),
    ],
)
def test_command_reports_unusable_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    assert run(["run", "--config", str(config_file(tmp_path, text))]) == 2
    assert message in capsys.readouterr().err


SLURM = GOOD.replace('"local"', '"slurm"')


@pytest.mark.parametrize(
    ("line", "message"),
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
def test_rejects_faulty_slurm_settings(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(config_file(tmp_path, f"{SLURM}{line}\n"))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("submit = { queue_size = 3 }", "submit.queue_size: "),
        ('submit = { "+PilotageStamp" = "1" }', "submit.+PilotageStamp"),
        ('submit = { "MY.pilotagestamp" = "1" }', "submit.MY.pilotagestamp"),
        ('submit = { "two words" = "x" }', "submit.two words"),
        ('submit = { accounting_group = "x\\nqueue 1000" }', "submit.accounting_group: "),
        ("schedd = 'a\"b'", "schedd: "),
    ],
)
def test_rejects_submit_description_that_htcondor_would_misread(tmp_path: Path, line: str, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(config_file(tmp_path, GOOD.replace('"local"', '"htcondor"') + line + "\n"))
    assert message in str(caught.value)


def test_command_names_missing_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["site-director", "--once", "--config", str(tmp_path / "no.toml")]) == 2
    assert (
        capsys.readouterr().err == f"pilotage-agents: {tmp_path}/no.toml: cannot be read: No such file or directory\n"
    )


def test_single_cycle_names_unreadable_token_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = config_file(tmp_path, GOOD)
    assert run(["site-director", "--once", "--config", str(config)]) == 1
    assert str(tmp_path / "agent.token") in capsys.readouterr().err


def test_single_cycle_without_server_has_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "agent.token").write_text("token")
    assert run(["site-director", "--dry-run", "--config", str(config_file(tmp_path, GOOD))]) == 3


def test_drain_needs_no_file_with_server_and_token_in_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_AGENTS_SERVER", "127.0.0.1:1")
    monkeypatch.setenv("PILOTAGE_AGENTS_TOKEN", "token")
    assert run(["drain", "-s", "350", "-n", "61", "--once"]) == 3


def test_command_line_overrides_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = config_file(tmp_path, GOOD + "[drain_controller]\nsetpoint = 100\nwidth = 4\n")
    assert run(["drain", "-s", "350", "--config", str(path), "--show-settings"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "drain_controller.setpoint = 350  # --setpoint" in lines
    assert f"drain_controller.width = 4  # {path}: drain_controller.width" in lines
    assert "drain_controller.negotiation_delay_s = 61.0  # default" in lines


def test_drain_without_options_shows_usage(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain"]) == 1
    assert "Usage: pilotage-agents drain" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-s", "-5"], "pilotage-agents: --setpoint: input should be greater than or equal to 0"),
        (["-n", "nan"], "pilotage-agents: --negdelay: "),
    ],
)
def test_drain_names_invalid_options(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], message: str
) -> None:
    assert run(["drain", *options, "--config", str(config_file(tmp_path, GOOD))]) == 2
    assert message in capsys.readouterr().err


def test_missing_setting_is_named_with_its_sources(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["drain", "-s", "350"]) == 2
    assert capsys.readouterr().err == (
        "pilotage-agents: server: is not set; give it by --server, by PILOTAGE_AGENTS_SERVER or in the settings file\n"
    )


@pytest.mark.parametrize("tokens", ["", 'token = "x"\ntoken_file = "y"\n'])
def test_requires_either_token_or_token_file(tmp_path: Path, tokens: str) -> None:
    with pytest.raises(InvalidInputError, match="token_file or a token"):
        read_settings(config_file(tmp_path, f'server = "127.0.0.1:1"\n{tokens}'))


async def test_job_router_backs_off_at_most_its_interval(tmp_path: Path) -> None:
    router = '[job_router]\nfolder = "router"\ntable = "routes"\ninterval_s = 7\n'
    settings = read_settings(config_file(tmp_path, f'server = "127.0.0.1:1"\ntoken_file = "agent.token"\n{router}'))
    endpoint = Endpoint.parse(settings.server)
    async with open_async_channel(endpoint) as channel:
        (agent,) = build_agents(settings, JOB_ROUTER, endpoint, lambda _: channel)
    assert agent.after_failure.longest == timedelta(seconds=7)


TASK_QUEUES = GOOD.replace("[site_director", "[task_queue_director").replace(
    'type = "local"',
    'type = "command"\nsubmit_command = ["qsub", "{script}"]\nstatus_command = ["qstat"]\nremove_command = ["qdel"]',
)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("", "", "task_queue_director.queues: "),
        ('"director"', '"director"\nqueues = ["CERN"]', 'queues: "CERN" is not SITE/CE/QUEUE'),
        ("{script}", "{scrip}", "submit_command: {scrip} is unknown; known are folder, "),
        ('["qdel"]', "[]", "remove_command: "),
        ('["qdel"]', '["qdel"]\n[task_queue_director.batch_systems.there]\ntype = "local"', "batch_systems: "),
    ],
)
def test_unusable_settings_of_a_task_queue_director_are_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read_settings(config_file(tmp_path, TASK_QUEUES.replace(before, after) if before else TASK_QUEUES))
    assert message in str(caught.value)
