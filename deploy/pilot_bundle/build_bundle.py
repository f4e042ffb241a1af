"""Builds the pilot bundle: one file with the pilot and its dependencies, for one Python release and architecture.

The packages are wheels from pip's index, chosen for the target machine and not for this one, so that bundles can be
built for other nodes. The same packages give the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

_GLIBCS = ("2014", "_2_17", "_2_26", "_2_27", "_2_28")
"""The accepted wheels: those for glibc 2.28, as in Enterprise Linux 8, or older."""

_TAG = re.compile(r"manylinux(?:_(\d+)_(\d+)|(2014))_")
_FIRST_DATE = (1980, 1, 1, 0, 0, 0)
_OF_THIS_MACHINE = ("direct_url.json", "INSTALLER", "REQUESTED")


def main(arguments: Sequence[str]) -> None:
    """Build the bundle and print its path."""
    options = _options(arguments)
    options.to.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        wheel = _own_wheel(Path(scratch))
        site = Path(scratch, "site")
        _install(f"pilotage[{options.extras}] @ {wheel.as_uri()}", site, options.python, options.machine)
        version = wheel.name.split("-")[1]
        name = f"pilotage-pilot-{version}-cp{options.python.replace('.', '')}-{options.machine}.pyz"
        write_bundle(options.to / f".{name}", site, {"python": options.python, "machine": options.machine})
        (options.to / f".{name}").replace(options.to / name)
    sys.stdout.write(f"{options.to / name}\n")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    here = ".".join(platform.python_version_tuple()[:2])
    parser.add_argument("--python", default=here, metavar="3.N", help=f"Python on the nodes ({here})")
    parser.add_argument(
        "--machine", default=os.uname().machine, help=f"what uname -m says there ({os.uname().machine})"
    )
    parser.add_argument("--extras", default="pilot", metavar="NAMES", help="pilot, or pilot,otel for traces (pilot)")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", metavar="DIR", help="where the bundle goes (dist)")
    return parser.parse_args(arguments)


def _own_wheel(folder: Path) -> Path:
    _run(sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (wheel,) = folder.glob("*.whl")
    return wheel


def _install(requirement: str, site: Path, python: str, machine: str) -> None:
    """Install wheels for the target into a folder, without files about this machine."""
    platforms = [f"--platform=manylinux{glibc}_{machine}" for glibc in _GLIBCS]
    target = ("--only-binary=:all:", "--implementation=cp", f"--python-version={python}", *platforms)
    quiet = ("--quiet", "--disable-pip-version-check", "--no-compile")
    _run(sys.executable, "-m", "pip", "install", *quiet, *target, "--target", str(site), requirement)
    shutil.rmtree(site / "bin", ignore_errors=True)
    for path in site.glob("*.dist-info/*"):
        if path.name in _OF_THIS_MACHINE:
            path.unlink()


def _run(*command: str) -> None:
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)


def write_bundle(path: Path, site: Path, made_for: dict[str, object]) -> None:
    """Write a bundle of the packages in a folder; `made_for` is its Python release and machine."""
    files = {f"site/{each.relative_to(site)}": each for each in sorted(site.rglob("*")) if each.is_file()}
    facts = {"glibc": _glibc(site), "key": _key(files)} | made_for
    with path.open("wb") as file:
        file.write(b"#!/usr/bin/env python3\n")
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            _add(archive, "__main__.py", (HERE / "bundle_main.py").read_bytes())
            _add(archive, "bundle_unpacking.py", (HERE / "bundle_unpacking.py").read_bytes())
            _add(archive, "bundle.json", json.dumps(facts, sort_keys=True).encode())
            for name, source in files.items():
                _add(archive, name, source.read_bytes())
    path.chmod(0o755)


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    info = zipfile.ZipInfo(name, _FIRST_DATE)
    info.compress_type = zipfile.ZIP_DEFLATED
    archive.writestr(info, content)


def _key(files: dict[str, Path]) -> str:
    """Return a hash of the content."""
    whole = hashlib.sha256()
    for name, path in files.items():
        whole.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return whole.hexdigest()


def _glibc(site: Path) -> tuple[int, int]:
    """Return the oldest glibc that all wheels run with; a wheel runs with the oldest of its tags."""
    wheels = ([_release(tag) for tag in _TAG.findall(each.read_text())] for each in site.glob("*.dist-info/WHEEL"))
    return max((min(tags) for tags in wheels if tags), default=(2, 17))


def _release(tag: tuple[str, str, str]) -> tuple[int, int]:
    major, minor, old = tag
    return (2, 17) if old else (int(major), int(minor))


if __name__ == "__main__":
    main(sys.argv[1:])
