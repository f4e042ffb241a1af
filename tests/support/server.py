"""A real server in a process of its own, on a free port of this machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from pilotage import clock
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint, open_async_channel, open_channel
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.rpc.framework.tokens import TokenIssuer, load_or_make_key
from support.ports import free_address

START_TIMEOUT_S = 60.0
VO = "sky"


def request_id() -> str:
    """Return an id that no other request has."""
    return uuid4().hex


def files_bounded_by(size: int) -> tuple[str, ...]:
    """Return what goes before a command to let files grow to so many bytes only: it looks as a full disk does.

    A function called between fork and exec would meet what gRPC's threads in this process left behind.
    """
    return ("prlimit", f"--fsize={size}")


class RunningServer:
    """A server process with its data folder; a restarted one keeps its address and its data."""

    def __init__(
        self,
        data: Path,
        *,
        arguments: Sequence[str] = (),
        max_file_bytes_on_disk: int | None = None,
        **settings: object,
    ) -> None:
        self.data = data
        self._arguments = arguments
        self._max_file_bytes_on_disk = max_file_bytes_on_disk
        self.address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._ready = data / "ready.json"
        self._key = Path(str(settings.get("signing_key", data / "keys" / "tokens.pem")))
        self._environment = {f"PILOTAGE_SERVER_{name.upper()}": _text(each) for name, each in settings.items()}

    def start(self) -> Self:
        """Start the process and return when it serves."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        command = [*self._limits(), sys.executable, "-m", "pilotage_server.main", "run", "--data", str(self.data)]
        command += ["--listen", self.address or free_address(), "--ready-file", str(self._ready), *self._arguments]
        environment = {**os.environ, **self._environment}
        with (self.data / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log)
        self._wait_until_ready(self.process)
        self.address = json.loads(self._ready.read_text())["address"]
        return self

    def _limits(self) -> tuple[str, ...]:
        """Return what comes before the command."""
        return () if self._max_file_bytes_on_disk is None else files_bounded_by(self._max_file_bytes_on_disk)

    def _wait_until_ready(self, process: subprocess.Popen[bytes]) -> None:
        give_up = clock.boot_time_s() + START_TIMEOUT_S
        while not self._ready.exists():
            try:
                process.wait(0.01)
            except subprocess.TimeoutExpired:
                if clock.boot_time_s() < give_up:
                    continue
            self.kill()
            pytest.fail(f"the server did not start:\n{self.log()}")

    def log(self) -> str:
        """Return what the server has logged."""
        return (self.data / "server.log").read_text()

    def stop(self) -> int:
        """Ask the server to stop, and return its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_TIMEOUT_S)

    def kill(self) -> None:
        """End the server as a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def token(self, *roles: Role, owner: str = "alice", vo: str = VO, groups: tuple[str, ...] = ("grp",)) -> str:
        """Return a token with roles, `user` by default, signed with the server's own key."""
        identity = Identity(owner, vo, groups, frozenset(roles or (Role.USER,)))
        return self._issuer().issue(identity, timedelta(hours=1), clock.now())

    def pilot_token(self, stamp: str, queue: QueueId, vos: tuple[str, ...] = ()) -> str:
        """Return the token of a pilot."""
        identity = Identity(f"pilot:{stamp}", "", (), frozenset({Role.PILOT}), PilotCredential(stamp, queue, vos))
        return self._issuer().issue(identity, timedelta(hours=1), clock.now())

    def _issuer(self) -> TokenIssuer:
        return TokenIssuer(load_or_make_key(self._key))

    def channel(self, token: str, *, timeout_s: float = 30.0) -> grpc.Channel:
        """Return a channel that calls with this token; a context manager closes it."""
        return open_channel(Endpoint((self.address,), token), timeout_s=timeout_s)

    def encrypted_channel(self, token: str, root_ca: bytes) -> grpc.Channel:
        """Return a channel with TLS."""
        return open_channel(Endpoint((self.address,), token, root_ca, tls=True))

    def async_channel(self, token: str, *, timeout_s: float = 30.0) -> grpc.aio.Channel:
        """Return a channel for the event loop that calls with this token."""
        return open_async_channel(Endpoint((self.address,), token), timeout_s=timeout_s)


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def running_server(data: Path, **options: Any) -> Iterator[RunningServer]:
    """Start a server with these settings (or options of `RunningServer`), and end it at the end of the block."""
    server = RunningServer(data, **options)
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RunningServer]:
    """Return a running server with an empty data folder."""
    with running_server(tmp_path / "server-data") as running:
        yield running


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Return a running server for all tests that neither stop it nor count what others have left in it."""
    with running_server(tmp_path_factory.mktemp("server-data")) as running:
        yield running
