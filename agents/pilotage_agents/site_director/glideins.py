"""The director's folders: one per glidein with its input and its record, and a store of pilot bundles.

The record survives a restart of the director; the names that its file gets one after the other are the glidein's
states. The store keeps a copy of each bundle, and each glidein's folder gets a link to it. So a glidein keeps the
bundle that it was sent with when the operator replaces the original.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any
from zipfile import is_zipfile

import structlog

from pilotage.errors import InvalidInputError, WorldError
from pilotage.resources.tree import QueueId
from pilotage_agents.batch_systems.base import LOG_NAME
from pilotage_agents.runtime.leadership import replica_id


class UnfinishedBundleError(WorldError):
    """A bundle is incomplete, as it is being written: no pilot can be sent with it now."""

    def __init__(self, bundle: Path) -> None:
        super().__init__(f"{bundle}: the bundle is incomplete; it may be being written", transient=True)
        self.bundle = bundle


class BundleStore:
    """Keeps one copy of each bundle below `folder`, on the file system of the glideins' folders."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def stored_copy(self, bundle: Path) -> Path:
        """Return the stored copy of a bundle's present content.

        Raises UnfinishedBundleError while the bundle is incomplete, and WorldError when it cannot be read.
        """
        copy = self._folder / hashlib.sha256(os.fsencode(bundle)).hexdigest()[:16] / bundle.name
        try:
            if not copy.exists() or _fingerprint(copy) != _fingerprint(bundle):
                copy.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                _copy_atomically(bundle, copy)
        except OSError as error:
            raise WorldError(f"{error.filename or bundle}: {error.strerror}", transient=True) from error
        return copy

    def sha256_of(self, bundle: Path) -> str:
        """Return the SHA-256 of a bundle's present content, in hex digits; raises as `stored_copy`."""
        copy = self.stored_copy(bundle)
        return _sha256(copy, _fingerprint(copy))

    def link_into(self, copy: Path, folder: Path) -> None:
        """Link a stored copy into a glidein's folder; raises OSError."""
        try:
            (folder / copy.name).hardlink_to(copy)
        except OSError:  # not every file system has links from folder to folder
            shutil.copy2(copy, folder)


def _copy_atomically(bundle: Path, copy: Path) -> None:
    """Replace a stored copy, or leave it unchanged and raise UnfinishedBundleError or OSError."""
    new, mark = copy.with_name(f"{copy.name}.new"), _fingerprint(bundle)
    try:
        shutil.copy2(bundle, new)
        # The directory of a zip file is at its end, so a file that is still being written has none.
        if _fingerprint(bundle) != mark or not is_zipfile(new):
            raise UnfinishedBundleError(bundle)
        new.replace(copy)
    finally:
        new.unlink(missing_ok=True)


@lru_cache(maxsize=64)
def _sha256(path: Path, mark: tuple[int, int]) -> str:
    """Return the SHA-256 of a file; `mark` is part of the cache key, so that a replaced file is read again."""
    del mark
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _fingerprint(path: Path) -> tuple[int, int]:
    """Return size and modification time, which change when the file is replaced."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns


log = structlog.get_logger()

_RECORD, _ENDED, _STRIPPED, _COLLECTED = "glidein.json", "ended.json", "stripped.json", "collected.json"
_RECORD_NAMES = (_RECORD, _ENDED, _STRIPPED, _COLLECTED)
"""The names that a record's file gets one after the other; a search in this order never misses it."""

TOKEN_NAME, _POOLS = "token", "pools.json"
_MAX_UNCOLLECTED, _MAX_STRIPPED = 1000, 10_000
_UNFINISHED_FOR = timedelta(hours=1)

CONFIG_NAME = "pilot.json"
"""The file in a glidein's folder that configures its pilot; its relative paths start from the folder."""


_LOG_BYTES = 16 * 1024
"""The part of a pilot's output that is sent to the server."""


@dataclass(frozen=True, slots=True)
class GlideinRecord:
    """A glidein that this director has sent, or is about to send (`glidein_id` empty).

    `queue` is a pattern if the batch system chooses the queue.
    `missed_since`: the time since when a glidein whose submission was not answered has not been found.
    """

    stamp: str
    queue: QueueId
    batch_system: str
    glidein_id: str = ""
    missed_since: datetime | None = None


class GlideinFolders:
    """Keeps one folder per stamp below `root`; only the owner can read a pilot's enrolment secret.

    Every pilot gets a copy of each of the files `given`, under its key. `bundles` stores the bundles.
    """

    def __init__(self, root: Path, given: Mapping[str, Path] = MappingProxyType({})) -> None:
        self.root = root
        self._files = given
        self.bundles = BundleStore(root.with_name("bundles"))

    def open(self) -> None:
        """Create the folder; raises WorldError."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(self.root, error) from error

    def replica_id(self) -> str:
        """Return the replica id of the director of this folder; raises WorldError."""
        return replica_id(self.root)

    def path_of(self, stamp: str) -> Path:
        """Return the folder of the pilot `stamp`."""
        return self.root / stamp

    def prepare(
        self,
        record: GlideinRecord,
        token: str,
        pools: Sequence[str] | None,
        config: Mapping[str, object],
        bundle: Path | None = None,
    ) -> Path:
        """Write the pilot's input, the record last; returns the folder.

        The paths of token and pools are added to `config`; pools None = the pilot asks for them. `bundle` is the pilot
        itself, None = it is installed on the node. Raises WorldError when writing fails; the folder is removed then.
        """
        program = None if bundle is None else self.bundles.stored_copy(bundle)
        folder = self.path_of(record.stamp)
        completed = {**config, "token_file": TOKEN_NAME, **({} if pools is None else {"pools_file": _POOLS})}
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _failed(folder, error) from error
        try:
            self._fill(folder, token, pools, completed, program)
            self.save(record)
        except WorldError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _fill(
        self,
        folder: Path,
        token: str,
        pools: Sequence[str] | None,
        config: Mapping[str, object],
        program: Path | None,
    ) -> None:
        try:
            for name, path in self._files.items():
                shutil.copy(path, folder / name)
            if program is not None:
                self.bundles.link_into(program, folder)
            _write(folder / TOKEN_NAME, token)
            if pools is not None:
                _write(folder / _POOLS, json.dumps(list(pools)))
            _write(folder / CONFIG_NAME, json.dumps(config, indent=1, sort_keys=True))
        except OSError as error:
            raise _failed(Path(error.filename or folder), error) from error

    def inline_config(self, token: str, pools: Sequence[str] | None, config: Mapping[str, object]) -> str:
        """Return the pilot's whole input as one text, for a node that does not see the folder; raises WorldError."""
        whole = {**config, "token": token, **({} if pools is None else {"pools": list(pools)})}
        ca_file = whole.pop("ca_file", None)
        if ca_file in self._files:
            path = self._files[str(ca_file)]
            try:
                whole["ca"] = path.read_text()
            except OSError as error:
                raise _failed(path, error) from error
        return json.dumps(whole, sort_keys=True)

    def save(self, record: GlideinRecord) -> None:
        """Write the record of a glidein, replacing an earlier one; raises WorldError."""
        path = self.path_of(record.stamp) / _RECORD
        fields = {
            "stamp": record.stamp,
            "queue": str(record.queue),
            "batch_system": record.batch_system,
            "glidein_id": record.glidein_id,
            "missed_since": record.missed_since and record.missed_since.isoformat(),
        }
        try:
            _write(path.with_suffix(".new"), json.dumps(fields))
            path.with_suffix(".new").replace(path)
        except OSError as error:
            raise _failed(path, error) from error

    def tokens_before(self, stamps: Iterable[str], time: datetime) -> list[str]:
        """Return those of the pilots whose enrolment secret was last delivered before `time`, and is not removed."""
        return [each for each in stamps if 0 < _changed(self.path_of(each) / TOKEN_NAME) < time.timestamp()]

    def put_token(self, stamp: str, token: str) -> None:
        """Replace a pilot's token. It keeps the age of the old one until `mark_tokens_renewed`. Raises WorldError."""
        path = self.path_of(stamp) / TOKEN_NAME
        new = path.with_suffix(".new")
        try:
            _write(new, token)
            os.utime(new, (_changed(path),) * 2)
            new.replace(path)
        except OSError as error:
            raise _failed(path, error) from error

    def mark_tokens_renewed(self, stamps: Iterable[str], now: datetime) -> None:
        """Record that the pilots' tokens have been delivered, or that there are no newer ones."""
        for stamp in stamps:
            with contextlib.suppress(OSError):  # the token is renewed once more
                os.utime(self.path_of(stamp) / TOKEN_NAME, (now.timestamp(),) * 2)

    def records(self) -> tuple[GlideinRecord, ...]:
        """Return the records of all glideins that are not known to have ended; unreadable ones are logged."""
        return self._records_in(_RECORD)

    def uncollected(self) -> tuple[GlideinRecord, ...]:
        """Return the records of ended glideins whose output has not been collected."""
        return self._records_in(_ENDED, _STRIPPED)

    def _records_in(self, *names: str) -> tuple[GlideinRecord, ...]:
        found = (_read(path) for name in names for path in sorted(self.root.glob(f"*/{name}")))
        return tuple(record for record in found if record is not None)

    def mark_ended(self, stamp: str) -> None:
        """Mark a glidein as ended and remove its token; its output stays for a while."""
        folder = self.path_of(stamp)
        (folder / TOKEN_NAME).unlink(missing_ok=True)
        _rename(folder / _RECORD, _ENDED)

    def end_of_log(self, stamp: str) -> str:
        """Return the last part of a glidein's output; raises WorldError if it has none that can be read."""
        path = self.path_of(stamp) / LOG_NAME
        try:
            with path.open("rb") as file:
                file.seek(0, os.SEEK_END)
                file.seek(max(0, file.tell() - _LOG_BYTES))
                end: bytes = file.read(_LOG_BYTES)
            return end.decode(errors="replace").replace("\0", "\ufffd")
        except FileNotFoundError:
            return "[the batch system has left no output]"
        except OSError as error:
            raise _failed(path, error) from error

    def mark_collected(self, stamps: Iterable[str]) -> None:
        """Record that the output of glideins has been collected."""
        for stamp in stamps:
            for name in (_ENDED, _STRIPPED):
                _rename(self.path_of(stamp) / name, _COLLECTED)

    def prune(self, keep: int, now: datetime) -> None:
        """Remove the folders of ended glideins except the `keep` newest and those not yet collected.

        Of too many folders not yet collected only the records stay: they name the output that lies elsewhere. Old
        folders without a record, left by a director that stopped while it wrote them, are removed too.
        """
        for path in self._beyond(max(keep, _MAX_UNCOLLECTED), _ENDED):
            _strip(path)
        forgotten = self._beyond(_MAX_STRIPPED, _STRIPPED)
        if forgotten:
            log.error("output that cannot be collected is given up", glideins=len(forgotten))
        for path in (*forgotten, *self._beyond(keep, _COLLECTED)):
            shutil.rmtree(path.parent, ignore_errors=True)
        for folder in self._unfinished(now - _UNFINISHED_FOR):
            shutil.rmtree(folder, ignore_errors=True)

    def _beyond(self, keep: int, name: str) -> list[Path]:
        """Return the records of this name except the `keep` newest."""
        return sorted(self.root.glob(f"*/{name}"), key=_changed, reverse=True)[keep:]

    def _unfinished(self, before: datetime) -> list[Path]:
        """Return the folders that have no record and have not changed since `before`."""
        old = (path for path in self.root.iterdir() if path.is_dir() and _changed(path) < before.timestamp())
        return [folder for folder in old if not any((folder / name).exists() for name in _RECORD_NAMES)]


def _strip(record: Path) -> None:
    """Remove everything in a folder except its record."""
    _rename(record, _STRIPPED)
    for path in record.parent.iterdir():
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        elif path.name != _STRIPPED:
            path.unlink(missing_ok=True)


def _rename(path: Path, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.rename(path.with_name(name))


def _read(path: Path) -> GlideinRecord | None:
    try:
        fields: Any = json.loads(path.read_text())
        queue = QueueId.parse(fields["queue"])
        missed = fields["missed_since"]
        since = datetime.fromisoformat(missed) if missed else None
        return GlideinRecord(fields["stamp"], queue, fields["batch_system"], fields["glidein_id"], since)
    except (OSError, ValueError, KeyError, TypeError, InvalidInputError) as error:
        log.warning("record of a glidein cannot be read", path=str(path), reason=str(error))
        return None


def _write(path: Path, text: str) -> None:
    """Write a file that only its owner can read."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(text)


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except FileNotFoundError:
        return 0.0


def _failed(path: Path, error: OSError) -> WorldError:
    return WorldError(f"{path}: {error.strerror}", transient=True)
