"""A real sshd on a free port of this machine, with its own keys."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pilotage import clock
from pilotage_agents.batch_systems.settings import SshSettings
from support.debian import find_or_install
from support.processes import free_port

_TIMEOUT_S = 30
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/sbin:/usr/local/bin"
# The privilege separation folder of an sshd that root starts.
_PRIVSEP_FOLDER = Path("/run/sshd")


class SshServer:
    """An sshd that admits the user of the tests by one key; it can be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._daemon: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        for key in ("host_key", "user_key", "other_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / key))
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {(folder / 'host_key.pub').read_text()}")
        (folder / "sshd_config").write_text(_configuration(folder, self.port))

    def settings(self, **other: object) -> SshSettings:
        """Return the client settings for this server."""
        user = pwd.getpwuid(os.geteuid()).pw_name
        return SshSettings.model_validate(
            {
                "host": f"{user}@127.0.0.1",
                "port": self.port,
                "identity_file": str(self.folder / "user_key"),
                "options": ["-F/dev/null", f"-oUserKnownHostsFile={self.folder / 'known_hosts'}"],
                **other,
            }
        )

    def start(self) -> None:
        """Start the daemon and return when it accepts connections."""
        if os.geteuid() == 0:
            _PRIVSEP_FOLDER.mkdir(exist_ok=True)
        program = shutil.which("sshd", path=_PATH)
        assert program is not None
        with (self.folder / "log").open("ab") as log:
            self._daemon = subprocess.Popen(
                [program, "-D", "-e", "-f", str(self.folder / "sshd_config")], stdin=subprocess.DEVNULL, stderr=log
            )
        give_up_s = clock.boot_time_s() + _TIMEOUT_S
        while not self._listens():
            with contextlib.suppress(subprocess.TimeoutExpired):
                pytest.fail(f"sshd has ended with {self._daemon.wait(0.05)}: {(self.folder / 'log').read_text()}")
            assert clock.boot_time_s() < give_up_s, (self.folder / "log").read_text()

    def stop(self) -> None:
        """Stop the daemon."""
        if self._daemon is not None:
            self._daemon.terminate()
            self._daemon.wait(_TIMEOUT_S)
            self._daemon = None

    def _listens(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0


def _configuration(folder: Path, port: int) -> str:
    settings = {
        "ListenAddress": f"127.0.0.1:{port}",
        "HostKey": folder / "host_key",
        "AuthorizedKeysFile": folder / "authorized_keys",
        "PidFile": folder / "pid",
        "StrictModes": "no",
        "UsePAM": "no",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "PermitRootLogin": "prohibit-password",
        "MaxStartups": "100",
        "PrintMotd": "no",
    }
    return "".join(f"{name} {value}\n" for name, value in settings.items())


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S)


@contextmanager
def running_sshd() -> Iterator[SshServer]:
    """Run an sshd in a new folder until the end of the block."""
    find_or_install(lambda: shutil.which("ssh", path=_PATH), "openssh-client")
    find_or_install(lambda: shutil.which("sshd", path=_PATH), "openssh-server")
    folder = Path(tempfile.mkdtemp(prefix="pilotage-sshd-"))
    server = SshServer(folder)
    try:
        server.start()
        yield server
    finally:
        server.stop()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def sshd() -> Iterator[SshServer]:
    """Return a running sshd for all tests of a module."""
    with running_sshd() as server:
        yield server
