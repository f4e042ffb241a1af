"""The grid under faults: real servers, a database, a broker, agents, and the pilots of a local batch system.

Clients, agents and pilots each reach the servers through proxies of their own.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from chaos.clock import JumpingClock
from chaos.proxy import LoopThread, Proxy
from pilotage.clock import boot_time_s
from pilotage_client.api import Client
from pilotage_server.core.identity import Role
from support.commands import PROGRAMS
from support.debian import find_or_install
from support.mosquitto import MosquittoServer, running_broker
from support.payload_paths import payload_lines
from support.postgresql import PostgresqlProcess, installed_programs, running_postgresql
from support.server import RunningServer

LEASE_S = 6.0
"""Leases are short, so that faults outlast them."""

_PILOTS = 3
_CPUS = 2
_FOLDER_MIB = 48
_SETTINGS: dict[str, object] = {
    "lease_s": LEASE_S,
    "shortest_lease_s": 1,
    "heartbeat_s": 1,
    "expire_every_s": 0.5,
    "attempt_limit": 1000,
    "pilot_silence_s": 20,
    "life_gap_s": 2,
    "health": {"watch": False},
}
_TREE = {
    "sites": {
        "SITE": {
            "ces": {
                "ce01": {"CEType": "local", "queues": {"q": {"CPUs": _CPUS, "Memory": 4000, "MaxTotalJobs": _PILOTS}}}
            }
        }
    }
}


class Party(StrEnum):
    """Who reaches the servers through proxies of its own."""

    CLIENTS = "clients"
    AGENTS = "agents"
    PILOTS = "pilots"


@dataclass
class Grid:
    """All processes of a run, below `folder`; `with` starts and stops them. Payloads write to the folder `marks`."""

    folder: Path
    database: str
    marks: Path
    servers: list[RunningServer] = field(default_factory=list)
    proxies: dict[Party, list[Proxy]] = field(default_factory=dict)
    broker: MosquittoServer | None = None
    postgresql: PostgresqlProcess | None = None
    clock: JumpingClock | None = None
    """The clock by which the leases end: that of the server with SQLite, that of the database with PostgreSQL."""
    small_disk: Path | None = None
    """The folder of a small file system that holds the server's data; None = there is none."""
    _agents: subprocess.Popen[bytes] | None = None
    _stack: ExitStack = field(default_factory=ExitStack)

    def __enter__(self) -> Grid:
        try:
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _start(self) -> None:
        self.broker = self._stack.enter_context(running_broker(MosquittoServer))
        # Outside the folder of the run, which the database's user cannot enter.
        self.clock = JumpingClock(
            Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotage-clock-")))
        )
        environment: Mapping[str, str] = {}
        shared: dict[str, Any] = {**_SETTINGS, "broker": self.broker.url}
        if self.database == "postgresql":
            programs = find_or_install(installed_programs, "postgresql")
            database = self._stack.enter_context(running_postgresql(programs, environment=self.clock.environment))
            self.postgresql = database.process
            shared |= {
                "database": database.new_database().render_as_string(hide_password=False),
                "signing_key": str(self.folder / "key.pem"),
                "files": (self.folder / "files").as_uri(),
            }
            data = [self.folder / "server1", self.folder / "server2"]
        else:
            data = [self._data_folder()]
            environment = self.clock.environment
        loop = LoopThread()
        self._stack.callback(loop.close)
        self.servers = [RunningServer(folder, environment=environment, **shared) for folder in data]
        for server in self.servers:
            server.start()
            self._stack.callback(server.kill)
        self.proxies = {party: [Proxy(loop, server.address) for server in self.servers] for party in Party}
        with Client(self.servers[0].address, self.servers[0].token(Role.ADMIN, Role.OPERATOR)) as admin:
            admin.put_tree(json.dumps(_TREE), "json")
        self._stack.callback(self._end_pilots)
        self.start_agents()
        self._stack.callback(self.kill_agents)

    def _data_folder(self) -> Path:
        """Return the server's data folder, on a small file system where this process may mount one."""
        folder = self.folder / "server"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_FOLDER_MIB}m,mode=700", "tmpfs", str(folder)]
        if os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            self.small_disk = folder
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)
        return folder

    def address(self, party: Party) -> str:
        """Return the addresses at which a party reaches the servers."""
        return ",".join(proxy.address for proxy in self.proxies[party])

    def client(self, name: str) -> Client:
        """Return a user's connection; `name` is for people."""
        del name
        return Client(self.address(Party.CLIENTS), self.servers[0].token())

    def revive_servers(self) -> list[str]:
        """Start the servers that have ended by themselves, and return how each ended."""
        ended = [server for server in self.servers if server.process is not None and server.process.poll() is not None]
        last = [f"{server.data.name} ended by itself: {server.log().splitlines()[-1:]}" for server in ended]
        for server in ended:
            server.start()
        return last

    # Agents -----------------------------------------------------------------------------------------------------

    def start_agents(self) -> None:
        """Start the site director and the pool cleanup in one process."""
        token, config = self.folder / "agent.token", self.folder / "agents.toml"
        token.write_text(self.servers[0].token(Role.DIRECTOR, Role.CLEANER, owner="agent:chaos"))
        token.chmod(0o600)
        assert self.broker is not None
        config.write_text(f"""
server = "{self.address(Party.AGENTS)}"
token_file = "{token}"
turn_s = 3
[site_director]
folder = "{self.folder / "director"}"
interval_s = 1
urgent_interval_s = 0.5
min_idle_pilots = 1
max_idle_s = 20
pilot_command = ["{sys.executable}", "-m", "pilotage_pilot.main"]
[site_director.pilot]
server = {json.dumps([proxy.address for proxy in self.proxies[Party.PILOTS]])}
scratch = "{self.folder / "scratch"}"
{payload_lines(self.marks)}
broker = "{self.broker.url}"
cpus = {_CPUS}
grace_s = 1
call_timeout_s = 3
unreachable_s = 30
[site_director.batch_systems.local]
type = "local"
kill_after_s = 5
[pool_cleanup]
""")
        (self.folder / "scratch").mkdir(exist_ok=True)
        command = [str(PROGRAMS / "pilotage-agents"), "run", "--config", str(config)]
        with (self.folder / "agents.log").open("ab") as log:
            self._agents = subprocess.Popen(command, stderr=log)

    def kill_agents(self) -> None:
        """Kill the agents, as a crash would."""
        if self._agents is not None:
            self._agents.kill()
            self._agents.wait()

    @property
    def agents(self) -> int:
        """The process id of the agents."""
        assert self._agents is not None
        return self._agents.pid

    # Pilots -----------------------------------------------------------------------------------------------------

    def pilot_processes(self) -> list[int]:
        """Return the processes of all pilots, with those that guard them; not their payloads."""
        return sorted(pid for pid, command in self._commands() if "pilotage_pilot" in command)

    def _commands(self) -> Iterator[tuple[int, str]]:
        """Yield the processes that have a path of this grid in their command line."""
        for name in os.listdir("/proc"):
            if name.isdigit() and int(name) != os.getpid():
                try:
                    command = Path("/proc", name, "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                except OSError:
                    continue
                if str(self.folder) in command:
                    yield int(name), command

    def _end_pilots(self) -> None:
        """Kill all pilots, then wait until no payload is left: their guards and pilots kill those."""
        for pid, _ in self._commands():
            send(pid, signal.SIGCONT)
        gives_up_s = boot_time_s() + 20
        while (left := list(self._commands())) and boot_time_s() < gives_up_s:
            for pid, command in left:
                if "pilotage_pilot" in command or boot_time_s() > gives_up_s - 5:
                    send(pid, signal.SIGKILL)

    def logs(self) -> dict[str, str]:
        """Return the logs of servers and agents, by file name."""
        paths = [*self.folder.glob("server*/server.log"), self.folder / "agents.log"]
        return {str(path.relative_to(self.folder)): path.read_text(errors="replace") for path in paths if path.exists()}

    def save_logs(self, folder: Path) -> None:
        """Copy the logs into a folder."""
        for name, text in self.logs().items():
            (folder / name.replace("/", "-")).write_text(text)
        for log in self.folder.glob("director/pilots/*/*.log"):
            shutil.copy(log, folder / f"pilot-{log.parent.name}-{log.name}")


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)
