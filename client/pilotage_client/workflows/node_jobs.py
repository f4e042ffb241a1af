"""The jobs of a DAG's nodes: their submit files, each read once, with the variables of each node."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from pilotage.errors import InvalidInputError, InvalidJobError, Violation
from pilotage.job_description import JobDescription
from pilotage_client.readers import guess_language, text_of
from pilotage_client.readers.draft import IGNORE_HINT, ReadError
from pilotage_client.readers.files import FileResolver
from pilotage_client.readers.submit import SubmitFile
from pilotage_client.readers.submit_text import has_queue_statement
from pilotage_client.workflows.dag_files import missing_hint
from pilotage_client.workflows.dag_text import InlineDescription, Place
from pilotage_client.workflows.graph import Node

_MOST_FAULTS = 100
_FINAL_ONLY = "it is not known when the job is submitted; `pilotage status` shows how the nodes have ended"
_NOT_REPLACED = {
    "retry": "a job keeps its text when it runs again",
    "dag_status": _FINAL_ONLY,
    "failed_count": _FINAL_ONLY,
}
"""Macros of DAGMan that have no value here."""


class NodeJobs:
    """Reads the jobs of nodes.

    `dag` is the DAG file, `now` the time of submission. With `with_files` the local files of the jobs are resolved.
    """

    def __init__(self, dag: Path, now: datetime, *, ignore_unsupported: bool, with_files: bool) -> None:
        self._dag = dag
        self._now = now
        self._ignore_unsupported = ignore_unsupported
        self._with_files = with_files
        self._submit_files: dict[tuple[str | Place, Path], SubmitFile] = {}
        self._resolvers: dict[Path, FileResolver] = {}

    def read_all(self, nodes: Iterable[Node]) -> dict[Node, list[JobDescription]]:
        """Return the jobs of each node; raises InvalidInputError with all faults, each with a node that has it."""
        jobs: dict[Node, list[JobDescription]] = {}
        faults: dict[Violation, Node] = {}
        for node in nodes:
            try:
                jobs[node] = self._read(node)
            except InvalidInputError as error:
                for each in error.violations:
                    faults.setdefault(each, node)
                if len(faults) >= _MOST_FAULTS:
                    break
        if faults:
            raise InvalidInputError(*(_of_node(*each) for each in faults.items()))
        return jobs

    def _read(self, node: Node) -> list[JobDescription]:
        jobs = self._submit_file(node).jobs(
            ignore_unsupported=self._ignore_unsupported,
            first=node.prepended,
            last=node.appended,
            builtin={"JOB": node.inner_name},
        )
        if any(not each.continues_cluster for each in jobs[1:]):
            raise InvalidInputError(Violation(_shown(node), "the jobs of a node are one cluster with one executable"))
        resolver = self._resolvers.setdefault(node.folder, FileResolver(node.folder, ships_programs=True))
        found: list[JobDescription] = []
        for job in jobs:
            try:
                fields = resolver.resolved_fields(job) if self._with_files else {}
                found.append(replace(job, **(fields | _fields_of(node, job))))
            except InvalidJobError as error:
                raise InvalidInputError(
                    *(Violation(f"{_shown(node)}: {each.where}", each.why) for each in error.violations)
                ) from error
        return found

    def _submit_file(self, node: Node) -> SubmitFile:
        submit = node.submit
        key = (submit if isinstance(submit, str) else submit.place, node.folder)
        if key not in self._submit_files:
            if isinstance(submit, InlineDescription):
                text, file = _inline_text(submit), submit.place.file
            else:
                text, file = self._text_of(node, submit), str(node.folder / submit)
            self._submit_files[key] = SubmitFile(text, file, node.folder, self._now, not_replaced=_NOT_REPLACED)
        return self._submit_files[key]

    def _text_of(self, node: Node, submit: str) -> str:
        path = node.folder / submit
        try:
            text = text_of(path)
        except ReadError as error:
            why = f"{path}: {error.cause}{missing_hint(path, self._dag)}"
            raise InvalidInputError(Violation(str(node.place), why)) from error
        if (language := guess_language(path, text)) != "submit":
            why = f"{path}: a node needs a submit file, and this one is {language}"
            raise InvalidInputError(Violation(str(node.place), why))
        return text


def _inline_text(inline: InlineDescription) -> str:
    """Return an inline description as a submit file, with its lines at their places."""
    queue = "" if has_queue_statement(inline.text) else "queue\n"
    return "\n" * (inline.place.line - 1) + f"{inline.text}\n{queue}"


def _shown(node: Node) -> str:
    return str(node.folder / node.submit) if isinstance(node.submit, str) else str(node.submit.place)


def _of_node(fault: Violation, node: Node) -> Violation:
    if fault.why == IGNORE_HINT or fault.where == str(node.place):
        return fault
    return Violation(fault.where, f"{fault.why} (node {node.name}, {node.place})")


def _fields_of(node: Node, job: JobDescription) -> dict[str, Any]:
    """Return the fields of a job that the DAG sets."""
    fields: dict[str, Any] = {"name": node.name}
    if node.priority:  # DAGMan overrides the submit file unless the node's priority is 0
        fields["priority"] = node.priority
    if node.ignored:
        fields["ignored"] = (*job.ignored, *node.ignored)
    if node.retries or node.last_code is not None:
        fields |= _retries(node, job)
    return fields


def _retries(node: Node, job: JobDescription) -> dict[str, Any]:
    """Return the fields for RETRY: each run of the node has all of the job's own retries."""
    conflict = ""
    if job.retries and job.retry_until is not None:
        conflict = "RETRY cannot be combined with retry_until"
    elif job.retries and node.last_code is not None:
        own = "max_retries" if job.success_exit_code is None else "success_exit_code or max_retries"
        conflict = f"UNLESS-EXIT cannot be combined with {own}"
    if conflict:
        why = f"node {node.name}: {conflict} of the submit file; keep only one of the two"
        raise InvalidInputError(Violation(str(node.place), why))
    fields: dict[str, Any] = {"retries": (node.retries + 1) * ((job.retries or 0) + 1) - 1}
    if node.last_code is not None:
        fields["retry_until"] = str(node.last_code)
    return fields
