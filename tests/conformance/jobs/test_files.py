"""Files of jobs: access, output, and retention, on every database."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from sqlalchemy import func, select

from pilotage.errors import InvalidInputError, NotFoundError
from pilotage.job_description import InputFile
from pilotage.values.attempts import ReportedOutput
from pilotage_server.core.identity import Identity
from pilotage_server.core.jobs.changes import JobChange
from pilotage_server.core.jobs.descriptions import single_groups
from pilotage_server.core.jobs.files import OutputFile, Retention
from pilotage_server.operations.attempts.outputs import OutputBook
from pilotage_server.operations.jobs.changes import change_jobs
from pilotage_server.operations.jobs.edit import edit_job
from pilotage_server.operations.jobs.files import (
    check_download,
    check_stored,
    find_missing,
    list_outputs,
    record_upload,
    store_contents,
)
from pilotage_server.operations.jobs.queries import get_events, get_jobs, read_feed
from pilotage_server.operations.jobs.retention import (
    PREFIXES,
    oldest_kept,
    remove_finished,
    remove_old_uploads,
    sweep_files,
)
from pilotage_server.operations.jobs.submission import submit_jobs
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.blobs.folder import FolderStore
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.tables import metadata
from pilotage_server.storage.database.transaction import Transaction
from support.jobs import a_description, a_pilot_identity, a_user, an_operator, end, lease_to
from support.virtual_clock import START, VirtualClock

ALICE, BOB, OLGA, PILOT = a_user("alice"), a_user("bob"), an_operator(), a_pilot_identity("p1")
RETENTION = Retention(finished_jobs=timedelta(days=30), uploads=timedelta(days=1), batch=2)


def checksum_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def reported(name: str, content: bytes) -> ReportedOutput:
    return ReportedOutput(name, checksum_of(content), len(content), content)


class Files:
    """A server's files: database, store and server state."""

    def __init__(self, database: Database, folder: Path) -> None:
        self.database = database
        self.store = FolderStore(folder, 10**6)
        self.state = ServerState(rules=replace(ServerState().rules, retention=RETENTION))
        self.folder = folder

    def upload(self, content: bytes, identity: Identity = ALICE) -> str:
        checksum = self.store.put(content)
        self.age(checksum)
        self.database.write(lambda transaction: record_upload(transaction, identity, checksum, len(content)))
        return checksum

    def age(self, checksum: str) -> None:
        """Set the content's modification time to the start of virtual time."""
        os.utime(self.store.path_of(checksum), (START.timestamp(), START.timestamp()))

    def missing(self, *checksums: str, identity: Identity = ALICE) -> tuple[str, ...]:
        return self.database.write(lambda transaction: find_missing(transaction, identity, checksums))

    def submit(self, *inputs: str, count: int = 1) -> tuple[int, ...]:
        files = tuple(InputFile(f"in{index}", checksum=checksum) for index, checksum in enumerate(inputs))
        description = a_description(input_files=files, count=count)
        return self.database.write(
            lambda transaction: submit_jobs(transaction, self.state, ALICE, single_groups([description]))
        ).job_ids

    def report(self, job_id: int, *files: ReportedOutput, pilot: Identity = PILOT) -> tuple[str, ...]:
        store_contents(self.store, files)
        for file in files:
            if file.content is not None:
                self.age(file.checksum)

        def keep(transaction: Transaction) -> tuple[str, ...]:
            outputs = OutputBook(transaction, self.state.rules.jobs)
            outputs.read([(pilot, (job_id, 1), files)])
            refusals = outputs.keep(pilot, (job_id, 1), files)
            outputs.write()
            return refusals

        return self.database.write(keep)

    def may_fetch(self, identity: Identity, job_id: int, checksum: str) -> bool:
        try:
            self.database.read(lambda transaction: check_download(transaction, identity, job_id, checksum))
        except NotFoundError:
            return False
        return True

    def remove(self, job_id: int) -> None:
        self.database.write(
            lambda transaction: change_jobs(transaction, self.state, ALICE, [job_id], JobChange.REMOVE, "")
        )

    def clean(self) -> None:
        for removal in (remove_finished, remove_old_uploads):
            while self.database.write(partial(removal, state=self.state)):
                pass
        for prefix in PREFIXES:
            if (self.folder / prefix).exists():
                before = self.database.read(lambda transaction: oldest_kept(transaction, self.state))
                listing = self.store.list(prefix, before)
                while sweep_files(self.database, self.store, listing, before):
                    pass

    def rows(self, table: str) -> int:
        count = select(func.count()).select_from(metadata.tables[table])
        return int(self.database.read(lambda transaction: transaction.session.execute(count).scalar_one()))


@pytest.fixture
def files(database: Database, tmp_path: Path) -> Files:
    return Files(database, tmp_path / "files")


def test_uploaded_content_is_missing_for_other_owners(files: Files) -> None:
    hers, absent = files.upload(b"hers"), checksum_of(b"absent")
    assert files.missing(hers, absent, absent) == (absent,)
    assert files.missing(hers, identity=BOB) == (hers,)


def test_invalid_checksum_is_refused_with_its_position(files: Files) -> None:
    with pytest.raises(InvalidInputError) as refused:
        files.missing(checksum_of(b""), "nonsense")
    assert [fault.where for fault in refused.value.violations] == ["checksums[1]"]


def test_upload_without_stored_content_is_refused(files: Files) -> None:
    with pytest.raises(NotFoundError):
        check_stored(files.store, checksum_of(b"x"))


def test_owner_operator_and_leasing_pilot_may_fetch_input(files: Files) -> None:
    checksum, other = files.upload(b"input"), files.upload(b"other")
    job_id, unmatched = files.submit(checksum, count=2)
    lease_to(files.database, files.state, job_id, "p1")
    assert [files.may_fetch(identity, job_id, checksum) for identity in (ALICE, OLGA, PILOT)] == [True] * 3
    assert not files.may_fetch(BOB, job_id, checksum)
    assert not files.may_fetch(a_pilot_identity("p2"), job_id, checksum)
    assert not files.may_fetch(PILOT, unmatched, checksum)
    assert not files.may_fetch(ALICE, job_id, other)
    assert not files.may_fetch(ALICE, job_id, "nonsense")
    end(files.database, files.state, job_id)
    assert not files.may_fetch(PILOT, job_id, checksum)


def test_output_is_listed_by_attempt_and_fetched_by_owner(files: Files) -> None:
    (job_id,) = files.submit()
    assert files.database.read(lambda transaction: list_outputs(transaction, ALICE, job_id)).attempt == 0
    lease_to(files.database, files.state, job_id)
    big = files.upload(b"big" * 100, PILOT)
    assert files.report(job_id, reported("out", b"hello"), ReportedOutput("big", big, 300)) == ()
    end(files.database, files.state, job_id)
    outputs = files.database.read(lambda transaction: list_outputs(transaction, ALICE, job_id))
    assert outputs.attempt == 1
    assert outputs.files == (OutputFile("big", big, 300), OutputFile("out", checksum_of(b"hello"), 5))
    assert files.may_fetch(ALICE, job_id, big)
    assert not files.may_fetch(PILOT, job_id, big)
    with pytest.raises(NotFoundError):
        files.database.read(lambda transaction: list_outputs(transaction, BOB, job_id))


def test_pilot_cannot_report_content_of_others_as_output(files: Files) -> None:
    secret = files.upload(b"secret", BOB)
    (job_id,) = files.submit()
    lease_to(files.database, files.state, job_id)
    (note,) = files.report(job_id, ReportedOutput("loot", secret, 6))
    assert "loot" in note
    assert not files.may_fetch(ALICE, job_id, secret)


def test_repeated_report_stores_files_once(files: Files) -> None:
    (job_id,) = files.submit()
    lease_to(files.database, files.state, job_id)
    for _ in range(2):
        assert files.report(job_id, reported("out", b"hello")) == ()
    assert files.rows("output_files") == 1


@pytest.mark.parametrize(
    "file",
    [
        ReportedOutput("out", checksum_of(b"other"), 5, b"hello"),
        ReportedOutput("out", checksum_of(b"hello"), 6, b"hello"),
        reported("out", b"x" * (64 * 1024 + 1)),
    ],
)
def test_inline_content_must_match_its_checksum_size_and_limit(files: Files, file: ReportedOutput) -> None:
    with pytest.raises(InvalidInputError) as refused:
        store_contents(files.store, [file])
    assert refused.value.violations[0].where == "output_files[0].content"


def test_expired_job_is_removed_with_its_rows_and_files(files: Files, clock: VirtualClock) -> None:
    checksum = files.upload(b"input")
    (job_id,) = files.submit(checksum)
    lease_to(files.database, files.state, job_id)
    files.report(job_id, reported("out", b"hello"))
    end(files.database, files.state, job_id)
    clock.advance(days=29)
    files.clean()
    assert files.store.has(checksum)
    assert files.store.has(checksum_of(b"hello"))
    clock.advance(days=2)
    files.clean()
    tables = ("jobs", "job_events", "attempts", "output_files", "templates", "input_files", "stored_files")
    assert {table: files.rows(table) for table in tables} == dict.fromkeys(tables, 0)
    assert not files.store.has(checksum)
    assert not files.store.has(checksum_of(b"hello"))
    for query in (
        lambda transaction: get_jobs(transaction, ALICE, [job_id]),
        lambda transaction: get_events(transaction, ALICE, job_id),
    ):
        with pytest.raises(NotFoundError):
            files.database.read(query)


def test_unfinished_job_is_kept_at_any_age(files: Files, clock: VirtualClock) -> None:
    waiting, removed = files.submit(files.upload(b"input"), count=2)
    files.remove(removed)
    clock.advance(days=100)
    files.clean()
    assert files.database.read(lambda transaction: get_jobs(transaction, ALICE, [waiting]))[0].id == waiting
    assert (files.rows("jobs"), files.rows("templates"), files.rows("input_files")) == (1, 1, 1)
    assert files.store.has(checksum_of(b"input"))


def test_finished_jobs_are_removed_in_bounded_batches(files: Files, clock: VirtualClock) -> None:
    for job_id in files.submit(count=3):
        files.remove(job_id)
    clock.advance(days=31)
    removed = [files.database.write(lambda transaction: remove_finished(transaction, files.state)) for _ in range(3)]
    assert removed == [2, 1, 0]


def test_ids_and_feed_positions_are_never_reused(files: Files, clock: VirtualClock) -> None:
    (old,) = files.submit()
    files.remove(old)
    position = files.database.read(lambda transaction: read_feed(transaction, ALICE, 0)).position
    clock.advance(days=31)
    files.clean()
    (new,) = files.submit()
    assert new > old
    assert files.database.read(lambda transaction: read_feed(transaction, ALICE, position)).events[0].job_id == new


def test_unused_upload_is_removed_after_retention(files: Files, clock: VirtualClock) -> None:
    checksum = files.upload(b"forgotten")
    clock.advance(hours=23)
    files.clean()
    assert files.missing(checksum) == ()
    clock.advance(hours=23)
    files.clean()
    assert files.missing(checksum) == ()
    clock.advance(hours=25)
    files.clean()
    assert files.missing(checksum) == (checksum,)
    assert not files.store.has(checksum)


def test_content_referenced_by_another_owner_is_kept(files: Files, clock: VirtualClock) -> None:
    checksum = files.upload(b"shared")
    files.upload(b"shared", BOB)
    files.submit(checksum)
    clock.advance(days=3)
    files.clean()
    assert files.missing(checksum) == ()
    assert files.missing(checksum, identity=BOB) == (checksum,)
    assert files.store.has(checksum)


def test_orphaned_content_is_swept_only_when_old(files: Files, clock: VirtualClock) -> None:
    checksum = files.store.put(b"left by a crash")
    files.age(checksum)
    files.clean()
    assert files.store.has(checksum)
    clock.advance(days=2)
    files.clean()
    assert not files.store.has(checksum)


def test_replaced_description_is_removed_by_edit(files: Files) -> None:
    checksum = files.upload(b"input")
    (job_id,) = files.submit(checksum)
    files.database.write(lambda transaction: edit_job(transaction, files.state, ALICE, job_id, a_description()))
    assert (files.rows("templates"), files.rows("input_files")) == (1, 0)
