"""The command that brings what a job left behind."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from pilotage.errors import InvalidInputError, StateConflictError, Violation
from pilotage.v1 import jobs_pb2
from pilotage_client.api import Client
from pilotage_client.running import AS_JSON, echo_json, echo_table, job_ids, with_client


@click.command()
@click.argument("job", metavar="ID")
@click.option("--to", "folder", type=click.Path(path_type=Path, file_okay=False), help="Write the files there.")
@click.option("--file", "name", metavar="NAME", help="This file, rather than the standard output or all files.")
@click.option("--list", "listed", is_flag=True, help="Only list the files.")
@AS_JSON
@with_client
def output(client: Client, job: str, folder: Path | None, name: str | None, listed: bool, as_json: bool) -> None:
    """Print the standard output of a job that has ended, or fetch all that it left into a folder.

    With --json the files are listed, one a line; with --to, too, they are written and each has its path.
    """
    if folder is not None and listed:
        raise InvalidInputError(Violation("--list", "does not go with --to"))
    job_id = job_ids([job])[0]
    files = client.output_files(job_id)
    if folder is not None:
        _write(client, job_id, _chosen(files, job_id, name), folder, as_json=as_json)
    elif listed or as_json:
        _list(_chosen(files, job_id, name), as_json=as_json)
    elif name is not None:
        _print(client, job_id, _chosen(files, job_id, name))
    else:
        _print_standard_output(client, job_id, files)


def tell_truncated(files: Iterable[jobs_pb2.OutputFile], job_id: int | None = None) -> None:
    """Say on the standard error which files are not whole; with `job_id`, also of which job."""
    of_job = f" of job {job_id}" if job_id is not None else ""
    for file in files:
        if file.truncated:
            note = f"{file.name}{of_job} is not whole: the pilot cut it at {file.size} bytes"
            click.echo(f"pilotage: {note}", err=True)


def _chosen(files: list[jobs_pb2.OutputFile], job_id: int, name: str | None) -> list[jobs_pb2.OutputFile]:
    chosen = [file for file in files if name in (None, file.name)]
    if name is not None and not chosen:
        raise _missing(job_id, name, files)
    return chosen


def _missing(job_id: int, name: str, files: Iterable[jobs_pb2.OutputFile]) -> StateConflictError:
    there = ", ".join(file.name for file in files)
    return StateConflictError(f"job {job_id} has left no {name}" + (f"; it has left {there}" if there else " yet"))


def _write(client: Client, job_id: int, files: list[jobs_pb2.OutputFile], folder: Path, *, as_json: bool) -> None:
    for file, path in zip(files, client.fetch_files(job_id, files, folder), strict=True):
        if as_json:
            echo_json({**_as_json(file), "path": str(path)})
        else:
            click.echo(path)
    tell_truncated(files)


def _list(files: list[jobs_pb2.OutputFile], *, as_json: bool) -> None:
    if as_json:
        for file in files:
            echo_json(_as_json(file))
        return
    rows = ((file.name, file.size, "yes" if file.truncated else "") for file in files)
    echo_table(("NAME", "BYTES", "TRUNCATED"), rows, empty="no files")


def _as_json(file: jobs_pb2.OutputFile) -> dict[str, Any]:
    return {"name": file.name, "size": file.size, "truncated": file.truncated}


def _print_standard_output(client: Client, job_id: int, files: list[jobs_pb2.OutputFile]) -> None:
    """Print what the job has printed; where that is nothing but complaints, say how to read these."""
    out, err = client.standard_files(job_id)
    sizes = {file.name: file.size for file in files}
    if out != err and not sizes.get(out) and sizes.get(err):
        hint = f"its standard error has {sizes[err]} bytes: pilotage output {job_id} --file {shlex.quote(err)}"
        click.echo(f"pilotage: job {job_id} has printed nothing; {hint}", err=True)
    _print(client, job_id, _chosen(files, job_id, out))


def _print(client: Client, job_id: int, files: Iterable[jobs_pb2.OutputFile]) -> None:
    """Print files piece by piece, whatever their size."""
    out = sys.stdout.buffer
    for file in files:
        for piece in client.stream_output(job_id, file):
            out.write(piece)
        out.flush()
        tell_truncated([file])


COMMANDS: tuple[click.Command, ...] = (output,)
