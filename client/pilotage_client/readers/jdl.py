"""Reads JDL of DIRAC, gLite and AliEn.

The dialects share their common attributes and differ in the others, so one table of handlers serves all three.
An attribute that is not in the table is kept, with a warning; docs/reference/job-languages.md shows the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from pilotage.job_description import JobDescription
from pilotage.text import fold
from pilotage.units import parse_duration, parse_size_mib
from pilotage_client.readers import jdl_handlers as handlers
from pilotage_client.readers.draft import Draft, ReadError, StatementFaultError
from pilotage_client.readers.jdl_text import Attribute, as_text, flattened, read_attributes
from pilotage_client.readers.parametric import expand

_FROM_TOKEN = "is kept as an attribute; your identity comes from your token"  # noqa: S105
_NOT_STAGED = "names data that is not staged; it is kept as an attribute"

_HANDLERS: Mapping[str, handlers.JdlHandler] = {
    "executable": handlers.executable,
    "image": handlers.image,
    "containerimage": handlers.image,
    "dockerimage": handlers.image,
    "singularityimage": handlers.image,
    "arguments": handlers.arguments,
    "jobname": handlers.also_keep(handlers.text("name")),
    "stdinput": handlers.also_keep(handlers.text("stdin")),
    "stdoutput": handlers.text("stdout"),
    "stderror": handlers.text("stderr"),
    "inputsandbox": handlers.input_files,
    "inputfile": handlers.input_files,
    "outputsandbox": handlers.output_files,
    "output": handlers.alien_output,
    "outputarchive": handlers.alien_output,
    "environment": handlers.environment,
    "executionenvironment": handlers.environment,
    "requirements": handlers.requirements,
    "requirementsexpression": handlers.requirements_expression,
    "rank": handlers.also_keep(handlers.rank),
    "periodichold": handlers.also_keep(handlers.policy("periodic_hold")),
    "periodicholdreason": handlers.also_keep(handlers.policy("periodic_hold_reason")),
    "periodicholdsubcode": handlers.also_keep(handlers.policy("periodic_hold_subcode")),
    "periodicrelease": handlers.also_keep(handlers.policy("periodic_release")),
    "periodicremove": handlers.also_keep(handlers.policy("periodic_remove")),
    "allowedjobduration": handlers.keep_silently,
    "maxjobretirementtime": handlers.keep_silently,
    "jobmaxvacatetime": handlers.keep_silently,
    "site": handlers.name_list("sites"),
    "sites": handlers.name_list("sites"),
    "bannedsite": handlers.name_list("banned_sites"),
    "bannedsites": handlers.name_list("banned_sites"),
    "platform": handlers.name_list("platforms"),
    "cputime": handlers.measured("cpu_time", parse_duration),
    "maxstarts": handlers.also_keep(handlers.count("max_starts")),
    "ttl": handlers.also_keep(handlers.measured("wall_time", parse_duration)),
    "minram": handlers.measured("request_memory_mib", parse_size_mib),
    "workdirectorysize": handlers.measured("request_disk_mib", parse_size_mib),
    "numberofprocessors": handlers.count("request_cpus"),
    "cpunumber": handlers.count("request_cpus"),
    "minnumberofprocessors": handlers.count("request_cpus", is_default=True),
    "numberofgpus": handlers.count("request_gpus"),
    "gpunumber": handlers.count("request_gpus"),
    "wholenode": handlers.whole_node,
    "tag": handlers.tags,
    "tags": handlers.tags,
    "priority": handlers.also_keep(handlers.priority),
    "type": handlers.keep_unless("job", "parametric"),
    "jobtype": handlers.keep_unless("normal", "user", "job", "parametric"),
    "owner": handlers.keep_with_warning(_FROM_TOKEN),
    "ownergroup": handlers.keep_with_warning(_FROM_TOKEN),
    "user": handlers.keep_with_warning(_FROM_TOKEN),
    "virtualorganisation": handlers.keep_with_warning(_FROM_TOKEN),
    "virtualorganization": handlers.keep_with_warning(_FROM_TOKEN),
    "inputdata": handlers.keep_with_warning(_NOT_STAGED),
    "inputdatacollection": handlers.keep_with_warning(_NOT_STAGED),
    "split": handlers.keep_with_warning("is kept as an attribute; the job is not split"),
}


def draft_of(attributes: list[Attribute]) -> Draft:
    """Return the draft of the job that `attributes` describe; raises StatementFaultError."""
    draft = Draft()
    for attribute in attributes:
        _HANDLERS.get(fold(attribute.name), handlers.keep)(draft, attribute)
    return draft


_NOT_SUPPORTED = {"dag": "a DAG", "collection": "a collection"}
_SUBMISSION_ARGUMENT = re.compile(r"\$\d+")
_JOB_ID_MARK = "%j"


def read_jdl(text: str, file: str) -> list[JobDescription]:
    """Return the jobs that a JDL text describes, in the order of their parameters.

    Raises
    ------
    ReadError
        With the first line of the faulty statement; `file` is the name of the text in the error.
    """
    try:
        attributes = read_attributes(text)
        _check_is_job(attributes)
        kept, warnings = _without_duplicates(attributes)
        jobs = []
        for job in expand(kept):
            draft = draft_of(job)
            for warning in warnings:
                draft.warn(warning)
            _warn_of_marks(draft)
            jobs.append(draft.description())
        return jobs
    except StatementFaultError as fault:
        raise ReadError(file, fault.line, fault.cause) from fault


def _check_is_job(attributes: list[Attribute]) -> None:
    for attribute in attributes:
        if fold(attribute.name) in ("type", "jobtype"):
            kinds = [fold(as_text(each)) for each in flattened(attribute.value)]
            kind = next((_NOT_SUPPORTED[each] for each in kinds if each in _NOT_SUPPORTED), None)
            if kind is not None:
                raise StatementFaultError(attribute.line, f"{kind} is not supported")
    if not any(_HANDLERS.get(fold(each.name)) in (handlers.executable, handlers.image) for each in attributes):
        nodes = next((attribute for attribute in attributes if fold(attribute.name) == "nodes"), None)
        if nodes is not None:
            raise StatementFaultError(nodes.line, "a DAG or a collection is not supported")
        first = attributes[0].line if attributes else 1
        raise StatementFaultError(first, "there is no Executable")


def _without_duplicates(attributes: list[Attribute]) -> tuple[list[Attribute], list[str]]:
    """Return the last statement of each name, and a warning for each earlier one."""
    counting: dict[str, Attribute] = {}
    warnings = []
    for attribute in attributes:
        earlier = counting.pop(fold(attribute.name), None)
        counting[fold(attribute.name)] = attribute
        if earlier is not None:
            warnings.append(
                f"{attribute.name} is given twice: line {attribute.line} counts, "
                f"line {earlier.line} said {as_text(earlier.value)}"
            )
    return sorted(counting.values(), key=lambda each: each.line), warnings


def _warn_of_marks(draft: Draft) -> None:
    """Warn about marks that another system would replace at submission."""
    texts = list(_texts_of(draft))
    marks = sorted({mark for text in texts for mark in _SUBMISSION_ARGUMENT.findall(text)})
    if marks:
        draft.warn(f"{', '.join(marks)}: AliEn's submission arguments are not replaced")
    if any(_JOB_ID_MARK in text for text in texts):
        draft.warn(f"{_JOB_ID_MARK}: DIRAC's mark for the job's id is not replaced")


def _texts_of(draft: Draft) -> Iterable[str]:
    yield from (value for value in draft.fields.values() if isinstance(value, str))
    yield from draft.environment.values()
    yield from draft.output_files
    yield from (file.source or file.name for file in draft.input_files)
    for value in draft.attributes.values():
        elements = value if isinstance(value, tuple) else (value,)
        yield from (element for element in elements if isinstance(element, str))
