"""Unpacks a pilot bundle once per node, as compiled modules cannot be loaded from an archive, and starts its pilot.

A bundle is unpacked into a Python environment that only its owner can read. The folder's name is a hash of content and
interpreter, so all pilots of one user on a node share it. The folder appears complete or not at all.

Where payloads run as the pilot's user, one of them may have changed the folder. So each start compares all files with
the bundle's key, and Python writes no compiled files there, which no key can cover.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import sys
import tempfile
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

_PACKAGES = "site/"
_NODE_UNFIT = 4
"""The pilot's exit code for a node that is not fit for work."""

_TRIES = 10
"""How often a pilot looks for the folder, or unpacks it, while others replace it."""

_UNUSED_S = 30 * 86400
"""An environment that started no pilot for this time is removed."""


def start(bundle: str, key: str) -> NoReturn:
    """Replace this process by the pilot, with the same arguments; exits when unpacking fails."""
    try:
        for _ in range(_TRIES):
            python = str(_unpacked(Path(bundle), key) / "bin" / "python")
            sys.stdout.flush()
            with contextlib.suppress(FileNotFoundError):  # another pilot may be replacing the folder
                os.execv(python, [python, "-I", "-B", "-m", "pilotage_pilot.main", *sys.argv[1:]])  # noqa: S606 - no shell
        raise OSError(errno.ENOENT, f"{python} disappears again and again")
    except (OSError, zipfile.BadZipFile, zlib.error) as error:
        sys.stderr.write(f"{os.path.basename(bundle)}: cannot be unpacked: {error}\n")
        sys.exit(_NODE_UNFIT)


def _unpacked(bundle: Path, key: str) -> Path:
    """Return the folder of the environment, in the first place that can hold it; raises OSError that names them all."""
    ours = f"pilotage-pilot-{os.geteuid()}-"
    name = ours + hashlib.sha256(f"{key} {_interpreter()}".encode()).hexdigest()[:16]
    faults: list[str] = []
    with zipfile.ZipFile(bundle) as archive:
        for place in dict.fromkeys(_places()):
            try:
                folder = _unpacked_in(place.absolute(), name, archive, key)
            except OSError as error:
                faults.append(f"{place}: {error.strerror or error}")
                continue
            _remove_unused(place, ours, folder)
            return folder
    raise OSError("; ".join(faults))


def _interpreter() -> str:
    """Return the path of this Python; in a virtual environment, that of its base."""
    return getattr(sys, "_base_executable", sys.executable)


def _places() -> Iterator[Path]:
    """Yield where to unpack, best first: the batch system's scratch or /tmp, then the working directory."""
    given = [os.environ[name] for name in ("_CONDOR_SCRATCH_DIR", "TMPDIR") if os.environ.get(name)]
    for place in given or ["/tmp"]:  # noqa: S108 - its folder is the user's own, and looked at before it is used
        yield Path(place)
    yield Path(".")


def _unpacked_in(place: Path, name: str, archive: zipfile.ZipFile, key: str) -> Path:
    if os.statvfs(place).f_flag & os.ST_NOEXEC:
        raise OSError(errno.EACCES, "nothing may be executed there (noexec)")
    folder = place / name
    if _is_whole(folder, key):
        with contextlib.suppress(FileNotFoundError):  # another pilot may be replacing it
            os.utime(folder)
        return folder
    new = Path(tempfile.mkdtemp(prefix=f"{name}.", dir=place))
    try:
        _unpack(archive, new)
        _put(new, folder, key)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def _is_whole(folder: Path, key: str) -> bool:
    """Whether the folder has exactly the files of the bundle: cleaners of /tmp remove some, a payload may change some.

    Raises OSError if other users can access it.
    """
    try:
        found = folder.lstat()
    except FileNotFoundError:
        return False
    if found.st_uid != os.geteuid() or found.st_mode & 0o077 or folder.is_symlink():
        raise OSError(errno.EPERM, f"{folder.name} is not this user's alone")
    try:
        return _is_environment(folder) and _key(_packages(folder)) == key
    except OSError:  # a file is missing, or another pilot is replacing the folder
        return False


def _is_environment(folder: Path) -> bool:
    """Whether the folder has nothing but its packages and what makes it an environment of this interpreter."""
    packages = _packages(folder)
    return (
        {each.name for each in folder.iterdir()} == {"bin", "lib", "pyvenv.cfg"}
        and [each.name for each in (folder / "bin").iterdir()] == ["python"]
        and list((folder / "lib").iterdir()) == [packages.parent]
        and list(packages.parent.iterdir()) == [packages]
        and not any(each.is_symlink() for each in (folder / "bin", folder / "lib", packages.parent, packages))
        and os.readlink(folder / "bin" / "python") == _interpreter()
        and (folder / "pyvenv.cfg").read_text() == _configuration()
    )


def _key(packages: Path) -> str:
    """Return the key of the bundle with these packages, as the building computes it; raises OSError at a link."""
    whole = hashlib.sha256()
    for path in sorted(packages.rglob("*")):
        if path.is_symlink():
            raise OSError(errno.ELOOP, f"{path} is a link")
        if not path.is_dir():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
            whole.update(f"{_PACKAGES}{path.relative_to(packages)} {content}\n".encode())
    return whole.hexdigest()


def _unpack(archive: zipfile.ZipFile, folder: Path) -> None:
    """Write the environment; an incomplete folder is not in use yet."""
    packages = _packages(folder)
    for info in _files(archive):
        path = packages / info.filename.removeprefix(_PACKAGES)
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    (folder / "bin").mkdir()
    (folder / "bin" / "python").symlink_to(_interpreter())
    (folder / "pyvenv.cfg").write_text(_configuration())


def _configuration() -> str:
    return f"home = {os.path.dirname(_interpreter())}\ninclude-system-site-packages = false\n"


def _put(new: Path, folder: Path, key: str) -> None:
    """Rename the new folder to its final name, unless another pilot has just done so.

    An incomplete folder is moved away first and removed afterwards, as pilots may be running from it.
    """
    old = new.with_name(new.name + ".old")
    try:
        while not _is_put(new, folder) and not _is_whole(folder, key):
            with contextlib.suppress(FileNotFoundError):  # another pilot moved it first
                folder.rename(old)
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _is_put(new: Path, folder: Path) -> bool:
    """Rename the new folder unless the name is taken; returns whether it was renamed."""
    try:
        new.rename(folder)
    except OSError as error:
        if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
            raise
        return False
    return True


def _remove_unused(place: Path, ours: str, used: Path) -> None:
    for folder in place.glob(f"{ours}*"):
        try:
            unused = folder != used and time.time() - folder.lstat().st_mtime > _UNUSED_S
        except OSError:
            continue
        if unused:
            shutil.rmtree(folder, ignore_errors=True)


def _files(archive: zipfile.ZipFile) -> Iterator[zipfile.ZipInfo]:
    return (info for info in archive.infolist() if info.filename.startswith(_PACKAGES))


def _packages(folder: Path) -> Path:
    return folder / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
