"""Builds a release in `dist/release` and checks it.

It has wheel, source archive, pilot bundle, documentation, lock file, SBOM, licence list and checksums. The image is
built and tried, and not kept.

Nothing is uploaded. Known vulnerabilities are not looked up: that needs an advisory database.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import venv
import zipfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from licences import licence_lines, normalized

ROOT = Path(__file__).resolve().parents[2]
LOCK = ROOT / "deploy" / "requirements.lock"
RESULTS = ROOT / "dist" / "release"
PACKAGES = ("pilotage", "pilotage_server", "pilotage_pilot", "pilotage_agents", "pilotage_client")

_OLDEST_PYTHON = "3.11"
"""The lock is for this release of Python and all later ones."""

_TOOLS = Path(sys.executable).parent
"""The scripts of the environment that `make release-check` sets up."""


class ReleaseError(Exception):
    """The release has a fault; the text says where."""


def main(arguments: Sequence[str]) -> int:
    """Run the command; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lock", action="store_true", help="only write the lock file, with the newest releases")
    parser.add_argument(
        "--no-image", action="store_true", help="do not build the image, which needs podman and a registry"
    )
    options = parser.parse_args(arguments)
    try:
        if options.lock:
            compile_lock(LOCK, "--upgrade")
        else:
            _check_release(with_image=not options.no_image)
    except ReleaseError as fault:
        print(f"release-check: {fault}", file=sys.stderr)
        return 1
    return 0


def _check_release(*, with_image: bool) -> None:
    shutil.rmtree(RESULTS, ignore_errors=True)
    RESULTS.mkdir(parents=True)
    with tempfile.TemporaryDirectory(prefix="pilotage-release-") as folder:
        scratch = Path(folder)
        check_lock(scratch)
        wheel = build(scratch)
        check_wheel(wheel)
        _run(_TOOLS / "twine", "check", "--strict", *RESULTS.glob("pilotage-*"))
        python = install(wheel, scratch / "installed")
        write_licences(python)
        write_sbom(python)
        _run(python.with_name("pilotage"), "--version")
        _run(python.with_name("pilotage"), "demo", "--examples", ROOT / "deploy" / "examples", folder=scratch)
        build_bundle(scratch)
        if with_image:
            try_image(wheel, scratch / "context")
    build_documentation()
    shutil.copy(LOCK, RESULTS)
    sums = [f"{_sha256(path)}  {path.name}\n" for path in sorted(RESULTS.iterdir())]
    (RESULTS / "SHA256SUMS").write_text("".join(sums))
    print(f"release-check: passed; the release is in {RESULTS}")


def compile_lock(lock: Path, *options: str) -> None:
    """Write the lock of everything that is deployed; `--upgrade` takes the newest releases, not those of the file."""
    what = ("pyproject.toml", "--extra", "all", "--universal", "--python-version", _OLDEST_PYTHON)
    how = ("--generate-hashes", "--custom-compile-command", "make lock", "--quiet", "--output-file", lock)
    _run(_TOOLS / "uv", "pip", "compile", *what, *how, *options, quiet=True)


def check_lock(scratch: Path) -> None:
    """Raise ReleaseError unless the lock fits pyproject.toml and names no place to download from."""
    if "://" in LOCK.read_text():
        raise ReleaseError(f"{LOCK} has a URL: run make lock")
    again = scratch / LOCK.name
    shutil.copy(LOCK, again)
    compile_lock(again)
    if again.read_text() != LOCK.read_text():
        raise ReleaseError(f"{LOCK} does not fit pyproject.toml: run make lock")


def build(scratch: Path) -> Path:
    """Build source archive and wheel, and the wheel again from the archive; returns the wheel."""
    date = _run("git", "log", "-1", "--format=%ct", quiet=True).strip()
    epoch = {"SOURCE_DATE_EPOCH": date}
    _run(sys.executable, "-m", "hatchling", "build", "--directory", RESULTS, environment=epoch)
    (wheel,), (archive,) = RESULTS.glob("*.whl"), RESULTS.glob("*.tar.gz")
    with tarfile.open(archive) as sources:
        sources.extractall(scratch / "sources", filter="data")
    (unpacked,) = (scratch / "sources").iterdir()
    again = scratch / "again"
    command = (sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", again)
    _run(*command, environment=epoch, folder=unpacked)
    if _sha256(again / wheel.name) != _sha256(wheel):
        raise ReleaseError(f"{wheel.name} differs when it is built again from {archive.name}")
    return wheel


def check_wheel(wheel: Path) -> None:
    """Raise ReleaseError if the wheel has a file of something else or of this machine."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            top = name.partition("/")[0]
            if top not in PACKAGES and not top.endswith((".dist-info", ".data")):
                raise ReleaseError(f"{wheel.name} has the file {name}, which belongs to no package of Pilotage")
            if name.endswith((".pyc", ".so")) or str(ROOT).encode() in archive.read(name):
                raise ReleaseError(f"{wheel.name} has the file {name}, which is of this machine")


def install(wheel: Path, folder: Path) -> Path:
    """Install the locked packages and the wheel in a new virtual environment; returns its Python."""
    venv.create(folder, symlinks=True)
    python = folder / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check")
    _run(*pip, "install", "--require-hashes", "--only-binary", ":all:", "--requirement", LOCK)
    version = wheel.name.split("-")[1]
    # By name: an installation by path would leave the path in the SBOM.
    _run(*pip, "install", "--no-deps", "--no-index", "--find-links", wheel.parent, f"pilotage=={version}")
    _run(*pip, "check")
    return python


def build_bundle(scratch: Path) -> None:
    """Build the pilot bundle for this Python and start it, with the standard library only."""
    _run(sys.executable, ROOT / "deploy" / "pilot_bundle" / "build_bundle.py", "--to", RESULTS)
    (bundle,) = RESULTS.glob("*.pyz")
    _run(sys.executable, "-I", "-S", bundle, "--version", environment={"TMPDIR": str(scratch)})


def try_image(wheel: Path, context: Path) -> None:
    """Build the image from the wheel alone, and run a program in it; raises ReleaseError without podman."""
    if shutil.which("podman") is None:
        raise ReleaseError("the image needs podman: install it, or give --no-image")
    (context / "dist").mkdir(parents=True)
    shutil.copy(wheel, context / "dist")
    shutil.copytree(ROOT / "deploy", context / "deploy")
    file = context / "deploy" / "containers" / "Containerfile"
    image = f"localhost/pilotage-release-check:{wheel.name.split('-')[1]}"
    _run("podman", "build", "--file", file, "--tag", image, context)
    try:
        _run("podman", "run", "--rm", image, "pilotage-server", "--version")
    finally:
        _run("podman", "rmi", image, quiet=True)


def build_documentation() -> None:
    """Build the documentation and pack this version's pages."""
    _run("make", "docs")
    (wheel,) = RESULTS.glob("*.whl")
    version = wheel.name.split("-")[1]
    with tarfile.open(RESULTS / f"pilotage-docs-{version}.tar.gz", "w:gz") as archive:
        archive.add(ROOT / "build" / "docs" / version, arcname=version)


def write_licences(python: Path) -> None:
    """Write the licence list; raises ReleaseError if a licence is not accepted."""
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    lines = licence_lines(each for each in distributions(path=[str(site)]) if normalized(each.name) != "pilotage")
    faults = [f"{line.name}: {line.fault}" for line in lines if line.fault]
    if faults:
        raise ReleaseError("; ".join(faults))
    text = "".join(
        f"{line.name} {line.version}: {line.licence}{line.reason and f' ({line.reason})'}\n" for line in lines
    )
    (RESULTS / "licences.txt").write_text(text)


def write_sbom(python: Path) -> None:
    """Write the SBOM of the environment in CycloneDX; raises ReleaseError if it names this machine."""
    sbom = RESULTS / "sbom.cdx.json"
    how = ("--pyproject", "pyproject.toml", "--mc-type", "application", "--output-reproducible", "--output-file", sbom)
    _run(_TOOLS / "cyclonedx-py", "environment", *how, python)
    text = sbom.read_text()
    if "file://" in text or str(ROOT) in text:
        raise ReleaseError(f"{sbom} has a path of this machine")
    listed = {normalized(each["name"]) for each in json.loads(text)["components"]}
    (site,) = (python.parents[1] / "lib").glob("python*/site-packages")
    missing = {normalized(each.name) for each in distributions(path=[str(site)])} - listed - {"pilotage"}
    if missing:
        raise ReleaseError(f"{sbom} lacks {', '.join(sorted(missing))}")


def _run(
    *command: str | Path, folder: Path = ROOT, environment: dict[str, str] | None = None, quiet: bool = False
) -> str:
    """Run a command and return its output; raises ReleaseError with that output if it fails."""
    if not quiet:
        print("release-check:", *(each.name if isinstance(each, Path) else each for each in command), flush=True)
    done = subprocess.run(
        [str(each) for each in command],
        cwd=folder,
        env={**os.environ, **(environment or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ReleaseError(f"{command[0]} failed with {done.returncode}:\n{done.stdout}")
    return done.stdout


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
