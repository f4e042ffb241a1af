"""Debian package, RPM package and image of a wheel: they are built here, and their programs run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from pilotage.values.containers import RuntimeKind
from pilotage_pilot.supervise.containers import ContainerRuntime
from pilotage_pilot.supervise.image_cache import folders_of_programs, podman_in
from support.debian import find_or_install
from support.deployment import DEPLOY, mounted
from support.packages import CHECKOUT
from support.podman import OPTIONS
from support.processes import until

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

PACKAGES = DEPLOY / "packages"
PROGRAMS = ("pilotage", "pilotage-server", "pilotage-agents", "pilotage-pilot")
BASE = "localhost/base:1"
_OF_BASE = ("base-files", "bash", "coreutils", "dash", "libstdc++6", "python3-venv")
_ONLY_NEEDED = [f"--no-{each}" for each in ("recommends", "suggests", "conflicts", "breaks", "replaces", "enhances")]
_LIMITS = ("--ulimit", "nofile=1000:1000", "--ulimit", "nproc=1000:1000")
"""The defaults ask for more than machines such as those of CI permit."""


def run(*command: str | Path, folder: Path = CHECKOUT, environment: dict[str, str] | None = None) -> str:
    """Run a command, which must succeed; returns its output."""
    done = subprocess.run(
        [*map(str, command)], cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=280
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the wheels of Pilotage and of all locked packages."""
    folder = tmp_path_factory.mktemp("wheels")
    run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder)
    locked = ("--no-deps", "--only-binary", ":all:", "--require-hashes", "--requirement", DEPLOY / "requirements.lock")
    run(sys.executable, "-m", "pip", "--quiet", "download", *locked, "--dest", folder)
    return folder


@pytest.fixture(scope="module")
def tree(wheels: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the files of a package."""
    find_or_install(_debian_venv, "python3-venv")
    (wheel,) = wheels.glob("pilotage-*.whl")
    tree = tmp_path_factory.mktemp("package") / "tree"
    run(PACKAGES / "lay-out", wheel, tree, "--no-index", "--find-links", wheels)
    return tree


def _debian_venv() -> Path | None:
    """Return Debian's Python if it can make virtual environments."""
    python = Path("/usr/bin/python3")
    is_complete = python.exists() and subprocess.run([python, "-c", "import ensurepip"], check=False).returncode == 0
    return python if is_complete else None


def check_programs(tree: Path) -> None:
    """Run the programs of an unpacked package where it belongs, with nothing of the folder in which it was built."""
    volumes = {"/opt/pilotage": tree / "opt/pilotage", "/etc/pilotage": tree / "etc/pilotage"}
    for program in PROGRAMS:
        assert os.readlink(tree / "usr/bin" / program) == f"/opt/pilotage/bin/{program}"
        assert "0.1.0" in run(*mounted([f"/opt/pilotage/bin/{program}", "--version"], volumes), environment={})
    token = ["/opt/pilotage/bin/pilotage-server", "token", "--config", "/etc/pilotage/server.toml", "--role", "admin"]
    assert run(*mounted(token, volumes), environment={}).count(".") == 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the package at its place")
def test_debian_package_has_working_programs(tree: Path, tmp_path: Path) -> None:
    deb = run(PACKAGES / "build-deb", tree, tmp_path).strip()
    run("dpkg-deb", "--extract", deb, tmp_path / "root")
    check_programs(tmp_path / "root")
    run("dpkg-deb", "--control", deb, tmp_path / "control")
    settings = [f"/etc/pilotage/{name}.toml" for name in ("agents", "pilot", "server")]
    assert (tmp_path / "control/conffiles").read_text().split() == ["/etc/logrotate.d/pilotage", *settings]
    for script in ("postinst", "prerm"):
        run("sh", "-n", tmp_path / "control" / script)
    assert run("dpkg-deb", "--field", deb, "Version").strip() == "0.1.0"
    assert str(tree).encode() not in Path(tmp_path, "root/opt/pilotage/bin/pilotage").read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount the package at its place")
def test_rpm_package_has_working_programs(tree: Path, tmp_path: Path) -> None:
    find_or_install(lambda: shutil.which("rpmbuild"), "rpm")
    rpm = run(PACKAGES / "build-rpm", tree, tmp_path).strip()
    assert "/etc/pilotage/server.toml" in run("rpm", "--query", "--configfiles", "--package", rpm).split()
    (tmp_path / "root").mkdir()
    run("rpm2archive", "--nocompression", rpm)
    run("tar", "-C", tmp_path / "root", "-xf", f"{rpm}.tar")
    check_programs(tmp_path / "root")


def test_log_files_are_rotated(tmp_path: Path) -> None:
    find_or_install(lambda: shutil.which("logrotate", path="/usr/sbin:/usr/bin"), "logrotate")
    run("/usr/sbin/logrotate", "--debug", "--state", tmp_path / "state", DEPLOY / "logrotate/pilotage")


@pytest.fixture(scope="module")
def store(podman: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[str]]:
    """Return podman's command with a store of its own, which has a base image of this machine's Debian packages."""
    find_or_install(lambda: shutil.which("runc", path="/usr/sbin:/usr/bin"), "runc")
    folder = tmp_path_factory.mktemp("store")
    runtime = ContainerRuntime(RuntimeKind.PODMAN, str(podman), "4", OPTIONS[RuntimeKind.PODMAN])
    with podman_in(folder, runtime, {"PATH": os.environ["PATH"]} | folders_of_programs(folder)) as store:
        write_base(folder / "base.tar")
        run(*store, "import", folder / "base.tar", BASE)
        yield store


def write_base(archive: Path) -> None:
    """Write the files of the packages that the image needs, as they are installed here: no image can be fetched."""
    find_or_install(_debian_venv, "python3-venv")
    found = run("apt-cache", "depends", "--recurse", "--installed", *_ONLY_NEEDED, *_OF_BASE).splitlines()
    packages = sorted({line for line in found if line[:1].isalnum()})
    files = {Path(line) for line in run("dpkg-query", "--listfiles", *packages).splitlines() if line.startswith("/")}
    merged = {Path("/bin"), Path("/lib"), Path("/lib64"), Path("/sbin")}
    # The packages know the paths from before /bin became a link.
    paths = {file.parent.resolve() / file.name for file in files if file.is_symlink() or not file.is_dir()}
    with tarfile.open(archive, "w") as base:
        for path in sorted(paths | merged | {Path("/etc/ld.so.cache")}):
            if os.path.lexists(path):
                base.add(path, recursive=False)
        for name in ("tmp", "var/tmp", "root", "proc", "sys", "dev"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o1777 if "tmp" in name else 0o755
            base.addfile(folder)


async def test_image_serves_as_another_user(store: Sequence[str], wheels: Path, tmp_path: Path) -> None:
    context = tmp_path / "context"
    shutil.copytree(wheels, context / "dist")
    shutil.copytree(DEPLOY / "settings", context / "deploy/settings")
    shutil.copy(DEPLOY / "requirements.lock", context / "deploy")
    containers = DEPLOY / "containers"
    how = ("--isolation", "chroot", "--network", "host", "--layers=false", "--build-arg", f"BASE={BASE}")
    offline = ("--build-arg", "PIP_OPTIONS=--no-index --find-links /wheels")
    run(*store, "build", "--file", containers / "Containerfile", "--tag", "pilotage", *how, *offline, context)

    start = (*store, "--runtime", "runc", "run", "--network", "none", *_LIMITS)
    for program in PROGRAMS:
        assert "0.1.0" in run(*start, "--rm", "pilotage", program, "--version")
    # As in compose.yaml: another user, and nothing to write to but the volumes.
    confined = ("--user", "4321:0", "--read-only", "--cap-drop", "all", "--volume", "/var/lib/pilotage")
    server = run(*start, "--detach", *confined, "pilotage").strip()
    try:
        compose = yaml.safe_load((containers / "compose.yaml").read_text())
        _, *check = compose["services"]["server1"]["healthcheck"]["test"]
        ready = [word.replace("/healthz", "/readyz") for word in check]

        def is_ready() -> bool:
            state = json.loads(run(*store, "inspect", server))[0]["State"]
            assert state["Running"], run(*store, "logs", server)
            return subprocess.run([*store, "--runtime", "runc", "exec", server, *ready], check=False).returncode == 0

        await until(is_ready)
        assert run(*store, "--runtime", "runc", "exec", server, "id", "-u").strip() == "4321"
    finally:
        run(*store, "rm", "--force", "--volumes", "--time", "10", server)
