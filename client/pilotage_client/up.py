"""`pilotage up`: server and agents on this machine, as commands, in the foreground, with their data in one folder."""

from __future__ import annotations

import asyncio
import errno
import shlex
import signal
import socket
from dataclasses import dataclass, replace
from pathlib import Path

from pilotage.errors import WorldError
from pilotage.folder_lock import sole_owner
from pilotage_client.api import Client
from pilotage_client.bounded_log import BoundedLog
from pilotage_client.children import Child, Say, program
from pilotage_client.location import data_folder
from pilotage_client.machine import default_tree, this_machine
from pilotage_client.private_files import write_private
from pilotage_client.tree_files import read_tree, read_tree_file, tree_format
from pilotage_client.up_folder import UpFolder

HOST = "127.0.0.1"

_SERVER_START_S = 60.0
_AGENTS_STOP_S = 40.0
_SERVER_STOP_S = 20.0


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What `pilotage up` was asked for; `port` 0 = any free one, `cpus` None = all of this machine.

    `tree` is brought in place of the default one, also where another one is in force. `policy` is an absolute path.
    """

    data: Path
    port: int
    cpus: int | None = None
    tree: Path | None = None
    policy: Path | None = None


def run_up(options: UpOptions, say: Say) -> None:
    """Run the stack until SIGINT or SIGTERM; raises a PilotageError when it cannot start or be kept running."""
    if options.tree is not None:
        _, warnings = read_tree(options.tree)
        for warning in warnings:
            say(f"warning: {warning}")
    with sole_owner(options.data, "another `pilotage up`"):
        folder = UpFolder(options.data.absolute())
        folder.prepare()
        address = f"{HOST}:{_free_port(options.port)}"
        stack = _Stack(options, folder, address, say)
        try:
            asyncio.run(_run_until_told(stack))
        except BaseExceptionGroup as group:
            raise _first(group) from None


async def _run_until_told(stack: _Stack) -> None:
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


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return the first error of a group; the others are what it led to."""
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


class _Stack:
    """Server and agents, started in this order and stopped in the other."""

    def __init__(self, options: UpOptions, folder: UpFolder, address: str, say: Say) -> None:
        self._options = options
        self._folder = folder
        self._address = address
        self._say = say
        self._is_up = False
        machine = this_machine(folder.root)
        self._machine = replace(machine, cpus=options.cpus or machine.cpus)
        self._server = self._child(
            "server",
            ("pilotage-server", "run", "--data", str(folder.server), "--listen", address),
            ("--ready-file", str(folder.ready_file), "--bootstrap-tokens", str(folder.tokens)),
        )
        self._agents = self._child("agents", ("pilotage-agents", "run", "--config", str(folder.agents_config)))

    async def run(self) -> None:
        """Start everything and keep it running; ends by being cancelled, or by a PilotageError."""
        await self._server.start()
        await self._server.ready(self._folder.ready_file.exists, _SERVER_START_S)
        # The tree's word for cores bounds what a pilot finds; only the operator's own word goes beyond.
        pilot: dict[str, object] = {"cpus": self._options.cpus} if self._options.cpus else {}
        if self._options.policy is not None:
            pilot["policy"] = str(self._options.policy)
        self._folder.write_agents_config(self._address, program("pilotage-pilot"), pilot)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._server.keep_running(self._say))
            await asyncio.to_thread(self._bring_tree)
            await self._agents.start()
            group.create_task(self._agents.keep_running(self._say))
            self._folder.write_up_file(self._address)
            self._say(self._greeting())
            self._is_up = True

    async def stop(self) -> None:
        """Stop the agents, which end their pilots, then the server; says what had to be killed."""
        if self._is_up:
            self._say("Stopping: running jobs go back to the queue…")
        for child, patience_s in ((self._agents, _AGENTS_STOP_S), (self._server, _SERVER_STOP_S)):
            if not await child.stop(patience_s):
                self._say(f"The {child.name} had to be killed; see {child.log.path}")
        if self._is_up:
            self._say("Stopped.")

    def kill(self) -> None:
        """End everything at once."""
        for child in (self._agents, self._server):
            child.kill()

    def _child(self, name: str, command: tuple[str, ...], more: tuple[str, ...] = ()) -> Child:
        log = BoundedLog(self._folder.log_file(name))
        return Child(name, (program(command[0]), *command[1:], *more), log)

    def _bring_tree(self) -> None:
        """Bring the tree that was asked for, or the default one where there is none of anybody else's."""
        token = self._folder.token_file("operator").read_text().strip()
        with Client(self._address, token) as client:
            in_force = client.tree()
            if self._options.tree is not None:
                text, format_name = read_tree_file(self._options.tree), tree_format(self._options.tree)
            elif in_force.version == 0 or in_force.text == self._last_default():
                text, format_name = default_tree(self._machine), "toml"
                write_private(self._folder.tree_file, text)
            else:
                return
            if text != in_force.text:
                client.put_tree(text, format_name)

    def _last_default(self) -> str | None:
        try:
            return self._folder.tree_file.read_text()
        except FileNotFoundError:
            return None

    def _greeting(self) -> str:
        folder = self._folder
        elsewhere = (
            "" if folder.root == data_folder(None) else f"export PILOTAGE_DATA={shlex.quote(str(folder.root))}\n  "
        )
        return f"""\
Pilotage is up at {self._address}; Ctrl-C stops it.
  data   {folder.root}
  token  {folder.token_file("user")}
  logs   {folder.log_file("server").parent}
Next, in another terminal:
  {elsewhere}pilotage submit {shlex.quote(str(folder.first_job))}"""


def _free_port(wished: int) -> int:
    """Return `wished`, or for 0 a port that is free now; raises WorldError when it cannot be had."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wished))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                why = f"port {wished} is in use; choose another with --port, or --port 0 for any free one"
            else:
                why = f"port {wished} cannot be used: {error.strerror}"
            raise WorldError(why, transient=False) from error
        port: int = probe.getsockname()[1]
        return port
