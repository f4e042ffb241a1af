"""A real Mosquitto for tests: on a free port, in a scratch folder, gone when the tests are over."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage import clock
from support.debian import found_or_installed
from support.ports import free_port

_TIMEOUT_S = 30


class MosquittoServer:
    """A broker process on a port of its own; it can be killed and started again."""

    def __init__(self, program: Path, folder: Path) -> None:
        self._command = [str(program), "-c", str(folder / "mosquitto.conf")]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        # Nobody reads what it says but after a start in vain: it must not fill the pipe, or it stands still.
        settings = [f"listener {self.port} 127.0.0.1", "allow_anonymous true", "persistence false", "log_type error"]
        (folder / "mosquitto.conf").write_text("\n".join([*settings, "user root"]) + "\n")

    @property
    def url(self) -> str:
        """Where it is."""
        return f"mqtt://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it and return when it listens."""
        self._process = subprocess.Popen(self._command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE)
        give_up = clock.boot_time_s() + _TIMEOUT_S
        while not _listens(self.port):
            try:
                self._process.wait(0.01)
            except subprocess.TimeoutExpired:
                if clock.boot_time_s() < give_up:
                    continue
            _, said = self._process.communicate(timeout=_TIMEOUT_S)
            pytest.fail(f"Mosquitto did not start: {said.decode()}")

    def stop(self) -> None:
        """End it as a crash would: nothing that it held is kept."""
        if self._process is not None:
            self._process.send_signal(signal.SIGKILL)
            self._process.communicate(timeout=_TIMEOUT_S)
            self._process = None


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _installed_program() -> Path | None:
    found = shutil.which("mosquitto", path="/usr/sbin:/usr/local/sbin:/usr/bin:/usr/local/bin")
    return None if found is None else Path(found)


@contextmanager
def running_mosquitto() -> Iterator[MosquittoServer]:
    """Run a broker in a new folder; it is stopped, and the folder removed, at the end of the block."""
    program = found_or_installed(_installed_program, "mosquitto")
    folder = Path(tempfile.mkdtemp(prefix="pilotage-mosquitto-"))
    broker = MosquittoServer(program, folder)
    try:
        broker.start()
        yield broker
    finally:
        broker.stop()
        shutil.rmtree(folder)


@pytest.fixture
def mosquitto() -> Iterator[MosquittoServer]:
    """Return a running broker of the test's own."""
    with running_mosquitto() as broker:
        yield broker
