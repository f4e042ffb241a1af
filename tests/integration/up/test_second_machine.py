"""Three machines, each with its own network, host name, home and data: a server, a worker and a laptop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage import clock
from pilotage_client.joining import JoinToken
from pilotage_server.core.identity import Identity, Invitation, Role
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.rpc.framework.tokens import TokenIssuer
from support.machines import Machine
from support.network import Network

pytestmark = pytest.mark.process

LINE = r"pilotage join \S+ --token \S+"
JOB = """\
executable = "/bin/sh"
arguments = "-c 'hostname'"
stdout = "out"
sites = ["workers"]
"""


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


def test_team_on_three_machines(network: Network, tmp_path: Path) -> None:
    head, worker, laptop = (Machine(network, network.add_host(name), tmp_path) for name in ("head", "node2", "laptop"))
    for machine in (head, worker):
        (machine.home / "job.toml").write_text(JOB)
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
