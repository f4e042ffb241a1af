"""The folders of a pilot and its attempts, the cache of input files, spare folders, and the threads for large files.

Rules
-----
A pilot's folder is locked while the pilot lives, so that the next pilot can remove the folders of dead ones.
Input files are cached by checksum: fetched once, verified at each use, kept while there is room.
An attempt's folder that is as it was made is kept for the next attempt with the same streams: most short jobs leave
nothing, and a rename costs a tenth of new folders.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import os
import stat
import subprocess
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Container, Coroutine, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pilotage.errors import NotFoundError, WorldError
from pilotage.job_description import InputFile
from pilotage.jobs.files import JobFaultError, open_regular, remove_tree
from pilotage.values.attempts import AttemptKey

_PREFIX = "pilotage-pilot-"
_LOCK = "lock"


class PilotFolder:
    """The folder of one running pilot; raises WorldError when it cannot be created."""

    def __init__(self, scratch: Path) -> None:
        try:
            scratch.mkdir(parents=True, exist_ok=True)
            self.path = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=scratch)).resolve()
            self.jobs = self.path / "jobs"
            self.cache = self.path / "cache"
            self._lock = self._filled()
        except OSError as error:
            raise WorldError(f"the scratch {scratch} cannot be used: {error}", transient=False) from error

    def _filled(self) -> int:
        """Create its contents, all or nothing, and return its lock."""
        try:
            path = self.path / _LOCK
            # The lock is held before it has its name: no other pilot may find it free.
            unnamed = path.with_suffix(".new")
            lock = os.open(unnamed, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            unnamed.rename(path)
            self.cache.mkdir(mode=0o700)
            self.jobs.mkdir()
            # A payload that runs as another user has to reach its own folder.
            for folder in (self.path, self.jobs):
                folder.chmod(0o711)
        except OSError:
            remove_tree(self.path)
            raise
        return lock

    def of_attempt(self, key: AttemptKey) -> Path:
        """Return the path of an attempt's folder, which may not exist."""
        return self.jobs / str(key)

    def remove(self) -> None:
        """Remove the folder and its contents."""
        with contextlib.suppress(OSError):
            _remove(self.path)
        os.close(self._lock)


@dataclass(frozen=True, slots=True)
class Folders:
    """The paths of a payload below the folder `root` of its attempt.

    `work` is its working directory, `temporary` its TMPDIR, `private_temporary` its /tmp if it has namespaces of its
    own, `warning` the file that announces the end of its time.
    """

    root: Path
    work: Path
    temporary: Path
    private_temporary: Path
    warning: Path
    machine_ad: Path
    job_ad: Path


def folders_in(root: Path) -> Folders:
    """Return the paths below the attempt's folder `root`."""
    names = ("work", "tmp", "private-tmp", "glidein-ends", "machine.ad", "job.ad")
    return Folders(root, *(root / name for name in names))


def make_folders(folders: Folders) -> None:
    """Create the folders of an attempt; raises OSError."""
    for folder in (folders.root, folders.work, folders.temporary, folders.private_temporary):
        os.mkdir(folder, mode=0o700)


def give_to(user: int, group: int, folder: Path) -> None:
    """Make a user the owner of a folder and of all in it, links excepted; only before its payload starts."""
    os.chown(folder, user, group)
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                give_to(user, group, Path(entry.path))
            else:
                os.chown(entry.path, user, group, follow_symlinks=False)


def write_over(path: Path, text: str) -> None:
    """Overwrite a file in a job's folder; raises OSError if it is not a regular file."""
    # The job may have replaced it: do not block on a pipe or follow a link.
    # Its folder is the job's alone; the job may be another user than the pilot.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    with os.fdopen(descriptor, "w") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        file.truncate()
        file.write(text)


def remove_leftovers(scratch: Path) -> tuple[Path, ...]:
    """Remove the folders of dead pilots of this user in `scratch` and return them."""
    return tuple(folder for folder in sorted(scratch.glob(f"{_PREFIX}*")) if _is_removed(folder))


def has_attempt_of(user: int, scratch: Path) -> bool:
    """Whether a pilot of our user, alive or dead, has left the folder of an attempt there that belongs to `user`."""
    pilots = [folder for folder in scratch.glob(f"{_PREFIX}*") if _owner_of(folder) == os.getuid()]
    return any(_owner_of(folder) == user for pilot in pilots for folder in (pilot / "jobs").glob("*"))


def _owner_of(path: Path) -> int | None:
    try:
        return path.lstat().st_uid
    except OSError:
        return None


def _is_removed(folder: Path) -> bool:
    """Remove a folder if its pilot is dead and no other pilot is removing it; returns whether it is gone."""
    try:
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
            return False
        lock = os.open(folder / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        # A folder without a lock is being created or removed by another pilot.
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _remove(folder)
    except OSError:
        return False
    finally:
        os.close(lock)


def _remove(folder: Path) -> bool:
    """Remove the folder of a pilot, its lock last, so that the next pilot retries what is left.

    Returns whether it is gone.
    """
    for path in _all_but_lock(folder):
        remove_tree(path)
    if _all_but_lock(folder):
        return False
    remove_tree(folder)
    return True


def _all_but_lock(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if path.name != _LOCK]


Download = Callable[[int, str], AsyncIterator[bytes]]
"""Streams a file, given the id of a job that has it and its checksum."""

SMALL_BYTES = 1 << 20
"""Files up to this size are copied in the event loop, larger ones in a thread."""


class FileCache:
    """The cached input files; at most `capacity_bytes` of unused ones are kept."""

    def __init__(self, folder: Path, capacity_bytes: int, download: Download) -> None:
        self._folder = folder
        self._capacity = capacity_bytes
        self._download = download
        self._sizes: dict[str, int] = {}  # the last used is last
        self._users: Counter[str] = Counter()  # running calls of `put`, by checksum
        self._under_way: dict[str, asyncio.Event] = {}

    async def put(self, job_id: int, file: InputFile, target: Path) -> None:
        """Copy a job's input file to `target`; raises JobFaultError, WorldError or OSError."""
        checksum = file.checksum
        if not checksum or len(checksum) != 64 or not checksum.isalnum():
            raise JobFaultError(f"the input file {file.name} was never stored on the server")
        with self._in_use(checksum):
            mode = 0o700 if file.executable else 0o600
            for _ in range(_COPIES):
                await self._fetch(job_id, file.name, checksum, file.size)
                if await _copy(self._folder / checksum, target, mode, self._sizes[checksum]) == checksum:
                    return
                # A payload of the pilot's own user may have changed the cached file.
                self._forget(checksum)
                os.unlink(target)
            raise WorldError(f"the input file {file.name} was changed in the cache of this pilot", transient=True)

    def _forget(self, checksum: str) -> None:
        if self._sizes.pop(checksum, None) is not None:
            (self._folder / checksum).unlink(missing_ok=True)

    @contextmanager
    def _in_use(self, checksum: str) -> Iterator[None]:
        """Keep a file in spite of the capacity: its copy may still wait for a thread."""
        self._users[checksum] += 1
        try:
            yield
        finally:
            self._users[checksum] -= 1
            if not self._users[checksum]:
                del self._users[checksum]
            self._make_room()

    async def _fetch(self, job_id: int, name: str, checksum: str, size: int) -> None:
        while checksum in self._under_way:
            await self._under_way[checksum].wait()
        if checksum in self._sizes:
            self._sizes[checksum] = self._sizes.pop(checksum)
            return
        self._under_way[checksum] = asyncio.Event()
        try:
            self._sizes[checksum] = await self._bring(job_id, name, checksum, size)
        except NotFoundError as error:
            raise JobFaultError(f"the input file {name} is not on the server") from error
        finally:
            self._under_way.pop(checksum).set()

    async def _bring(self, job_id: int, name: str, checksum: str, size: int) -> int:
        arriving = self._folder / f"{checksum}.part"
        digest = hashlib.sha256()
        arrived = 0
        try:
            with arriving.open("wb") as file:
                async for piece in self._download(job_id, checksum):
                    digest.update(piece)
                    arrived += len(piece)
                    if arrived > size:
                        break
                    file.write(piece)
            if digest.hexdigest() != checksum or arrived != size:
                raise WorldError(f"the input file {name} did not arrive as it was stored", transient=True)
            arriving.chmod(0o400)
            arriving.rename(self._folder / checksum)
        finally:
            arriving.unlink(missing_ok=True)
        return arrived

    def _make_room(self) -> None:
        for checksum in files_to_go(self._sizes, self._users, self._capacity):
            del self._sizes[checksum]
            (self._folder / checksum).unlink(missing_ok=True)


def files_to_go(sizes: Mapping[str, int], in_use: Container[str], capacity: int) -> tuple[str, ...]:
    """Return the files to remove, in the order of `sizes`, until the others fit; files in use are kept."""
    excess = sum(sizes.values()) - capacity
    going = []
    for checksum, size in sizes.items():
        if excess > 0 and checksum not in in_use:
            going.append(checksum)
            excess -= size
    return tuple(going)


_PIECE_BYTES = 1 << 20
_COPIES = 2
"""A cached file that does not have its checksum is fetched again, and copied again, once."""


async def _copy(source: Path, target: Path, mode: int, size: int) -> str:
    # A copy, not a link: a job may change its input, and the next job must not see that.
    if size <= SMALL_BYTES:
        return _copy_now(source, target, mode, size)
    return await asyncio.to_thread(_copy_now, source, target, mode, size)


def _copy_now(source: Path, target: Path, mode: int, size: int) -> str:
    """Copy a cached file of this size; returns the checksum of what was copied, "" if it cannot be the file."""
    digest = hashlib.sha256()
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("xb") as to_file:
        os.fchmod(to_file.fileno(), mode)
        try:
            from_file = open_regular(source)
        except OSError:
            return ""
        with from_file:
            while size >= 0 and (piece := from_file.read(_PIECE_BYTES)):
                size -= len(piece)
                digest.update(piece)
                to_file.write(piece)
    return digest.hexdigest()


_MOST = 64
_FOLDER_MODE = stat.S_IFDIR | 0o700
_FILE_MODE = stat.S_IFREG | 0o600


class SpareFolders:
    """Spare folders of one pilot, by the names of the empty streams in them."""

    def __init__(self) -> None:
        self._spares: dict[tuple[str, ...], list[Path]] = {}
        self._count = 0

    def give(self, root: Path, streams: tuple[str, ...]) -> bool:
        """Rename a spare folder to `root`; returns whether there was one. Raises OSError."""
        spares = self._spares.get(streams)
        if not spares:
            return False
        self._count -= 1
        os.rename(spares.pop(), root)
        return True

    def keep(self, folders: Folders, streams: tuple[str, ...]) -> bool:
        """Keep the folder of an attempt if it is as it was made; returns whether it is kept."""
        try:
            if self._count >= _MOST or not _is_as_made(folders, streams):
                return False
        except OSError:
            return False
        self._count += 1
        self._spares.setdefault(streams, []).append(folders.root)
        return True


def _is_as_made(folders: Folders, streams: tuple[str, ...]) -> bool:
    for name in os.listdir(folders.private_temporary):
        # The empty folder below which the attempt's folder was mounted, if the scratch is in /tmp.
        (folders.private_temporary / name).rmdir()
    contents = (
        (folders.root, {folders.work.name, folders.temporary.name, folders.private_temporary.name}),
        (folders.work, {*streams}),
        (folders.temporary, set[str]()),
        (folders.private_temporary, set[str]()),
    )
    return (
        all(_is_plain(folder, _FOLDER_MODE) for folder, _ in contents)
        and all({*os.listdir(folder)} == names for folder, names in contents)
        and all(_is_plain(file, _FILE_MODE) and _is_empty(file) for file in map(folders.work.joinpath, streams))
    )


def _is_plain(path: Path, mode: int) -> bool:
    """Whether it has exactly this mode and no extended attribute, such as an access list."""
    return os.lstat(path).st_mode == mode and not os.listxattr(path, follow_symlinks=False)


def _is_empty(file: Path) -> bool:
    status = os.lstat(file)
    # A second hard link would let the old job write to it.
    return status.st_size == 0 and status.st_nlink == 1


def disk_use_mib(folder: Path) -> int:
    """Return the space that a folder takes, hard links counted once; 0 = unknown. This may take long."""
    command = ("du", "-skx", "--", folder)
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    except OSError:
        return 0
    # It fails for files that were removed meanwhile, and prints the sum of the others.
    kib = done.stdout.split(b"\t")[0]
    return -(-int(kib) // 1024) if kib.isdigit() else 0


Result = TypeVar("Result")


def run_with_threads(count: int, work: Callable[[], Coroutine[Any, Any, Result]]) -> Result:
    """Run the work in a new event loop with `count` threads for files, and return its result.

    All threads are started first; raises WorldError if they cannot be. Later it may be impossible: payloads count
    against the same user's limit of processes.
    """
    runner = asyncio.Runner()
    try:
        runner.get_loop().set_default_executor(_started(count))
        return runner.run(work())
    finally:
        # asyncio starts another thread to join these.
        with contextlib.suppress(RuntimeError):
            runner.close()


def _started(count: int) -> ThreadPoolExecutor:
    executor = ThreadPoolExecutor(count, thread_name_prefix="files")
    all_there = threading.Barrier(count + 1)
    try:
        for _ in range(count):
            executor.submit(all_there.wait)
    except RuntimeError as error:
        all_there.abort()
        executor.shutdown()
        raise WorldError(f"the threads of the pilot cannot be started: {error}", transient=True) from error
    all_there.wait()
    return executor
