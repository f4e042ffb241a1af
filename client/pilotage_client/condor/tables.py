"""The tables of condor_q, condor_history and condor_status.

Source: HTCondor's manual (condor_q, condor_history, condor_status) and the output of its version 25.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime

from pilotage.classads.evaluation import Ad, NoValue
from pilotage_client.models import ClusterStatus

JOB_ATTRIBUTES = (
    *("ClusterId", "ProcId", "Owner", "QDate", "JobStatus", "JobPrio", "Cmd", "Args", "JobBatchName"),
    *("JobCurrentStartDate", "RemoteWallClockTime", "ServerTime", "ImageSize", "EnteredCurrentStatus"),
    *("HoldReason", "RemoteHost", "CompletionDate", "TransferringOutput"),
)
"""What the tables of jobs show."""

_IDLE, _RUNNING, _REMOVED, _COMPLETED, _HELD, _TRANSFERRING, _SUSPENDED = range(1, 8)
_LETTERS = {
    _IDLE: "I",
    _RUNNING: "R",
    _REMOVED: "X",
    _COMPLETED: "C",
    _HELD: "H",
    _TRANSFERRING: ">",
    _SUSPENDED: "S",
}
_RUNS = frozenset({_RUNNING, _TRANSFERRING, _SUSPENDED})
_KIB_IN_MIB = 1024

Write = Callable[[str], object]


class QueueRow:
    """What the tables show of one job."""

    def __init__(self, ad: str) -> None:
        self._ad = Ad.read(ad)
        self.cluster, self.process = self.number("ClusterId"), self.number("ProcId")
        self.status = self.number("JobStatus")
        self.owner = self.text("Owner")
        self.letter = ">" if self._ad.value("TransferringOutput") is True else _LETTERS.get(self.status, "?")

    def number(self, name: str) -> int:
        """Return a number of the ad; 0 = it has none."""
        value = self._ad.value(name)
        return int(value) if isinstance(value, int | float) else 0

    def text(self, name: str) -> str:
        """Return a text of the ad; "" = it has none."""
        value = self._ad.value(name)
        return value if isinstance(value, str) else ""

    @property
    def batch(self) -> str:
        """The name of its batch."""
        return self.text("JobBatchName") or f"ID: {self.cluster}"

    @property
    def run_time(self) -> str:
        """Its run time so far."""
        seconds = self.number("RemoteWallClockTime")
        if self.status in _RUNS and self.number("JobCurrentStartDate"):
            seconds += max(0, self.number("ServerTime") - self.number("JobCurrentStartDate"))
        return _duration(seconds)

    @property
    def command(self) -> str:
        """Its executable, without the folder, and its arguments."""
        return " ".join(f"{self.text('Cmd').rpartition('/')[2]} {self.text('Args')}".split())

    @property
    def id(self) -> str:
        """Its id as HTCondor aligns it."""
        return f"{self.cluster:4d}.{self.process:<3d}"


def write_heading(write: Write, server: str, now: datetime) -> None:
    """Write the line above a table of condor_q."""
    write(f"\n\n-- Schedd: {server} : <{server}?... @ {now.astimezone():%m/%d/%y %H:%M:%S}\n")


def write_jobs(write: Write, rows: Iterable[QueueRow], *, hosts: bool = False, width: int | None = None) -> None:
    """Write one line for each job; `hosts` = where it runs in place of what it runs, `width` = the longest line."""
    last = "HOST(S)" if hosts else "ST PRI SIZE CMD"
    write(f" ID      OWNER            SUBMITTED     RUN_TIME {last}\n")
    for row in rows:
        begin = f"{row.id} {row.owner[:14]:<14} {_date(row.number('QDate')):<11} {row.run_time:>12} "
        size = row.number("ImageSize") / _KIB_IN_MIB
        middle = f"{row.letter:<2} {row.number('JobPrio'):<3} {size:<4.1f} {row.command}"
        line = begin + (row.text("RemoteHost") if hosts else middle)
        write(line[:width].rstrip() + "\n")


def write_holds(write: Write, rows: Iterable[QueueRow], *, width: int | None = None) -> None:
    """Write one line for each held job, with the reason."""
    write(" ID      OWNER          HELD_SINCE  HOLD_REASON\n")
    for row in rows:
        since = _date(row.number("EnteredCurrentStatus"))
        reason = " ".join(row.text("HoldReason").split())
        write(f"{row.id} {row.owner[:14]:<14} {since:<11} {reason}"[:width].rstrip() + "\n")


def write_batches(write: Write, rows: Sequence[QueueRow], clusters: Mapping[int, ClusterStatus]) -> None:
    """Write one line for each batch; `clusters` have the numbers of all their jobs, also of those that have ended."""
    batches: defaultdict[tuple[str, str], list[QueueRow]] = defaultdict(list)
    for row in rows:
        batches[row.owner, row.batch].append(row)
    widths = [
        max([len(title), *(len(key[column]) for key in batches)])
        for column, title in enumerate(("OWNER", "BATCH_NAME"))
    ]
    write(
        f"{'OWNER':<{widths[0]}} {'BATCH_NAME':<{widths[1]}} {'SUBMITTED':>11} "
        f"{'DONE':>6} {'RUN':>6} {'IDLE':>6} {'HOLD':>6} {'TOTAL':>6} JOB_IDS\n"
    )
    for (owner, name), jobs in batches.items():
        of_batch = [clusters[each] for each in dict.fromkeys(job.cluster for job in jobs) if each in clusters]
        done = sum(each.states.get(state, 0) for each in of_batch for state in ("DONE", "FAILED"))
        counts = [
            done,
            sum(job.status in _RUNS for job in jobs),
            sum(job.status == _IDLE for job in jobs),
            sum(job.status == _HELD for job in jobs),
            sum(each.jobs for each in of_batch) or len(jobs),
        ]
        cells = " ".join(f"{count or '_':>6}" for count in counts)
        submitted = _date(min(job.number("QDate") for job in jobs))
        write(f"{owner:<{widths[0]}} {name:<{widths[1]}} {submitted:>11} {cells} {_ids(jobs)}\n")


def _ids(jobs: Sequence[QueueRow]) -> str:
    first, last = jobs[0], jobs[-1]
    if len(jobs) == 1:
        return f"{first.cluster}.{first.process}"
    if first.cluster == last.cluster and last.process - first.process + 1 == len(jobs):
        return f"{first.cluster}.{first.process}-{last.process}"
    return f"{first.cluster}.{first.process} ... {last.cluster}.{last.process}"


def write_totals(write: Write, totals: Mapping[str, Counter[int]]) -> None:
    """Write the numbers of jobs by status; the keys are what they are the totals for."""
    write("\n")
    for what, by_status in totals.items():
        counts = (
            f"{by_status.total()} jobs; {by_status[_COMPLETED]} completed, {by_status[_REMOVED]} removed, "
            f"{by_status[_IDLE]} idle, {by_status[_RUNNING] + by_status[_TRANSFERRING]} running, "
            f"{by_status[_HELD]} held, {by_status[_SUSPENDED]} suspended"
        )
        write(f"Total for {what}: {counts} \n")
    write("\n")


def write_history(write: Write, rows: Iterable[QueueRow], *, width: int | None = None) -> None:
    """Write one line for each job that has ended."""
    write(" ID     OWNER          SUBMITTED   RUN_TIME     ST COMPLETED   CMD\n")
    for row in rows:
        ended = row.number("CompletionDate")
        line = (
            f"{row.id} {row.owner[:14]:<14} {_date(row.number('QDate')):<11} {row.run_time:>12} "
            f"{row.letter:<2} {_date(ended) if ended else '???':<11} "
            f"{row.text('Cmd')} {row.text('Args')}"
        )
        write(line[:width].rstrip() + "\n")


def write_slots(write: Write, ads: Sequence[Ad]) -> None:
    """Write one line for each slot."""
    names = [_cell(ad, "Name") for ad in ads]
    width = max([len("Name"), *map(len, names)])
    write(f"{'Name':<{width}} OpSys      Arch   State     Activity LoadAv Mem   ActvtyTime\n\n")
    for ad, name in zip(ads, names, strict=True):
        load, memory = ad.value("LoadAvg"), ad.value("Memory")
        now, since = ad.value("MyCurrentTime"), ad.value("EnteredCurrentActivity")
        seconds = int(now) - int(since) if isinstance(now, int | float) and isinstance(since, int | float) else 0
        write(
            f"{name:<{width}} {_cell(ad, 'OpSys'):<10} {_cell(ad, 'Arch'):<6} {_cell(ad, 'State'):<9} "
            f"{_cell(ad, 'Activity'):<8} {load if isinstance(load, int | float) else 0:6.3f} "
            f"{memory if isinstance(memory, int) else 0:>5} {_duration(seconds)}\n"
        )


_SLOT_STATES = ("Owner", "Claimed", "Unclaimed", "Matched", "Preempting", "Backfill", "Drained")


def write_slot_totals(write: Write, ads: Sequence[Ad]) -> None:
    """Write the numbers of slots by platform and state."""
    by_platform: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for ad in ads:
        by_platform[f"{_cell(ad, 'Arch')}/{_cell(ad, 'OpSys')}"][_cell(ad, "State")] += 1
    if not ads:
        return
    width = max(map(len, (*by_platform, "Total"))) + 2
    write(f"\n{'':>{width}} Total {' '.join(_SLOT_STATES)}\n\n")
    for platform, counts in sorted(by_platform.items()):
        write(_slot_line(platform, counts, width))
    write("\n" + _slot_line("Total", sum(by_platform.values(), Counter[str]()), width))


def _slot_line(what: str, counts: Counter[str], width: int) -> str:
    cells = " ".join(f"{counts[state]:>{len(state)}}" for state in _SLOT_STATES)
    return f"{what:>{width}} {counts.total():>5} {cells}\n"


def _cell(ad: Ad, name: str) -> str:
    value = ad.value(name)
    return "[?]" if isinstance(value, NoValue) else str(value)


def rows_of(ads: Iterable[str]) -> Iterator[QueueRow]:
    """Yield the rows of ads."""
    return map(QueueRow, ads)


def _date(seconds: int) -> str:
    """Return a local time as `MM/DD HH:MM`, without a zero before the month."""
    moment = datetime.fromtimestamp(seconds).astimezone()
    return f"{moment.month:2d}/{moment.day:<2d} {moment:%H:%M}"


def _duration(seconds: int) -> str:
    """Return a time as `D+HH:MM:SS`."""
    minutes, second = divmod(max(0, seconds), 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}+{hour:02d}:{minute:02d}:{second:02d}"
