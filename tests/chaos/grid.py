"""The grid under faults: real servers, a database, a broker, agents, and the pilots of a local batch system.

Each party is on a host of its own in the run's network.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any

from chaos.clock import JumpingClock
from chaos.history import Journal
from pilotage.clock import boot_time_s
from pilotage_pilot.supervise.proc import read_process
from pilotage_server.core.identity import Role
from support.commands import PROGRAMS
from support.debian import find_or_install
from support.mosquitto import MosquittoServer, running_broker
from support.network import Host, Network
from support.payload_paths import payload_lines
from support.postgresql import QUICK, PostgresqlProcess, installed_programs, running_postgresql
from support.server import RunningServer

LEASE_S = 6.0
"""Leases are short, so that faults outlast them."""

_PILOTS = 3
_CPUS = 2
_FOLDER_MIB = 256
_FIRST_PAYLOAD_S = 120.0
_END_PILOTS_S = 30.0
_PORT = 4711
_BROKER_PORT = 1883
_PILOT_HOSTS = ("pilots1", "pilots2")
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


class _HostedServer(RunningServer):
    """A server on a host of the network."""

    def __init__(self, network: Network, host: Host, data: Path, **settings: Any) -> None:
        super().__init__(data, **settings)
        self.host = host
        self.address = f"0.0.0.0:{_PORT}"
        self._network = network

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process and return it."""
        with self._network.inside(self.host):
            return super().launch()


class _HostedBroker(MosquittoServer):
    """A broker on a host of the network, which others reach at `url`."""

    def __init__(self, network: Network, host: Host, program: Path, folder: Path) -> None:
        self.host = host
        self._network = network
        super().__init__(program, folder)

    def _settings(self, folder: Path) -> Sequence[str]:
        return (*super()._settings(folder), f"listener {_BROKER_PORT} {self.host.address}")

    @property
    def url(self) -> str:
        return f"mqtt://{self.host.address}:{_BROKER_PORT}"

    def start(self) -> None:
        """Start the broker and return when it listens."""
        with self._network.inside(self.host):
            super().start()

    def publish(self, topic: str, payload: bytes) -> None:
        """Publish a retained message from the broker's own host."""
        with self._network.inside(self.host):
            super().publish(topic, payload)


@dataclass
class Grid:
    """All processes of a run, below `folder`; `with` starts and stops them.

    Each party has a host of the network: `server1` and so on, `broker`, `database`, `agents`, `pilots1`, `pilots2`,
    `clients`, and the `duplicator`, which takes the servers' place for a host while its requests are duplicated.
    """

    folder: Path
    database: str
    servers: list[_HostedServer] = field(default_factory=list)
    broker: _HostedBroker | None = None
    postgresql: PostgresqlProcess | None = None
    clock: JumpingClock | None = None
    """The clock by which the leases end: that of the server with SQLite, that of the database with PostgreSQL."""
    small_disk: Path | None = None
    """The folder of a small file system that holds the servers' data; None = there is none."""
    hosts: dict[str, Host] = field(default_factory=dict)
    links: list[tuple[Host, Host]] = field(default_factory=list)
    """The pairs of hosts that exchange messages; without the duplicator."""
    journal: Journal = field(init=False)
    network: Network = field(init=False)
    _agents: subprocess.Popen[bytes] | None = None
    _clients: subprocess.Popen[bytes] | None = None
    _duplicator: subprocess.Popen[bytes] | None = None
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
        self.journal = Journal(self.folder / "history")
        # Payloads may run as users of their own.
        self.folder.chmod(0o755)
        self.journal.marks.chmod(0o777)
        # Installed here, since no host of the run reaches the world.
        programs = find_or_install(installed_programs, "postgresql") if self.database == "postgresql" else None
        find_or_install(lambda: shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin"), "mosquitto")
        self.network = Network()
        self._stack.callback(self.network.close)
        self._add_hosts(2 if programs else 1)
        self._make_certificate()
        self.broker = self._stack.enter_context(
            running_broker(lambda program, folder: _HostedBroker(self.network, self.hosts["broker"], program, folder))
        )
        # Outside the folder of the run, which the database's user cannot enter.
        self.clock = JumpingClock(
            Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotage-clock-")))
        )
        self._stack.callback(self.clock.close)
        settings: dict[str, Any] = {
            **_SETTINGS,
            "broker": self.broker.url,
            "tls_cert": str(self._certificate),
            "tls_key": str(self._certificate.with_suffix(".key")),
        }
        data = self._data_folder()
        if programs is not None:
            settings |= {
                "database": self._start_postgresql(programs, self.clock),
                "signing_key": str(self.folder / "key.pem"),
                "files": (data / "files").as_uri(),
            }
        else:
            settings["environment"] = self.clock.environment
        self.servers = [
            _HostedServer(self.network, host, data / name, **settings)
            for name, host in self.hosts.items()
            if name.startswith("server")
        ]
        for server in self.servers:
            self._stack.callback(server.kill)
            server.start()
        self._put_tree()
        self._start_duplicator()
        self._stack.callback(self._end_pilots)
        self._stack.callback(self.kill_agents)
        self.start_agents()
        self._stack.callback(self._kill_clients)

    def _add_hosts(self, servers: int) -> None:
        names = [f"server{number + 1}" for number in range(servers)]
        names += [*(["database"] if servers > 1 else []), "broker", "agents", *_PILOT_HOSTS, "clients", "duplicator"]
        self.hosts = {name: self.network.add_host(name) for name in names}
        of_servers = [host for name, host in self.hosts.items() if name.startswith("server")]
        self.network.impersonate(self.hosts["duplicator"], of_servers)
        for server in of_servers:
            others = ["database", "broker", "agents", *_PILOT_HOSTS, "clients"]
            self.links += [(self.hosts[name], server) for name in others if name in self.hosts]
        self.links += [(self.hosts[name], self.hosts["broker"]) for name in _PILOT_HOSTS]

    @property
    def callers(self) -> list[Host]:
        """The hosts whose processes call the servers."""
        return [self.hosts[name] for name in ("agents", *_PILOT_HOSTS, "clients")]

    @property
    def parties(self) -> list[Host]:
        """All hosts without the duplicator."""
        return [host for name, host in self.hosts.items() if name != "duplicator"]

    def _make_certificate(self) -> None:
        """Make one certificate for all servers, which is its own authority."""
        servers = [host for name, host in self.hosts.items() if name.startswith("server")]
        addresses = [address for host in servers for address in (host.address, host.direct_address)]
        request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=chaos"
        names = ["-addext", "subjectAltName=" + ",".join(f"IP:{address}" for address in addresses)]
        files = ["-keyout", str(self._certificate.with_suffix(".key")), "-out", str(self._certificate)]
        subprocess.run([*request.split(), *names, *files], check=True, capture_output=True)

    @property
    def _certificate(self) -> Path:
        return self.folder / "server.crt"

    def _start_postgresql(self, programs: Path, clock: JumpingClock) -> str:
        """Start the database and return its URL for the servers."""
        host = self.hosts["database"]
        # What is committed must survive a crash of the database, though not one of the machine.
        settings = {**QUICK, "synchronous_commit": "on", "full_page_writes": "on"}
        with self.network.inside(host):
            server = self._stack.enter_context(
                running_postgresql(programs, settings, clock.environment, address=host.address)
            )
        self.postgresql = server.process
        url = server.new_database().set(host=host.address, port=5432, query={})
        return url.render_as_string(hide_password=False)

    def restart_postgresql(self) -> None:
        """Start the database after a crash."""
        assert self.postgresql is not None
        with self.network.inside(self.hosts["database"]):
            self.postgresql.start()

    def _data_folder(self) -> Path:
        """Return the servers' data folder, on a small file system where this process may mount one."""
        folder = self.folder / "data"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={_FOLDER_MIB}m,mode=700", "tmpfs", str(folder)]
        if os.geteuid() == 0 and subprocess.run(command, check=False, capture_output=True).returncode == 0:
            self.small_disk = folder
            self._stack.callback(subprocess.run, ["umount", "--lazy", str(folder)], check=False)
        return folder

    def _put_tree(self) -> None:
        tree = self.folder / "tree.json"
        tree.write_text(json.dumps(_TREE))
        token = self._token_file("admin", Role.ADMIN, Role.OPERATOR)
        command = [str(PROGRAMS / "pilotage"), "tree", "put", str(tree), "--token-file", str(token)]
        with self.network.inside(self.hosts["clients"]):
            subprocess.run(
                [*command, "--server", ",".join(self._addresses)], env=self._client_environment(), check=True
            )

    def _token_file(self, name: str, *roles: Role) -> Path:
        file = self.folder / f"{name}.token"
        file.write_text(self.servers[0].token(*roles, owner=f"agent:{name}" if roles else "alice"))
        file.chmod(0o600)
        return file

    @property
    def _addresses(self) -> list[str]:
        """The addresses at which all parties reach the servers."""
        return [f"{server.host.address}:{_PORT}" for server in self.servers]

    def _client_environment(self) -> dict[str, str]:
        """Return the variables of Python processes that trust the servers' certificate."""
        path = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
        return {**os.environ, "SSL_CERT_FILE": str(self._certificate), "PYTHONPATH": path}

    def _start_duplicator(self) -> None:
        key = self._certificate.with_suffix(".key")
        servers = [f"{server.host.direct_address}:{_PORT}" for server in self.servers]
        arguments = ["-m", "chaos.duplicator", str(self._certificate), str(key), str(_PORT), *servers]
        self._duplicator = self._start_program("duplicator", arguments)
        self._stack.callback(_kill, self._duplicator)

    def _start_program(self, name: str, arguments: list[str], **options: Any) -> subprocess.Popen[bytes]:
        """Start a Python process on the host of this name; it logs to the file of this name."""
        with self.network.inside(self.hosts[name]), (self.folder / f"{name}.log").open("ab") as log:
            return subprocess.Popen([sys.executable, *arguments], env=self._client_environment(), stderr=log, **options)

    def revive_servers(self) -> list[str]:
        """Start the servers that have ended by themselves, and return how each ended."""
        ended = [server for server in self.servers if server.process is not None and server.process.poll() is not None]
        last = [f"{server.data.name} ended by itself: {server.log().splitlines()[-1:]}" for server in ended]
        for server in ended:
            server.launch()
        return last

    def ended_others(self) -> list[str]:
        """Return how agents and duplicator have ended by themselves, if they have."""
        others = {"agents": self._agents, "duplicator": self._duplicator}
        return [
            f"{name} ended by itself with code {process.returncode}"
            for name, process in others.items()
            if process is not None and process.poll() is not None
        ]

    # Clients ----------------------------------------------------------------------------------------------------

    def start_clients(self, seed: int, end_timeout_s: float) -> None:
        """Start the clients; once they finish, they wait this long for each further end of a job."""
        token = self._token_file("clients")
        arguments = [str(self.journal.folder), str(token), str(seed), str(end_timeout_s), *self._addresses]
        self._clients = self._start_program("clients", ["-m", "chaos.workload", *arguments], stdin=subprocess.PIPE)

    def wait_for_payload(self) -> None:
        """Return when the first payload has started: faults at an empty grid show little."""
        gives_up_s = boot_time_s() + _FIRST_PAYLOAD_S
        pause = threading.Event()
        while not any(self.journal.marks.iterdir()):
            assert boot_time_s() < gives_up_s, f"no payload has started; the logs are in {self.folder}"
            pause.wait(0.1)

    def finish_clients(self) -> int:
        """Let the clients wait for their jobs and end; returns their exit code."""
        assert self._clients is not None
        self._clients.communicate()
        return self._clients.wait()

    def _kill_clients(self) -> None:
        if self._clients is not None:
            self._clients.kill()
            self._clients.communicate()

    # Agents -----------------------------------------------------------------------------------------------------

    def start_agents(self) -> None:
        """Start the site director and the pool cleanup in one process."""
        config = self.folder / "agents.toml"
        token = self._token_file("agents", Role.DIRECTOR, Role.CLEANER)
        assert self.broker is not None
        config.write_text(f"""
server = "{",".join(self._addresses)}"
token_file = "{token}"
ca_file = "{self._certificate}"
turn_s = 3
[site_director]
folder = "{self.folder / "director"}"
interval_s = 1
urgent_interval_s = 0.5
min_idle_pilots = 1
max_idle_s = 20
pilot_command = ["{self._pilot_script()}"]
[site_director.pilot]
server = {json.dumps(self._addresses)}
scratch = "{self.folder / "scratch"}"
{payload_lines(self.journal.marks)}
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
        self._agents = self._start_program(
            "agents", [str(PROGRAMS / "pilotage-agents"), "run", "--config", str(config)]
        )

    def _pilot_script(self) -> Path:
        """Return the command that starts a pilot on one of the pilots' hosts, each in turn."""
        script = self.folder / "pilot.sh"
        paths = [self.hosts[name].path for name in _PILOT_HOSTS]
        script.write_text(
            f"#!/bin/sh\n[ $(($$ % 2)) = 0 ] && net={paths[0]} || net={paths[1]}\n"
            f'exec nsenter --net="$net" -- {sys.executable} -m pilotage_pilot.main "$@"\n'
        )
        script.chmod(0o755)
        return script

    def kill_agents(self) -> None:
        """Kill the agents, as a crash would."""
        if self._agents is not None:
            _kill(self._agents)

    @property
    def agents(self) -> int:
        """The process id of the agents."""
        assert self._agents is not None
        return self._agents.pid

    # Pilots -----------------------------------------------------------------------------------------------------

    def pilots(self) -> list[tuple[int, ...]]:
        """Return the processes of each pilot: its watchdog, then the pilot proper; not their payloads."""
        parents = {pid: _parent(pid) for pid in self._pilot_processes()}
        return [
            (pid, *(child for child, parent in parents.items() if parent == pid))
            for pid, parent in sorted(parents.items())
            if parent not in parents
        ]

    def _pilot_processes(self) -> Iterator[int]:
        """Yield the processes that run a pilot's program in the folder of one of this grid's pilots."""
        for pid, command in _commands():
            with suppress(OSError):
                if "pilotage_pilot" in command and Path(f"/proc/{pid}/cwd").readlink().is_relative_to(self.folder):
                    yield pid

    def _payloads(self) -> Iterator[int]:
        """Yield the processes of payloads: they name the folder of the marks."""
        return (pid for pid, command in _commands() if f"{self.journal.marks}/" in command)

    def _end_pilots(self) -> None:
        """Kill all pilots, then wait until no payload is left: their watchdogs kill those."""
        gives_up_s = boot_time_s() + _END_PILOTS_S
        pause = threading.Event()
        while boot_time_s() < gives_up_s:
            pilots, payloads = self.pilots(), list(self._payloads())
            if not pilots and not payloads:
                return
            for watchdog, *pilot in pilots:
                for pid in pilot or [watchdog]:  # the watchdog ends after what it watches
                    send(pid, signal.SIGKILL)
                send(watchdog, signal.SIGCONT)
            pause.wait(0.1)
        for pid in (*chain(*self.pilots()), *self._payloads()):
            send(pid, signal.SIGKILL)

    def save_logs(self, folder: Path) -> None:
        """Copy the logs into a folder."""
        for log in self.folder.glob("data/*/server.log"):
            shutil.copy(log, folder / f"{log.parent.name}.log")
        for log in self.folder.glob("*.log"):
            shutil.copy(log, folder)
        for log in self.folder.glob("director/pilots/*/*.log"):
            shutil.copy(log, folder / f"pilot-{log.parent.name}-{log.name}")


def _commands() -> Iterator[tuple[int, str]]:
    """Yield all processes of this machine with their command lines."""
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                command = Path("/proc", name, "cmdline").read_bytes()
                yield int(name), command.replace(b"\0", b" ").decode(errors="replace")


def _parent(pid: int) -> int | None:
    process = read_process(pid)
    return None if process is None else process.parent


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()
