"""The programs as a deployment runs them: their command lines, files at their places, and hosts with names.

Each process has a host of its own or shares one, and sees the installation's folders although this machine has none.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from support.network import Host, Network
from support.packages import CHECKOUT

DEPLOY = CHECKOUT / "deploy"
TIMEOUT_S = 60

_MOUNTED = """
set -e
mount -t tmpfs tmpfs /var/lib
for each in etc opt; do
    mkdir -p /var/lib/.$each/upper /var/lib/.$each/work
    mount -t overlay -o lowerdir=/$each,upperdir=/var/lib/.$each/upper,workdir=/var/lib/.$each/work overlay /$each
done
while [ "$1" != -- ]; do
    if [ -d "$1" ]; then mkdir -p "$2"; else mkdir -p "${2%/*}"; [ -e "$2" ] || : > "$2"; fi
    mount --bind "$1" "$2"
    shift 2
done
shift
exec "$@"
"""
"""Runs a command where SOURCE is at TARGET, for `SOURCE TARGET … -- COMMAND`; no one else sees these mounts."""


def mounted(words: Sequence[str], volumes: Mapping[str, Path]) -> list[str]:
    """Return the command that runs `words` with a file or folder of this machine at each path of `volumes`."""
    pairs = [word for target, source in volumes.items() for word in (str(source), target)]
    return ["unshare", "--mount", "--", "sh", "-c", _MOUNTED, "sh", *pairs, "--", *words]


def unit(name: str) -> dict[str, list[str]]:
    """Return the assignments of a unit file by name, in order."""
    lines = (DEPLOY / "systemd" / name).read_text().splitlines()
    found: dict[str, list[str]] = {}
    for key, mark, value in (line.partition("=") for line in lines if not line.startswith("#")):
        if mark:
            found.setdefault(key, []).append(value)
    return found


def unit_command(name: str) -> list[str]:
    """Return the command of a unit, with no more privileges than the unit leaves to a process of root."""
    settings = unit(name)
    (command,) = settings["ExecStart"]
    (kept,) = settings["CapabilityBoundingSet"]
    capabilities = ",".join(["-all", *(f"+{each.removeprefix('CAP_').lower()}" for each in kept.split())])
    return [
        *("setpriv", f"--bounding-set={capabilities}", "--inh-caps=-all", "--no-new-privs", "--"),
        *shlex.split(command),
    ]


@dataclass
class Deployment:
    """Hosts with names in a network; `folder` has the file of these names."""

    network: Network
    folder: Path
    hosts: dict[str, Host] = field(default_factory=dict)

    def add_hosts(self, *names: str) -> None:
        """Add hosts, before any process is started."""
        self.hosts |= {name: self.network.add_host(name) for name in names}
        # HTCondor's library looks up this machine's own name, and hangs without an answer.
        lines = [
            f"127.0.0.1 localhost {socket.gethostname()}",
            *(f"{host.address} {name}" for name, host in self.hosts.items()),
        ]
        (self.folder / "hosts").write_text("\n".join(lines) + "\n")

    def command(self, words: Sequence[str], volumes: Mapping[str, Path]) -> list[str]:
        """Return the command that runs `words` in this installation, with `volumes`."""
        return mounted(words, {"/opt/pilotage": Path(sys.prefix), "/etc/hosts": self.folder / "hosts", **volumes})

    def run(self, host: str, words: Sequence[str], volumes: Mapping[str, Path] = {}, **environment: str) -> str:
        """Run a command on a host to its end, which must be a success; returns its output."""
        with self.network.inside(self.hosts[host]):
            done = subprocess.run(
                self.command(words, volumes),
                env=_environment(environment),
                capture_output=True,
                text=True,
                timeout=TIMEOUT_S,
                check=False,
            )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def service(
        self, host: str, words: Sequence[str], volumes: Mapping[str, Path], environment: Mapping[str, str] = {}
    ) -> Iterator[Service]:
        """Run a process on a host until the end of the block."""
        with self.network.inside(self.hosts[host]):
            service = Service(self.command(words, volumes), environment)
        try:
            yield service
        finally:
            service.close()


class Service:
    """A process that reports its state to its service manager, as systemd's Type=notify expects."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="pilotage-service-")
        name = f"{self._folder.name}/notify"
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.bind(name)
        self._log = Path(self._folder.name, "log")
        with self._log.open("wb") as log:
            variables = _environment({**environment, "NOTIFY_SOCKET": name})
            self.process = subprocess.Popen(command, env=variables, stdout=log, stderr=log)

    def reported(self) -> str:
        """Wait for the next state that the process reports, and return it."""
        try:
            return self._socket.recv(4096).decode()
        except TimeoutError:
            raise AssertionError(f"no state was reported:\n{self.log()}") from None

    def ready(self) -> Self:
        """Return when the process has reported that it is ready."""
        assert self.reported() == "READY=1"
        return self

    def log(self) -> str:
        return self._log.read_text()

    def stop(self) -> int:
        """Order the process to stop; returns its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(TIMEOUT_S)

    def close(self) -> None:
        """End the process, if it is still there; kill it if it does not end."""
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self.process.kill()
            self.process.wait()
            self._socket.close()
            self._folder.cleanup()


def _environment(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a process: nothing of the tests but their limits on what is tried."""
    limits = {name: text for name, text in os.environ.items() if name.startswith("PILOTAGE_PILOT_CONTAINER_")}
    path = "/opt/pilotage/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    return {"PATH": path, "LANG": "C.UTF-8", "PILOTAGE_SERVER_DISK_RESERVE_MIB": "16", **limits, **variables}
