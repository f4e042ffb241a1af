"""Podman, images that are made here, and a registry that serves one."""

from __future__ import annotations

import functools
import http.server
import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from pilotage.values.containers import RuntimeKind
from pilotage_pilot.supervise.containers import ContainerRuntime
from pilotage_pilot.supervise.image_cache import folders_of_programs, podman_in
from support.debian import find_or_install

OPTIONS = {RuntimeKind.PODMAN: ("--storage-driver", "vfs")}
"""Options for podman that work in containers too."""

_APPLETS = ("sh", "echo", "cat", "sleep", "ls", "env", "head", "tr")
_VARIABLES = ("ENV PATH=/bin", "ENV FROM_IMAGE=yes", "ENV LANG=of-image")
_SETTINGS = (*_VARIABLES, 'ENTRYPOINT ["/bin/echo", "entry"]', 'CMD ["command"]')
_MISSING = 404, "application/json", b'{"errors": [{"code": "MANIFEST_UNKNOWN"}]}'


@dataclass(frozen=True, slots=True)
class Images:
    """An image of busybox as an `archive` of docker-save, as a `folder`, and as a folder with podman's `dir` layout.

    `cache` is a cache of images that tests share.
    """

    archive: Path
    folder: Path
    layout: Path
    cache: Path


def _static_busybox() -> Path | None:
    """Return busybox if it needs no libraries, for which ldd fails."""
    found = shutil.which("busybox")
    is_static = found is not None and subprocess.run(["ldd", found], capture_output=True, check=False).returncode != 0
    return Path(found) if found is not None and is_static else None


@pytest.fixture(scope="session")
def podman() -> Path:
    """Return the program podman."""
    find_or_install(_static_busybox, "busybox-static")
    return find_or_install(lambda: Path(found) if (found := shutil.which("podman")) else None, "podman")


@pytest.fixture(scope="session")
def images(podman: Path, tmp_path_factory: pytest.TempPathFactory) -> Images:
    """Return an image whose file /etc/os-release says what it is."""
    folder = tmp_path_factory.mktemp("images")
    root = folder / "root"
    for name in ("bin", "etc", "home", "usr"):
        (root / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "", root / "bin/busybox")
    for applet in _APPLETS:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/os-release").write_text("NAME=tiny\n")
    (root / "etc/private").write_text("private")
    (root / "etc/private").chmod(0o600)
    tree, archive, layout = folder / "tree.tar", folder / "tiny.tar", folder / "layout"
    _run("tar", "-C", root, "-cf", tree, ".")
    runtime = ContainerRuntime(RuntimeKind.PODMAN, str(podman), "4", OPTIONS[RuntimeKind.PODMAN])
    environment = {"PATH": os.environ["PATH"]} | folders_of_programs(folder)
    with podman_in(folder, runtime, environment) as store:
        changes = [word for setting in _SETTINGS for word in ("--change", setting)]
        _run(*store, "import", *changes, tree, "localhost/tiny:1", env=environment)
        _run(*store, "save", "--output", archive, "localhost/tiny:1", env=environment)
        _run(*store, "push", "--format", "v2s2", "localhost/tiny:1", f"dir:{layout}", env=environment)
    for file in (archive, root):
        file.chmod(0o755)
    return Images(archive, root, layout, folder / "cache")


def _run(*command: object, env: Mapping[str, str] | None = None) -> None:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=120, check=False, env=env)
    assert done.returncode == 0, done.stderr


class _Registry(http.server.BaseHTTPRequestHandler):
    """Serves the image `tiny:1` by the registry protocol; `hang` is never answered, and other images do not exist.

    `STATUS/` in front of a name is the status of its answer.
    """

    layout: Path
    requests: ClassVar[list[str]] = []
    released: threading.Event

    def do_HEAD(self) -> None:
        self._answer(has_body=False)

    def do_GET(self) -> None:
        self._answer(has_body=True)

    def log_message(self, *_: object) -> None:
        return

    def _answer(self, *, has_body: bool) -> None:
        self.requests.append(self.path)
        if "/hang/" in self.path:
            self.released.wait()
        status, kind, body = self._content()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if has_body:
            self.wfile.write(body)

    def _content(self) -> tuple[int, str, bytes]:
        if self.path == "/v2/":
            return 200, "application/json", b"{}"
        manifest = (self.layout / "manifest.json").read_bytes()
        if self.path == "/v2/tiny/manifests/1":
            return 200, json.loads(manifest)["mediaType"], manifest
        status = self.path.split("/")[2]
        if status.isdecimal():
            return int(status), "text/plain", b""
        blob = self.layout / self.path.rpartition("/")[2].removeprefix("sha256:")
        if self.path.startswith("/v2/tiny/blobs/") and blob.is_file():
            return 200, "application/octet-stream", blob.read_bytes()
        return _MISSING


@dataclass(frozen=True, slots=True)
class Registry:
    """A registry at `address`; `requests` are the paths that were asked for."""

    address: str
    requests: list[str]


@contextmanager
def a_registry(images: Images) -> Iterator[Registry]:
    """Run a registry until the end of the block."""
    requests: list[str] = []
    released = threading.Event()
    kind = type("_ThisRegistry", (_Registry,), {"layout": images.layout, "requests": requests, "released": released})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(kind))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield Registry(f"localhost:{server.server_address[1]}", requests)
    finally:
        released.set()
        server.shutdown()
        thread.join()
        server.server_close()
