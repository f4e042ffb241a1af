"""The cache of container images of a node: pulled or unpacked once, used by many jobs, removed when room is needed.

Rules
-----
- Pilots of one user on a node share the cache. One lock of it allows one pull at a time; a job whose image is there
  does not wait for it.
- An entry is made beside the others and renamed, so that it is complete. Each user of it holds a shared lock on the
  entry; only an entry that nobody uses is removed, the least recently used first.
- An entry whose facts cannot be read, as after a crash of the node, counts as absent.
- Pulls run in a thread of their own, so that neither the event loop nor other files wait. They end at a timeout, and
  when the job is gone that needs them.
- Programs that pull get a home and a run folder of their own: neither the pilot's logins nor its settings are used.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import structlog

from pilotage import clock
from pilotage.errors import PilotageError, WorldError
from pilotage.jobs.files import JobFaultError, remove_tree
from pilotage_pilot.supervise.base import NodeFaultError, RegistryFaultError
from pilotage_pilot.supervise.containers import ContainerRules, ContainerRuntime, ReadyImage
from pilotage_pilot.supervise.folders import disk_use_mib

log = structlog.get_logger()

_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PASSED = (
    *_PROXIES,
    *map(str.upper, _PROXIES),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REGISTRY_AUTH_FILE", "CONTAINERS_REGISTRIES_CONF"),
)
"""The pilot's variables that programs that pull get: how to reach registries."""

_CHECK_S = 0.1
_LAST_LINE = 500
_LOCK, _FACTS, _ROOT, _SIF = "lock", "facts.json", "root", "image.sif"


@dataclass(frozen=True, slots=True)
class ImageSource:
    """Where an image comes from: a `name` in a registry, else an `archive`, read as `user` (None = the pilot's).

    `key` identifies it in the cache, `label` for people.
    """

    key: str
    label: str
    name: str = ""
    archive: Path | None = None
    user: int | None = None


@dataclass(slots=True, eq=False)
class Pull:
    """A pull for `jobs` jobs; `is_over` ends it, when they are gone or the pilot ends. `work` is its future result."""

    source: ImageSource
    jobs: int = 0
    is_over: threading.Event = field(default_factory=threading.Event)
    work: asyncio.Future[ReadyImage] = field(init=False)


class ImageCache:
    """The cache in a folder, filled by one runtime; raises WorldError if the folder cannot be used. To be closed."""

    def __init__(self, rules: ContainerRules, runtime: ContainerRuntime, path: str) -> None:
        self._rules = rules
        self._runtime = runtime
        self._folder = rules.cache / runtime.kind.value
        self._entries, self._arriving = self._folder / "images", self._folder / "arriving"
        try:
            for folder in (rules.cache, self._folder, self._entries, self._arriving):
                _make_own(folder)
        except OSError as error:
            raise WorldError(f"the cache of images {rules.cache} cannot be used: {error}", transient=False) from error
        passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
        self._environment = {"PATH": path} | passed
        self._pulls: dict[str, Pull] = {}
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="images")
        # Its thread is started now: later the limit of processes may forbid it.
        self._executor.submit(int).result()

    def close(self) -> None:
        """End all pulls."""
        for pull in tuple(self._pulls.values()):
            pull.is_over.set()
        self._executor.shutdown(cancel_futures=True)

    async def get(self, source: ImageSource) -> ReadyImage:
        """Return an image, brought into the cache if it is not there.

        Raises JobFaultError, NodeFaultError or RegistryFaultError.
        """
        found = self._find(source)
        if found is not None:
            return found
        pull = self._pulls.get(source.key) or self._start(source)
        pull.jobs += 1
        try:
            image = await asyncio.shield(pull.work)
            # Each job has a descriptor of the one lock, which is held until all are closed.
            return replace(image, lock=os.dup(image.lock) if image.lock is not None else None)
        finally:
            pull.jobs -= 1
            if not pull.jobs:
                pull.is_over.set()
                self._forget(pull)
                if pull.work.done():
                    _release(pull.work)  # now: the next pull may ask at once whether the image is used
                else:
                    pull.work.add_done_callback(_release)

    def _start(self, source: ImageSource) -> Pull:
        """Start a pull, which all jobs with this image share until it has ended."""
        pull = self._pulls[source.key] = Pull(source)
        pull.work = asyncio.get_running_loop().run_in_executor(self._executor, self._bring, pull)
        pull.work.add_done_callback(lambda _: self._forget(pull))
        return pull

    def _forget(self, pull: Pull) -> None:
        if self._pulls.get(pull.source.key) is pull:
            del self._pulls[pull.source.key]

    # The entries ------------------------------------------------------------------------------------------------

    def _entry(self, source: ImageSource) -> Path:
        return self._entries / hashlib.sha256(source.key.encode()).hexdigest()

    def _find(self, source: ImageSource) -> ReadyImage | None:
        """Return an entry, locked for its user; None = there is none, or it is too old."""
        image = self._ready(self._entry(source))
        if image is None or not source.name:
            return image
        made_s = Path(image.path).parent.joinpath(_FACTS).stat().st_mtime
        if clock.now().timestamp() - made_s > self._rules.max_age_s:
            image.release()
            return None
        return image

    def _find_old(self, source: ImageSource, *, in_use: bool = False) -> ReadyImage | None:
        """Return an entry of any age, locked for its user; None = there is none, or it must be `in_use` and is not."""
        entry = self._entry(source)
        unused = _locked(entry, fcntl.LOCK_EX) if in_use else None
        if unused is not None:
            os.close(unused)
            return None
        return self._ready(entry)

    def _ready(self, entry: Path) -> ReadyImage | None:
        """Return an entry, locked for its user; None = it is not there, or not whole."""
        lock = _locked(entry, fcntl.LOCK_SH)
        if lock is None:
            return None
        facts = _read_facts(entry)
        if facts is None:
            os.close(lock)
            return None
        os.utime(lock)
        path = entry / (_ROOT if self._runtime.unpacks else _SIF)
        settings = (setting.partition("=") for setting in facts.get("Env") or ())
        environment = {name: value for name, equals, value in settings if name and equals}
        entry_point, command = (tuple(facts.get(name) or ()) for name in ("Entrypoint", "Cmd"))
        return ReadyImage(str(path), True, environment, entry_point, command, lock)

    def _remove(self, entry: Path) -> bool:
        """Remove an entry if nobody uses it; returns whether it is gone."""
        lock = _locked(entry, fcntl.LOCK_EX)
        if lock is None:
            return not entry.exists()
        going = Path(tempfile.mkdtemp(prefix="going-", dir=self._arriving))
        entry.rename(going / "entry")
        os.close(lock)
        remove_tree(going)
        return True

    def _make_room(self, kept: Path) -> None:
        """Remove the least recently used entries that nobody uses until the others fit."""
        sizes = {}
        for entry in self._entries.iterdir():
            facts = _read_facts(entry)
            if facts is not None:
                sizes[entry] = (entry / _LOCK).stat().st_mtime, int(facts["MiB"])
            else:
                self._remove(entry)
        excess = sum(size for _, size in sizes.values()) - self._rules.cache_mib
        for entry, (_, size) in sorted(sizes.items(), key=lambda item: item[1]):
            if excess > 0 and entry != kept and self._remove(entry):
                excess -= size
                log.info("image removed from the cache", entry=entry.name, mib=size)

    # Pulls, in the thread of the cache ----------------------------------------------------------------------------

    def _bring(self, pull: Pull) -> ReadyImage:
        lock = self._lock_pulls(pull)
        try:
            found = self._find(pull.source) or self._find_old(pull.source, in_use=True)
            if found is not None:
                return found
            for left in self._arriving.iterdir():
                remove_tree(left)
            folder = Path(tempfile.mkdtemp(dir=self._arriving))
            try:
                return self._fill(pull, folder)
            except (JobFaultError, RegistryFaultError) as error:
                old = self._find_old(pull.source)
                if old is None:
                    raise
                log.warning("an old image is used", image=pull.source.label, why=str(error))
                return old
            finally:
                remove_tree(folder)
        except OSError as error:
            raise NodeFaultError(f"its image cannot be stored: {error}") from error
        finally:
            os.close(lock)

    def _lock_pulls(self, pull: Pull) -> int:
        lock = os.open(self._folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        while True:
            if pull.is_over.is_set():
                os.close(lock)
                raise NodeFaultError("its image is not pulled: it was stopped")
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return lock
            except BlockingIOError:
                pull.is_over.wait(_CHECK_S)

    def _fill(self, pull: Pull, folder: Path) -> ReadyImage:
        """Make the entry of an image in `folder`, and move it to its place."""
        began_s = clock.boot_time_s()
        steps = _Steps(pull, folder, self._environment, self._rules.timeout_s)
        entry = folder / "entry"
        # Only the file of a SIF image is opened by other users; what is unpacked has setuid programs of strangers.
        entry.mkdir()
        entry.chmod(0o700 if self._runtime.unpacks else 0o755)
        archive = steps.copy_archive(pull.source)
        fill = _unpack if self._runtime.unpacks else _build_sif
        facts = fill(self._runtime, steps, pull.source, archive, entry)
        size_mib = disk_use_mib(entry)
        if size_mib > self._rules.cache_mib:
            bound = f"the cache of images has {self._rules.cache_mib} MiB"
            raise JobFaultError(f"its image {pull.source.label} takes {size_mib} MiB, and {bound}")
        (entry / _FACTS).write_text(json.dumps({**facts, "MiB": size_mib, "Key": pull.source.key}))
        (entry / _LOCK).touch()
        place = self._entry(pull.source)
        if self._remove(place):
            entry.rename(place)
        image = self._ready(place)
        if image is None:
            raise NodeFaultError(f"its image {pull.source.label} in the cache is damaged and used by another job")
        self._make_room(place)
        took_s = round(clock.boot_time_s() - began_s, 1)
        log.info("image brought into the cache", image=pull.source.label, mib=size_mib, seconds=took_s)
        return image


def _make_own(folder: Path) -> None:
    """Create a folder that other users may pass; raises OSError if it is another user's."""
    folder.mkdir(parents=True, exist_ok=True)
    if folder.is_symlink() or folder.stat().st_uid != os.geteuid():
        raise OSError(f"{folder} belongs to another user")
    folder.chmod(0o711)


def _locked(entry: Path, how: int) -> int | None:
    """Return a lock on an entry; None = it is not there, or it is being removed."""
    try:
        lock = os.open(entry / _LOCK, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
        if os.path.samestat(os.fstat(lock), os.stat(entry / _LOCK)):
            return lock
    except OSError:
        pass
    os.close(lock)
    return None


def _read_facts(entry: Path) -> dict[str, Any] | None:
    """Return the facts of an entry; None = they cannot be read."""
    try:
        facts = json.loads((entry / _FACTS).read_text())
    except (OSError, ValueError):
        return None
    return facts if isinstance(facts, dict) and "MiB" in facts else None


def _release(work: asyncio.Future[ReadyImage]) -> None:
    if not work.cancelled() and work.exception() is None:
        work.result().release()


# The programs -------------------------------------------------------------------------------------------------------

_STORE = "store"
_KEEPER = "libpod/tmp/pause.pid"
_FULL = ("no space left on device", "disk quota exceeded")
_PULLED = "pulled"
# Errors of Go's network and HTTP libraries, with which all of the programs pull.
_NOT_SERVED = re.compile(
    r"""\b(dial|read|write)\ (tcp|udp)\b          # includes names that cannot be resolved
    | handshake\ timeout | deadline\ exceeded | \bEOF$
    | too\ ?many\ ?requests
    | \bstatus:?\ ?(code)?(\ from\ registry)?:?\ (429|5\d\d)\b""",
    re.IGNORECASE | re.VERBOSE,
)
_SHORT = "/tmp"  # noqa: S108 - podman refuses longer paths of run folders, whatever TMPDIR is


def folders_of_programs(folder: Path) -> dict[str, str]:
    """Return the variables by which programs that pull keep everything in one folder."""
    names = ("HOME", "XDG_RUNTIME_DIR", "TMPDIR", "APPTAINER_TMPDIR", "APPTAINER_CACHEDIR")
    return {name: str(folder) for name in (*names, "SINGULARITY_TMPDIR", "SINGULARITY_CACHEDIR")}


class _Steps:
    """The commands of one pull, which share a folder and a deadline."""

    def __init__(self, pull: Pull, folder: Path, environment: Mapping[str, str], timeout_s: float) -> None:
        self.folder = folder
        self._pull = pull
        self.environment = {**environment, **folders_of_programs(folder)}
        self._timeout_s = timeout_s
        self._deadline_s = clock.boot_time_s() + timeout_s

    def run(self, what: str, *command: str, output: Path | None = None, user: int | None = None) -> str:
        """Run a command to its end and return its output, or write it to a file.

        Raises JobFaultError with its last line if it fails or is not in time, RegistryFaultError if it cannot pull
        from here now, NodeFaultError if it was stopped or the disk is full.
        """
        errors = self.folder / "errors"
        printed = output if output is not None else self.folder / "output"
        with printed.open("wb") as stdout, errors.open("wb") as stderr:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                env=self.environment,
                cwd="/",
                start_new_session=True,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
            )
            self._wait(what, process)
        label = self._pull.source.label
        if process.returncode != 0:
            why = _last_words(errors, process.returncode)
            raise _fault(what, why)(f"its image {label} cannot be {what}: {why}")
        return "" if output is not None else printed.read_text(errors="replace")

    def _wait(self, what: str, process: subprocess.Popen[bytes]) -> None:
        while True:
            try:
                process.wait(_CHECK_S)
                return
            except subprocess.TimeoutExpired:
                if not self._pull.is_over.is_set() and clock.boot_time_s() < self._deadline_s:
                    continue
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if self._pull.is_over.is_set():
                raise NodeFaultError("its image is not pulled: it was stopped")
            raise JobFaultError(f"its image {self._pull.source.label} was not {what} within {self._timeout_s:.0f} s")

    def copy_archive(self, source: ImageSource) -> Path | None:
        """Return the archive of an image, copied with the rights of the user that may read it; None = no archive."""
        if source.archive is None or source.user is None:
            return source.archive
        copy = self.folder / "archive"
        self.run("read", "cat", "--", str(source.archive), output=copy, user=source.user)
        return copy


def _fault(what: str, why: str) -> type[PilotageError]:
    """Return the kind of fault of a failed step, from the last line of its program."""
    if any(text in why.lower() for text in _FULL):
        return NodeFaultError
    return RegistryFaultError if what == _PULLED and _NOT_SERVED.search(why) else JobFaultError


def _last_words(errors: Path, code: int) -> str:
    lines = [line.strip() for line in errors.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1][-_LAST_LINE:] if lines else f"exit code {code}"


def _build_sif(
    runtime: ContainerRuntime, steps: _Steps, source: ImageSource, archive: Path | None, entry: Path
) -> dict[str, object]:
    """Make a SIF file of an image; returns nothing, as the file has its environment and commands."""
    file = str(entry / _SIF)
    if archive is None:
        steps.run(_PULLED, runtime.program, "pull", file, f"docker://{source.name}")
    else:
        steps.run("unpacked", runtime.program, "build", file, f"docker-archive:{archive}")
    Path(file).chmod(0o555)
    return {}


def _unpack(
    runtime: ContainerRuntime, steps: _Steps, source: ImageSource, archive: Path | None, entry: Path
) -> dict[str, object]:
    """Unpack an image into a folder by podman; returns the image's own settings."""
    with podman_in(steps.folder, runtime, steps.environment) as podman:
        return _unpack_by(podman, steps, source, archive, entry)


def _unpack_by(
    podman: tuple[str, ...], steps: _Steps, source: ImageSource, archive: Path | None, entry: Path
) -> dict[str, object]:
    if archive is None:
        steps.run(_PULLED, *podman, "pull", "--quiet", f"docker://{source.name}")
    else:
        steps.run("unpacked", *podman, "load", "--quiet", "--input", str(archive))
    found = set(steps.run("found", *podman, "images", "--quiet", "--no-trunc").split())
    if len(found) != 1:
        raise JobFaultError(f"its image {source.label} is an archive of {len(found)} images, not of one")
    image = found.pop()
    facts = json.loads(steps.run("read", *podman, "image", "inspect", "--format", "{{json .Config}}", image))
    container = steps.run("unpacked", *podman, "create", "--network", "none", image, "unused").strip()
    tree = steps.folder / "tree.tar"
    steps.run("unpacked", *podman, "export", "--output", str(tree), container)
    root = entry / _ROOT
    root.mkdir(mode=0o755)
    owners = "--numeric-owner" if os.geteuid() == 0 else "--no-same-owner"
    # The payload sees the node's devices.
    steps.run("unpacked", "tar", "-x", "-p", owners, "--exclude=dev/*", "-f", str(tree), "-C", str(root))
    return dict(facts or {})


@contextmanager
def podman_in(folder: Path, runtime: ContainerRuntime, environment: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    """Yield the start of podman's commands with a store in this folder; afterwards nothing is left of them.

    `environment` is that of the commands, with the variables of `folders_of_programs`.
    """
    with tempfile.TemporaryDirectory(prefix="pilotage-", dir=_SHORT) as run:
        # What podman mounts for itself ends with each command; it has namespaces anyway if it is not root.
        own_mounts = ("unshare", "--mount", "--") if os.geteuid() == 0 else ()
        ids = () if os.geteuid() == 0 else ("--storage-opt", ".ignore_chown_errors=true")
        store = ("--root", str(folder / _STORE), "--runroot", run)
        try:
            yield (*own_mounts, runtime.program, "--log-level", "error", *store, *ids, *runtime.options)
        finally:
            if os.geteuid() != 0:
                _end_namespaces(folder, runtime, environment)


def _end_namespaces(folder: Path, runtime: ContainerRuntime, environment: Mapping[str, str]) -> None:
    """Remove podman's store, and end the process by which podman keeps a user's namespaces for later commands."""
    # Files of the store may belong to the user's further ids, which only podman's user namespace can remove.
    command = (runtime.program, "unshare", "rm", "-rf", str(folder / _STORE))
    quiet = subprocess.DEVNULL
    try:
        subprocess.run(command, env=environment, stdin=quiet, stdout=quiet, stderr=quiet, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        log.warning("folder of an image not removed", why=str(error))
    with suppress(OSError, ValueError):
        keeper = int((folder / _KEEPER).read_text())
        os.kill(keeper, signal.SIGKILL)
        os.waitpid(keeper, 0)  # it is a child of the pilot, which adopts orphans
