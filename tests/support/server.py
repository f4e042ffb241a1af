"""Real server processes: one on a free port, or a fleet on one PostgreSQL with pilots that use it."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import uuid4

import grpc
import grpc.aio
import pytest

from pilotage import clock
from pilotage.errors import ServerUnreachableError
from pilotage.rpc.channel import Endpoint, open_async_channel, open_channel
from pilotage.rpc.proof import NONCE_BYTES, BoundToken
from pilotage.rpc.wire import time_from_wire
from pilotage.v1 import (
    jobs_pb2,
    matcher_service_pb2,
    matcher_service_pb2_grpc,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
    values_pb2,
)
from pilotage_server.core.identity import UNBOUND, AgentBounds, Identity, Invitation, Role
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.rpc.framework.tokens import TokenIssuer
from support.processes import free_address

START_TIMEOUT_S = 60.0
WAIT_TIMEOUT_S = 120.0
"""How long a pilot repeats a call, and how long the next part of the jobs may take."""

VO = "sky"

Answer = TypeVar("Answer")

Token = str | BoundToken


def endpoint_of(addresses: tuple[str, ...], token: Token) -> Endpoint:
    """Return the endpoint of servers with this token."""
    if isinstance(token, str):
        return Endpoint(addresses, token)
    return Endpoint(addresses, token.token, prove=token.prove)


def enrolled(channel: grpc.Channel, nonce: bytes | None = None) -> BoundToken:
    """Return the token of a pilot that enrols over a channel with its secret; `nonce` None = new random bytes."""
    request = pilot_service_pb2.EnrolRequest(nonce=os.urandom(NONCE_BYTES) if nonce is None else nonce)
    found = pilot_service_pb2_grpc.PilotServiceStub(channel).Enrol(request).token
    return BoundToken(found.token, found.key, time_from_wire(found.server_time), clock.boot_time_s)


def request_id() -> str:
    """Return an id that no other request has."""
    return uuid4().hex


def files_bounded_by(size: int) -> tuple[str, ...]:
    """Return a command prefix that limits the size of files in bytes, which looks like a full disk.

    A `preexec_fn` is no alternative: gRPC's threads make it unsafe to run Python between fork and exec.
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
        open_files: int | None = None,
        environment: Mapping[str, str] = {},
        module: str = "pilotage_server.main",
        **settings: object,
    ) -> None:
        self.data = data
        self._arguments = arguments
        self._module = module
        self._max_file_bytes_on_disk = max_file_bytes_on_disk
        self._open_files = open_files
        self.address = self.http_address = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._ready = data / "ready.json"
        self._key = Path(str(settings.get("signing_key", data / "keys" / "tokens.pem")))
        names = {f"PILOTAGE_SERVER_{name.upper()}": _text(each) for name, each in settings.items()}
        self._environment = {**names, **environment}

    def start(self) -> Self:
        """Start the process and return when it is ready."""
        self.launch()
        return self.wait_until_ready()

    def start_fails(self) -> str:
        """Start the process, which must end by itself with exit code 1; returns the last line of its log."""
        assert self.launch().wait(START_TIMEOUT_S) == 1, self.log()
        return self.last_line()

    def ends(self) -> str:
        """Wait for the server to end by itself with exit code 1; returns the last line of its log."""
        assert self.process is not None
        assert self.process.wait(START_TIMEOUT_S) == 1, self.log()
        return self.last_line()

    def last_line(self) -> str:
        return self.log().splitlines()[-1]

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another command of the server with its data and settings."""
        command = [sys.executable, "-m", "pilotage_server.main", *arguments, "--data", str(self.data)]
        environment = {**os.environ, **self._environment}
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=START_TIMEOUT_S, check=False
        )

    def launch(self) -> subprocess.Popen[bytes]:
        """Start the process and return it."""
        self.data.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        command = [*self._limits(), sys.executable, "-m", self._module, "run", "--data", str(self.data)]
        command += ["--listen", self.address or free_address(), "--ready-file", str(self._ready), *self._arguments]
        environment = {**os.environ, **self._environment}
        with (self.data / "server.log").open("ab") as log:
            self.process = subprocess.Popen(command, env=environment, stderr=log)
        return self.process

    def wait_until_ready(self) -> Self:
        """Return when the launched process is ready; fails if it ends or takes too long."""
        assert self.process is not None
        give_up = clock.boot_time_s() + START_TIMEOUT_S
        while not self._ready.exists():
            try:
                self.process.wait(0.01)
            except subprocess.TimeoutExpired:
                if clock.boot_time_s() < give_up:
                    continue
            self.kill()
            pytest.fail(f"the server did not start:\n{self.log()}")
        addresses = json.loads(self._ready.read_text())
        self.address, self.http_address = addresses["address"], addresses.get("http", "")
        return self

    def _limits(self) -> tuple[str, ...]:
        """Return the command prefix that sets limits."""
        file_size = () if self._max_file_bytes_on_disk is None else files_bounded_by(self._max_file_bytes_on_disk)
        open_files = () if self._open_files is None else ("prlimit", f"--nofile={self._open_files}:")
        return (*file_size, *open_files)

    def log(self) -> str:
        return (self.data / "server.log").read_text()

    def stop(self) -> int:
        """Terminate the server; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(START_TIMEOUT_S)

    def kill(self) -> None:
        """Kill the server, as a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def token(
        self,
        *roles: Role,
        owner: str = "alice",
        vo: str = VO,
        groups: tuple[str, ...] = ("grp",),
        bounds: AgentBounds = UNBOUND,
    ) -> str:
        """Return a token with roles, `user` by default, signed with the server's own key."""
        identity = Identity(owner, vo, groups, frozenset(roles or (Role.USER,)), bounds=bounds)
        return self.issuer().issue(identity, timedelta(days=1), clock.now())

    def join_token(self, *roles: Role, life: timedelta = timedelta(hours=1), owner: str = "alice", vo: str = VO) -> str:
        """Return a join token for these roles, signed with the server's own key; with a negative life it has ended."""
        invited = Invitation(frozenset(roles), timedelta(days=1))
        identity = Identity(owner, vo, ("grp",), frozenset({Role.JOIN}), invitation=invited)
        return self.issuer().issue(identity, life, clock.now() + min(life, timedelta(0)))

    def issuer(self) -> TokenIssuer:
        return TokenIssuer(KeySet(KeyFiles(self._key).load_or_make()))

    def channel(self, token: Token, *, timeout_s: float = 30.0) -> grpc.Channel:
        """Return a channel with this token; it is also a context manager that closes it."""
        return open_channel(endpoint_of((self.address,), token), timeout_s=timeout_s)

    def encrypted_channel(self, token: str, root_ca: bytes) -> grpc.Channel:
        """Return a channel with TLS."""
        return open_channel(Endpoint((self.address,), token, root_ca, tls=True))

    def async_channel(self, token: Token, *, timeout_s: float = 30.0) -> grpc.aio.Channel:
        """Return a channel for asyncio with this token."""
        return open_async_channel(endpoint_of((self.address,), token), timeout_s=timeout_s)

    def enrolled(self, secret: str) -> BoundToken:
        """Return the token of a pilot that enrols with this secret."""
        with self.channel(secret) as channel:
            return enrolled(channel)


def self_signed_certificate(folder: Path) -> tuple[Path, Path]:
    """Make a certificate for this machine's loopback addresses; returns its file and that of its key."""
    certificate, key = folder / "cert.pem", folder / "key.pem"
    request = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1 -subj /CN=localhost"
    names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(certificate)]
    subprocess.run([*request.split(), *names, *files], check=True, capture_output=True)
    return certificate, key


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@contextmanager
def running_server(data: Path, **options: Any) -> Iterator[RunningServer]:
    """Run a server with these settings (or options of `RunningServer`) until the end of the block."""
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
    """Return a running server for all tests that neither stop it nor depend on what others have left."""
    with running_server(tmp_path_factory.mktemp("server-data")) as running:
        yield running


class ServerFleet:
    """Servers on one database; each keeps its address over restarts."""

    def __init__(self, folder: Path, database_url: str, count: int, **settings: object) -> None:
        shared: dict[str, Any] = {"database": database_url, "signing_key": str(folder / "key.pem")}
        shared |= {"files": (folder / "files").as_uri(), **settings}
        self.servers = [RunningServer(folder / f"server{number}", **shared) for number in range(count)]

    def start(self) -> None:
        for server in self.servers:
            server.start()

    def kill(self) -> None:
        """Kill all servers, as a crash would."""
        for server in self.servers:
            server.kill()

    def channel(self, token: Token) -> grpc.Channel:
        """Return a channel to all servers; it uses one of them, and another one if that fails."""
        return open_channel(endpoint_of(tuple(server.address for server in self.servers), token))


@contextmanager
def server_fleet(folder: Path, database_url: str, count: int, **settings: object) -> Iterator[ServerFleet]:
    """Run servers until the end of the block."""
    fleet = ServerFleet(folder, database_url, count, **settings)
    try:
        fleet.start()
        yield fleet
    finally:
        fleet.kill()


class Progress:
    """The progress of all pilots of a fleet; `failures` are the errors that ended pilots early."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._finished = 0
        self._is_stopped = False
        self._changed = threading.Condition()
        self.given: list[tuple[int, int]] = []
        self.failures: list[BaseException] = []

    @property
    def is_over(self) -> bool:
        """Whether the pilots must stop."""
        with self._changed:
            return self._finished >= self._jobs or self._is_stopped or bool(self.failures)

    def note(self, given: Sequence[tuple[int, int]], finished: int) -> None:
        """Record the attempts that a pilot was given, and how many of its reports were accepted."""
        with self._changed:
            self.given += given
            self._finished += finished
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Record the error that ended a pilot."""
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

    def stop(self) -> None:
        """Stop the pilots."""
        with self._changed:
            self._is_stopped = True

    def wait_for(self, part: float) -> None:
        """Wait until this part of the jobs is finished."""
        with self._changed:
            reached = self._changed.wait_for(
                lambda: self._finished >= part * self._jobs or bool(self.failures), WAIT_TIMEOUT_S
            )
        assert reached, f"only {self._finished} of {self._jobs} jobs were finished in time"
        assert not self.failures, self.failures


class PollingPilot(threading.Thread):
    """A pilot in a thread whose jobs end at random; it reports their ends with its next request."""

    def __init__(self, channel: grpc.Channel, slots: int, progress: Progress, seed: int) -> None:
        super().__init__(name=f"pilot-{seed}")
        self._matcher = matcher_service_pb2_grpc.MatcherServiceStub(channel)
        self._slots = [f"slot{number}" for number in range(slots)]
        self._progress = progress
        self._random = random.Random(seed)
        self._running: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Work until all jobs of all pilots are finished."""
        try:
            while not self._progress.is_over:
                self._work()
        except BaseException as error:
            self._progress.fail(error)
            raise

    def _work(self) -> None:
        """End some jobs and request others in their place."""
        over = [slot for slot in self._running if self._random.random() < 0.7]
        reports = [_exited(*self._running.pop(slot)) for slot in over]
        free = [slot for slot in self._slots if slot not in self._running]
        request = matcher_service_pb2.RequestJobsRequest(
            request_id=request_id(), slots=[_an_offer(slot) for slot in free], reports=reports
        )
        answer = self._repeat_until_answered(lambda: self._matcher.RequestJobs(request, timeout=20))
        refusals = [result.refusal for result in answer.results if not result.accepted]
        assert not refusals, refusals
        self._running |= {match.slot: (match.job_id, match.attempt) for match in answer.matches}
        self._progress.note([(match.job_id, match.attempt) for match in answer.matches], len(reports))

    def _repeat_until_answered(self, call: Callable[[], Answer]) -> Answer:
        """Repeat a call, with the same request id, until a server has answered it."""
        give_up = clock.boot_time_s() + WAIT_TIMEOUT_S
        while True:
            try:
                return call()
            except ServerUnreachableError:
                if clock.boot_time_s() > give_up:
                    raise


def _an_offer(slot: str) -> matcher_service_pb2.SlotOffer:
    free = values_pb2.Amounts(cpus=1, memory_mib=4000, disk_mib=10_000)
    return matcher_service_pb2.SlotOffer(name=slot, free=free)


def _exited(job_id: int, attempt: int) -> jobs_pb2.JobReport:
    return jobs_pb2.JobReport(
        job_id=job_id, attempt=attempt, state=jobs_pb2.JOB_STATE_DONE, outcome=jobs_pb2.OUTCOME_EXITED, exit_code=0
    )
