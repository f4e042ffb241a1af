"""The server's command: start, errors in one line, and tokens."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    SECP521R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from sqlalchemy import text

from pilotage import clock
from pilotage.v1 import (
    identity_service_pb2,
    identity_service_pb2_grpc,
)
from pilotage_client.api import Client
from pilotage_client.joining import JoinToken, join
from pilotage_server.main import main
from pilotage_server.storage.database.engine import Database
from pilotage_server.token_files import ROLES
from support.database import create_first_schema
from support.server import RunningServer, files_bounded_by, running_server

pytestmark = pytest.mark.process

TIMEOUT_S = 60


def run_command(*arguments: str, before: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "pilotage_server.main", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)


def assert_one_error_line(done: subprocess.CompletedProcess[str], message: str, code: int = 1) -> None:
    lines = done.stderr.strip().splitlines()
    assert done.returncode == code, done.stderr
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("pilotage-server: ")
    assert message in lines[0]


def test_ready_file_has_the_address_and_is_removed_at_stop(server: RunningServer) -> None:
    ready = server.data / "ready.json"
    host, port = json.loads(ready.read_text())["address"].split(":")
    socket.create_connection((host, int(port))).close()

    assert server.stop() == 0
    assert not ready.exists()


def test_second_server_on_the_same_data_is_rejected(server: RunningServer) -> None:
    second = run_command("run", "--data", str(server.data), "--listen", "127.0.0.1:0")

    assert server.process is not None
    assert_one_error_line(second, f"another server works with {server.data} already (process {server.process.pid})")


def test_port_in_use_is_one_error_line(server: RunningServer, tmp_path: Path) -> None:
    second = run_command("run", "--data", str(tmp_path / "other"), "--listen", server.address)

    assert_one_error_line(second, f"cannot listen at {server.address}: Address already in use")


def test_invalid_data_folder_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    assert_one_error_line(
        run_command("run", "--data", str(tmp_path / "file" / "data"), "--listen", "127.0.0.1:0"),
        "cannot be used: Not a directory",
    )


def test_full_disk_at_start_is_one_error_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER_DISK_RESERVE_MIB", "0")
    options = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")

    done = run_command("run", *options, before=files_bounded_by(20_000))

    assert_one_error_line(done, "database")


def test_readable_signing_key_is_one_error_line(tmp_path: Path) -> None:
    assert run_command("token", "--data", str(tmp_path), "--role", "user").returncode == 0
    (tmp_path / "keys" / "tokens.pem").chmod(0o644)

    done = run_command("run", "--data", str(tmp_path), "--listen", "127.0.0.1:0")

    assert_one_error_line(done, "is open to others (mode 644)")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "nowhere"], "listen"),
        (["--config", "/does/not/exist.toml"], "exist.toml: cannot be read"),
        (["--database", "nonsense"], "is not a URL of sqlite or postgresql"),
        (["--database", "mysql://host/name"], "is not a URL of sqlite or postgresql"),
    ],
)
def test_invalid_setting_is_one_error_line(tmp_path: Path, arguments: list[str], message: str) -> None:
    assert_one_error_line(run_command("run", "--data", str(tmp_path), *arguments), message, code=2)


def test_check_and_show_read_settings_without_a_start(tmp_path: Path) -> None:
    data = tmp_path / "data"
    options = ("--data", str(data), "--database", "postgresql+psycopg://somebody:hush@127.0.0.1:1/jobs")

    checked = run_command("run", *options, "--check-settings")
    shown = run_command("run", *options, "--set", "health.watch=false", "--show-settings")

    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
    assert (shown.returncode, shown.stderr) == (0, "")
    assert f'data = "{data}"  # --data' in shown.stdout.splitlines()
    assert "health.watch = false  # --set health.watch" in shown.stdout.splitlines()
    assert "hush" not in shown.stdout
    assert not data.exists()


def test_unreachable_database_is_one_error_line(tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('database = "postgresql+psycopg://somebody@127.0.0.1:1/jobs"\ndatabase_wait_s = 0\n')

    done = run_command("run", "--data", str(tmp_path), "--listen", "127.0.0.1:0", "--config", str(config))

    assert_one_error_line(done, "the database is not available")


def test_invalid_certificate_is_one_error_line(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(f'tls_cert = "{tmp_path}/config.toml"\ntls_key = "{tmp_path}/absent"\n')

    options = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    done = run_command("run", *options, "--config", str(tmp_path / "config.toml"))

    assert_one_error_line(done, "cannot be used")


@pytest.mark.parametrize(
    ("key", "begins", "ends", "message"),
    [
        (generate_private_key(SECP256R1()), -2, -1, "ended at "),
        (generate_private_key(SECP256R1()), 1, 2, "is not valid before "),
        (Ed25519PrivateKey.generate(), -1, 1, "do not support the kind of its key"),
        (generate_private_key(SECP521R1()), -1, 1, "do not support the kind of its key"),
    ],
)
def test_certificate_that_clients_refuse_is_one_error_line(
    tmp_path: Path, key: Ed25519PrivateKey | EllipticCurvePrivateKey, begins: int, ends: int, message: str
) -> None:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(clock.now() + timedelta(days=begins))
        .not_valid_after(clock.now() + timedelta(days=ends))
        .sign(key, None if isinstance(key, Ed25519PrivateKey) else SHA256())
    )
    (tmp_path / "cert.pem").write_bytes(certificate.public_bytes(Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "config.toml").write_text(f'tls_cert = "{tmp_path}/cert.pem"\ntls_key = "{tmp_path}/key.pem"\n')
    options = ("--data", str(tmp_path / "data"), "--listen", "127.0.0.1:0")
    assert_one_error_line(run_command("run", *options, "--config", str(tmp_path / "config.toml")), message)


def test_token_signed_offline_is_accepted(server: RunningServer) -> None:
    done = run_command("token", "--data", str(server.data), "--owner", "carol", "--vo", "sea", "--role", "operator")

    with server.channel(done.stdout.strip()) as channel:
        stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
        identity = stub.WhoAmI(identity_service_pb2.WhoAmIRequest())

    assert (identity.owner, identity.vo, list(identity.roles)) == ("carol", "sea", ["operator"])


def test_machine_joins_by_a_line_signed_offline(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", arguments=["--listen", "0.0.0.0:0"]) as server:
        address = server.address.replace("0.0.0.0", "127.0.0.1")
        data = ("--data", str(server.data))
        line = run_command("token", *data, "--owner", "carol", "--role", "user", "--join", address).stdout.split()
        assert line[:4] == ["pilotage", "join", address, "--token"]
        token = JoinToken.parse(line[4])
        joined = join(address, token, "laptop", None, cpus=1)
        with Client(joined.server, joined.token, joined.authority.encode()) as client:
            assert client.who_am_i().owner == "carol"
        refused = run_command("token", *data, "--role", "admin", "--join", address)
    assert_one_error_line(refused, "of a machine that joins is one of director, user", code=2)
    early = run_command("token", "--data", str(tmp_path / "new"), "--role", "user", "--join", address)
    assert "tls has no authority, which the first start with --listen makes" in early.stderr


def test_bootstrap_tokens_are_private_and_have_their_roles(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    with running_server(tmp_path / "data", arguments=["--bootstrap-tokens", str(tokens), "--vo", "sea"]) as server:
        for name in ROLES:
            file = tokens / f"{name}.token"
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            with server.channel(file.read_text().strip()) as channel:
                stub = identity_service_pb2_grpc.IdentityServiceStub(channel)
                assert name in stub.WhoAmI(identity_service_pb2.WhoAmIRequest()).roles


def test_migrate_says_what_would_run_and_runs_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def migrate(*options: str) -> tuple[int, str]:
        code = main(["migrate", *options, "--data", str(tmp_path)])
        printed = capsys.readouterr()
        return code, printed.out.rstrip().split("\n")[-1] or printed.err

    code, line = migrate("--check")
    assert (code, "pilotage.db" in line) == (1, True)
    with closing(Database(f"sqlite:///{tmp_path / 'pilotage.db'}")) as database:
        code, line = migrate()
        assert (code, "no installation" in line) == (1, True)
        create_first_schema(database)
        code, line = migrate("--check")
        assert (code, line[:13]) == (3, "pending: 0004")
        assert migrate() == (0, "the database has schema 0004 now")
        assert migrate("--check") == (0, "the database has schema 0004; this program wants 0004")
        later = text("UPDATE alembic_version SET version_num = '9999'")
        database.write(lambda transaction: transaction.session.execute(later))
        code, line = migrate("--check")
        assert (code, "has schema 9999" in line) == (1, True)
