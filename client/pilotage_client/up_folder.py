"""The data folder of `pilotage up`: what lies where, and what is written there for the other processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage.errors import WorldError
from pilotage_client.location import UP_FILE
from pilotage_client.private_files import write_private

_LEAST_FREE_MIB = 64
_MONTH_S = 30 * 86400
_FIRST_JOB = """\
name = "hello"
executable = "/bin/sh"
arguments = "-c 'echo Hello from $(hostname), job $PILOTAGE_JOB_ID'"
stdout = "hello.out"
request_cpus = 1
"""


@dataclass(frozen=True, slots=True)
class UpFolder:
    """The data folder; the other processes get parts of their own in it."""

    root: Path

    @property
    def server(self) -> Path:
        """The server's data."""
        return self.root / "server"

    @property
    def ready_file(self) -> Path:
        """The file that the server writes when it can be called."""
        return self.root / "run" / "server.json"

    @property
    def tokens(self) -> Path:
        """The folder of the tokens that the server issues at its start."""
        return self.root / "tokens"

    @property
    def agents_config(self) -> Path:
        """The agents' configuration."""
        return self.root / "run" / "agents.toml"

    @property
    def tree_file(self) -> Path:
        """The tree that `up` has brought last."""
        return self.root / "tree.toml"

    @property
    def first_job(self) -> Path:
        """An example to submit first."""
        return self.root / "hello.toml"

    def token_file(self, role: str) -> Path:
        """Return the file of a role's token: user, operator, agent, admin."""
        return self.tokens / f"{role}.token"

    def log_file(self, process: str) -> Path:
        """Return the log of a process."""
        return self.root / "logs" / f"{process}.log"

    def prepare(self) -> None:
        """Make what must be there before the first process starts; raises WorldError where that cannot be."""
        try:
            for folder in (self.ready_file.parent, self.tokens, self.root / "scratch"):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.ready_file.unlink(missing_ok=True)
            free_mib = shutil.disk_usage(self.root).free // 2**20
        except OSError as error:
            raise WorldError(f"{self.root} cannot be used: {error.strerror}", transient=False) from error
        if free_mib < _LEAST_FREE_MIB:
            raise WorldError(
                f"{self.root} is on a full disk: {free_mib} MiB are free, {_LEAST_FREE_MIB} are needed",
                transient=False,
            )

    def write_up_file(self, address: str) -> None:
        """Tell the other `pilotage` commands where the server and its tokens are."""
        found = {
            "server": address,
            "token_file": str(self.token_file("user")),
            "operator_token_file": str(self.token_file("operator")),
            "admin_token_file": str(self.token_file("admin")),
        }
        write_private(self.root / UP_FILE, json.dumps(found, indent=1))
        if not self.first_job.exists():
            write_private(self.first_job, _FIRST_JOB)

    def write_agents_config(self, address: str, pilot_program: str, pilot: Mapping[str, object]) -> None:
        """Write the agents' configuration; `pilot` are settings of every pilot, beside ours."""
        settings = {"scratch": str(self.root / "scratch"), "grace_s": 5, **pilot}
        pilot_lines = "\n".join(f"{name} = {_toml(value)}" for name, value in settings.items())
        text = f"""\
# Written by `pilotage up` at every start.
server = {_toml(address)}
token_file = {_toml(str(self.token_file("agent")))}

[site_director]
folder = {_toml(str(self.root / "director"))}
interval_s = 5
urgent_interval_s = 1
min_idle_pilots = 1
max_idle_s = {_MONTH_S}
when_stopped = "cancel"
default_wall_time_s = {_MONTH_S}
pilot_command = [{_toml(pilot_program)}]

[site_director.pilot]
{pilot_lines}

[site_director.batch_systems.local]
type = "local"
kill_after_s = 15

[pool_cleanup]
"""
        write_private(self.agents_config, text)


def _toml(value: object) -> str:
    """Return a text or number as TOML writes it; JSON's texts are TOML's basic strings."""
    return json.dumps(value, ensure_ascii=False)
