"""Pilotage's own form of a job: a TOML table, or a list of `[[job]]` tables.

Rules
-----
The keys are those of a job description. Sizes and times take units. `parameters` is a table of lists of one
length: the job is made once for each position, with `{name}` in any text replaced by what the list of that name
has there. A key that is not known is an error that names the nearest one.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import JobDescription
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.read_error import ReadError, StatementFaultError
from pilotage_client.readers.toml_keys import KEYS, InvalidValueError, as_text

_ERROR_LINE = re.compile(r"(?P<cause>.*) \(at line (?P<line>\d+), column \d+\)", re.DOTALL)
_HEADER = re.compile(r"\s*\[\[?\s*(?P<path>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_MOST_JOBS = 100_000


def read_toml(text: str, file: str) -> list[JobDescription]:
    """Return the jobs that a TOML text describes, in its order.

    Raises
    ------
    ReadError
        With the line of the key at fault; `file` is what it calls the text.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _syntax_error(error, text, file) from error
    try:
        return [job for number, table in enumerate(_tables(document, text)) for job in _jobs(table, text, number)]
    except StatementFaultError as fault:
        raise ReadError(file, fault.line, fault.cause) from fault


def _syntax_error(error: ValueError | RecursionError, text: str, file: str) -> ReadError:
    found = _ERROR_LINE.fullmatch(str(error))
    if found is not None:
        return ReadError(file, int(found["line"]), found["cause"])
    if isinstance(error, tomllib.TOMLDecodeError):
        return ReadError(file, max(text.rstrip().count("\n") + 1, 1), str(error))
    what = "lists or tables are nested too deeply" if isinstance(error, RecursionError) else "a number is too long"
    return ReadError(file, 1, what)


def _tables(document: dict[str, Any], text: str) -> list[dict[str, Any]]:
    if "job" not in document:
        return [document]
    other = next((key for key in document if key != "job"), None)
    if other is not None:
        raise StatementFaultError(line_of(text, 0, other), f"{other} stands outside of a job")
    jobs = document["job"]
    tables = jobs if isinstance(jobs, list) else [jobs]
    if not tables or not all(isinstance(table, dict) for table in tables):
        raise StatementFaultError(line_of(text, 0, "job"), "job must be a table or a list of tables")
    return tables


def _jobs(table: dict[str, Any], text: str, number: int) -> list[JobDescription]:
    """Return the jobs of one table, one for each position of its parameters."""
    for key in table:
        if key not in KEYS:
            nearest = difflib.get_close_matches(key, KEYS, n=1)
            hint = f"; is {nearest[0]} meant?" if nearest else ""
            raise StatementFaultError(line_of(text, number, key), f"{key} is no key of a job{hint}")
    if "executable" not in table:
        raise StatementFaultError(line_of(text, number, None), "there is no executable")
    try:
        combinations = _combinations(table.get("parameters"))
    except InvalidValueError as error:
        raise StatementFaultError(line_of(text, number, "parameters"), f"parameters {error}") from error
    return [_job(table, values, text, number) for values in combinations]


def _job(table: dict[str, Any], values: Mapping[str, str], text: str, number: int) -> JobDescription:
    draft = Draft()
    for key, value in table.items():
        try:
            KEYS[key](draft, _replaced(value, values))
        except InvalidValueError as error:
            raise StatementFaultError(line_of(text, number, key), f"{key} {error}") from error
        except InvalidRequirementsError as error:
            raise StatementFaultError(line_of(text, number, key), f"{key}: {error}") from error
    return draft.description()


def _combinations(parameters: object) -> list[dict[str, str]]:
    if parameters is None:
        return [{}]
    if not isinstance(parameters, dict) or not all(isinstance(each, list) for each in parameters.values()):
        raise InvalidValueError("must be a table of lists")
    lengths = {len(values) for values in parameters.values()}
    if len(lengths) != 1 or lengths == {0}:
        raise InvalidValueError("must be lists of one length, and not empty")
    count = lengths.pop()
    if count > _MOST_JOBS:
        raise InvalidValueError(f"gives {count} jobs, more than {_MOST_JOBS}")
    return [{name: as_text(values[number]) for name, values in parameters.items()} for number in range(count)]


def _replaced(value: Any, values: Mapping[str, str]) -> Any:
    if isinstance(value, str):
        for name, replacement in values.items():
            value = value.replace(f"{{{name}}}", replacement)
        return value
    if isinstance(value, list):
        return [_replaced(element, values) for element in value]
    if isinstance(value, dict):
        return {name: _replaced(element, values) for name, element in value.items()}
    return value


def line_of(text: str, number: int, key: str | None) -> int:
    """Return the line where `key` of the job with that number stands; the job's own first line where it is not found.

    The parser gives no positions, so the lines are looked through for headers and keys.
    """
    job, inside, start = -1, "", 1
    for line_number, line in enumerate(text.split("\n"), start=1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            inside = header["path"].replace(" ", "")
            if inside == "job":
                job, inside = job + 1, ""
                start = line_number if job == number else start
            inside = inside.removeprefix("job.")
        if key is None or max(job, 0) != number:
            continue
        is_header = header is not None and inside.partition(".")[0] == key
        if is_header or (not inside and re.match(rf"""\s*["']?{re.escape(key)}["']?\s*[=.]""", line)):
            return line_number
    return start
