"""Three machines, each with its own network, host name, home and data: a server, a worker and a laptop."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage import clock
from pilotage_client.cli.main import main
from pilotage_client.joining import JoinToken
from pilotage_server.core.identity import Identity, Invitation, Role
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.rpc.framework.tokens import TokenIssuer
from support.commands import WAIT_TIMEOUT_S, environment_of
from support.network import Host, Network

pytestmark = pytest.mark.process

LINE = r"pilotage join \S+ --token \S+"
JOB = """\
executable = "/bin/sh"
arguments = "-c 'hostname'"
stdout = "out"
sites = ["workers"]
"""


class Machine:
    """A machine of the test; its commands see its network, host name and home."""

    def __init__(self, network: Network, host: Host, folder: Path) -> None:
        self.home = folder / host.name
        self.home.mkdir()
        (self.home / "job.toml").write_text(JOB)
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
        with self._network.inside(self._host), printed.open("wb") as output:
            process = subprocess.Popen(
                self._command(arguments), env=environment_of(self.home), cwd=self.home, stdout=output, stderr=output
            )

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


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def test_team_on_three_machines(network: Network, tmp_path: Path) -> None:
    head, worker, laptop = (Machine(network, network.add_host(name), tmp_path) for name in ("head", "node2", "laptop"))
    with ExitStack() as stack:
        printed = stack.enter_context(head.running("pilotage", "up", "--listen", "--cpus", "1"))("prints such lines")
        submits, works = re.findall(LINE, printed)
        # The three commands of the second machine.
        assert "run jobs here, in the queue workers/node2/default: pilotage up --pilot-only" in worker(*works.split())
        stack.enter_context(worker.running("pilotage", "up", "--pilot-only", "--cpus", "1"))("run here for")
        worker("pilotage", "submit", "--follow", "job.toml")

        head("pilotage", "submit", "--follow", "job.toml")
        assert re.findall(r"^node2$", head("pilotage", "output", "1", "2"), re.MULTILINE) == ["node2"] * 2

        assert "tls/server.pem is valid until" in head("pilotage", "doctor")
        assert_refusals(head, laptop, submits.split()[-1])
        (line,) = re.findall(LINE, head("pilotage", "token", "join", "--owner", "bob", "--group", "analysis"))
        laptop(*line.split(), "--name", "office")
        assert "bob of VO local, groups analysis" in laptop("pilotage", "whoami", "--context", "office")
        assert "needs the role" in laptop.run("pilotage", "doctor", "--context", "office").stdout
        refused = laptop.in_process("up", "--pilot-only")
        assert (refused.exit_code, "the context office may not run jobs" in refused.stderr) == (2, True)


def assert_refusals(head: Machine, laptop: Machine, text: str) -> None:
    """Check what `join` says of another authority, of an expired token, and of an address without a server."""
    token = JoinToken.parse(text)
    keys = KeySet(KeyFiles(head.home / ".local/share/pilotage/server/keys/tokens.pem").load())
    invited = Invitation(frozenset({Role.USER}), timedelta(days=1))
    identity = Identity("olga", "local", (), frozenset({Role.JOIN}), invitation=invited)
    expired = TokenIssuer(keys).issue(identity, timedelta(hours=1), clock.now() - timedelta(hours=2))
    for address, given, code, sentence in (
        (head.address, JoinToken("0" * 64, token.jwt), 2, "is not that of the join token"),
        (laptop.address, token, 3, f"the server at {laptop.address}:4711 cannot be reached: Connection refused"),
        ("nowhere.invalid", token, 3, "the server at nowhere.invalid:4711 cannot be reached: "),
    ):
        refused = laptop.in_process("join", address, "--token", str(given))
        assert (refused.exit_code, refused.stderr.count("\n")) == (code, 1), refused.stderr
        assert sentence in refused.stderr
    late = laptop.run("pilotage", "join", head.address, "--token", str(JoinToken(token.authority, expired)))
    assert (late.returncode, late.stderr.count("\n")) == (2, 1), late.stderr
    assert re.search("the token expired at .*`pilotage token join`", late.stderr)
    assert "no context" in laptop.in_process("context", "list").stdout
