"""Machines of a test, each with its own network, host name, home and data."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from pilotage import clock
from pilotage_client.cli.main import main
from support.commands import WAIT_TIMEOUT_S, environment_of
from support.network import Host, Network


class Machine:
    """A machine of a test; its commands see its network, host name and home, a folder of its name in `folder`."""

    def __init__(self, network: Network, host: Host, folder: Path) -> None:
        self.home = folder / host.name
        self.home.mkdir()
        # HTCondor's library waits for a name service that is away, unless the machine knows its own name.
        (self.home / "hosts").write_text(f"127.0.0.1 localhost\n{host.address} {host.name}\n")
        self._network = network
        self._host = host

    @property
    def address(self) -> str:
        return self._host.address

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command to its end."""
        with self._network.inside(self._host):
            return subprocess.run(
                self._command(arguments),
                env=environment_of(self.home),
                cwd=self.home,
                capture_output=True,
                text=True,
                timeout=WAIT_TIMEOUT_S,
                check=False,
            )

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        """Start a command; `options` are those of Popen, and `env` adds variables."""
        environment = environment_of(self.home, **options.pop("env", {}))
        with self._network.inside(self._host):
            return subprocess.Popen(self._command(arguments), env=environment, cwd=self.home, **options)

    def __call__(self, *arguments: str) -> str:
        """Run a command that must succeed, and return its output."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def in_process(self, *arguments: str) -> Result:
        """Run a command that makes no call to a server, which is quicker: gRPC would stay on its first host."""
        with self._network.inside(self._host):
            return CliRunner().invoke(main, arguments, env={"XDG_CONFIG_HOME": str(self.home / ".config")})

    @contextmanager
    def running(self, *arguments: str) -> Iterator[Callable[[str], str]]:
        """Run a command until the end of the block; yields a function that waits for a text in its output."""
        printed = self.home / f"{len(list(self.home.iterdir()))}.out"
        with printed.open("wb") as output:
            process = self.start(*arguments, stdout=output, stderr=output)

        def until(text: str) -> str:
            give_up_s = clock.boot_time_s() + WAIT_TIMEOUT_S
            while text not in printed.read_text():
                try:
                    process.wait(0.02)
                except subprocess.TimeoutExpired:
                    if clock.boot_time_s() < give_up_s:
                        continue
                pytest.fail(f"{arguments} did not print {text!r}:\n{printed.read_text()}")
            return printed.read_text()

        try:
            yield until
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(WAIT_TIMEOUT_S)

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        named = f'hostname {self._host.name}; mount --bind "$HOME/hosts" /etc/hosts; exec "$@"'
        return ["unshare", "--uts", "--mount", "sh", "-c", named, "sh", *arguments]
