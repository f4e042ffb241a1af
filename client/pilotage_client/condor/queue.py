"""condor_q and condor_history: the jobs that have not ended, and those that have."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from pilotage import clock
from pilotage.classads.evaluation import Ad, compile_bounded, evaluate
from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage_client.api import Client
from pilotage_client.condor import tables
from pilotage_client.condor.arguments import (
    ONE_QUEUE,
    CondorArguments,
    CondorOption,
    done,
    ignored,
    read_arguments,
    refused,
    silent,
)
from pilotage_client.condor.formats import FORMAT_OPTIONS, AdFormat, print_ads, read_format
from pilotage_client.condor.returns import ensure_returner
from pilotage_client.condor.selection import WantedJobs, ended_ads, queued_ads, read_job_id, read_wanted
from pilotage_client.models import LIVE_STATES, ClusterStatus

_NARROW = 79

Note = Callable[[str], None]

_SHARED = (
    *FORMAT_OPTIONS,
    *done("constraint:1 limit:2 userlog:5", 1),
    *done("wide:1 allusers:2"),
    *ignored("name:1 pool:1", ONE_QUEUE, 1),
    *silent("debug:1 local:3 stream-results:2"),
)

QUEUE_OPTIONS: tuple[CondorOption, ...] = (
    *done("submitter:3", 1),
    *done("batch:2 nobatch:3 dag:2 hold:2 held run:1 idle totals:3 expert:3"),
    *silent("global:1 direct:3"),
    *refused("better-analyze:2 analyze:2 reverse-analyze:7", "`pilotage why ID` explains why a job waits"),
    *refused("io:2 goodput:2 grid:2 globus:4 cputime:3 currentrun:3 unmatchable:3 factory:2", "no such table exists"),
    *refused("jobads:1 slotads:1 userprios:5", "ads come from the server only", 1),
    *_SHARED,
)

HISTORY_OPTIONS: tuple[CondorOption, ...] = (
    *done("match:1 since:3 completedsince:3", 1),
    *done("backwards:1 forwards:3"),
    *silent("scanlimit:4", 1),
    *refused("file:2 search:3 type:2 epochs:2", "the history is the server's, without files", 1),
    *refused("transfer-history:5 startd:6 schedd:6", "there is only the history of jobs"),
    *_SHARED,
)


def condor_q(words: Sequence[str], note: Note) -> int:
    """Show jobs that have not ended."""
    arguments = read_arguments(words, QUEUE_OPTIONS, note)
    form = read_format(arguments)
    owners = [each for value in arguments.values("submitter") for each in [value.partition("@")[0]]]
    status = {"hold": 5, "held": 5, "run": 2, "idle": 1}
    constraints = [f"JobStatus == {code}" for name, code in status.items() if arguments.has(name)]
    wanted = _wanted(arguments, [*arguments.others, *owners], constraints)
    needed = form.attributes if form.kind else tables.JOB_ATTRIBUTES
    ensure_returner()
    with Client.located() as client:
        ads = queued_ads(client, wanted, needed, all_users=arguments.has("allusers"))
        ads = _limited(ads, arguments.number("limit", -1))
        if form.kind:
            _print(ads, form)
        else:
            _print_queue(client, [*tables.rows_of(ads)], arguments, wanted)
    return 0


def _print_queue(
    client: Client, rows: Sequence[tables.QueueRow], arguments: CondorArguments, wanted: WantedJobs
) -> None:
    write = sys.stdout.write
    tables.write_heading(write, client.server.partition(",")[0], clock.now())
    width = _width(arguments)
    if arguments.has("totals"):
        pass
    elif arguments.has("hold") or arguments.has("held"):
        tables.write_holds(write, rows, width=width)
    elif arguments.has("run"):
        tables.write_jobs(write, rows, hosts=True, width=width)
    elif arguments.has("nobatch") or arguments.has("dag"):
        tables.write_jobs(write, rows, width=width)
    else:
        tables.write_batches(write, rows, _clusters(client, rows))
    totals = {"query": Counter(row.status for row in rows)}
    if not wanted.is_restricted and not arguments.has("allusers"):
        totals |= {row.owner: totals["query"] for row in rows[:1]}
    if arguments.has("allusers") and not wanted.is_restricted:
        totals["all users"] = totals["query"]
    tables.write_totals(write, totals)


def _clusters(client: Client, rows: Iterable[tables.QueueRow]) -> dict[int, ClusterStatus]:
    """Return the clusters of jobs, with the numbers of their jobs that have ended."""
    names = [str(cluster) for cluster in dict.fromkeys(row.cluster for row in rows)]
    if not names:
        return {}
    try:
        return {each.id: each for each in client.find_jobs(names, states=LIVE_STATES).clusters}
    except NotFoundError:  # retention has removed one meanwhile: the table counts the jobs that it shows
        return {}


def condor_history(words: Sequence[str], note: Note) -> int:
    """Show jobs that have ended, the newest first."""
    arguments = read_arguments(words, HISTORY_OPTIONS, note)
    form = read_format(arguments)
    since = arguments.value("completedsince")
    wanted = _wanted(arguments, arguments.others, [f"CompletionDate >= {_seconds(since)}"] if since else [])
    reads_since = arguments.has("since")
    needed = () if reads_since else form.attributes if form.kind else tables.JOB_ATTRIBUTES
    limit = arguments.number("match", arguments.number("limit", -1))
    ensure_returner()
    with Client.located() as client:
        ads = ended_ads(client, wanted, needed, all_users=arguments.has("allusers"))
        if reads_since:
            ads = _until(ads, arguments.value("since"))
        ads = _limited(ads, limit)
        if arguments.has("forwards"):
            ads = reversed([*ads])
        if form.kind:
            _print(ads, form)
        else:
            tables.write_history(sys.stdout.write, tables.rows_of(ads), width=_width(arguments))
    return 0


def _wanted(arguments: CondorArguments, words: Sequence[str], constraints: Sequence[str]) -> WantedJobs:
    return read_wanted(words, [*arguments.values("constraint"), *constraints], arguments.value("userlog"))


def _print(ads: Iterable[str], form: AdFormat) -> None:
    print_ads(ads, form, sys.stdout.write)


def _limited(ads: Iterator[str], limit: int) -> Iterator[str]:
    return ads if limit < 0 else islice(ads, limit)


def _until(ads: Iterator[str], text: str) -> Iterator[str]:
    """Yield ads up to the first one that is the job `text`, or for which the expression `text` is true."""
    selection = read_job_id(text)
    if selection is not None:
        process = "" if selection.processes is None else f" && ProcId == {selection.processes[0]}"
        text = f"ClusterId == {selection.id}{process}"
    try:
        expression = compile_bounded(text)
    except InvalidInputError as error:
        raise InvalidInputError(*(Violation(f"-since {text}", each.why) for each in error.violations)) from error
    for ad in ads:
        if evaluate(expression, Ad.read(ad)) is True:
            return
        yield ad


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise InvalidInputError(Violation("-completedsince", f"{text} is not a time in seconds since 1970"))
    return int(text)


def _width(arguments: CondorArguments) -> int | None:
    """Return the length of the longest line; None = any, as in a pipe."""
    wide = next((each.qualifiers for each in arguments.options if each.name == "wide"), None)
    if wide is None:
        return _NARROW if sys.stdout.isatty() else None
    return int(wide) if wide.isdigit() else None
