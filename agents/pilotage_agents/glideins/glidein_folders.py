"""The director's folder: one folder per pilot with what it is given, and the record that survives a restart."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import Any

import structlog

from pilotage.errors import InvalidInputError, WorldError
from pilotage.resource_tree import QueueId
from pilotage_agents.copy_id import copy_id
from pilotage_agents.glideins.bundle_store import BundleStore

log = structlog.get_logger()

_RECORD, _ENDED, _STRIPPED, _COLLECTED = "glidein.json", "ended.json", "stripped.json", "collected.json"
_IN_TURN = (_RECORD, _ENDED, _STRIPPED, _COLLECTED)
"""The names that a record gets one after the other; whoever looks for it in this order does not miss it."""

TOKEN_NAME, _POOLS = "token", "pools.json"
_MOST_UNCOLLECTED, _MOST_STRIPPED = 1000, 10_000
_UNFINISHED_FOR = timedelta(hours=1)

CONFIG_NAME = "pilot.json"
"""The file in a glidein's folder that configures its pilot; paths in it start from the folder, wherever that lies."""


@dataclass(frozen=True, slots=True)
class GlideinRecord:
    """A glidein that this director has sent, or is about to send (`glidein_id` empty).

    `missed_since`: one whose submission was not answered has been looked for in vain since then.
    """

    stamp: str
    queue: QueueId
    batch_system: str
    glidein_id: str = ""
    missed_since: datetime | None = None


class GlideinFolders:
    """Keeps one folder per stamp below `root`; a pilot's token is readable by its owner alone.

    Of each of the files `given` every pilot gets a copy, under the name that it has there. `bundles` has the bundles.
    """

    def __init__(self, root: Path, given: Mapping[str, Path] = MappingProxyType({})) -> None:
        self.root = root
        self._given = given
        self.bundles = BundleStore(root.with_name("bundles"))

    def open(self) -> None:
        """Make the folder; raises WorldError when that cannot be."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise _failed(self.root, error) from error

    def copy_id(self) -> str:
        """Return what tells the director of this folder apart from all others; raises WorldError."""
        return copy_id(self.root)

    def path_of(self, stamp: str) -> Path:
        """Return the folder of the pilot `stamp`."""
        return self.root / stamp

    def prepare(
        self,
        record: GlideinRecord,
        token: str,
        pools: Sequence[str],
        config: Mapping[str, object],
        bundle: Path | None = None,
    ) -> Path:
        """Write all that the pilot is given, the record last; returns the folder.

        `config` is completed by where token and pools are. `bundle` is the pilot itself, None = it is there already.
        Raises WorldError when it cannot be written; of the folder nothing is left then.
        """
        program = None if bundle is None else self.bundles.copy_of(bundle)
        folder = self.path_of(record.stamp)
        completed = {**config, "token_file": TOKEN_NAME, "pools_file": _POOLS}
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise _failed(folder, error) from error
        try:
            self._fill(folder, token, pools, completed, program)
            self.keep(record)
        except WorldError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return folder

    def _fill(
        self, folder: Path, token: str, pools: Sequence[str], config: Mapping[str, object], program: Path | None
    ) -> None:
        try:
            for name, path in self._given.items():
                shutil.copy(path, folder / name)
            if program is not None:
                self.bundles.give(program, folder)
            _write(folder / TOKEN_NAME, token)
            _write(folder / _POOLS, json.dumps(list(pools)))
            _write(folder / CONFIG_NAME, json.dumps(config, indent=1, sort_keys=True))
        except OSError as error:
            raise _failed(Path(error.filename or folder), error) from error

    def in_one(self, token: str, pools: Sequence[str], config: Mapping[str, object]) -> str:
        """Return all that a pilot is given as one text, for one that sees no folder; raises WorldError."""
        whole = {**config, "token": token, "pools": list(pools)}
        ca_file = whole.pop("ca_file", None)
        if ca_file in self._given:
            path = self._given[str(ca_file)]
            try:
                whole["ca"] = path.read_text()
            except OSError as error:
                raise _failed(path, error) from error
        return json.dumps(whole, sort_keys=True)

    def keep(self, record: GlideinRecord) -> None:
        """Write the record of a glidein, in place of an earlier one; raises WorldError."""
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

    def tokens_before(self, stamps: Iterable[str], time: datetime) -> dict[str, float]:
        """Return the pilots of which the token was last brought before `time`, and their wall times in seconds."""
        old = (each for each in stamps if 0 < _changed(self.path_of(each) / TOKEN_NAME) < time.timestamp())
        times = ((stamp, _wall_time_s(self.path_of(stamp) / CONFIG_NAME)) for stamp in old)
        return {stamp: wall_time_s for stamp, wall_time_s in times if wall_time_s is not None}

    def put_token(self, stamp: str, token: str) -> None:
        """Put a new token in the place of a pilot's old one; until it is `brought` it is as old. Raises WorldError."""
        path = self.path_of(stamp) / TOKEN_NAME
        new = path.with_suffix(".new")
        try:
            _write(new, token)
            os.utime(new, (_changed(path),) * 2)
            new.replace(path)
        except OSError as error:
            raise _failed(path, error) from error

    def brought(self, stamps: Iterable[str], now: datetime) -> None:
        """Note that the pilots' tokens are where they will be read, or that there are no newer ones."""
        for stamp in stamps:
            with contextlib.suppress(OSError):  # it is renewed once more
                os.utime(self.path_of(stamp) / TOKEN_NAME, (now.timestamp(),) * 2)

    def records(self) -> tuple[GlideinRecord, ...]:
        """Return the records of all glideins that have not been seen to end; an unreadable one is logged."""
        return self._records_in(_RECORD)

    def to_collect(self) -> tuple[GlideinRecord, ...]:
        """Return the records of glideins that ended, and whose output is still to be collected."""
        return self._records_in(_ENDED, _STRIPPED)

    def _records_in(self, *names: str) -> tuple[GlideinRecord, ...]:
        found = (_read(path) for name in names for path in sorted(self.root.glob(f"*/{name}")))
        return tuple(record for record in found if record is not None)

    def ended(self, stamp: str) -> None:
        """Take the glidein from the records and its token away; what it printed stays for a while."""
        folder = self.path_of(stamp)
        (folder / TOKEN_NAME).unlink(missing_ok=True)
        _rename(folder / _RECORD, _ENDED)

    def collected(self, stamps: Iterable[str]) -> None:
        """Note that the output of glideins is all here that will come."""
        for stamp in stamps:
            for name in (_ENDED, _STRIPPED):
                _rename(self.path_of(stamp) / name, _COLLECTED)

    def prune(self, keep: int, now: datetime) -> None:
        """Remove the folders of glideins that ended, but for the `keep` newest and what is still to be collected.

        Of what is too much to be kept until it is collected, the records alone stay: they know what lies elsewhere.
        Folders that have got no record for long, as their director was stopped over them, go as well.
        """
        for path in self._beyond(max(keep, _MOST_UNCOLLECTED), _ENDED):
            _strip(path)
        forgotten = self._beyond(_MOST_STRIPPED, _STRIPPED)
        if forgotten:
            log.error("output that cannot be collected is given up, wherever it lies", glideins=len(forgotten))
        for path in (*forgotten, *self._beyond(keep, _COLLECTED)):
            shutil.rmtree(path.parent, ignore_errors=True)
        for folder in self._unfinished(now - _UNFINISHED_FOR):
            shutil.rmtree(folder, ignore_errors=True)

    def _beyond(self, keep: int, name: str) -> list[Path]:
        """Return the records of this name but for the `keep` newest."""
        return sorted(self.root.glob(f"*/{name}"), key=_changed, reverse=True)[keep:]

    def _unfinished(self, before: datetime) -> list[Path]:
        """Return the folders that have no record and have not changed since `before`."""
        old = (path for path in self.root.iterdir() if path.is_dir() and _changed(path) < before.timestamp())
        return [folder for folder in old if not any((folder / name).exists() for name in _IN_TURN)]


def _strip(record: Path) -> None:
    """Remove all of a folder but the record of what it was."""
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
        missed = fields.get("missed_since")
        since = datetime.fromisoformat(missed) if missed else None
        return GlideinRecord(fields["stamp"], queue, fields["batch_system"], fields["glidein_id"], since)
    except (OSError, ValueError, KeyError, TypeError, InvalidInputError) as error:
        log.warning("record of a glidein cannot be read", path=str(path), reason=str(error))
        return None


def _wall_time_s(config: Path) -> float | None:
    """Return the wall time that a pilot was told; None = its configuration cannot be read."""
    try:
        return float(json.loads(config.read_text())["queue"]["wall_time_s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.warning("configuration of a pilot cannot be read", path=str(config), reason=str(error))
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
