"""The agents' configuration and command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_agents.main import run
from pilotage_agents.settings import LocalBatchSystemSettings, read_settings

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
    assert places == ["site_director.batch_systems.here.type", "pool_cleanup.grace_s", "pool_cleanup.foo"]


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


def test_a_configuration_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["site-director", "--once", "--config", str(tmp_path / "no.toml")]) == 2
    assert capsys.readouterr().err == f"pilotage-agents: {tmp_path}/no.toml: No such file or directory\n"


def test_a_token_that_cannot_be_read_ends_a_single_round_with_a_line_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = written(tmp_path, GOOD)
    assert run(["site-director", "--once", "--config", str(config)]) == 1
    assert str(tmp_path / "agent.token") in capsys.readouterr().err


def test_a_server_that_is_not_there_ends_a_single_round_with_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "agent.token").write_text("token")
    assert run(["site-director", "--dry-run", "--config", str(written(tmp_path, GOOD))]) == 3
