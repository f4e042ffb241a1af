"""Parts of submissions whose jobs are not stored yet, in the order in which they are stored."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.values.accounts import Account
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import metadata

PARTS = metadata.tables["submission_parts"]


@dataclass(frozen=True, slots=True)
class JobBlock:
    """Jobs of descriptions that differ in arguments and name only.

    `ids` (those of its jobs, consecutive), `clusters` (id and number of jobs of its cluster), `template_ids` and
    `names` have one item for each description. `blocked_by` has the block of each description; empty = none is blocked.
    """

    ids: Sequence[range]
    clusters: Sequence[tuple[int, int]]
    template_ids: Sequence[int]
    names: Sequence[str]
    hold_reason: str = ""
    race_set: int = 0
    blocked_by: Sequence[int] = ()

    @property
    def job_count(self) -> int:
        """The number of jobs."""
        return sum(map(len, self.ids))

    def split(self) -> Iterator[JobBlock]:
        """Yield the jobs of each description as a block of its own."""
        for index, ids in enumerate(self.ids):
            yield self._with_items([ids], slice(index, index + 1))

    def cut(self, most: int) -> tuple[JobBlock, JobBlock | None]:
        """Return the first `most` jobs, and the others; None = there are no others."""
        before = 0
        for index, ids in enumerate(self.ids):
            if before + len(ids) > most:
                return self._cut_at(index, most - before)
            before += len(ids)
        return self, None

    def _cut_at(self, index: int, kept: int) -> tuple[JobBlock, JobBlock]:
        """Cut behind the first `kept` jobs of the item `index`."""
        end, ids = index + (kept > 0), self.ids[index]
        first = self._with_items([*self.ids[:index], ids[:kept]][:end], slice(0, end))
        rest = self._with_items([ids[kept:], *self.ids[index + 1 :]], slice(index, None))
        return first, rest

    def _with_items(self, ids: Sequence[range], which: slice) -> JobBlock:
        clusters, templates, names = self.clusters[which], self.template_ids[which], self.names[which]
        blocked_by = self.blocked_by[which]
        return JobBlock(ids, clusters, templates, names, self.hold_reason, self.race_set, blocked_by)


def cut_into_parts(blocks: Sequence[JobBlock], most: int) -> Iterator[list[JobBlock]]:
    """Yield the jobs in parts of at most `most`."""
    part: list[JobBlock] = []
    room = most
    for block in blocks:
        rest: JobBlock | None = block
        while rest is not None:
            if room == 0:
                yield part
                part, room = [], most
            first, rest = rest.cut(room)
            part.append(first)
            room -= first.job_count
    if part:
        yield part


class SubmissionPart(NamedTuple):
    """A part of a submission of an account. `attempt_floor` = the last attempt number that its jobs may not use."""

    account: Account
    blocks: Sequence[JobBlock]
    attempt_floor: int


def insert_parts(session: Session, account: Account, ids: Sequence[int], parts: Sequence[Sequence[JobBlock]]) -> None:
    """Store parts of a submission, and reserve `ids`, those of all its jobs. The first one names the submission."""
    if not parts:
        return
    columns: sql.Columns = {
        "submission": [ids[0]] * len(parts),
        "vo": [account.vo] * len(parts),
        "group": [account.group] * len(parts),
        "owner": [account.owner] * len(parts),
        "jobs": [sum(block.job_count for block in part) for part in parts],
        "blocks_json": [json.dumps([_plain(block) for block in part], separators=(",", ":")) for part in parts],
    }
    sql.insert_rows(session, PARTS, columns)
    if sql.is_sqlite(session):
        sql.execute(session, "UPDATE sqlite_sequence SET seq = max(seq, ?) WHERE name = 'jobs'", ids[-1])


_IS_DUE = "(fenced_until IS NULL OR fenced_until <= ?)"
_FIRST = f"""
    SELECT id, vo, "group", owner, blocks_json, attempt_floor FROM submission_parts
    WHERE submission = ? AND {_IS_DUE} ORDER BY id LIMIT 1 FOR UPDATE
"""  # noqa: S608 - a condition of ours
_HAS_PARTS = f"SELECT 1 FROM submission_parts WHERE submission = ? AND {_IS_DUE} LIMIT 1"  # noqa: S608
_UNFINISHED = f"SELECT submission FROM submission_parts WHERE {_IS_DUE} GROUP BY submission ORDER BY min(id)"  # noqa: S608


def take_part(session: Session, submission: int, now: datetime) -> SubmissionPart | None:
    """Remove the next part of a submission and return it; None = none is due, or a concurrent transaction took it."""
    for id_, vo, group, owner, blocks, floor in sql.rows(session, _FIRST, submission, sql.column_time(session, now)):
        sql.execute(session, "DELETE FROM submission_parts WHERE id = ?", id_)
        return SubmissionPart(Account(vo, group, owner), [_block(each) for each in json.loads(blocks)], floor)
    return None


def has_parts(session: Session, submission: int, now: datetime) -> bool:
    """Return whether any part of the submission is due."""
    return bool(sql.rows(session, _HAS_PARTS, submission, sql.column_time(session, now)))


def has_any_parts(session: Session, submission: int) -> bool:
    """Return whether any part of the submission is not stored yet, due or not."""
    return bool(sql.rows(session, "SELECT 1 FROM submission_parts WHERE submission = ? LIMIT 1", submission))


def unfinished_submissions(session: Session, now: datetime) -> list[int]:
    """Return the submissions of which parts are due, the oldest first."""
    return [submission for (submission,) in sql.rows(session, _UNFINISHED, sql.column_time(session, now))]


def jobs_in_parts(session: Session, vo: str) -> dict[str, int]:
    """Return the numbers of jobs of a VO that are not stored yet, by owner."""
    return dict(sql.rows(session, "SELECT owner, sum(jobs) FROM submission_parts WHERE vo = ? GROUP BY owner", vo))


_CLUSTERS = "SELECT blocks_json FROM submission_parts WHERE vo = ? AND owner = ?"


def clusters_in_parts(session: Session, owners: Iterable[tuple[str, str]]) -> set[int]:
    """Return the clusters of these owners, given by VO and name, of which jobs are not stored yet."""
    found: set[int] = set()
    for vo, owner in owners:
        for (blocks,) in sql.rows(session, _CLUSTERS, vo, owner):
            found.update(cluster for block in json.loads(blocks) for cluster, _ in block["clusters"])
    return found


def has_jobs_in_parts(session: Session, vo: str, owner: str, first: int, last: int) -> bool:
    """Return whether jobs of this owner with ids from `first` to `last` are not stored yet."""
    return any(
        start <= last and stop > first
        for (blocks,) in sql.rows(session, _CLUSTERS, vo, owner)
        for block in json.loads(blocks)
        for start, stop in block["ids"]
    )


_FIELDS = ("clusters", "template_ids", "names", "hold_reason", "race_set", "blocked_by")


def _plain(block: JobBlock) -> dict[str, Any]:
    return {"ids": [(ids.start, ids.stop) for ids in block.ids], **{name: getattr(block, name) for name in _FIELDS}}


def _block(given: dict[str, Any]) -> JobBlock:
    return JobBlock(**given | {"ids": [range(start, stop) for start, stop in given["ids"]]})
