"""The job router's section of the agents' configuration: tables, hooks, remote servers, batch systems."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError
from pilotage.resources.tree import QueueId
from pilotage.settings import load_settings
from pilotage_agents.router.core.classad_tables import read_ads, routes_of
from pilotage_agents.router.core.table import QueueTarget, RouteLimits, target_key
from pilotage_agents.router.hooks import HookKind
from pilotage_agents.router.settings import JobRouterSettings
from pilotage_agents.router.targets.remote_server import ServerAccess
from pilotage_agents.settings import AgentSettings

TABLE = 'table = "routes"\n'
START = 'server = "127.0.0.1:1"\ntoken_file = "agent.token"\n[job_router]\nfolder = "router"\n'


def router_settings(folder: Path, text: str) -> JobRouterSettings:
    path = folder / "agents.toml"
    path.write_text(START + text)
    found = load_settings(AgentSettings, path, {}).job_router
    assert found is not None
    return found


def test_paths_are_relative_to_configuration_file(tmp_path: Path) -> None:
    settings = router_settings(tmp_path, 'table = "routes.conf"\ntargets = "targets.toml"\n')
    assert (settings.folder, settings.table) == (tmp_path / "router", tmp_path / "routes.conf")
    table = settings.table_settings
    assert (table.file, table.targets_file) == (tmp_path / "routes.conf", tmp_path / "targets.toml")
    assert table.refresh is None


def test_table_of_command_is_stored_in_router_folder(tmp_path: Path) -> None:
    table = router_settings(tmp_path, 'table_command = ["make-routes", "-v"]\ntable_refresh_s = 600\n').table_settings
    assert table.command == ("make-routes", "-v")
    assert table.file.parent == tmp_path / "router"
    assert table.refresh == timedelta(minutes=10)


def test_targets_can_be_inline(tmp_path: Path) -> None:
    text = 'table = "t"\n[job_router.targets.routes]\n"Site 1" = { queue = "A/b/c" }\n'
    targets = router_settings(tmp_path, text).table_settings.targets()
    assert str(targets.routes[target_key("site 1")]) == "queue A/b/c"


def test_hook_keywords_ignore_case(tmp_path: Path) -> None:
    text = 'table = "t"\ndefault_hooks = "Staging"\n[job_router.hooks.STAGING]\ntranslate = ["stage-in"]\n'
    hooks = router_settings(tmp_path, text).hook_settings
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
def test_error_names_invalid_setting(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        router_settings(tmp_path, text)
    assert why in str(caught.value)


def test_servers_are_keyed_by_address_with_relative_token_files(tmp_path: Path) -> None:
    settings = router_settings(
        tmp_path,
        f'{TABLE}[job_router.servers."a.org:1, b.org:2"]\ntoken_file = "lyon.token"\n[job_router.servers."c.org:3"]\n',
    )
    assert settings.server_access == {
        "a.org:1,b.org:2": ServerAccess(tmp_path / "lyon.token"),
        "c.org:3": ServerAccess(),
    }


@pytest.mark.parametrize(
    "text",
    [
        '[job_router.servers."a.org"]\n',
        '[job_router.servers."a.org:1"]\ntoken = "secret"\n',
    ],
)
def test_rejects_server_without_port_or_with_unknown_key(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="job_router"):
        router_settings(tmp_path, TABLE + text)


@pytest.mark.parametrize(
    "text",
    ['node_folder = "/scratch"', 'ssh = { host = "gate", folder = "/scratch" }'],
)
def test_rejects_batch_system_without_shared_folder(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError, match="jobs return their output by a folder that the nodes see"):
        router_settings(tmp_path, f'{TABLE}[job_router.batch_systems.here]\ntype = "slurm"\n{text}\n')


def test_grid_resource_of_a_schedd_leads_to_a_queue_of_its_pool(tmp_path: Path) -> None:
    settings = router_settings(
        tmp_path,
        f"""{TABLE}[job_router.batch_systems.site3]
type = "htcondor"
schedd = "submit.site3.edu"
collector = "condor.site3.edu"
[job_router.targets.grid_resources]
"condor submit.site3.edu condor.site3.edu" = {{ queue = "SITE3/ce/pool" }}
""",
    )
    assert settings.batch_systems["site3"].ce_types == ("htcondor",)
    (route,) = routes_of(
        read_ads('[name = "3"; Requirements = true; GridResource = "condor submit.site3.edu condor.site3.edu"]'),
        RouteLimits(),
    )[0]
    assert settings.table_settings.targets().of(route) == QueueTarget(QueueId("SITE3", "ce", "pool"))


def test_accepts_ssh_cluster_with_shared_folder(tmp_path: Path) -> None:
    settings = router_settings(
        tmp_path, f'{TABLE}[job_router.batch_systems.here]\ntype = "slurm"\nssh = {{ host = "gate" }}\n'
    )
    assert [*settings.batch_systems] == ["here"]
