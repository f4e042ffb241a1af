"""`pilotage up`: runs server and agents in the foreground, with all data in one folder.

It lays out the data folder, writes the agents' configuration and a resource tree of this machine on the first start,
and checks a policy with the pilot's own command before a pilot starts with it.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import math
import os
import shlex
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Protocol

from pilotage.cgroups import ControlGroups
from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.processes import exclusive_folder
from pilotage.programs import install_advice, missing_packages
from pilotage.rpc.channel import is_loopback
from pilotage.values.isolation import HIDDEN_PATHS, Isolation
from pilotage_client.api import Client
from pilotage_client.connection import UP_FILE, data_folder
from pilotage_client.contexts import load_contexts
from pilotage_client.files import read_tree, read_tree_file, tree_format, write_private
from pilotage_client.joining import JOIN_TOKEN_S, new_join_token
from pilotage_client.up.processes import BoundedLog, Child, Echo, program

_LEAST_FREE_MIB = 64
_MONTH_S = 30 * 86400
_TO_WEB_PORT = 80
"""From the port of the server to that of its web page."""
_FIRST_JOB = """\
name = "hello"
executable = "/bin/sh"
arguments = "-c 'echo Hello from $(hostname), job $PILOTAGE_JOB_ID'"
stdout = "hello.out"
request_cpus = 1
"""


@dataclass(frozen=True, slots=True)
class UpAddresses:
    """Where the server listens and serves its web page, and where server and agents serve their metrics: HOST:PORT.

    `server` is how this machine reaches it, `public` how others do, "" = they do not. The web page is for this machine.
    """

    listen: str
    server: str
    public: str
    web_page: str
    server_metrics: str
    agents_metrics: str


@dataclass(frozen=True, slots=True)
class DirectorConfig:
    """What the agents of this machine need: the server, its authority (None = the system's), and their queues.

    `pilot` has additional settings of every pilot; `queues` are patterns, empty = all of the `ce_types`.
    """

    server: str
    authority: Path | None
    metrics: str
    queues: tuple[str, ...]
    ce_types: tuple[str, ...]
    pilot: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class UpFolder:
    """The data folder, with a subfolder for each process."""

    root: Path

    @property
    def server(self) -> Path:
        """The server's data folder."""
        return self.root / "server"

    @property
    def ready_file(self) -> Path:
        """The file that the server writes when it is ready."""
        return self.root / "run" / "server.json"

    @property
    def tokens(self) -> Path:
        """The folder of the tokens that the server issues on its start."""
        return self.root / "tokens"

    @property
    def scratch(self) -> Path:
        """The folder in which jobs run."""
        return self.root / "scratch"

    @property
    def agents_config(self) -> Path:
        """The agents' configuration file."""
        return self.root / "run" / "agents.toml"

    @property
    def authority(self) -> Path:
        """The certificate of the server's own authority."""
        return self.server / "tls" / "authority.pem"

    @property
    def tree_file(self) -> Path:
        """The last default tree that `up` has activated."""
        return self.root / "tree.toml"

    @property
    def first_job(self) -> Path:
        """An example job file."""
        return self.root / "hello.toml"

    def token_file(self, role: str) -> Path:
        """Return the file of a role's token: user, operator, admin, or that of an agent."""
        return self.tokens / f"{role}.token"

    def log_of(self, process: str) -> BoundedLog:
        """Return the log of a process."""
        return BoundedLog(self.root / "logs" / f"{process}.log")

    def prepare(self) -> None:
        """Create the folders; raises WorldError if they cannot be used or the disk is full."""
        try:
            for folder in (self.ready_file.parent, self.tokens, self.scratch):
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

    def write_up_file(self, addresses: UpAddresses) -> None:
        """Write the addresses and the token files for the other `pilotage` commands."""
        found = {
            "server": addresses.server,
            **({"public": addresses.public, "ca_file": str(self.authority)} if addresses.public else {}),
            "token_file": str(self.token_file("user")),
            "operator_token_file": str(self.token_file("operator")),
            "admin_token_file": str(self.token_file("admin")),
        }
        write_private(self.root / UP_FILE, json.dumps(found, indent=1))
        if not self.first_job.exists():
            write_private(self.first_job, _FIRST_JOB)

    def write_agents_config(self, config: DirectorConfig, more: str = "") -> None:
        """Write the configuration of the site director; `more` has the sections of other agents."""
        hidden = [*HIDDEN_PATHS, str(self.root)]
        settings = {"scratch": str(self.scratch), "grace_s": 5, "hidden_paths": hidden, **config.pilot}
        pilot_lines = "\n".join(f"{name} = {_toml(value)}" for name, value in settings.items())
        authority = "" if config.authority is None else f"ca_file = {_toml(str(config.authority))}\n"
        queues = f"queues = {_toml(config.queues)}\n" if config.queues else ""
        text = f"""\
# Written by `pilotage up` at every start.
server = {_toml(config.server)}
{authority}metrics_listen = {_toml(config.metrics)}

[site_director]
token_file = {_toml(str(self.token_file("director")))}
folder = {_toml(str(self.root / "director"))}
{queues}interval_s = 5
urgent_interval_s = 1
min_idle_pilots = 1
max_idle_s = {_MONTH_S}
when_stopped = "cancel"
default_wall_time_s = {_MONTH_S}
pilot_command = [{_toml(program("pilotage-pilot"))}]

[site_director.pilot]
{pilot_lines}

[site_director.batch_systems.local]
type = "local"
ce_types = {_toml(config.ce_types)}
kill_after_s = 15
{more}"""
        write_private(self.agents_config, text)

    def local_agents(self) -> str:
        """Return the configuration of the agents that run beside the server."""
        return f"""
[pool_cleanup]
token_file = {_toml(str(self.token_file("cleaner")))}

[notifier]
token_file = {_toml(str(self.token_file("notifier")))}
allowed_hosts = ["localhost", "127.0.0.1"]
"""


def _toml(value: object) -> str:
    """Return a text, a number or a list in TOML; JSON strings are valid basic strings of TOML."""
    return json.dumps(value, ensure_ascii=False)


_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's name, cores, memory and free disk."""

    name: str
    cpus: int
    memory_mib: int
    disk_mib: int


def this_machine(folder: Path, groups: ControlGroups | None = None) -> Machine:
    """Return the resources that this process may use, with the free disk space at `folder`."""
    groups = groups or ControlGroups()
    quota, limit = groups.cores(), groups.memory_bytes()
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1  # macOS
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return Machine(
        name=socket.gethostname() or "localhost",
        cpus=affinity if quota is None else max(1, min(affinity, math.floor(quota))),
        memory_mib=(memory if limit is None else min(memory, limit)) // _MIB,
        disk_mib=shutil.disk_usage(folder).free // _MIB,
    )


def default_tree(machine: Machine) -> str:
    """Return a tree in TOML with one queue: this machine, managed by one pilot."""
    ce = f"sites.local.ces.{json.dumps(machine.name)}"
    return f"""\
# This machine, as found by `pilotage up`. Replace this tree with `pilotage tree put FILE`.
[{ce}]
CEType = "local"

[{ce}.queues.default]
CPUs = {machine.cpus}
Memory = {machine.memory_mib}
Disk = {machine.disk_mib}
MaxTotalJobs = 1
"""


HOST = "127.0.0.1"

AGENTS_STOP_S = 40.0

_SERVER_START_S = 60.0
_SERVER_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """The options of `pilotage up`; `port` 0 = any free port, `cpus` None = all of this machine.

    `tree` replaces the default tree, and an active tree too. `policy` is an absolute path, as are the paths `writable`
    for jobs. `listen` is the address for other machines, None = loopback alone.
    """

    data: Path
    port: int
    cpus: int | None = None
    tree: Path | None = None
    policy: Path | None = None
    writable: tuple[Path, ...] = ()
    listen: str | None = None

    def pilot_settings(self) -> dict[str, object]:
        """Return the additional settings of every pilot."""
        # The tree's number of cores only limits what a pilot detects; --cpus may exceed it.
        pilot: dict[str, object] = {"cpus": self.cpus} if self.cpus else {}
        if self.policy is not None:
            pilot["policy"] = str(self.policy)
        if self.writable:
            pilot["writable_paths"] = [str(path) for path in self.writable]
        return pilot


def run_up(options: UpOptions, echo: Echo) -> None:
    """Run the stack until SIGINT or SIGTERM; raises a PilotageError if it cannot start or keeps failing."""
    if options.listen is not None and os.environ.get("PILOTAGE_SERVER_TLS_CERT"):
        why = "`up` needs the certificate that the server makes: unset it, or run pilotage-server"
        raise InvalidInputError(Violation("PILOTAGE_SERVER_TLS_CERT", why))
    if missing := missing_packages("server"):
        raise WorldError(install_advice("all", missing), transient=False)
    if options.tree is not None:
        _, warnings = read_tree(options.tree)
        for warning in warnings:
            echo(f"warning: {warning}")
    with exclusive_folder(options.data, "another `pilotage up`"):
        folder = UpFolder(options.data.absolute())
        folder.prepare()
        run_until_signal(_Stack(options, folder, _addresses(options), echo))


class Stack(Protocol):
    """Processes that are started, kept running and stopped together."""

    async def run(self) -> None:
        """Start everything and keep it running until cancelled; raises a PilotageError."""

    async def stop(self) -> None:
        """Stop everything."""

    def kill(self) -> None:
        """Kill all processes."""


def run_until_signal(stack: Stack) -> None:
    """Run a stack until SIGINT or SIGTERM; a second signal kills it. Raises a PilotageError."""
    try:
        asyncio.run(_run_until_signal(stack))
    except BaseExceptionGroup as group:
        raise _first_error(group) from None


async def _run_until_signal(stack: Stack) -> None:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.TaskGroup() as group:
            running = group.create_task(stack.run())
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, running.cancel)
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stack.kill)
        await stack.stop()


def _first_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group; the others are its consequences."""
    first = group.exceptions[0]
    return _first_error(first) if isinstance(first, BaseExceptionGroup) else first


class _Stack:
    """Server and agents, started in this order and stopped in reverse."""

    def __init__(self, options: UpOptions, folder: UpFolder, addresses: UpAddresses, echo: Echo) -> None:
        self._options = options
        self._folder = folder
        self._addresses = addresses
        self._echo = echo
        self._is_up = False
        self._has_context = bool(load_contexts().chosen())  # it wins over the default data folder
        machine = this_machine(folder.root)
        self._machine = replace(machine, cpus=options.cpus or machine.cpus)
        self._server = self._child(
            "server",
            ("pilotage-server", "run", "--data", str(folder.server), "--listen", addresses.listen),
            ("--http-listen", addresses.web_page, "--metrics-listen", addresses.server_metrics),
            ("--ready-file", str(folder.ready_file), "--bootstrap-tokens", str(folder.tokens)),
        )
        self._agents = self._child("agents", ("pilotage-agents", "run", "--config", str(folder.agents_config)))

    async def run(self) -> None:
        """Start everything and keep it running until cancelled; raises a PilotageError."""
        await self._server.start()
        await self._server.wait_until_ready(self._folder.ready_file.exists, _SERVER_START_S)
        authority = self._folder.authority if self._addresses.public else None
        config = DirectorConfig(
            server=self._addresses.server,
            authority=authority,
            metrics=self._addresses.agents_metrics,
            queues=(),
            ce_types=("local",),
            pilot=self._options.pilot_settings(),
        )
        self._folder.write_agents_config(config, self._folder.local_agents())
        isolation = await asyncio.to_thread(isolation_notice, self._folder.scratch)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.keep_running(self._echo))
            await asyncio.to_thread(self._put_tree)
            await self._agents.start()
            group.create_task(self._agents.keep_running(self._echo))
            self._folder.write_up_file(self._addresses)
            self._echo(self._start_message())
            self._echo(isolation)
            if self._addresses.public:
                self._echo(await asyncio.to_thread(self._join_message))
            self._is_up = True

    async def stop(self) -> None:
        """Stop the agents, which end their pilots, then the server; reports processes that were killed."""
        if self._is_up:
            self._echo("Stopping: running jobs go back to the queue…")
        for child, timeout_s in ((self._agents, AGENTS_STOP_S), (self._server, _SERVER_STOP_S)):
            if not await child.stop(timeout_s):
                self._echo(f"The {child.name} did not stop and was killed; see {child.log.path}")
        if self._is_up:
            self._echo("Stopped.")

    def kill(self) -> None:
        """Kill all processes."""
        for child in (self._agents, self._server):
            child.kill()

    def _child(self, name: str, command: tuple[str, ...], *more: tuple[str, ...]) -> Child:
        return Child(name, (program(command[0]), *command[1:], *chain(*more)), self._folder.log_of(name))

    def _client(self, role: str) -> Client:
        token = self._folder.token_file(role).read_text().strip()
        root_ca = self._folder.authority.read_bytes() if self._addresses.public else None
        return Client(self._addresses.server, token, root_ca)

    def _put_tree(self) -> None:
        """Activate the given tree, or the default tree unless another one is active."""
        with self._client("operator") as client:
            active = client.tree()
            if self._options.tree is not None:
                text, format_name = read_tree_file(self._options.tree), tree_format(self._options.tree)
            elif active.version == 0 or active.text == self._previous_default_tree():
                text, format_name = default_tree(self._machine), "toml"
                write_private(self._folder.tree_file, text)
            else:
                return
            if text != active.text:
                client.put_tree(text, format_name)

    def _previous_default_tree(self) -> str | None:
        try:
            return self._folder.tree_file.read_text()
        except FileNotFoundError:
            return None

    def _start_message(self) -> str:
        folder = self._folder
        elsewhere = (
            ""
            if folder.root == data_folder(None) and not self._has_context
            else f"export PILOTAGE_DATA={shlex.quote(str(folder.root))}\n  "
        )
        return f"""\
Pilotage is up at {self._addresses.server}; Ctrl-C stops it.
  data     {folder.root}
  token    {folder.token_file("user")}
  web page http://{self._addresses.web_page}/ (log in with the text of the token file)
  logs     {folder.root / "logs"}
  metrics  http://{self._addresses.server_metrics}/metrics (server)
           http://{self._addresses.agents_metrics}/metrics (agents)
Next, in another terminal:
  {elsewhere}pilotage submit {shlex.quote(str(folder.first_job))}"""

    def _join_message(self) -> str:
        address = self._addresses.public
        with self._client("admin") as client:
            submits, works = (new_join_token(client, kinds) for kinds in (("user",), ("user", "worker")))
        return f"""\
Within {JOIN_TOKEN_S / 3600:g} h other machines join it, as you:
  to submit jobs    pilotage join {address} --token {submits}
  to run jobs, too  pilotage join {address} --token {works}
`pilotage token join` prints such lines for others, and later."""


def _addresses(options: UpOptions) -> UpAddresses:
    """Return addresses with free ports, of the server that of the options, 0 = any; raises a PilotageError."""
    listen = (options.listen or HOST).strip("[]")
    if ":" in listen and not _is_ipv6(listen):
        raise InvalidInputError(Violation("--listen", f"{listen} is no address; --port sets the port"))
    with ExitStack() as stack:
        port = _bound(stack.enter_context(socket.socket(_family(listen))), listen, options.port)
        page = web_port(stack.enter_context(socket.socket()), options.port)
        own = [page, *(_bound(stack.enter_context(socket.socket()), HOST, 0) for _ in ("server", "agents"))]
    if options.listen is None:
        public = ""
    elif is_loopback(listen):
        raise InvalidInputError(Violation("--listen", f"{listen} is loopback, which other machines do not reach"))
    else:
        public = _joined_address(listen if listen not in _WILDCARDS else _own_address(), port)
    return UpAddresses(
        _joined_address(listen, port),
        _joined_address(_WILDCARDS.get(listen, listen), port),
        public,
        *(_joined_address(HOST, each) for each in own),
    )


_WILDCARDS = {"0.0.0.0": HOST, "::": "::1"}  # noqa: S104 - names, and how this machine reaches such a server
_ANY_REMOTE = ("198.51.100.1", 9)  # of a network for documentation (RFC 5737)


def _own_address() -> str:
    """Return the address of this machine on the way to other networks, else its name."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ANY_REMOTE)  # a datagram socket only chooses its address; nothing is sent
        except OSError:
            return socket.gethostname()
        address: str = probe.getsockname()[0]
        return address


def _is_ipv6(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).version == 6
    except ValueError:
        return False


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _joined_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def free_address() -> str:
    """Return a free address at loopback."""
    with socket.socket() as probe:
        return _joined_address(HOST, _bound(probe, HOST, 0))


def web_port(probe: socket.socket, server_port: int) -> int:
    """Bind a socket to the port of the web page: one that follows from the server's, so that bookmarks last, or any."""
    if 0 < server_port < 2**16 - _TO_WEB_PORT:
        with suppress(WorldError):
            return _bound(probe, HOST, server_port + _TO_WEB_PORT)
    return _bound(probe, HOST, 0)


def _bound(probe: socket.socket, host: str, requested: int) -> int:
    """Bind a socket to the port, 0 = a free one, and return it; raises WorldError if it cannot be used."""
    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        probe.bind((host, requested))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            why = f"port {requested} is in use; choose another with --port, or --port 0 for any free one"
        elif host != HOST:
            why = f"cannot listen at {host}: {error.strerror}"
        else:
            why = f"port {requested} cannot be used: {error.strerror}"
        raise WorldError(why, transient=False) from error
    port: int = probe.getsockname()[1]
    return port


_CHECK_TIMEOUT_S = 60


def isolation_notice(scratch: Path) -> str:
    """Return what jobs in this folder can read of this installation, for its user. Raises WorldError."""
    command = [program("pilotage-pilot"), "isolation", "--scratch", str(scratch), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CHECK_TIMEOUT_S)
    if done.returncode != 0:
        raise WorldError(f"no job can run on this machine: {done.stderr.strip()}", transient=False)
    found = json.loads(done.stdout)
    level = Isolation(found["isolation"])
    if level.is_at_least(Isolation.UID):
        return f"Jobs are isolated ({level}): they cannot read the keys of this installation."
    why = "; ".join(f"{each}: {reason}" for each, reason in found["refused"].items())
    return (
        "WARNING: jobs run as your user and can read the keys of this installation. Submit only your own jobs.\n"
        f"  Jobs cannot be isolated on this machine ({why})."
    )


def check_policy(path: Path, cpus: int | None = None) -> None:
    """Raise InvalidInputError with the pilot's messages if it cannot run the policy in this file.

    `cpus` = the cores of the node, None = those of this machine.
    """
    command = [program("pilotage-pilot"), "check", str(path), "--json"]
    command += [] if cpus is None else ["--cpus", str(cpus)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_CHECK_TIMEOUT_S)
    if done.returncode != 0:
        messages = done.stderr.strip() or f"the check ended with exit code {done.returncode}"
        raise InvalidInputError(*(Violation("", line) for line in messages.splitlines()))
