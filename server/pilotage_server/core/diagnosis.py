"""What operators must know of an installation: findings with their levels, and what to do.

Rules
-----
A fault is what does not work now. A warning is what works, and will not for long or not as it should. Each has an
advice. Findings that many queues or pilots share are one finding with a number and an example.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from pilotage.resources.tree import QueueId
from pilotage.text import count_text
from pilotage.values.leadership import NO_STATUS, AgentStatus, Leadership
from pilotage_server.core.leadership import LeadershipTerm

MIB = 1024 * 1024


class FindingLevel(StrEnum):
    """How bad a finding is."""

    OK = "ok"
    WARNING = "warning"
    FAULT = "fault"


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: what was examined, how bad it is, the text, and what to do ("" = nothing)."""

    check: str
    level: FindingLevel
    text: str
    advice: str = ""


def ok(check: str, text: str) -> Finding:
    """Return a finding that needs nothing."""
    return Finding(check, FindingLevel.OK, text)


SLOW_COMMIT, STUCK_COMMIT = timedelta(seconds=1), timedelta(seconds=10)
"""A commit that takes longer is a warning, or a fault."""

CHECKED_BYTES = 256 * MIB
"""SQLite's databases up to this size are checked as a whole, which takes a second or two."""


@dataclass(frozen=True, slots=True)
class DatabaseFacts:
    """A database: its kind, its schema, its size, the time of a commit, and what its own check has found.

    `damage` "" = none, None = it was not checked.
    """

    kind: str
    schema: str
    size_bytes: int
    commit: timedelta
    damage: str | None


def judge_database(facts: DatabaseFacts) -> Iterator[Finding]:
    """Yield the findings on the database."""
    seconds = facts.commit.total_seconds()
    text = f"{facts.kind}, schema {facts.schema}, {facts.size_bytes / MIB:.1f} MiB, a commit takes {seconds:.3f} s"
    if facts.commit >= SLOW_COMMIT:
        level = FindingLevel.FAULT if facts.commit >= STUCK_COMMIT else FindingLevel.WARNING
        advice = "look at the load of its disk (iostat -x 1) and at other programs that write there"
        yield Finding("database", level, text, advice)
    else:
        yield ok("database", text)
    if facts.damage is None:
        yield ok("integrity", "not checked here; each `pilotage-server backup` of SQLite checks the whole database")
    elif facts.damage:
        advice = "stop the server, keep a copy of the file, then: pilotage-server restore --from BACKUP"
        yield Finding("integrity", FindingLevel.FAULT, f"the database is damaged: {facts.damage}", advice)
    else:
        yield ok("integrity", "the database's own check finds no damage")


def judge_disk(folder: str, free_bytes: int, reserve_bytes: int) -> Finding:
    """Return the finding on the disk of a folder; below the reserve, submissions are refused."""
    text = f"{folder}: {free_bytes // MIB} MiB are free, {reserve_bytes // MIB} MiB are reserved for reports"
    advice = f"make room on the disk of {folder}, or lower keep_jobs_s"
    if free_bytes < reserve_bytes:
        return Finding("disk", FindingLevel.FAULT, f"{text}: submissions and uploads are refused", advice)
    return Finding("disk", FindingLevel.WARNING, text, advice) if free_bytes < 2 * reserve_bytes else ok("disk", text)


LASTING = timedelta(minutes=5)
"""An agent without success for longer is a fault."""


def judge_agents(
    terms: Iterable[LeadershipTerm], reports: Mapping[Leadership, AgentStatus], now: datetime, release: str
) -> Iterator[Finding]:
    """Yield the findings on agents, by their last terms and what replicas report; `release` = that of the server."""
    for term in sorted(terms, key=lambda each: each.leadership.agent):
        name = f"{term.leadership.agent} on {term.host}"
        if not term.remaining(now):
            text = f"{name} has stopped at {_text(term.until)}, and no other copy has taken over"
            yield Finding("agents", FindingLevel.FAULT, text, f"look at its log on {term.host}, and start it there")
            continue
        status = reports.get(term.leadership, NO_STATUS)
        success = "no cycle has succeeded yet"
        if status.last_success is not None:
            success = f"last success {_ago(now - status.last_success)}"
        if status.failures:
            lasts = status.last_success is None or now - status.last_success > LASTING
            text = f"{name} leads; its last cycle has failed: {status.last_error}; {success}"
            advice = f"look at its log on {term.host}"
            yield Finding("agents", FindingLevel.FAULT if lasts else FindingLevel.WARNING, text, advice)
        elif status.version not in {"", release}:
            text = f"{name} leads and is of release {status.version}, the server of {release}; {success}"
            yield Finding("agents", FindingLevel.WARNING, text, f"upgrade the agents on {term.host}")
        else:
            yield ok("agents", f"{name} leads; {success}")


def judge_queues(problems: Mapping[QueueId, str], queues: int) -> Iterator[Finding]:
    """Yield the findings on queues that have no pilots for a known reason, of so many that may run jobs."""
    by_text: dict[str, list[QueueId]] = {}
    for queue, problem in sorted(problems.items()):
        by_text.setdefault(problem, []).append(queue)
    for problem, places in sorted(by_text.items()):
        shown = str(places[0]) if len(places) == 1 else f"{len(places)} queues, such as {places[0]}"
        yield Finding("queues", FindingLevel.FAULT, f"{shown}: {problem}", _queue_advice(problem))
    if not problems:
        yield ok("queues", f"{count_text(queues, 'queue')} enabled, and none lacks pilots for a known reason")


def _queue_advice(problem: str) -> str:
    if problem.startswith("no site director"):
        return "start a site director whose `queues` and batch systems include it, or set Enabled = false in the tree"
    return "look at the log of the site director, and at the pilots: pilotage pilots --ended"


@dataclass(frozen=True, slots=True)
class PilotFacts:
    """The pilots that are alive: how many, and how many have been silent since so long; how many were lost lately.

    `releases` counts the living by the release of their program, "" = not known. `alarmed` = pilots that have not ended
    and whose enrolment secret was used a second time; `silent_example` is the stamp of a silent one.
    """

    alive: int
    silent: int
    silent_example: str
    lost: int
    alarmed: int
    releases: Mapping[str, int]


LOST_WITHIN = timedelta(hours=1)
"""How long a lost pilot is reported."""


def judge_pilots(facts: PilotFacts, silent_for: timedelta, release: str) -> Iterator[Finding]:
    """Yield the findings on pilots; `release` = that of the server."""
    found = []
    if facts.silent:
        text = f"{facts.silent} of {facts.alive} pilots have not called for {silent_for.total_seconds():.0f} s"
        level = FindingLevel.FAULT if facts.silent == facts.alive else FindingLevel.WARNING
        advice = "look at the network from their nodes to the servers: pilotage pilots"
        found.append(Finding("pilots", level, f"{text}, such as {facts.silent_example}", advice))
    if facts.lost:
        text = f"{count_text(facts.lost, 'pilot')} lost within the last hour"
        found.append(Finding("pilots", FindingLevel.WARNING, text, "compare their nodes and sites: pilotage pilots"))
    if facts.alarmed:
        text = f"the enrolment secrets of {count_text(facts.alarmed, 'pilot')} were used a second time"
        found.append(
            Finding("pilots", FindingLevel.WARNING, text, "see ALARM in: pilotage pilots; then pilotage pilots revoke")
        )
    others = {name: count for name, count in facts.releases.items() if name not in {"", release}}
    if others:
        counts = ", ".join(f"{count} of {name}" for name, count in sorted(others.items()))
        text = f"some of {count_text(facts.alive, 'live pilot')} are of another release than the server: {counts}"
        found.append(
            Finding(
                "pilots",
                FindingLevel.WARNING,
                text,
                "upgrade the agents, which send the pilots; old ones end by themselves",
            )
        )
    yield from found or [ok("pilots", f"{count_text(facts.alive, 'pilot')} alive, none silent")]


WARNED_BEFORE = timedelta(days=14)
"""How long before its end a certificate is a warning."""


def judge_certificate(name: str, ends: datetime, now: datetime) -> Finding:
    """Return the finding on a certificate that the server reads."""
    text = f"{name} is valid until {_text(ends)}"
    if ends - now > WARNED_BEFORE:
        return ok("certificate", text)
    return Finding(
        "certificate",
        FindingLevel.WARNING if ends > now else FindingLevel.FAULT,
        text,
        "renew it, and put it in its place",
    )


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"


def _ago(age: timedelta) -> str:
    seconds = max(0.0, age.total_seconds())
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {name} ago"
    return f"{seconds:.0f} s ago"
