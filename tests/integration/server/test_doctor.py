"""`pilotage doctor` against real servers, broker, agents and pilots: a healthy installation, and its faults."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path

from click.testing import Result
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from chaos.clock import JumpingClock
from pilotage import clock
from pilotage_server.core.identity import Identity, Role
from support.commands import KEYS, PROGRAMS, json_objects, run
from support.mosquitto import MosquittoServer
from support.processes import free_address, until
from support.server import RunningServer, running_server

TREE = {"sites": {"Here": {"CEType": "local", "ces": {"ce": {"queues": {"q": {"CPUs": 1, "Memory": 500}}}}}}}


def write_certificate(folder: Path, ends_in: timedelta) -> None:
    """Write cert.pem and key.pem of this machine, valid since ten days."""
    key = generate_private_key(SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(clock.now() - timedelta(days=10))
        .not_valid_after(clock.now() + ends_in)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, SHA256())
    )
    (folder / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (folder / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))


def token(server: RunningServer, *roles: Role, begins_ago: timedelta = timedelta(0)) -> str:
    """Return a token that is valid for a week from its begin."""
    identity = Identity("olga", "", (), frozenset(roles))
    return server.issuer().issue(identity, timedelta(days=7), clock.now() - begins_ago)


class Doctor:
    """The command of an operator."""

    def __init__(self, folder: Path, server: str, own: str, ca_file: Path | None = None) -> None:
        token_file = folder / "operator.token"
        token_file.write_text(own)
        authority = () if ca_file is None else ("--ca-file", ca_file)
        self._arguments = ("doctor", "--server", server, "--token-file", token_file, *authority)

    def __call__(self, exits: int) -> Mapping[str, Mapping[str, str]]:
        """Return the worst line of each check."""
        order = ("ok", "warning", "fault")
        done = run(*self._arguments, "--json")
        assert done.exit_code == exits, done.output
        return {
            line["check"]: line
            for line in sorted(json_objects(done.stdout), key=lambda line: order.index(line["level"]))
        }

    def levels(self) -> set[str]:
        """Return the levels of all findings."""
        return {line["level"] for line in json_objects(run(*self._arguments, "--json").stdout)}

    def bad(self) -> set[str]:
        """Return the checks with a fault."""
        return {
            line["check"] for line in json_objects(run(*self._arguments, "--json").stdout) if line["level"] == "fault"
        }

    def also(self, *command: str | Path) -> Result:
        """Run another command with the same server and token."""
        return run(*command, *self._arguments[1:])

    def text(self) -> str:
        return run(*self._arguments).stdout


@contextmanager
def a_director(folder: Path, server: RunningServer, ca_file: Path) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "agent.token").write_text(token(server, Role.DIRECTOR))
    config = folder / "agents.toml"
    config.write_text(f"""
server = "{server.address}"
token_file = "agent.token"
ca_file = "{ca_file}"
turn_s = 1
[site_director]
folder = "director"
interval_s = 0.2
pilot_command = ["true"]
[site_director.batch_systems.local]
type = "local"
""")
    with (folder / "director.log").open("wb") as log:
        command = [str(PROGRAMS / "pilotage-agents"), "site-director", "--config", str(config)]
        director = subprocess.Popen(command, stderr=log)
    try:
        yield director
    finally:
        director.kill()
        director.wait()


async def test_healthy_installation_is_ok_and_each_fault_has_its_line(
    tmp_path: Path, mosquitto: MosquittoServer
) -> None:
    write_certificate(tmp_path, timedelta(days=90))
    authority = tmp_path / "authority.pem"
    authority.write_bytes("# Főtanúsítvány\n".encode() + (tmp_path / "cert.pem").read_bytes())
    server = RunningServer(
        tmp_path / "server",
        broker=mosquitto.url,
        tls_cert=str(tmp_path / "cert.pem"),
        tls_key=str(tmp_path / "key.pem"),
    )
    server.address = free_address().replace("127.0.0.1", "localhost")
    try:
        server.start()
        server.address = server.address.replace("127.0.0.1", "localhost")
        operator = token(server, Role.OPERATOR)
        doctor = Doctor(tmp_path, server.address, operator, authority)
        found = doctor(1)
        assert found["tree"]["advice"] == "pilotage tree put FILE"
        tree = tmp_path / "tree.json"
        tree.write_text(json.dumps(TREE))
        assert doctor.also("tree", "put", tree).exit_code == 0
        assert "no site director serves this queue" in doctor(1)["queues"]["text"]
        with a_director(tmp_path, server, authority) as director:
            await until(lambda: doctor.levels() == {"ok"})
            found = doctor(0)
            assert {tuple(each) for each in found.values()} == {tuple(KEYS["doctor"])}
            assert {"server", "clock", "certificate", "token", "database", "integrity", "disk", "broker"} < set(found)
            assert {"tree", "queues", "agents", "pilots", "keys", "tasks"} < set(found)
            assert " fault" in doctor.text().splitlines()[-1]

            director.kill()
            await until(lambda: {"agents", "queues"} <= doctor.bad())
        assert "has stopped at" in doctor(1)["agents"]["text"]

        mosquitto.stop()
        await until(lambda: "broker" in doctor.bad())
        write_certificate(tmp_path, timedelta(days=-1))  # the server shows the one that it has read at its start
        assert "ended at" in doctor(1)["certificate"]["text"]
    finally:
        server.kill()


def test_server_that_does_not_answer_or_refuses_the_token_is_a_fault(tmp_path: Path) -> None:
    with running_server(tmp_path / "server") as server:
        old = Doctor(tmp_path, server.address, token(server, Role.OPERATOR, begins_ago=timedelta(days=8)))(1)
        assert "refuses this token" in old["token"]["text"]
        ending = token(server, Role.OPERATOR, begins_ago=timedelta(days=6))  # the last quarter of its lifetime
        assert Doctor(tmp_path, server.address, ending)(1)["token"]["level"] == "warning"
        assert "needs the role" in Doctor(tmp_path, server.address, token(server, Role.USER))(1)["token"]["text"]
        (tmp_path / "broken.pem").write_bytes(b"\xffnothing")
        broken = Doctor(tmp_path, server.address, ending, tmp_path / "broken.pem")(1)
        assert "the file of its authority has no certificate" in broken["certificate"]["text"]
        away = free_address()
        lines = Doctor(tmp_path, f"{away},{server.address}", token(server, Role.OPERATOR))
        assert f"==> {away} <==" in (text := lines.text())
        assert "Connection refused" in text
        assert "there is no resource tree" in text


def test_own_certificate_of_a_server_is_examined(tmp_path: Path) -> None:
    server = RunningServer(tmp_path / "server")
    server.address = free_address().replace("127.0.0.1", "0.0.0.0")
    try:
        server.start()
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        own = server.data / "tls"
        doctor = Doctor(tmp_path, address, token(server, Role.OPERATOR), own / "authority.pem")
        found = [line for line in doctor.text().splitlines() if line.startswith("ok       certificate")]
        assert len(found) == 2  # as shown to this command, and as the server reads it
        assert f"{own / 'server.pem'} is valid until" in found[1]
    finally:
        server.kill()


def test_clock_of_the_server_is_compared(tmp_path: Path) -> None:
    (tmp_path / "clock").mkdir()
    with (
        closing(JumpingClock(tmp_path / "clock")) as jumping,
        running_server(tmp_path / "server", environment=jumping.environment) as server,
    ):
        doctor = Doctor(tmp_path, server.address, token(server, Role.OPERATOR))
        assert doctor(1)["clock"]["level"] == "ok"  # the fault is the missing tree
        jumping.jump(20)
        assert doctor(1)["clock"]["level"] == "warning"
        jumping.jump(100)
        found = doctor(1)["clock"]
        assert (found["level"], "differ by 1" in found["text"]) == ("fault", True)
        assert "timedatectl" in found["advice"]
