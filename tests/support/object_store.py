"""An S3-compatible object store: moto's server, which verifies signatures, the size of parts, and conditional writes.

It keeps objects in memory, and dates every multipart upload back to 2010. `PILOTAGE_TEST_S3=http://KEY:SECRET@127.0.0.1:PORT`
selects another store on this machine.
"""

from __future__ import annotations

import json
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import botocore.session
import pytest

from pilotage import clock
from pilotage_server.storage.blobs.s3 import S3Access, S3Store
from support.processes import free_port

ENVIRONMENT = "PILOTAGE_TEST_S3"

_START_S = 60.0
_FIRST_CALLS = 3  # the calls that make the user; all later ones need its signature
_ALL_OBJECTS = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}


@dataclass
class Bucket:
    """A bucket that no other test uses, and how to reach it."""

    name: str
    access: S3Access
    client: Any = field(repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings of a server that keeps its files here."""
        given = {
            "s3_endpoint": self.access.endpoint,
            "s3_access_key": self.access.access_key,
            "s3_secret_key": self.access.secret_key,
        }
        return {"files": f"s3://{self.name}/jobs", **{name: str(value) for name, value in given.items()}}

    def store(self, max_file_bytes: int, **options: Any) -> S3Store:
        return S3Store(self.name, "jobs", max_file_bytes, self.access, **options)

    def empty(self) -> None:
        """Delete all objects."""
        for key in self.remains():
            self.client.delete_object(Bucket=self.name, Key=key)

    def remains(self) -> list[str]:
        """Return the keys of all objects and of all unfinished uploads."""
        objects = self.client.list_objects_v2(Bucket=self.name).get("Contents", ())
        uploads = self.client.list_multipart_uploads(Bucket=self.name).get("Uploads", ())
        return [each["Key"] for each in (*objects, *uploads)]


class ObjectStore:
    """A store in which tests make buckets of their own."""

    def __init__(self, access: S3Access) -> None:
        self._access = access
        self._objects = _client("s3", access)

    @property
    def port(self) -> int:
        port = urlsplit(str(self._access.endpoint)).port
        assert port is not None
        return port

    def new_bucket(self) -> Bucket:
        """Make a bucket."""
        bucket = Bucket(f"bucket-{uuid4().hex}", self._access, self._objects)
        bucket.client.create_bucket(Bucket=bucket.name)
        return bucket


@contextmanager
def running_moto() -> Iterator[ObjectStore]:
    """Run moto's server, with one user who may do everything with objects, until the end of the block."""
    port = free_port()
    command = [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | {"INITIAL_NO_AUTH_ACTION_COUNT": str(_FIRST_CALLS)}
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        try:
            give_up = clock.boot_time_s() + _START_S
            while not _listens(port):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.01)
                if process.poll() is not None or clock.boot_time_s() > give_up:
                    log.seek(0)
                    pytest.fail(f"the object store did not start: {log.read().decode()}")
            yield ObjectStore(_make_user(f"http://127.0.0.1:{port}"))
        finally:
            process.kill()
            process.wait()


def _make_user(url: str) -> S3Access:
    iam = _client("iam", S3Access(url, None, "nobody", "none"))
    iam.create_user(UserName="pilotage")
    iam.put_user_policy(UserName="pilotage", PolicyName="all", PolicyDocument=json.dumps(_ALL_OBJECTS))
    key = iam.create_access_key(UserName="pilotage")["AccessKey"]
    return S3Access(url, None, key["AccessKeyId"], key["SecretAccessKey"])


def _client(service: str, access: S3Access) -> Any:
    return botocore.session.get_session().create_client(
        service,
        endpoint_url=access.endpoint,
        region_name="us-east-1",
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
    )


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="session")
def object_store() -> Iterator[ObjectStore]:
    """Return a running object store; each test makes buckets of its own."""
    if given := os.environ.get(ENVIRONMENT):
        url = urlsplit(given)
        yield ObjectStore(S3Access(f"http://127.0.0.1:{url.port}", None, url.username, url.password))
        return
    with running_moto() as store:
        yield store


@pytest.fixture
def bucket(object_store: ObjectStore) -> Bucket:
    """Return a new bucket."""
    return object_store.new_bucket()


class Relay:
    """Forwards TCP connections to a port of this machine until it is cut; then they are refused."""

    def __init__(self, target: int) -> None:
        self.port = free_port()
        self._target = target
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []
        self._open: list[socket.socket] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def connect(self) -> None:
        """Take connections."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._run(self._accept, self._listener)

    def cut(self) -> None:
        """End all connections, and refuse new ones."""
        for each in (self._listener, *self._open):
            if each is not None:
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)
                each.close()
        self._listener = None
        self._open.clear()
        for thread in self._threads:
            thread.join()
        self._threads.clear()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):  # it was cut
            while True:
                near, _ = listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._open += [near, far]
                self._run(_forward, near, far)

    def _run(self, function: Any, *sockets: socket.socket) -> None:
        thread = threading.Thread(target=function, args=sockets, daemon=True)
        self._threads.append(thread)
        thread.start()


def _forward(near: socket.socket, far: socket.socket) -> None:
    """Copy both directions until one ends."""
    ends: Sequence[socket.socket] = (near, far)
    with suppress(OSError, ValueError):  # it was cut
        while True:
            readable, _, _ = select.select(ends, (), ())
            for source in readable:
                data = source.recv(65536)
                if not data:
                    near.close()
                    far.close()
                    return
                (far if source is near else near).sendall(data)


@contextmanager
def relay_to(port: int) -> Iterator[Relay]:
    """Run a relay until the end of the block."""
    relay = Relay(port)
    relay.connect()
    try:
        yield relay
    finally:
        relay.cut()
