"""Workflows on the command line: DAG files for `submit` and `convert`, and the command `rescue`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from pilotage.errors import InvalidInputError, StateConflictError, Violation
from pilotage.text import count_text
from pilotage_client.api import Client
from pilotage_client.cli.options import ONE_JSON, echo_json, with_client
from pilotage_client.cli.show.outputs import RescueJson
from pilotage_client.files import whole_file
from pilotage_client.models import LIVE_STATES, JobStatus
from pilotage_client.readers import guess_language, text_of
from pilotage_client.readers.draft import as_json
from pilotage_client.selections import names_workflow
from pilotage_client.workflows import DagWorkflow, done_nodes, read_dag, rescue_text

RESCUE = click.option(
    "--rescue",
    "rescues",
    multiple=True,
    metavar="FILE|wID",
    help="Leave out the nodes of a DAG that this rescue file or workflow has done. May be repeated.",
)


def is_dag(file: Path, language: str | None) -> bool:
    """Whether a file is a DAG; raises ReadError if it cannot be read."""
    return (language or guess_language(file, text_of(file))) == "dag"


def read_workflow(
    client: Client, files: Sequence[Path], language: str | None, rescues: Sequence[str], *, ignore_unsupported: bool
) -> DagWorkflow | None:
    """Return the workflow of a DAG file; None = the files are job files.

    Raises
    ------
    InvalidInputError
        The DAG is faulty, stands beside other files, or `rescues` are given without one.
    """
    dags = [file for file in files if is_dag(file, language)]
    if not dags:
        if rescues:
            raise InvalidInputError(Violation("--rescue", "belongs to a DAG file"))
        return None
    if len(files) > 1:
        raise InvalidInputError(Violation(str(dags[0]), "a DAG is submitted alone; SPLICE puts several into one"))
    done = [_done(client, text) for text in rescues]
    for rescue in _unused_rescues(dags[0]) if not rescues else ():
        click.echo(f"warning: {rescue} is not used; --rescue {rescue} leaves out the nodes that it has done", err=True)
    return read_dag(dags[0], done=done, ignore_unsupported=ignore_unsupported)


def _done(client: Client, text: str) -> Path | frozenset[str]:
    """Return a rescue file, or the names of the nodes that a workflow such as "w12" has done."""
    if not names_workflow(text) or Path(text).exists():
        return Path(text)
    jobs = _jobs_of(client, text)
    if live := _live_jobs(text, jobs):
        raise StateConflictError(live)
    return done_nodes(jobs)


def _jobs_of(client: Client, text: str) -> list[JobStatus]:
    """Return the jobs of a workflow; raises StateConflictError if some are gone."""
    found = client.find_jobs([text])
    missing = sum(each.jobs for each in found.clusters) - len(found.ids)
    if missing > 0:
        why = f"{missing} jobs of {text} have ended long ago and are not kept any more, so it is unknown which are DONE"
        raise StateConflictError(f"{why}; use a rescue file that was written before")
    return client.jobs(found.ids)


def _live_jobs(text: str, jobs: Sequence[JobStatus]) -> str:
    """Return why a rescue of this workflow is too early, as jobs of it may still run; "" = it is not.

    Of jobs that are left behind failed nodes and cannot run, a warning says how to avoid that they run later.
    """
    left = [job for job in jobs if not job.is_final]
    if not left:
        return ""
    is_one = len(left) == 1
    count = f"1 job of {text}" if is_one else f"{len(left)} jobs of {text}"
    if not all(job.futile for job in left):
        states = Counter(job.state for job in left)
        shown = ", ".join(f"{states[state]} {state}" for state in LIVE_STATES if state in states)
        why = f"{count} {'has' if is_one else 'have'} not ended ({shown}), and nodes would run twice"
        return f"{why}: wait for {text}, or remove these jobs with pilotage remove {text}"
    click.echo(
        f"warning: {count} {'is' if is_one else 'are'} BLOCKED and cannot run: pilotage remove {text} removes "
        f"{'it' if is_one else 'them'}; reschedule {text} would run the nodes of a rescue a second time",
        err=True,
    )
    return ""


def _unused_rescues(dag: Path) -> list[Path]:
    """Return DAGMan's newest rescue file of a DAG, which condor_submit_dag would use."""
    return sorted(dag.parent.glob(f"{dag.name}.rescue[0-9][0-9][0-9]"))[-1:]


def workflow_as_json(workflow: DagWorkflow) -> Iterator[dict[str, Any]]:
    """Yield the jobs of a workflow as `convert` shows them; parents are names of nodes."""
    waits: dict[int, dict[str, list[str]]] = {}
    for each in workflow.dependencies:
        indexes = (index for first, last in each.ranges for index in range(first, last + 1))
        names = dict.fromkeys(workflow.descriptions[index].name for index in indexes)
        waits.setdefault(each.description, {})[each.kind.value] = list(names)
    for index, description in enumerate(workflow.descriptions):
        yield {"node": description.name, **as_json(description), **waits.get(index, {})}


@click.command()
@click.argument("workflows", nargs=-1, required=True, metavar="wID...")
@click.option("-o", "--to", "file", type=click.Path(path_type=Path, dir_okay=False), help="Write the file there.")
@ONE_JSON
@with_client
def rescue(client: Client, workflows: Sequence[str], file: Path | None, as_json: bool) -> None:
    """Print a rescue file, as DAGMan writes it: the nodes of workflows that are DONE.

    `submit flow.dag --rescue FILE` then submits only the others. While the server has the jobs, `reschedule` of the
    workflow's failed jobs continues the same workflow.
    """
    for text in workflows:
        if not names_workflow(text):
            raise InvalidInputError(Violation(text, "is not a workflow, such as w12"))
    done: frozenset[str] = frozenset()
    for text in workflows:
        jobs = _jobs_of(client, text)
        if live := _live_jobs(text, jobs):
            click.echo(f"warning: {live}", err=True)
        done |= done_nodes(jobs)
    shown = rescue_text(done, " ".join(workflows))
    if file is not None:
        with whole_file(file) as output:
            output.write(shown.encode())
    if as_json:
        echo_json(RescueJson(nodes=sorted(done), path=None if file is None else str(file)))
    elif file is None:
        click.echo(shown, nl=False)
    else:
        click.echo(f"{count_text(len(done), 'node is', 'nodes are')} done: {file}")
