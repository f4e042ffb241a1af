"""The unit files, accounts and settings that a package installs, by systemd's own checks."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from pilotage.settings import load_settings
from pilotage_agents.settings import AgentSettings
from pilotage_pilot.settings import PilotSettings
from pilotage_server.settings import ServerSettings
from support.debian import find_or_install
from support.deployment import DEPLOY

UNITS = DEPLOY / "systemd"
SETTINGS = DEPLOY / "settings"


def run_systemd(program: str, *arguments: object) -> str:
    """Run a program of systemd, which must succeed without a warning; returns its output."""
    found = find_or_install(lambda: shutil.which(program), "systemd")
    done = subprocess.run([found, *map(str, arguments)], capture_output=True, text=True, check=False)
    remarks = [line for line in done.stderr.splitlines() if not line.startswith("Creating ")]
    assert (done.returncode, remarks) == (0, [])
    return done.stdout


def test_units_are_valid(tmp_path: Path) -> None:
    """The programs of an installation are those of this environment."""
    for unit in (*UNITS.glob("*.service"), *UNITS.glob("*.path")):
        text = unit.read_text().replace("/opt/pilotage", sys.prefix)
        (tmp_path / unit.name).write_text(text)
    run_systemd("systemd-analyze", "verify", "--man=no", *sorted(tmp_path.iterdir()))


@pytest.mark.parametrize(("name", "exposure"), [("server", 1.5), ("agents", 2.0), ("pilot", 7.5)])
def test_exposure_of_units_stays_low(name: str, exposure: float) -> None:
    """The exposure is systemd's figure, of 10; a pilot is root and starts jobs as other users."""
    threshold = f"--threshold={round(10 * exposure)}"
    run_systemd("systemd-analyze", "security", "--offline=yes", threshold, UNITS / f"pilotage-{name}.service")


def test_accounts_and_folders_are_made(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    run_systemd("systemd-sysusers", f"--root={tmp_path}", UNITS / "pilotage.sysusers")
    assert "pilotage-agents:" in (tmp_path / "etc" / "passwd").read_text()
    run_systemd("systemd-tmpfiles", f"--root={tmp_path}", "--create", UNITS / "pilotage.tmpfiles")
    assert {path.name for path in (tmp_path / "etc" / "pilotage").iterdir()} == {"tls", "keys", "tokens"}


def test_shipped_settings_are_valid() -> None:
    server = load_settings(ServerSettings, SETTINGS / "server.toml", {})
    agents = load_settings(AgentSettings, SETTINGS / "agents.toml", {})
    pilot = load_settings(PilotSettings, SETTINGS / "pilot.toml", {})
    assert (server.listen, agents.server, pilot.server) == ("127.0.0.1:4711", "127.0.0.1:4711", ("127.0.0.1:4711",))


@pytest.mark.parametrize("name", ["server", "agents", "pilot"])
def test_commented_settings_are_valid(name: str, tmp_path: Path) -> None:
    """The examples in comments are what they show: settings."""
    lines = (SETTINGS / f"{name}.toml").read_text().splitlines()
    file = tmp_path / f"{name}.toml"
    file.write_text("\n".join(re.sub("^#(?! )", "", line) for line in lines if "in place of" not in line))
    if name == "server":
        settings = load_settings(ServerSettings, file, {"broker": "mqtt://server:secret@127.0.0.1"})
        assert settings.database_url == "postgresql+psycopg://pilotage@db.example.org/pilotage"
        assert [limit.at_most for limit in settings.rules().running_limits] == [500]
    elif name == "agents":
        assert len(load_settings(AgentSettings, file, {}).sections()) == 5
    else:
        load_settings(PilotSettings, file, {})
