"""The job router's section of the agents' configuration."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage_agents.router.core.table import target_key
from pilotage_agents.router.hooks import HookKind
from pilotage_agents.router.settings import JobRouterSettings
from pilotage_agents.settings import read_settings

START = 'server = "127.0.0.1:1"\ntoken_file = "agent.token"\n[job_router]\nfolder = "router"\n'


def read(folder: Path, text: str) -> JobRouterSettings:
    path = folder / "agents.toml"
    path.write_text(START + text)
    found = read_settings(path).job_router
    assert found is not None
    return found


def test_paths_start_from_the_folder_of_the_file(tmp_path: Path) -> None:
    settings = read(tmp_path, 'table = "routes.conf"\ntargets = "targets.toml"\n')
    assert (settings.folder, settings.table) == (tmp_path / "router", tmp_path / "routes.conf")
    table = settings.table_settings
    assert (table.file, table.targets_file) == (tmp_path / "routes.conf", tmp_path / "targets.toml")
    assert table.refresh is None


def test_a_command_prints_its_table_into_the_routers_folder(tmp_path: Path) -> None:
    table = read(tmp_path, 'table_command = ["make-routes", "-v"]\ntable_refresh_s = 600\n').table_settings
    assert table.command == ("make-routes", "-v")
    assert table.file.parent == tmp_path / "router"
    assert table.refresh == timedelta(minutes=10)


def test_targets_may_stand_in_the_configuration_itself(tmp_path: Path) -> None:
    text = 'table = "t"\n[job_router.targets.routes]\n"Site 1" = { queue = "A/b/c" }\n'
    targets = read(tmp_path, text).table_settings.targets()
    assert str(targets.routes[target_key("site 1")]) == "queue A/b/c"


def test_hooks_are_told_by_their_keyword_whatever_its_letter_case(tmp_path: Path) -> None:
    text = 'table = "t"\ndefault_hooks = "Staging"\n[job_router.hooks.STAGING]\ntranslate = ["stage-in"]\n'
    hooks = read(tmp_path, text).hook_settings
    assert hooks.commands == {"staging": {HookKind.TRANSLATE: ("stage-in",)}}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "job_router: needs a table, or a table_command in its place"),
        ('table = "t"\ntable_command = ["x"]\n', "needs a table, or a table_command in its place"),
        ('table = "t"\ndefault_hooks = "X"\n', "default_hooks: there are no hooks X"),
        ('table = "t"\n[job_router.targets.routes]\nA = { queue = "A/b" }\n', 'targets: routes."A"'),
        ('table = "t"\n[job_router.targets.routes]\nA = { quue = "A/b/c" }\n', "job_router.targets"),
        ('table = "t"\n[job_router.hooks.X]\ntranslate = []\n', "job_router.hooks.X.translate"),
        ('table = "t"\ninterval_s = 0\n', "job_router.interval_s"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        read(tmp_path, text)
    assert why in str(caught.value)
