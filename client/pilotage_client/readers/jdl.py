"""JDL of DIRAC, gLite and AliEn: text in, job descriptions out."""

from __future__ import annotations

import re
from collections.abc import Iterable

from pilotage.folding import fold
from pilotage.job_description import JobDescription, Value
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.jdl_dialects import draft_of
from pilotage_client.readers.jdl_values import Attribute, as_text, flattened, read_attributes
from pilotage_client.readers.parametric import expand
from pilotage_client.readers.read_error import ReadError, StatementFaultError

_NOT_SUPPORTED = {"dag": "a DAG", "collection": "a collection"}
_SUBMISSION_ARGUMENT = re.compile(r"\$\d+")
_JOB_ID_MARK = "%j"


def read_jdl(text: str, file: str) -> list[JobDescription]:
    """Return the jobs that a JDL text describes, in the order of their parameters.

    Raises
    ------
    ReadError
        With the first line of the statement at fault; `file` is what it calls the text.
    """
    try:
        attributes = read_attributes(text)
        _check_is_job(attributes)
        kept, warnings = _without_duplicates(attributes)
        return [_description(each, warnings) for each in expand(kept)]
    except StatementFaultError as fault:
        raise ReadError(file, fault.line, fault.cause) from fault


def _check_is_job(attributes: list[Attribute]) -> None:
    for attribute in attributes:
        if fold(attribute.name) in ("type", "jobtype"):
            kinds = [fold(as_text(each)) for each in flattened(attribute.value)]
            kind = next((_NOT_SUPPORTED[each] for each in kinds if each in _NOT_SUPPORTED), None)
            if kind is not None:
                raise StatementFaultError(attribute.line, f"{kind} is not supported")
    if not any(fold(attribute.name) == "executable" for attribute in attributes):
        nodes = next((attribute for attribute in attributes if fold(attribute.name) == "nodes"), None)
        if nodes is not None:
            raise StatementFaultError(nodes.line, "a DAG or a collection is not supported")
        first = attributes[0].line if attributes else 1
        raise StatementFaultError(first, "there is no Executable")


def _without_duplicates(attributes: list[Attribute]) -> tuple[list[Attribute], list[str]]:
    """Return the statements that count, the last of each name, and a warning for each that does not."""
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


def _description(attributes: list[Attribute], warnings: list[str]) -> JobDescription:
    draft = draft_of(attributes)
    for warning in warnings:
        draft.warn(warning)
    _warn_of_marks(draft)
    return draft.description()


def _warn_of_marks(draft: Draft) -> None:
    """Warn of what another system would have replaced at submission."""
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
        yield from _texts_in(value)


def _texts_in(value: Value) -> Iterable[str]:
    elements = value if isinstance(value, tuple) else (value,)
    return (element for element in elements if isinstance(element, str))
