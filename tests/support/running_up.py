"""`pilotage up` in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import pytest

from pilotage.clock import boot_time_s
from pilotage.errors import ServerUnreachableError
from pilotage_client.api import Client
from pilotage_client.connection import ServerOptions

PATIENCE_S = 60.0


class RunningUp:
    """The command with its data folder; it can be stopped and started again."""

    def __init__(self, data: Path, *options: str) -> None:
        self.data = data
        self._options = options
        self._printed = data.with_suffix(".out")
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def printed(self) -> str:
        """What the last start has printed."""
        return self._printed.read_text()

    def start(self) -> Self:
        """Start the command and return when it is up."""
        self._process = self._started()
        self.until(lambda: "is up" in self.printed)
        return self

    def run(self) -> tuple[int, str]:
        """Run the command to its end; returns exit code and what it printed."""
        self._process = self._started()
        return self._process.wait(PATIENCE_S), self.printed

    def stop(self, number: signal.Signals = signal.SIGINT) -> int:
        """Stop the command as Ctrl-C does; returns its exit code."""
        assert self._process is not None
        self._process.send_signal(number)
        return self._process.wait(PATIENCE_S)

    def end(self) -> None:
        """Stop the command if it runs."""
        if self._process is not None and self._process.poll() is None:
            self.stop()

    def until(self, happened: Callable[[], bool]) -> None:
        """Return as soon as it has `happened`; fails with what was printed and logged when it does not."""
        assert self._process is not None
        give_up_s = boot_time_s() + PATIENCE_S
        while not happened():
            try:
                self._process.wait(0.02)
            except subprocess.TimeoutExpired:
                if boot_time_s() < give_up_s:
                    continue
            pytest.fail(f"it did not happen:\n{self.printed}\n{self._logs()}")

    def client(self) -> Client:
        """Return a client in the user's name."""
        return Client.located(ServerOptions(data=self.data))

    def answers(self) -> bool:
        """Return whether the server answers."""
        try:
            with self.client() as client:
                client.who_am_i()
        except ServerUnreachableError:
            return False
        return True

    def children(self) -> list[int]:
        """Return the process ids of server and agents, in the order of their start."""
        assert self._process is not None
        children = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def _started(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "pilotage_client.cli.main", "up", "--data", str(self.data), *self._options]
        with self._printed.open("wb") as output:
            return subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)

    def _logs(self) -> str:
        logs = [*self.data.glob("logs/*.log"), *self.data.glob("director/pilots/*/pilot.log")]
        return "\n".join(f"== {log}\n{log.read_text()[-3000:]}" for log in logs)


@contextmanager
def running_up(data: Path, *options: str) -> Iterator[RunningUp]:
    """Give a command that is not started yet, and stop it at the end of the block, whatever happens."""
    up = RunningUp(data, *(options or ("--port", "0")))
    try:
        yield up
    finally:
        up.end()
