"""condor_submit: reads a submit file as HTCondor does, submits its jobs, and has their output brought back.

Differences from `pilotage submit`: relative paths begin at the present folder, `output` and `error` may be paths, and
transfer_output_remaps is done, because the output is brought back (`condor.returns`).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import click

from pilotage import clock
from pilotage.classads.library import AdValue
from pilotage.classads.text import ad_lines, ad_text
from pilotage.errors import InvalidInputError, InvalidJobError, PilotageError, Violation
from pilotage.job_description import JobDescription
from pilotage.text import fold
from pilotage.values.jobs import JobCondition
from pilotage.values.selections import JobSelection
from pilotage_client.api import Client
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
from pilotage_client.condor.returns import IWD, REMAPS, ensure_returner, prepare_returns, read_remaps, register_cluster
from pilotage_client.connection import new_request_id
from pilotage_client.readers import ReadError, text_of
from pilotage_client.readers.files import FileResolver
from pilotage_client.readers.submit import read_submit
from pilotage_client.readers.submit_commands import squashed
from pilotage_client.readers.support import TRUE_WORDS
from pilotage_client.retry import RetryBudget
from pilotage_client.user_log.follower import LogWriter, find_user_logs, first_position, present_pages

SUBMIT_OPTIONS: tuple[CondorOption, ...] = (
    *done("append:1 batch-name:1 file:2 dry-run:2 maxjobs:3", 1),
    *done("terse:2 verbose:1 single-cluster:3"),
    *ignored("name:1 remote:1 pool:1 addr:2", ONE_QUEUE, 1),
    *silent("spool:2 disable:2 debug:2 allow-crlf-script:3 unused:1"),
    *silent("password:2", 1),
    *refused("interactive:1", "a job has no terminal; submit a script"),
    *refused("factory:2 dump:2", "the jobs of a file are submitted at once", 1),
    *refused("stm:2", "files travel by Pilotage's protocol only", 1),
    *refused("capabilities:2", "see the documentation"),
)

_QUEUE = "queue"
_RETRY_S = 60.0
_LOGGED_AT_ONCE = 1000
_OUTSIDE = frozenset({"transferoutputremaps"})
_TOLERATED = {("whentotransferoutput", "on_exit_or_evict"), ("whentotransferoutput", "on_success_or_evict")}
"""Statements that `pilotage submit` refuses and that are harmless where the output is brought back."""


def condor_submit(words: Sequence[str], note: Callable[[str], None]) -> int:
    """Submit the jobs of a submit file."""
    arguments, queue = _read_words(words, note)
    name, text = _source(arguments, queue)
    appended = arguments.values("append")
    if arguments.has("batch-name"):
        appended.append(f"batch_name = {arguments.value('batch-name')}")
    descriptions = [_located(each) for each in _read(name, text, appended, note)]
    resolver = FileResolver(Path.cwd(), ships_programs=True)
    descriptions = _resolved(descriptions, resolver, name)
    jobs = sum(each.count or 1 for each in descriptions)
    _check_limits(arguments, descriptions, jobs)
    for warning in dict.fromkeys(text for each in descriptions for text in each.warnings):
        note(f"WARNING: {warning}")
    with Client.located() as client:
        if arguments.has("dry-run"):
            return _dry_run(client, arguments.value("dry-run"), descriptions, note)
        is_terse = arguments.has("terse")
        if not is_terse:
            sys.stdout.write("Submitting job(s)")
            sys.stdout.flush()
        clusters = _submit(client, descriptions, note)
        if not is_terse:
            sys.stdout.write(f"{'.' * jobs}\n")
        for ids in clusters:
            if arguments.has("verbose"):
                _print_ads(client, ids)
            last = f"{ids.start}.{len(ids) - 1}"
            click.echo(
                f"{ids.start}.0 - {last}" if is_terse else f"{len(ids)} job(s) submitted to cluster {ids.start}."
            )
    return 0


def _submit(client: Client, descriptions: Sequence[JobDescription], note: Callable[[str], None]) -> list[range]:
    """Submit the jobs, and have their output returned; returns the ids of each cluster."""
    prepare_returns()
    retry, request_id = RetryBudget(_RETRY_S, note), new_request_id()
    submitted = retry(lambda: client.submit(descriptions, request_id=request_id))
    clusters = [*_clusters(descriptions, submitted.job_ids)]
    for warning in submitted.warnings:
        note(f"WARNING: {warning}")
    try:  # the jobs are submitted, so what fails from here on must not look like a failed submission
        for ids in clusters:
            register_cluster(ids.start, len(ids))
        _log_submission(client, submitted.job_ids, retry)
        ensure_returner()
    except (OSError, PilotageError) as error:
        note(f"WARNING: output or user logs may not come back: {error}")
    return clusters


def _read_words(words: Sequence[str], note: Callable[[str], None]) -> tuple[CondorArguments, str | None]:
    """Return the arguments, and those of -queue, which is the last option; None = it is not given."""
    for index, word in enumerate(words):
        name = word.lstrip("-").lower()
        if word.startswith("-") and name and _QUEUE.startswith(name):
            return read_arguments(words[:index], SUBMIT_OPTIONS, note), " ".join(words[index + 1 :])
    return read_arguments(words, SUBMIT_OPTIONS, note), None


def _source(arguments: CondorArguments, queue: str | None) -> tuple[str, str]:
    """Return the name and the text of the submit file, with the statements of the command line."""
    statements = [each for each in arguments.others if "=" in each]
    files = [each for each in arguments.others if "=" not in each] + arguments.values("file")
    if len(files) > 1:
        raise InvalidInputError(Violation(files[1], "is a second submit file; submit them one by one"))
    if files and files[0] != "-":
        name, text = files[0], text_of(Path(files[0]))
    elif files or not (statements and queue is not None):
        name, text = "<stdin>", sys.stdin.read()
    else:
        name, text = "<command line>", ""
    lines = [*statements, text, *([] if queue is None else [f"queue {queue}"])]
    return name, "\n".join(lines)


def _read(name: str, text: str, appended: Sequence[str], note: Callable[[str], None]) -> list[JobDescription]:
    """Return the jobs of a submit file; statements about the return of output are done, or ignored with a note."""
    base, now = Path.cwd(), clock.now()
    try:
        return read_submit(text, name, base, now, appended=appended)
    except ReadError:
        jobs = read_submit(text, name, base, now, appended=appended, ignore_unsupported=True)
        for each in jobs:
            for statement in each.ignored:
                command, _, value = statement.partition(" = ")
                if squashed(command) not in _OUTSIDE and (squashed(command), fold(value)) not in _TOLERATED:
                    raise
        for statement in dict.fromkeys(text for each in jobs for text in each.ignored):
            if squashed(statement.partition(" = ")[0]) not in _OUTSIDE:
                note(f"WARNING: {statement} is ignored: what a payload has written is returned at the end of its job")
        return [
            replace(
                each,
                ignored=(),
                warnings=tuple(text for text in each.warnings if " is ignored: " not in text),
            )
            for each in jobs
        ]


def _located(description: JobDescription) -> JobDescription:
    """Return a description with the attributes that say where its output goes."""
    own = {squashed(name): value for name, value in description.attributes.items()}
    initial = next((str(own[name]) for name in ("initialdir", "jobiwd") if own.get(name)), "")
    remaps = read_remaps(str(own.get(squashed(REMAPS), "")).strip('"'))
    for stream in (description.stdout, description.stderr):
        if stream and stream != os.devnull and "/" in stream:
            remaps.setdefault(stream.rpartition("/")[2], stream)
    attributes = {name: value for name, value in description.attributes.items() if squashed(name) != squashed(REMAPS)}
    attributes[IWD] = str(Path.cwd() / initial)
    if remaps:
        attributes[REMAPS] = ";".join(f"{_escaped(file)}={_escaped(path)}" for file, path in remaps.items())
    if "leaveinqueue" in own:
        attributes["LeaveJobInQueue"] = fold(str(own["leaveinqueue"])) in TRUE_WORDS
    return replace(description, attributes=attributes)


def _escaped(text: str) -> str:
    return text.replace("=", "\\=").replace(";", "\\;")


def _resolved(descriptions: Sequence[JobDescription], resolver: FileResolver, name: str) -> list[JobDescription]:
    found, faults = [], dict[Violation, None]()
    for each in descriptions:
        try:
            found.append(resolver.resolve(each))
        except InvalidJobError as error:
            faults |= {Violation(f"{name}: {fault.where}", fault.why): None for fault in error.violations}
    if faults:
        raise InvalidJobError(*faults)
    return found


def _check_limits(arguments: CondorArguments, descriptions: Sequence[JobDescription], jobs: int) -> None:
    most = arguments.number("maxjobs", jobs)
    if jobs > most:
        raise InvalidInputError(Violation("-maxjobs", f"{jobs} jobs are more than {most}"))
    if arguments.has("single-cluster") and any(not each.continues_cluster for each in descriptions[1:]):
        raise InvalidInputError(Violation("-single-cluster", "the file has several clusters"))


def _clusters(descriptions: Sequence[JobDescription], ids: Sequence[int]) -> Iterator[range]:
    """Yield the ids of each cluster."""
    sizes: list[int] = []
    for each in descriptions:
        if not each.continues_cluster or not sizes:
            sizes.append(0)
        sizes[-1] += each.count or 1
    start = 0
    for size in sizes:
        yield range(ids[start], ids[start] + size)
        start += size


def _log_submission(client: Client, ids: Sequence[int], retry: RetryBudget) -> None:
    """Write the first events of new jobs into their logs, so that the logs are there; the returner writes the rest."""
    if len(ids) > _LOGGED_AT_ONCE:
        return
    jobs = retry(lambda: client.jobs(ids))
    logs = retry(lambda: find_user_logs(client, jobs))
    if not logs:
        return
    writer = LogWriter(client, {job.id: job for job in jobs}, logs, retry)
    position = first_position(client, jobs, retry)
    for page in present_pages(client, ids, position, retry):
        writer.write([each for each in page if each.job_id in logs and each.before in ("", "RECEIVED")])


def _print_ads(client: Client, ids: range) -> None:
    ads = client.list_ads(JobCondition(selections=(JobSelection(ids.start, (0, len(ids) - 1)),)))
    for process, ad in enumerate(ads):
        sys.stdout.write(f"\n** Proc {ids.start}.{process}:\n{ad_lines(ad)}\n")


def _dry_run(client: Client, file: str, descriptions: Sequence[JobDescription], note: Callable[[str], None]) -> int:
    """Have the server check the jobs, and write what their ads would say."""
    for warning in client.submit(descriptions, validate_only=True).warnings:
        note(f"WARNING: {warning}")
    texts, process, cluster = [], 0, 0
    for each in descriptions:
        if not each.continues_cluster or not cluster:
            cluster, process = cluster + 1, 0
        for _ in range(each.count or 1):
            texts.append(_ad_lines_of(each, cluster, process))
            process += 1
    if file == "-":
        sys.stdout.write("\n".join(texts))
    else:
        Path(file).write_text("\n".join(texts))
    click.echo(f"Dry-Run job(s){'.' * len(texts)}")
    return 0


def _ad_lines_of(description: JobDescription, cluster: int, process: int) -> str:
    fields: dict[str, AdValue | None] = {
        "ClusterId": cluster,
        "ProcId": process,
        "Cmd": description.executable,
        "Arguments": description.arguments or None,
        "In": description.stdin,
        "Out": description.stdout,
        "Err": description.stderr,
        "RequestCpus": description.request_cpus,
        "RequestMemory": description.request_memory_mib,
        "RequestGPUs": description.request_gpus,
        "JobPrio": description.priority,
        "JobBatchName": description.name or None,
    }
    ad: dict[str, AdValue] = {
        **description.attributes,
        **{name: value for name, value in fields.items() if value is not None},
    }
    return ad_lines(ad_text(ad))
