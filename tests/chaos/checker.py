"""Judges a history: pure functions from what clients and payloads have seen to violations.

The promises: an acknowledged job ends, once, with one outcome that stays. A repeated request gives the same jobs. No
two payloads of a job are alive at once. A job that is DONE has run to its end, and no job fails. A job with
`max_starts` starts at most as often. A feed has each event once, in order, without gaps. No valid call is refused for
good.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.history import History, Mark, MarkKind, Reading, Transition

FINAL = frozenset({"DONE", "FAILED", "REMOVED"})


@dataclass(frozen=True, slots=True)
class Violation:
    """A broken promise; `job_id` None = it concerns no single job."""

    promise: str
    why: str
    job_id: int | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """The numbers of a history and its violations; `doubled` are jobs with two payloads alive at once."""

    acknowledged: int
    ended_once: int
    lost: int
    doubled: int
    runs: int
    violations: tuple[Violation, ...]


def judge(history: History) -> Verdict:
    """Return the verdict over a history whose jobs have had all the time that they need to end."""
    acknowledged = {job_id for each in history.acknowledgements for job_id in each.job_ids}
    lost = list(_lost(acknowledged, history.readings))
    doubled = list(_doubled(history.marks))
    violations = [
        *_repeated_requests(history),
        *lost,
        *_changed_results(history.readings),
        *_feeds(history.transitions, acknowledged),
        *doubled,
        *_false_results(history),
        *_too_many_starts(history),
        *(Violation("valid calls succeed", f"{each.client}: {each.why}") for each in history.refusals),
    ]
    broken = {violation.job_id for violation in violations}
    return Verdict(
        acknowledged=len(acknowledged),
        ended_once=len(acknowledged - broken),
        lost=len(lost),
        doubled=len({violation.job_id for violation in doubled}),
        runs=len({(mark.job_id, mark.run) for mark in history.marks}),
        violations=tuple(violations),
    )


def _repeated_requests(history: History) -> Iterator[Violation]:
    ids_of: dict[str, tuple[int, ...]] = {}
    request_of: dict[int, str] = {}
    for each in history.acknowledgements:
        first = ids_of.setdefault(each.request_id, each.job_ids)
        if first != each.job_ids:
            yield Violation("one effect", f"request {each.request_id} gave the jobs {first} and {each.job_ids}")
        for job_id in each.job_ids:
            other = request_of.setdefault(job_id, each.request_id)
            if other != each.request_id:
                yield Violation("own ids", f"the requests {other} and {each.request_id} gave the same job", job_id)


def _lost(acknowledged: Iterable[int], readings: Sequence[Reading]) -> Iterator[Violation]:
    last = {reading.job_id: reading.state for reading in readings}
    for job_id in sorted(acknowledged):
        if last.get(job_id) not in FINAL:
            yield Violation("ends", f"its last state is {last.get(job_id, 'unknown')}", job_id)


def _changed_results(readings: Sequence[Reading]) -> Iterator[Violation]:
    result: dict[int, Reading] = {}
    for reading in readings:
        first = result.get(reading.job_id)
        if first is not None and first != reading:
            yield Violation("keeps its result", f"first {first}, then {reading}", reading.job_id)
        elif reading.state in FINAL:
            result[reading.job_id] = reading


def _feeds(transitions: Sequence[Transition], acknowledged: Iterable[int]) -> Iterator[Violation]:
    feeds = defaultdict[str, list[Transition]](list)
    for transition in transitions:
        feeds[transition.follower].append(transition)
    for follower, feed in feeds.items():
        yield from _order(follower, feed)
        ends = Counter(transition.job_id for transition in feed if transition.after in FINAL)
        for job_id in sorted(acknowledged):
            if ends[job_id] != 1:
                yield Violation("ends once", f"follower {follower} saw {ends[job_id]} ends", job_id)


def _order(follower: str, feed: Sequence[Transition]) -> Iterator[Violation]:
    for one, next_one in pairwise(feed):
        if next_one.position <= one.position:
            yield Violation(
                "feed in order", f"follower {follower}: {next_one.position} after {one.position}", next_one.job_id
            )
    state: dict[int, str] = {}
    for transition in feed:
        before = state.get(transition.job_id)
        if before is not None and before != transition.before:
            why = f"follower {follower} missed what led from {before} to {transition.before}"
            yield Violation("feed without gaps", why, transition.job_id)
        state[transition.job_id] = transition.after


def _doubled(marks: Sequence[Mark]) -> Iterator[Violation]:
    """Yield overlaps of runs; a run is alive from its first mark to its last at least."""
    spans = defaultdict[int, dict[str, tuple[float, float]]](dict)
    for mark in marks:
        begin, end = spans[mark.job_id].get(mark.run, (mark.boot_s, mark.boot_s))
        spans[mark.job_id][mark.run] = min(begin, mark.boot_s), max(end, mark.boot_s)
    for job_id, runs in sorted(spans.items()):
        last_run, last_s = "", float("-inf")
        for run, (begin, end) in sorted(runs.items(), key=lambda each: each[1]):
            if begin < last_s:
                why = f"run {run} began {last_s - begin:.2f} s before the last mark of run {last_run}"
                yield Violation("one at a time", why, job_id)
            last_run, last_s = max((last_run, last_s), (run, end), key=lambda each: each[1])


def _false_results(history: History) -> Iterator[Violation]:
    ended = {mark.job_id for mark in history.marks if mark.kind is MarkKind.END}
    done = {reading.job_id for reading in history.readings if reading.state == "DONE"}
    for job_id in sorted(done - ended):
        yield Violation("true results", "it is DONE, but no payload of it reached its end", job_id)
    failed = {reading.job_id: reading for reading in history.readings if reading.state == "FAILED"}
    for job_id, reading in sorted(failed.items()):
        yield Violation("true results", f"no payload fails by itself, but its exit code is {reading.exit_code}", job_id)


def _too_many_starts(history: History) -> Iterator[Violation]:
    runs = defaultdict[int, set[str]](set)
    for mark in history.marks:
        runs[mark.job_id].add(mark.run)
    most = {
        job_id: each.max_starts
        for each in history.acknowledgements
        if each.max_starts is not None
        for job_id in each.job_ids
    }
    for job_id, limit in sorted(most.items()):
        if len(runs[job_id]) > limit:
            yield Violation("max_starts", f"it started {len(runs[job_id])} times, at most {limit} are allowed", job_id)
