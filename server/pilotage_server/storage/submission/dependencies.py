"""Unmet dependencies in the database: sources, blocks, and events of watched parents.

Rules
-----
A source stands for parents that have not all done what is asked of them. One of these is watched: its row in `jobs`
says so, and its next event is recorded, so that no other job costs anything. The watch moves to the last of the parents
that may still do it: the later ones are probably done by then. A block is a description's jobs that wait. Sources and
blocks belong to one submission, and go away once they are met.

A source is futile when none of its parents can do it any more, and its block is futile with it: then events are
recorded for those of the jobs of the block that are watched. So what a bad end means reaches all that wait for it, step
by step, and so does the opposite if a parent runs again. Jobs of a futile block are settled once no `after_settled`
source of the block is left; then events are recorded for them as well.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlmodel import Session

from pilotage.values.dependencies import DependencyKind
from pilotage.values.selections import JobSelection
from pilotage_server.core.jobs.dependencies import BlockStatus, is_met
from pilotage_server.core.jobs.record import Awaited
from pilotage_server.core.jobs.states import FINAL, JobState
from pilotage_server.storage.database import sql
from pilotage_server.storage.database.tables import MANY_PARENTS, MET_BLOCK, metadata
from pilotage_server.storage.jobs import JOBS
from pilotage_server.storage.submission.clusters import load_first_job
from pilotage_server.storage.submission.workflows import load_workflow

BLOCKS = metadata.tables["blocks"]
SOURCES = metadata.tables["dependency_sources"]
DEPENDENCIES = metadata.tables["dependencies"]
PARENT_EVENTS = metadata.tables["parent_events"]


class Parents(NamedTuple):
    """Jobs that are one parent: those with the ids from `first` to `last`."""

    first: int
    last: int

    @property
    def ids(self) -> range:
        """The ids of the jobs."""
        return range(self.first, self.last + 1)

    @property
    def is_single(self) -> bool:
        """Whether it is one job."""
        return self.first == self.last


class FoundParents(NamedTuple):
    """Existing parents with their owner and VO."""

    parents: Parents
    owner: str
    vo: str


class Source(NamedTuple):
    """Parents with what is asked of them; `watched` 0 = none is watched yet, `futile` = they cannot do it any more."""

    id: int
    submission: int
    kind: DependencyKind
    parents: Parents
    watched: int = 0
    futile: bool = False


class Watch(NamedTuple):
    """The parent that a source has to watch, and whether the source is futile; `job` 0 = the source is met."""

    job: int
    futile: bool = False


MET = Watch(0)


class Block(NamedTuple):
    """Jobs of one description that wait: from `id` to `last`."""

    id: int
    last: int
    submission: int
    parents: int
    unmet: int


_LARGEST_ID = 2**63 - 1
_FIRSTS = "SELECT id, cluster, cluster_jobs, owner, vo FROM jobs WHERE id = ANY(?)"


def find_parents(session: Session, wanted: Iterable[JobSelection]) -> dict[JobSelection, FoundParents]:
    """Return those of the parents that exist. Of several jobs one is enough: retention may have removed the others."""
    firsts: dict[JobSelection, int] = {}
    found: dict[JobSelection, FoundParents] = {}
    for each in wanted:
        first = each.id + (each.processes or (0, 0))[0]
        if not each.workflow and first <= _LARGEST_ID:
            firsts[each] = first
        elif each.workflow and (workflow := load_workflow(session, each.id)) is not None:
            ids = workflow.ids
            found[each] = FoundParents(Parents(ids[0], ids[-1]), workflow.owner, workflow.vo)
    rows = {row[0]: row[1:] for row in sql.rows(session, _FIRSTS, sorted(set(firsts.values())))}
    one_is_missing = False  # then the submission is refused, and not more is searched
    for selection, first in firsts.items():
        if first in rows:
            cluster, jobs, owner, vo = rows[first]
            ids, id_ = range(cluster, cluster + jobs), first
        elif not one_is_missing and (job := load_first_job(session, first)) is not None:
            ids, id_, owner, vo = job.ids, job.id, job.owner, job.vo
        else:
            one_is_missing = True
            continue
        parents = _parents(selection, first, ids)
        if parents is not None and id_ <= parents.last:
            found[selection] = FoundParents(parents, owner, vo)
        else:
            one_is_missing = True
    return found


def _parents(selection: JobSelection, first: int, cluster: range) -> Parents | None:
    """Return the selected jobs, given the cluster of the first one that is left; None = they are no jobs of it."""
    if cluster.start != selection.id:
        return Parents(first, first) if selection.processes is None else None
    last = cluster[-1] if selection.processes is None else selection.id + selection.processes[1]
    return Parents(first, last) if last in cluster else None


def insert_sources(session: Session, sources: Sequence[Source]) -> Sequence[int]:
    """Store sources and return their ids, in order; the jobs that they watch are marked by `mark_watched`."""
    if not sources:
        return ()
    columns: sql.Columns = {
        "submission": [each.submission for each in sources],
        "kind": [each.kind.value for each in sources],
        "first": [each.parents.first for each in sources],
        "last": [each.parents.last for each in sources],
        "watched": [each.watched for each in sources],
        "futile": [each.futile for each in sources],
    }
    return sql.insert_numbered_rows(session, SOURCES, columns)


def insert_blocks(session: Session, blocks: Sequence[Block], edges: Sequence[tuple[int, int]]) -> None:
    """Store blocks and their unmet dependencies: pairs of the ids of a source and of a block."""
    columns: sql.Columns = {
        **{name: [getattr(each, name) for each in blocks] for name in Block._fields},
        "next_job": [each.id for each in blocks],
    }
    sql.insert_rows(session, BLOCKS, columns)
    sources, waiting = zip(*edges, strict=True)
    sql.insert_rows(session, DEPENDENCIES, {"source": sources, "block": waiting})


_LEVELS = f"""
    SELECT watched, max(CASE kind WHEN 'after' THEN {Awaited.START_OR_END} ELSE {Awaited.END} END)
    FROM dependency_sources WHERE {{}} GROUP BY watched ORDER BY watched
"""  # noqa: S608 - numbers of ours
_LEVELS_OF_JOBS = _LEVELS.format("watched = ANY(?)")
_LEVELS_OF_NEW_JOBS = _LEVELS.format("submission = ? AND watched BETWEEN ? AND ?")


def mark_watched(session: Session, job_ids: Iterable[int]) -> None:
    """Mark locked jobs, which sources watch, so that their next event is recorded."""
    _mark(session, sql.rows(session, _LEVELS_OF_JOBS, sorted(set(job_ids))))


def mark_new_jobs(session: Session, submission: int, job_ids: Collection[int]) -> None:
    """Mark those of the new jobs of a submission that its sources watch."""
    new = set(job_ids)
    levels = sql.rows(session, _LEVELS_OF_NEW_JOBS, submission, min(new), max(new))
    _mark(session, [(watched, level) for watched, level in levels if watched in new])


def _mark(session: Session, levels: Sequence[tuple[Any, ...]]) -> None:
    if levels:
        ids, awaited = zip(*levels, strict=True)
        sql.update_rows(session, JOBS, {"id": ids}, {"awaited": awaited})


def insert_parent_events(session: Session, job_ids: Sequence[int]) -> None:
    """Record that sources which watch these jobs must be examined."""
    sql.insert_rows(session, PARENT_EVENTS, {"job_id": job_ids})


_IS_FUTILE = """(jobs.blocked_by > 0 AND EXISTS (
    SELECT 1 FROM dependencies JOIN dependency_sources AS waited ON waited.id = dependencies.source
    WHERE dependencies.block = jobs.blocked_by AND waited.futile
))"""
"""The condition of jobs that have not ended and cannot run as things stand."""
_IS_SETTLED = f"""({_IS_FUTILE} AND NOT EXISTS (
    SELECT 1 FROM dependencies JOIN dependency_sources AS waited ON waited.id = dependencies.source
    WHERE dependencies.block = jobs.blocked_by AND waited.kind = 'after_settled'
))"""  # noqa: S608 - a condition of ours
"""The condition of futile jobs that are settled."""
_FUTILE_BLOCKS = """
    SELECT DISTINCT block FROM dependencies JOIN dependency_sources ON dependency_sources.id = dependencies.source
    WHERE block = ANY(?) AND futile
"""
_UNSETTLED_BLOCKS = """
    SELECT DISTINCT block FROM dependencies JOIN dependency_sources ON dependency_sources.id = dependencies.source
    WHERE block = ANY(?) AND kind = 'after_settled'
"""
_REPEAT_EVENTS = f"""
    INSERT INTO parent_events (job_id)
    SELECT DISTINCT watched FROM dependency_sources JOIN jobs ON jobs.id = watched
    WHERE submission = ? AND (starts > 0 OR jobs.ended IS NOT NULL OR {_IS_FUTILE})
"""  # noqa: S608 - a condition of ours
_EVENTS_OF_CHILDREN = """
    INSERT INTO parent_events (job_id)
    SELECT DISTINCT children.watched FROM dependencies JOIN blocks ON blocks.id = dependencies.block
    JOIN dependency_sources AS children ON children.watched BETWEEN blocks.id AND blocks.last
    WHERE dependencies.source = ANY(?)
"""
_EVENTS_OF_FUTILE_JOBS = """
    INSERT INTO parent_events (job_id)
    SELECT DISTINCT children.watched FROM blocks
    JOIN dependency_sources AS children ON children.watched BETWEEN blocks.id AND blocks.last
    WHERE blocks.id = ANY(?) AND EXISTS (
        SELECT 1 FROM dependencies JOIN dependency_sources AS waited ON waited.id = dependencies.source
        WHERE dependencies.block = blocks.id AND waited.futile
    )
"""


def repeat_parent_events(session: Session, submission: int) -> bool:
    """Record the events again that came before all jobs of the submission were stored; return whether there are any."""
    return sql.execute(session, _REPEAT_EVENTS, submission) > 0


def insert_events_of_children(session: Session, source_ids: Sequence[int]) -> bool:
    """Record events of the watched jobs that wait for these sources; return whether there are any."""
    return bool(source_ids) and sql.execute(session, _EVENTS_OF_CHILDREN, list(source_ids)) > 0


def insert_events_of_futile(session: Session, block_ids: Sequence[int]) -> bool:
    """Record events of the watched jobs of those of these blocks that are futile; return whether there are any."""
    return bool(block_ids) and sql.execute(session, _EVENTS_OF_FUTILE_JOBS, list(block_ids)) > 0


def has_sources(session: Session, submission: int) -> bool:
    """Whether any source of the submission is left."""
    return bool(sql.rows(session, "SELECT 1 FROM dependency_sources WHERE submission = ? LIMIT 1", submission))


_EXAMINATION_LOCK = 7261539
"""Key of the advisory lock in PostgreSQL: any number that is not used otherwise in this database."""


def lock_examination(session: Session) -> None:
    """Let no other transaction examine events until the commit: what it reads of sources and blocks stays true.

    To be called after `lock_placement` and before jobs are placed or locked. SQLite has one writer and needs no lock.
    """
    if not sql.is_sqlite(session):
        sql.rows(session, "SELECT pg_advisory_xact_lock(?)", _EXAMINATION_LOCK)


_TAKE_EVENTS = """
    DELETE FROM parent_events WHERE id IN (
        SELECT id FROM parent_events ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED
    ) RETURNING job_id
"""
_HAS_WORK = f"""
    SELECT 1 WHERE EXISTS (SELECT 1 FROM parent_events) OR EXISTS (SELECT 1 FROM blocks WHERE {MET_BLOCK})
"""  # noqa: S608 - a condition of ours


def take_parent_events(session: Session, most: int) -> list[int]:
    """Remove at most `most` events that no other transaction takes, and return their jobs."""
    return [row[0] for row in sql.rows(session, _TAKE_EVENTS, most)]


def has_work(session: Session) -> bool:
    """Whether events of parents, or jobs that are free, wait for `advance`."""
    return bool(sql.rows(session, _HAS_WORK))


_COLUMNS = "id, submission, kind, first, last, watched, futile"
# While parts of a submission are due, its parents may not be stored; its last part records their events again.
_OF_WATCHED = f"""
    SELECT {_COLUMNS} FROM dependency_sources WHERE watched = ANY(?)
    AND NOT EXISTS (SELECT 1 FROM submission_parts WHERE submission_parts.submission = dependency_sources.submission)
    ORDER BY id FOR UPDATE
"""  # noqa: S608 - names of ours
_KINDS = {kind.value: kind for kind in DependencyKind}


def lock_sources_of(session: Session, job_ids: Iterable[int]) -> list[Source]:
    """Lock and return the sources that watch these jobs, without those whose submissions are still being stored."""
    rows = sql.rows(session, _OF_WATCHED, sorted(set(job_ids)))
    return [
        Source(id_, submission, _KINDS[kind], Parents(*parents), watched, bool(futile))
        for id_, submission, kind, *parents, watched, futile in rows
    ]


_UNDONE = {
    DependencyKind.AFTER: "starts = 0 AND ended IS NULL",
    DependencyKind.AFTER_OK: "state <> 'DONE'",
    DependencyKind.AFTER_ANY: "ended IS NULL",
    DependencyKind.AFTER_SETTLED: f"ended IS NULL AND NOT {_IS_SETTLED}",
}
"""The condition of parents that have not done what is asked of them."""
_LAST_OF = "SELECT id FROM jobs WHERE id BETWEEN ? AND ? AND {} ORDER BY id DESC LIMIT 1"
_LAST_UNDONE = {kind: _LAST_OF.format(undone) for kind, undone in _UNDONE.items()}
_LAST_OPEN = {
    kind: _LAST_OF.format(f"ended IS NULL AND {undone} AND NOT {_IS_FUTILE}") for kind, undone in _UNDONE.items()
} | {DependencyKind.AFTER_SETTLED: _LAST_UNDONE[DependencyKind.AFTER_SETTLED]}
"""Finds the last of the parents that may still do it."""
_STATES = "SELECT id, state, starts, blocked_by FROM jobs WHERE id = ANY(?)"


class _ParentState(NamedTuple):
    state: JobState
    starts: int
    is_futile: bool
    is_settled: bool


def candidates(session: Session, sources: Sequence[Source]) -> dict[int, int]:
    """Return the parent that each source may have to watch from now on, by the source's id; 0 = all have done it."""
    return {each.id: _candidate(session, each) for each in sources}


def next_watched(session: Session, sources: Sequence[Source], locked: Collection[int]) -> dict[int, Watch]:
    """Return what each source has to watch from now on, by the source's id, given the locked ones of the parents.

    None of these can do it before it is marked. A source is left out if it has to watch another parent: the states of
    its parents have changed since the candidates were chosen.
    """
    found: dict[int, Watch] = {}
    present = candidates(session, sources)
    states = _load_states(session, set(present.values()).intersection(locked))
    for each in sources:
        candidate = present[each.id]
        parent = states.get(candidate)  # None = none is left, or it is not stored yet
        if candidate and candidate not in locked:
            continue
        if parent is None:
            found[each.id] = Watch(candidate)
        elif not is_met(each.kind, parent.state, parent.starts, is_settled=parent.is_settled):
            is_futile = each.kind is not DependencyKind.AFTER_SETTLED and (parent.is_futile or parent.state in FINAL)
            found[each.id] = Watch(candidate, is_futile)
        else:  # it is the only parent: of several, a candidate has not done it
            found[each.id] = MET
    return found


def _load_states(session: Session, job_ids: Collection[int]) -> dict[int, _ParentState]:
    rows = sql.rows(session, _STATES, sorted(job_ids))
    blocks = {id_: block for id_, state, _, block in rows if state not in FINAL}
    futile = futile_blocks(session, set(blocks.values()))
    unsettled = {block for (block,) in sql.rows(session, _UNSETTLED_BLOCKS, sorted(futile))} if futile else set()
    settled = futile - unsettled
    return {
        id_: _ParentState(JobState(state), starts, blocks.get(id_) in futile, blocks.get(id_) in settled)
        for id_, state, starts, _ in rows
    }


def _candidate(session: Session, source: Source) -> int:
    """Return the last parent that may still do what is asked, else one that has not done it; 0 = all have done it.

    Of a single parent its id, whatever it has done.
    """
    first, last = source.parents
    if source.parents.is_single:
        return first

    def find(statements: Mapping[DependencyKind, str], high: int) -> int:
        return next((int(id_) for (id_,) in sql.rows(session, statements[source.kind], first, high)), 0)

    # The later ones have done it, unless they were rescheduled.
    if open_ := find(_LAST_OPEN, source.watched or last):
        return open_
    undone = find(_LAST_UNDONE, last)
    return (undone and find(_LAST_OPEN, last)) or undone


def move_watches(session: Session, watches: Mapping[int, Watch]) -> None:
    """Let sources watch other parents, which are locked: the new watch by the source's id."""
    if not watches:
        return
    jobs, futile = zip(*watches.values(), strict=True)
    sql.update_rows(session, SOURCES, {"id": list(watches)}, {"watched": jobs, "futile": futile})
    mark_watched(session, jobs)


_DEPENDANTS = "SELECT source, block FROM dependencies WHERE source = ANY(?) ORDER BY source, block LIMIT ?"
_LOCK_BLOCKS = "SELECT id, unmet FROM blocks WHERE id = ANY(?) ORDER BY id FOR UPDATE"
_DELETE_UP_TO = "DELETE FROM dependencies WHERE source = ANY(?) AND (source < ? OR (source = ? AND block <= ?))"
_DELETE_UNUSED = """
    DELETE FROM dependency_sources WHERE id = ANY(?)
    AND NOT EXISTS (SELECT 1 FROM dependencies WHERE source = dependency_sources.id)
"""


def meet(session: Session, source_ids: Sequence[int], most: int) -> tuple[Sequence[int], bool]:
    """Remove at most `most` dependencies on sources, which are met; count down the blocks that have waited for them.

    The sources go away with the last dependencies. Returns these blocks, and whether some dependencies may be left.
    """
    if not source_ids:
        return (), False
    ids = list(source_ids)
    waits = sql.rows(session, _DEPENDANTS, ids, most)
    met = Counter(block for _, block in waits)
    if waits:
        blocks = dict(sql.rows(session, _LOCK_BLOCKS, sorted(met)))
        sql.update_rows(
            session, BLOCKS, {"id": list(blocks)}, {"unmet": [unmet - met[block] for block, unmet in blocks.items()]}
        )
        source, block = waits[-1]
        sql.execute(session, _DELETE_UP_TO, ids, source, source, block)
    sql.execute(session, _DELETE_UNUSED, ids)
    return sorted(met), len(waits) == most


_MET = f"SELECT id FROM blocks WHERE {MET_BLOCK} ORDER BY id LIMIT ? FOR UPDATE SKIP LOCKED"  # noqa: S608
_NEXT_FREE = """
    SELECT jobs.id, blocks.id FROM blocks CROSS JOIN jobs
    WHERE blocks.id = ANY(?) AND jobs.id BETWEEN blocks.next_job AND blocks.last AND jobs.blocked_by = blocks.id
    ORDER BY jobs.id LIMIT ?
"""
"""CROSS JOIN lets SQLite read the blocks first; for the order it would else read all jobs."""


def next_free(session: Session, most: int) -> tuple[list[int], bool]:
    """Return at most `most` jobs of blocks that no longer wait, by id, and whether more are left.

    The blocks are locked until the commit, and those go away whose jobs are all returned.
    """
    blocks = [row[0] for row in sql.rows(session, _MET, most)]
    if not blocks:
        return [], False
    free = sql.rows(session, _NEXT_FREE, blocks, most)
    if len(free) < most:
        sql.execute(session, "DELETE FROM blocks WHERE id = ANY(?)", blocks)
        return [job_id for job_id, _ in free], len(blocks) == most
    next_jobs = {block: job_id + 1 for job_id, block in free}
    sql.update_rows(session, BLOCKS, {"id": list(next_jobs)}, {"next_job": list(next_jobs.values())})
    sql.execute(session, "DELETE FROM blocks WHERE id = ANY(?) AND next_job > last", list(next_jobs))
    return [job_id for job_id, _ in free], True


_STATUSES = "SELECT id, parents, unmet FROM blocks WHERE id = ANY(?)"
_ENDED_BADLY = """
    SELECT dependencies.block, max(watched) FROM dependencies
    JOIN dependency_sources ON dependency_sources.id = dependencies.source
    JOIN jobs ON jobs.id = watched
    WHERE dependencies.block = ANY(?) AND kind = 'after_ok' AND jobs.ended IS NOT NULL AND jobs.state <> 'DONE'
    GROUP BY dependencies.block
"""


def load_statuses(session: Session, block_ids: Collection[int]) -> dict[int, BlockStatus]:
    """Return the status of each block that is left."""
    if not block_ids:
        return {}
    asked = sorted(block_ids)
    failed = dict(sql.rows(session, _ENDED_BADLY, asked))
    states = dict(sql.rows(session, "SELECT id, state FROM jobs WHERE id = ANY(?)", sorted(set(failed.values()))))
    return {
        id_: BlockStatus(parents, unmet, (failed[id_], states[failed[id_]]) if id_ in failed else None)
        for id_, parents, unmet in sql.rows(session, _STATUSES, asked)
    }


_UNMET = """
    SELECT block, kind, watched FROM dependencies JOIN dependency_sources ON dependency_sources.id = dependencies.source
    WHERE block = ANY(?) ORDER BY block, watched
"""


def futile_blocks(session: Session, block_ids: Collection[int]) -> set[int]:
    """Return those of these blocks whose jobs cannot run, unless a parent is rescheduled."""
    return {block for (block,) in sql.rows(session, _FUTILE_BLOCKS, sorted(block_ids))} if block_ids else set()


_LASTING = f"{_FUTILE_BLOCKS} AND NOT EXISTS (SELECT 1 FROM parent_events)"  # noqa: S608 - statements of ours


def lasting_futile_blocks(session: Session, block_ids: Collection[int]) -> set[int]:
    """Return the same, but none while events are to be examined: they may be of a rescheduled parent."""
    return {block for (block,) in sql.rows(session, _LASTING, sorted(block_ids))} if block_ids else set()


def load_unmet(session: Session, block_ids: Collection[int]) -> list[tuple[int, DependencyKind, int]]:
    """Return block, kind and watched parent of each unmet dependency of these blocks."""
    return [(block, _KINDS[kind], watched) for block, kind, watched in sql.rows(session, _UNMET, sorted(block_ids))]


IS_PARENT = f"""(
    EXISTS (SELECT 1 FROM dependency_sources WHERE watched = jobs.id)
    OR EXISTS (SELECT 1 FROM dependency_sources WHERE {MANY_PARENTS} AND first <= jobs.id AND last >= jobs.id)
)"""  # noqa: S608 - a condition of ours
"""The condition of jobs for which others wait."""

_DELETE_EMPTY = """
    DELETE FROM blocks WHERE id = ANY(?) AND NOT EXISTS (
        SELECT 1 FROM jobs WHERE jobs.id BETWEEN blocks.next_job AND blocks.last AND blocked_by = blocks.id
    ) RETURNING id
"""
_DELETE_WAITS = "DELETE FROM dependencies WHERE block = ANY(?) RETURNING source"


def delete_empty_blocks(session: Session, block_ids: Collection[int]) -> None:
    """Remove those of the blocks that have no jobs left, with what only they have waited for."""
    if not block_ids:
        return
    empty = [row[0] for row in sql.rows(session, _DELETE_EMPTY, sorted(block_ids))]
    unused = sorted({row[0] for row in sql.rows(session, _DELETE_WAITS, empty)})
    sql.execute(session, _DELETE_UNUSED, unused)
