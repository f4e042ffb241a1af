"""Backup and restore, as an operator runs them.

Members of a backup, which is one archive
-----------------------------------------
- `backup.json`: when, of what and by which release it was made.
- `pilotage.db`: SQLite's database, marked as a backup, so that no server serves it before `restore`. PostgreSQL has
  its own tools: there the dump lies wherever the operator puts it.
- `keys/`: the signing keys. `tls/`: the server's own authority, if it has one.
- `files/`: the files that the database knows, by checksum. `files.txt`: their checksums.
- `SHA256SUMS`: the checksums of all members.

The database is copied first, so that no file is newer than it. A file that retention removes meanwhile belongs to a
job that retention removes too. `FILE.restores` beside an archive has one line for each restore of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing as closed
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path

from sqlalchemy import inspect
from sqlalchemy.engine import make_url

from pilotage import clock
from pilotage.errors import InvalidInputError, NotFoundError, Violation, WorldError
from pilotage.processes import exclusive_folder
from pilotage_server.backup_archive import ArchiveWriter, BackupArchive, intact, opened, written
from pilotage_server.core.incarnation import Installation
from pilotage_server.operations.installation import Belongings, Restored, adopt_keys, begin_incarnation
from pilotage_server.own_authority import AuthorityFiles
from pilotage_server.rpc.framework.key_files import KeyFiles, key_times, write_private
from pilotage_server.settings import ServerSettings
from pilotage_server.storage.blobs.base import FileStore, store_whole
from pilotage_server.storage.blobs.opening import open_store
from pilotage_server.storage.database.engine import Database, closing, read_schema, upgrade
from pilotage_server.storage.database.installation import all_files, load_installation, needed_inputs
from pilotage_server.storage.database.last_seen import LastSeenFile

_ABOUT, _DATABASE, _KEYS, _TLS, _FILES, _LIST = "backup.json", "pilotage.db", "keys", "tls", "files", "files.txt"
_RESTORES = ".restores"
_KEPT = "{0} keeps its {1} of the backup: {2}; to change that, remove what is there and repeat\n"
_SHOWN = 20
"""Jobs that a list of people's interest names."""


def back_up(settings: ServerSettings, to: Path, *, with_files: bool) -> None:
    """Write a backup to a new file; servers may run meanwhile. The file appears when it is complete.

    Raises
    ------
    InvalidInputError
        The file exists.
    WorldError
        The database, the keys or the files cannot be read or are damaged, or the archive cannot be written.
    """
    if to.exists():
        raise InvalidInputError(Violation("FILE", f"{to} exists; every backup needs a new file"))
    with _translated(to), tempfile.TemporaryDirectory(prefix=f".{to.name}.", dir=to.absolute().parent) as scratch:
        draft = Path(scratch) / "archive"
        with written(draft) as archive:
            known, missing = _write_backup(settings, archive, Path(scratch), with_files=with_files)
        os.sync()
        draft.rename(to)
    sys.stdout.write(f"backup of database {known.database_id}, incarnation {known.incarnation}, is in {to}\n")
    if not _sqlite_file(settings):
        sys.stdout.write("it has no database: dump that with pg_dump before each backup of the files\n")
    if missing:
        sys.stdout.write(f"{len(missing)} files are damaged or not in the store: {', '.join(missing[:_SHOWN])}\n")


def _write_backup(
    settings: ServerSettings, archive: ArchiveWriter, scratch: Path, *, with_files: bool
) -> tuple[Installation, list[str]]:
    """Write all members; returns what the database is, and the files that it knows and the store has not."""
    source, copy = _sqlite_file(settings), scratch / _DATABASE
    if source is not None:
        _copy_sqlite(source, copy)
        _check_sqlite(copy, "the database")
    url = settings.database_url if source is None else f"sqlite:///{copy}"
    with closing(Database(url)) as database:
        known = database.read(lambda transaction: load_installation(transaction.session))
        schema = database.read(lambda transaction: read_schema(transaction.session))
        checksums = database.read(lambda transaction: all_files(transaction.session))
    store = open_store(settings)
    about = {
        "made": clock.now().isoformat(),
        "release": version("pilotage"),
        "schema": schema.present,
        "database": known.database_id,
        "incarnation": known.incarnation,
        "store": store.id(),
        "with_files": with_files,
    }
    archive.add(_ABOUT, (json.dumps(about) + "\n").encode())
    if source is not None:
        archive.add_file(_DATABASE, copy)
        copy.unlink()
    for key in KeyFiles(settings.key_file).load():
        if key.path is not None:
            archive.add_file(f"{_KEYS}/{key.path.name}", key.path)
    authority = AuthorityFiles(settings.tls_folder)
    if authority.load() is not None:
        for path in (authority.key, authority.certificate):
            archive.add_file(f"{_TLS}/{path.name}", path)
    missing = _copy_files(store, checksums, archive, scratch / "file") if with_files else []
    there = sorted(set(checksums).difference(missing))
    archive.add(_LIST, "".join(f"{each}\n" for each in there).encode())
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


def _check_sqlite(path: Path, name: str) -> None:
    """Raise WorldError where SQLite's own check finds damage."""
    with closed(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as checked:
        try:
            faults = [row[0] for row in checked.execute("PRAGMA integrity_check(3)")]
        except sqlite3.DatabaseError as error:
            faults = [str(error)]
    if faults != ["ok"]:
        raise WorldError(f"{name} is damaged: {'; '.join(faults)}; restore an earlier backup", transient=False)


def _copy_files(store: FileStore, checksums: Sequence[str], archive: ArchiveWriter, draft: Path) -> list[str]:
    """Copy files from the store and return the checksums of those that it does not have, or that are damaged."""
    missing: list[str] = []
    for checksum in checksums:
        try:
            pieces = store.read(checksum)
        except NotFoundError:
            missing.append(checksum)
            continue
        with draft.open("wb") as file:
            is_intact = intact(pieces, checksum, file.write)
        if is_intact:
            archive.add_file(f"{_FILES}/{checksum[:2]}/{checksum}", draft)
        else:
            missing.append(checksum)
    return missing


def restore(settings: ServerSettings, source: Path | None, known_incarnation: int) -> None:
    """Begin a new incarnation of a database that was put back; with `source`, put SQLite, keys and files back first.

    Checksums, schema and integrity are checked before anything is changed. A restore that is interrupted can be
    repeated: no server starts in between.

    Raises
    ------
    StateConflictError
        A server works in this data folder.
    InvalidInputError
        `source` is no backup, or is damaged.
    NotFoundError
        There is no database.
    WorldError
        The database or the files cannot be read or written, or a later release has made the database.
    """
    with _translated(settings.data), exclusive_folder(settings.data, "a server"):
        store = open_store(settings)
        if source is not None:
            known_incarnation = max(known_incarnation, _last_restore(source))
            with opened(source) as archive:
                _put_back(settings, store, archive)
        with present_database(settings) as database:
            upgrade(database)
            restored, lost = _begin(settings, database, store, known_incarnation)
        if source is not None:
            _note_restore(source, restored.incarnation.number)
    _print_result(restored, lost)


def _put_back(settings: ServerSettings, store: FileStore, archive: BackupArchive) -> None:
    """Check the backup, then put back missing files, keys and authority if there are none, and SQLite's database."""
    archive.check()
    target, draft = _sqlite_file(settings), None
    if target is None:
        with present_database(settings) as database:
            _check_schema(database, "the database")
    else:
        draft = _drafted(archive, target)
    for name in archive.names(_FILES):
        checksum = Path(name).name
        if not store.has(checksum):
            store_whole(store, checksum, archive.size(name), archive.pieces(name))
    id_ = json.loads(archive.read(_ABOUT))["store"]
    if id_:
        store.set_id(id_)
    _put_back_secrets(settings, archive)
    if target is not None and draft is not None:
        _replace_sqlite(draft, target)


def _put_back_secrets(settings: ServerSettings, archive: BackupArchive) -> None:
    """Put back keys and authority if there are none; tell if those of a server that was started before stay instead."""
    keys = {Path(name).name: archive.read(name) for name in archive.names(_KEYS)}
    present = KeyFiles(settings.key_file).load()  # newer ones, which lack those that were retired since
    if not present:
        settings.key_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        for name, content in keys.items():
            write_private(settings.key_file.parent / name, content)
    elif {key.path.read_bytes() for key in present if key.path is not None}.isdisjoint(keys.values()):
        sys.stdout.write(_KEPT.format(settings.key_file.parent, "signing keys, not those", "older tokens are refused"))
    tls = {Path(name).name: archive.read(name) for name in archive.names(_TLS)}
    authority = AuthorityFiles(settings.tls_folder)
    if tls and authority.load() is None:
        authority.put_back(tls)
    elif tls and authority.certificate.read_bytes() != tls[authority.certificate.name]:
        sys.stdout.write(_KEPT.format(settings.tls_folder, "authority, not that", "machines have to join again"))


def _drafted(archive: BackupArchive, target: Path) -> Path:
    """Write the backup's database beside the present one and check it; returns its file."""
    if not archive.has(_DATABASE):
        raise InvalidInputError(Violation("--from", f"has no {_DATABASE}: it is no backup of SQLite"))
    draft = target.with_name(f".{target.name}.restored")
    for suffix in ("", "-wal", "-shm", "-journal"):
        draft.with_name(draft.name + suffix).unlink(missing_ok=True)
    try:
        archive.write(_DATABASE, draft)
        _check_sqlite(draft, "the database of the backup")
        with closing(Database(f"sqlite:///{draft}")) as database:
            _check_schema(database, "the backup")
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    return draft


def _check_schema(database: Database, name: str) -> None:
    fault = database.read(lambda transaction: read_schema(transaction.session)).fault()
    if fault:
        raise WorldError(f"{name} cannot be restored by this release: {fault}", transient=False)


def _replace_sqlite(draft: Path, target: Path) -> None:
    """Keep the present database and its log aside, and put the backup's in its place.

    There is a database at any time: without one, a server that starts after a crash would begin an empty one.
    """
    os.sync()
    aside = f"{target.name}.before-restore-{clock.now():%Y%m%dT%H%M%SZ}"
    with suppress(FileNotFoundError, FileExistsError):
        os.link(target, target.with_name(aside))
    for suffix in ("-wal", "-shm"):  # a log of another database would damage this one
        with suppress(FileNotFoundError):
            target.with_name(target.name + suffix).rename(target.with_name(aside + suffix))
    draft.replace(target)


@contextmanager
def present_database(settings: ServerSettings) -> Iterator[Database]:
    """Open the database; raises NotFoundError if there is none, or an empty one, which an upgrade would fill."""
    file = _sqlite_file(settings)
    if file is not None and not file.exists():
        raise NotFoundError(
            "database (the first start of a server makes one; to restore one, put the backup back first):", str(file)
        )
    with closing(Database(settings.database_url)) as database:
        tables = database.read(lambda transaction: inspect(transaction.session.connection()).get_table_names())
        if "installation" not in tables:
            raise NotFoundError(
                "installation (to restore one, put the backup back first) in the database", repr(database.url)
            )
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
        return max(map(int, source.with_name(source.name + _RESTORES).read_text().split()), default=0)
    return 0


def _note_restore(source: Path, number: int) -> None:
    """Note the incarnation beside the backup, for the next restore of it where no server's folder is left."""
    notes = source.with_name(source.name + _RESTORES)
    try:
        with notes.open("a") as file:
            file.write(f"{number}\n")
    except OSError as error:
        sys.stdout.write(f"{notes} cannot be written ({error.strerror}): ")
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


def take_keys(settings: ServerSettings, login: str) -> None:
    """Make this server's signing keys those of the database, by an account of the machine; raises WorldError."""
    keys = key_times(KeyFiles(settings.key_file).load_or_make())
    with present_database(settings) as database:
        database.write(lambda transaction: adopt_keys(transaction, keys, login))
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
