"""Backup and restore, as an operator runs them.

Layout of a backup
------------------
- `pilotage.db`: SQLite's database, marked as a backup, so that no server serves it before `restore`. PostgreSQL has
  its own tools: there the dump lies wherever the operator puts it.
- `keys/`: the signing keys. `files/`: the files that the database knows, by checksum, and the id of their store.
  `files.sha256`: their list for `sha256sum --check`.
- `backup.json`: when and of what it was made. `incarnations`: one line for each restore of this backup.

The database is copied first, so that no file is newer than it. A file that retention removes meanwhile belongs to a
job that retention removes too.
"""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing as closed
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from pilotage import clock
from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.processes import exclusive_folder
from pilotage_server.core.incarnation import Installation
from pilotage_server.operations.installation import Belongings, Restored, adopt_keys, begin_incarnation
from pilotage_server.rpc.framework.key_files import KeyFiles, key_times, write_private
from pilotage_server.settings import MIB, ServerSettings
from pilotage_server.storage.blobs.base import FileStore, store_whole
from pilotage_server.storage.blobs.opening import open_store
from pilotage_server.storage.database.engine import Database, closing, upgrade
from pilotage_server.storage.database.installation import all_files, load_installation, needed_inputs
from pilotage_server.storage.database.last_seen import LastSeenFile

_DATABASE, _KEYS, _FILES, _STORE_ID = "pilotage.db", "keys", "files", "store-id"
_LIST, _ABOUT, _RESTORES = "files.sha256", "backup.json", "incarnations"
_SHOWN = 20
"""Jobs that a list of people's interest names."""


def back_up(settings: ServerSettings, to: Path, *, with_files: bool) -> None:
    """Write a backup to a new folder; servers may run meanwhile. The folder appears when it is complete.

    Raises
    ------
    InvalidInputError
        The folder exists.
    WorldError
        The database, the keys or the files cannot be read, or the folder cannot be written.
    """
    if to.exists():
        raise InvalidInputError(Violation("--to", f"{to} exists; every backup needs a new folder"))
    with _translated(to):
        draft = Path(tempfile.mkdtemp(prefix=f".{to.name}.", dir=to.absolute().parent))
        try:
            known, missing = _write_backup(settings, draft, with_files=with_files)
            os.sync()
            draft.rename(to)
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
    sys.stdout.write(f"backup of database {known.database_id}, incarnation {known.incarnation}, is in {to}\n")
    if not _sqlite_file(settings):
        sys.stdout.write("it has no database: dump that with pg_dump before each backup of the files\n")
    if missing:
        sys.stdout.write(f"{len(missing)} files are not in the store: {', '.join(missing[:_SHOWN])}\n")


def _write_backup(settings: ServerSettings, folder: Path, *, with_files: bool) -> tuple[Installation, list[str]]:
    source = _sqlite_file(settings)
    if source is not None:
        _copy_sqlite(source, folder / _DATABASE)
    url = settings.database_url if source is None else f"sqlite:///{folder / _DATABASE}"
    with closing(Database(url)) as database:
        known = database.read(lambda transaction: load_installation(transaction.session))
        checksums = database.read(lambda transaction: all_files(transaction.session))
    (folder / _KEYS).mkdir(mode=0o700)
    for key in KeyFiles(settings.key_file).load():
        if key.path is not None:
            write_private(folder / _KEYS / key.path.name, key.path.read_bytes())
    (folder / _FILES).mkdir()
    store = open_store(settings)
    missing = _copy_files(store, checksums, folder / _FILES) if with_files else []
    there = sorted(set(checksums).difference(missing))
    (folder / _LIST).write_text("".join(f"{each}  {_FILES}/{each[:2]}/{each}\n" for each in there))
    about = {"made": clock.now().isoformat(), "database": known.database_id, "incarnation": known.incarnation}
    (folder / _ABOUT).write_text(json.dumps({**about, "files": len(there), "with_files": with_files}) + "\n")
    return known, missing


def _sqlite_file(settings: ServerSettings) -> Path | None:
    """Return the file of the database; None = it is not SQLite."""
    url = make_url(settings.database_url)
    return Path(url.database or "") if url.get_backend_name() == "sqlite" else None


def _copy_sqlite(source: Path, copy: Path) -> None:
    """Copy the database of a running server as one snapshot, and mark the copy."""
    if not source.exists():
        raise NotFoundError("database", str(source))
    write_private(copy, b"")
    with closed(sqlite3.connect(source)) as live, closed(sqlite3.connect(copy)) as copied:
        live.backup(copied)
        with copied:
            copied.execute("UPDATE installation SET place = ?", (f"backup of {clock.now():%Y-%m-%d %H:%M:%S} UTC",))
        copied.execute("PRAGMA journal_mode = DELETE")  # one file, without a log beside it


def _copy_files(store: FileStore, checksums: Sequence[str], folder: Path) -> list[str]:
    """Copy files from the store and return the checksums of those that it does not have."""
    missing: list[str] = []
    (folder / _STORE_ID).write_text(f"{store.id() or ''}\n")
    for checksum in checksums:
        try:
            pieces = store.read(checksum)
        except NotFoundError:
            missing.append(checksum)
            continue
        path = folder / checksum[:2] / checksum
        path.parent.mkdir(exist_ok=True)
        with path.open("xb") as file:
            file.writelines(pieces)
    return missing


def restore(settings: ServerSettings, source: Path | None, known_incarnation: int) -> None:
    """Begin a new incarnation of a database that was put back; with `source`, put SQLite, keys and files back first.

    A restore that is interrupted can be repeated: no server starts in between.

    Raises
    ------
    StateConflictError
        A server works in this data folder.
    InvalidInputError
        `source` is no backup.
    NotFoundError
        There is no database.
    WorldError
        The database or the files cannot be read or written, or a later release has made the database.
    """
    if source is not None and not (source / _ABOUT).is_file():
        raise InvalidInputError(Violation("--from", f"{source} is no backup: it has no {_ABOUT}"))
    with _translated(settings.data), exclusive_folder(settings.data, "a server"):
        store = open_store(settings)
        if source is not None:
            known_incarnation = max(known_incarnation, _last_restore(source))
            _put_back(settings, store, source)
        with _present_database(settings) as database:
            upgrade(database)
            restored, lost = _begin(settings, database, store, known_incarnation)
        if source is not None:
            _note_restore(source, restored.incarnation.number)
    _print_result(restored, lost)


def _put_back(settings: ServerSettings, store: FileStore, source: Path) -> None:
    """Put back the files that are missing, the keys if there are none, and SQLite's database."""
    for path in sorted((source / _FILES).glob("??/*")):
        if not store.has(path.name):
            with path.open("rb") as file:
                store_whole(store, path.name, path.stat().st_size, iter(partial(file.read, MIB), b""))
    with suppress(FileNotFoundError):
        id_ = (source / _FILES / _STORE_ID).read_text().strip()
        if id_:
            store.set_id(id_)
    if not KeyFiles(settings.key_file).load():  # present ones are newer, and lack those that were retired since
        settings.key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for path in (source / _KEYS).iterdir():
            write_private(settings.key_file.parent / path.name, path.read_bytes())
    target = _sqlite_file(settings)
    if target is not None:
        _put_back_sqlite(source / _DATABASE, target)


def _put_back_sqlite(source: Path, target: Path) -> None:
    """Move the present database and its log aside, and copy the backup to its place."""
    if not source.is_file():
        raise InvalidInputError(Violation("--from", f"{source} is missing: it is no backup of SQLite"))
    draft = target.with_name(f".{target.name}.restored")
    draft.unlink(missing_ok=True)
    shutil.copyfile(source, draft)
    draft.chmod(0o600)
    os.sync()
    aside = f"before-restore-{clock.now():%Y%m%dT%H%M%SZ}"
    for suffix in ("", "-wal", "-shm"):  # a log of another database would damage this one
        with suppress(FileNotFoundError):
            present = target.with_name(target.name + suffix)
            present.rename(target.with_name(f"{target.name}.{aside}{suffix}"))
    draft.rename(target)


@contextmanager
def _present_database(settings: ServerSettings) -> Iterator[Database]:
    """Open the database; raises NotFoundError if there is none, or an empty one, which an upgrade would fill."""
    file = _sqlite_file(settings)
    if file is not None and not file.exists():
        raise NotFoundError("database; put the backup back first:", str(file))
    with closing(Database(settings.database_url)) as database:
        tables = database.read(lambda transaction: inspect(transaction.session.connection()).get_table_names())
        if "installation" not in tables:
            raise NotFoundError("installation in the database; put the backup back first:", repr(database.url))
        yield database


def _begin(
    settings: ServerSettings, database: Database, store: FileStore, known_incarnation: int
) -> tuple[Restored, dict[int, str]]:
    """Begin the incarnation; returns also the jobs that miss an input file, with its checksum."""
    known = database.read(lambda transaction: load_installation(transaction.session))
    store_id = store.id() or (store.set_id(known.store) if known.store else None)
    keys = key_times(KeyFiles(settings.key_file).load_or_make())
    own = Belongings(keys, store_id, LastSeenFile(settings.data).load())
    restored = database.write(
        lambda transaction: begin_incarnation(transaction, own, settings.rules().lease, known_incarnation)
    )
    needed = database.read(lambda transaction: needed_inputs(transaction.session))
    lost = {job_id: checksum for checksum, jobs in needed.items() if not store.has(checksum) for job_id in jobs}
    return restored, lost


def _last_restore(source: Path) -> int:
    """Return the number of the incarnation that the last restore of this backup has begun; 0 = none."""
    with suppress(FileNotFoundError):
        return max(map(int, (source / _RESTORES).read_text().split()), default=0)
    return 0


def _note_restore(source: Path, number: int) -> None:
    """Note the incarnation in the backup, for the next restore of it where no server's folder is left."""
    try:
        with (source / _RESTORES).open("a") as file:
            file.write(f"{number}\n")
    except OSError as error:
        sys.stdout.write(f"{source} cannot be written ({error.strerror}): ")
        sys.stdout.write(f"a second restore of it on an empty machine needs --incarnation {number + 1}\n")


def _print_result(restored: Restored, lost: dict[int, str]) -> None:
    new = restored.incarnation
    sys.stdout.write(
        f"incarnation {new.number} has begun: ids of jobs continue at {new.base.job + 1}, the event feed at "
        f"{new.base.position + 1}\n"
        f"ids {new.backup.job + 1} to {new.base.job} are those of lost jobs: their owners have to submit them again\n"
        f"{restored.fenced_jobs} waiting jobs are fenced for their lease: attempts of the lost time may be alive\n"
    )
    if lost:
        shown = ", ".join(f"{job_id} ({lost[job_id][:12]}…)" for job_id in sorted(lost)[:_SHOWN])
        more = f" and {len(lost) - _SHOWN} more" if len(lost) > _SHOWN else ""
        sys.stdout.write(f"{len(lost)} jobs miss input files, and will fail: {shown}{more}\n")
    sys.stdout.write("start the servers\n")


def take_keys(settings: ServerSettings) -> None:
    """Make this server's signing keys those of the database; raises WorldError."""
    keys = key_times(KeyFiles(settings.key_file).load_or_make())
    with _present_database(settings) as database:
        database.write(lambda transaction: adopt_keys(transaction, keys))
    sys.stdout.write(f"the database has the keys {', '.join(sorted(keys))} now\n")


@contextmanager
def _translated(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system and of SQLite's files into one WorldError."""
    try:
        yield
    except OSError as error:
        raise WorldError(f"{error.filename or folder} cannot be used: {error.strerror}", transient=False) from error
    except sqlite3.Error as error:
        raise WorldError(f"the database cannot be copied: {error}", transient=False) from error
