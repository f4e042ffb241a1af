"""Reads Pilotage's own job files: a TOML table, or a list of `[[job]]` tables.

Rules
-----
- The keys are those of a job description. Sizes and times take units. An unknown key is an error that names the
  most similar key.
- `after`, `after_ok`, `after_any` and `after_settled` name parents: ids of existing jobs, or names of jobs of the file.
- `parameters` is a table of lists of equal length. One job is made for each position; `{name}` in any text is replaced
  by the element of that list. The jobs of a table are one cluster.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta
from itertools import chain, product
from pathlib import PurePath, PurePosixPath
from typing import Any

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import InvalidClassAdError, check_expression
from pilotage.condor.quoting import join_arguments, split_arguments
from pilotage.errors import Faults, InvalidInputError, InvalidRequirementsError
from pilotage.job_description import InputFile, JobDescription, JobPolicy, Scalar, Value
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage.resources.requirements import keyword_fault
from pilotage.text import did_you_mean
from pilotage.units import LARGEST_COUNT, parse_duration, parse_size_mib, parse_whole_number
from pilotage.values.dependencies import DependencyKind
from pilotage_client.dependencies import check_parents
from pilotage_client.readers.draft import USER_LOG, Draft, FileFaults, ReadError, StatementFaultError


class InvalidValueError(Exception):
    """An invalid value; the text completes "KEY …"."""


_FACTOR = re.compile(r"(\d{1,6}(?:\.\d{1,6})?) ?x", re.ASCII)
_POLICIES = tuple(field.name for field in fields(JobPolicy))

TomlHandler = Callable[[Draft, Any], None]
"""Puts the value of a key into a draft; raises InvalidValueError or InvalidRequirementsError."""


def _text(field: str) -> TomlHandler:
    return lambda draft, value: draft.put(**{field: _text_of(value)})


def _texts(field: str) -> TomlHandler:
    return lambda draft, value: draft.put(**{field: tuple(_texts_of(value))})


def _executable(draft: Draft, value: Any) -> None:
    if not _text_of(value):
        raise InvalidValueError("must not be empty")
    draft.put(executable=value)


def _image(draft: Draft, value: Any) -> None:
    if why := draft.put_image(_text_of(value)):
        raise InvalidValueError(why)


def _arguments(draft: Draft, value: Any) -> None:
    if isinstance(value, list):
        draft.put(arguments=join_arguments(as_text(element) for element in value))
        return
    try:
        split_arguments(_text_of(value))
    except ValueError as error:
        raise InvalidValueError(f"has {str(error).lower()}") from error
    draft.put(arguments=value)


def _environment(draft: Draft, value: Any) -> None:
    for name, each in _table_of(value).items():
        if not name or "=" in name:
            raise InvalidValueError(f"has {name!r}, which cannot be the name of a variable")
        draft.environment[name] = as_text(each)


def _input_files(draft: Draft, value: Any) -> None:
    """Put paths, or tables with the name in the job's folder and the source."""
    for entry in value if isinstance(value, list) else [value]:
        if isinstance(entry, str):
            draft.input_files.append(InputFile(PurePosixPath(entry).name or ".", source=entry))
        elif isinstance(entry, dict) and set(entry) == {"name", "source"}:
            draft.input_files.append(InputFile(_text_of(entry["name"]), source=_text_of(entry["source"])))
        else:
            raise InvalidValueError("must be paths, or tables with name and source")


def _output_files(draft: Draft, value: Any) -> None:
    draft.output_files.extend(_texts_of(value))


def _requirements(draft: Draft, value: Any) -> None:
    draft.requirements = {name: _value_of(name, each) for name, each in _table_of(value).items()}
    for name, asked in draft.requirements.items():
        if why := keyword_fault(name):
            raise InvalidValueError(f"has {name}, which {why}")
        if asked == ():
            raise InvalidValueError(f"asks for an empty list under {name}")


def _expression(field: str) -> TomlHandler:
    def put(draft: Draft, value: Any) -> None:
        try:
            check_expression(_text_of(value))
        except InvalidClassAdError as error:
            raise InvalidValueError(f"is not an expression: {error}") from error
        draft.put(**{field: value})

    return put


def _policy(draft: Draft, value: Any) -> None:
    for name, text in _table_of(value).items():
        if name not in _POLICIES:
            raise InvalidValueError(f"has {name}, which is none of {', '.join(_POLICIES)}")
        try:
            compile_bounded(_text_of(text))
        except InvalidClassAdError as error:
            raise InvalidValueError(f"has an invalid expression under {name}: {error}") from error
        draft.put_policy(**{name: text})


def _retry_until(draft: Draft, value: Any) -> None:
    text = str(value) if isinstance(value, int) and not isinstance(value, bool) else _text_of(value)
    try:
        compile_bounded(text)
    except InvalidClassAdError as error:
        raise InvalidValueError(f"is neither an exit code nor an expression: {error}") from error
    draft.put(retry_until=text)


def _retry_exit_codes(draft: Draft, value: Any) -> None:
    codes = value if isinstance(value, list) else [value]
    if not all(isinstance(code, int) and not isinstance(code, bool) for code in codes):
        raise InvalidValueError("must be exit codes, which are whole numbers")
    draft.put(retry_exit_codes=tuple(parse_whole_number(code, least=-LARGEST_COUNT) for code in codes))


def _retry_delay(draft: Draft, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidValueError("must be a number of seconds")
    draft.put(retry_delay=parse_duration(value))


def _retry_memory(draft: Draft, value: Any) -> None:
    draft.put(retry_memory=factor_of(value))


def factor_of(value: object) -> float:
    """Return a factor that is written as "2x"; raises InvalidValueError."""
    found = _FACTOR.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidValueError('must be a factor in quotes, such as "2x" or "1.5x"')
    return float(found[1])


def _attributes(draft: Draft, value: Any) -> None:
    for name, each in _table_of(value).items():
        draft.keep(name, _value_of(name, each))


def _user_log(draft: Draft, value: Any) -> None:
    if not _text_of(value):
        raise InvalidValueError("must not be empty")
    draft.keep(USER_LOG, value)


def _notify(draft: Draft, value: Any) -> None:
    """Put tables such as {mail = "alice@example.org", on = ["end"]}."""
    wanted = tuple(_subscription(_table_of(each)) for each in (value if isinstance(value, list) else [value]))
    draft.put(notify=wanted)


def _subscription(table: Mapping[str, Any]) -> NewSubscription:
    unknown = [key for key in table if key not in _NOTIFY_KEYS]
    recipients = [kind for kind in RecipientKind if kind.value in table]
    if unknown or len(recipients) != 1:
        raise InvalidValueError(
            f"has {', '.join(unknown or recipients) or 'no recipient'}; it has one of {_RECIPIENTS}"
        )
    (kind,) = recipients
    address = "" if table[kind.value] is True and kind is not RecipientKind.URL else _text_of(table[kind.value])
    names = _texts_of(table.get("on", [each.value for each in Occasion]))
    if odd := [name for name in names if name not in list(Occasion)]:
        raise InvalidValueError(f"has {', '.join(odd)} under on, which is none of {', '.join(Occasion)}")
    if table.get("secret") == "":
        raise InvalidValueError("has an empty secret, which would sign nothing")
    wanted = NewSubscription(kind, address, frozenset(map(Occasion, names)), _text_of(table.get("secret", "")))
    if wanted.fault:
        raise InvalidValueError(wanted.fault)
    return wanted


_RECIPIENTS = "url, mail and command, and may have on and secret"
_NOTIFY_KEYS = frozenset({*RecipientKind, "on", "secret"})


def _measured(field: str, measure: Callable[[object], object]) -> TomlHandler:
    return lambda draft, value: draft.put(**{field: measure(value)})


def _count(field: str, least: int) -> TomlHandler:
    def put(draft: Draft, value: Any) -> None:
        if not isinstance(value, int):
            raise InvalidValueError("must be a whole number")
        draft.put(**{field: parse_whole_number(value, least=least)})

    return put


def _hold(draft: Draft, value: Any) -> None:
    if not isinstance(value, bool):
        raise InvalidValueError("must be true or false")
    draft.put(hold=value)


def _parents(kind: DependencyKind) -> TomlHandler:
    """Put names of jobs, and ids: 12 for a cluster or a job, "12.3" for a job of a cluster."""

    def put(draft: Draft, value: Any) -> None:
        given = value if isinstance(value, list) else [value]
        if any(isinstance(each, float) for each in given):
            raise InvalidValueError('must have quotes around the id of a job of a cluster: "12.3"')
        draft.put(**{kind.value: tuple(as_text(each) for each in given)})

    return put


def _text_of(value: object) -> str:
    if not isinstance(value, str):
        raise InvalidValueError("must be a text")
    return value


def _texts_of(value: object) -> list[str]:
    return [_text_of(element) for element in (value if isinstance(value, list) else [value])]


def _table_of(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InvalidValueError("must be a table")
    return value


def _value_of(name: str, value: object) -> Value:
    if isinstance(value, list):
        return tuple(_scalar_of(name, element) for element in value)
    return _scalar_of(name, value)


def _scalar_of(name: str, value: object) -> Scalar:
    is_infinite = isinstance(value, float) and not math.isfinite(value)
    if is_infinite or not isinstance(value, bool | int | float | str):
        raise InvalidValueError(f"has neither a plain value nor a list of such under {name}")
    return value


def as_text(value: object) -> str:
    """Return a plain value as text; raises InvalidValueError for any other."""
    if not isinstance(value, bool | int | float | str):
        raise InvalidValueError("must hold texts and numbers")
    return str(value).lower() if isinstance(value, bool) else str(value)


def _ignore(draft: Draft, value: Any) -> None:
    """Do nothing with the value of a key that is a fault already, or that is read elsewhere."""


KEYS: Mapping[str, TomlHandler] = {
    "executable": _executable,
    "image": _image,
    "arguments": _arguments,
    "name": _text("name"),
    "environment": _environment,
    "stdin": _text("stdin"),
    "stdout": _text("stdout"),
    "stderr": _text("stderr"),
    "input_files": _input_files,
    "output_files": _output_files,
    "requirements": _requirements,
    "requirements_expression": _expression("requirements_expression"),
    "rank": _expression("rank"),
    "sites": _texts("sites"),
    "banned_sites": _texts("banned_sites"),
    "platforms": _texts("platforms"),
    "cpu_time": _measured("cpu_time", parse_duration),
    "wall_time": _measured("wall_time", parse_duration),
    "lease": _measured("lease", parse_duration),
    "max_starts": _count("max_starts", least=1),
    "retries": _count("retries", least=0),
    "success_exit_code": _count("success_exit_code", least=-LARGEST_COUNT),
    "retry_until": _retry_until,
    "retry_exit_codes": _retry_exit_codes,
    "retry_delay_s": _retry_delay,
    "retry_memory": _retry_memory,
    "request_cpus": _count("request_cpus", least=0),
    "request_memory": _measured("request_memory_mib", parse_size_mib),
    "request_disk": _measured("request_disk_mib", parse_size_mib),
    "request_gpus": _count("request_gpus", least=0),
    "priority": _count("priority", least=-LARGEST_COUNT),
    "hold": _hold,
    "log": _user_log,
    "notify": _notify,
    "policy": _policy,
    "attributes": _attributes,
    "count": _count("count", least=1),
    **{kind.value: _parents(kind) for kind in DependencyKind},
    "parameters": _ignore,  # read by `_jobs`
}
"""The handler of each key of a job."""


_ERROR_LINE = re.compile(r"(?P<cause>.*) \(at line (?P<line>\d+), column \d+\)", re.DOTALL)
_HEADER = re.compile(r"\s*\[\[?\s*(?P<path>[^\[\]]+?)\s*\]\]?\s*(?:#.*)?")
_MOST_JOBS = 100_000


def read_toml(text: str, file: str) -> list[JobDescription]:
    """Return the jobs that a TOML text describes, in its order.

    Raises
    ------
    ReadError
        With the line of each key at fault; `file` is what it calls the text.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise _syntax_error(error, text, file) from error
    faults = FileFaults(file, ignore_unsupported=False)
    jobs: list[list[JobDescription]] = []
    try:
        for number, table in enumerate(_tables(document, text)):
            jobs.append(list(_jobs(table, text, number, faults)))
    except StatementFaultError as fault:
        faults.add(fault.line, fault.cause)
    faults.raise_any()
    _check_parents(jobs, text, faults)  # of all jobs only: a job at fault may be a parent
    faults.raise_any()
    return list(chain.from_iterable(jobs))


SHORT_KEYS: Mapping[str, str] = {
    "cpus": "request_cpus",
    "memory": "request_memory",
    "disk": "request_disk",
    "gpus": "request_gpus",
    "require": "requirements",
    "inputs": "input_files",
    "outputs": "output_files",
}
"""Short names of keys for `read_table`."""


def read_table(table: Mapping[str, Any]) -> JobDescription:
    """Return the job of a table of Python values; keys may have their short names.

    Tuples and sets are lists; a duration may be a `timedelta`; None = the key is not set.

    Raises
    ------
    InvalidInputError
        With every key at fault.
    """
    plain = {SHORT_KEYS.get(key, key): _as_parsed(value) for key, value in table.items() if value is not None}
    faults, draft = Faults(), Draft()
    for key in plain:
        if key not in KEYS or key == "parameters":
            faults.add(key, f"is not a key of a job{did_you_mean(key, (*SHORT_KEYS, *KEYS))}")
    if "executable" not in plain and "image" not in plain:
        faults.add("executable", "is missing")
    for key, value in plain.items():
        try:
            KEYS.get(key, _ignore)(draft, value)
        except (InvalidValueError, InvalidRequirementsError) as error:
            faults.add(key, str(error))
    faults.raise_any()
    return draft.description()


def _as_parsed(value: Any) -> Any:
    """Return a Python value as the TOML parser would return it."""
    match value:
        case Mapping():
            return {name: _as_parsed(each) for name, each in value.items()}
        case set() | frozenset():
            return sorted(value, key=str)
        case tuple() | list():
            return [_as_parsed(each) for each in value]
        case timedelta():
            return value.total_seconds()
        case PurePath():
            return str(value)
        case _:
            return value


def _check_parents(jobs: Sequence[Sequence[JobDescription]], text: str, faults: FileFaults) -> None:
    """Add a fault for each parent whose name no job of the file has; `jobs` are those of each table."""
    names = {job.name: (number,) for number, alike in enumerate(jobs) for job in alike}
    for number, alike in enumerate(jobs):
        for job, kind in product(alike, DependencyKind):
            try:
                check_parents(job, kind, names)
            except InvalidInputError as error:
                faults.add(line_of(text, number, kind.value), f"{kind}: {error}")


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


def _jobs(table: dict[str, Any], text: str, number: int, faults: FileFaults) -> Iterator[JobDescription]:
    """Yield the jobs of one table, one for each position of its parameters; their faults are added to `faults`."""
    for key in table:
        if key not in KEYS:
            faults.add(line_of(text, number, key), f"{key} is not a key of a job{did_you_mean(key, KEYS)}")
    if "executable" not in table and "image" not in table:
        faults.add(line_of(text, number, None), "there is no executable")
    try:
        combinations = _combinations(table.get("parameters"))
    except InvalidValueError as error:
        raise StatementFaultError(line_of(text, number, "parameters"), f"parameters {error}") from error
    for place, values in enumerate(combinations):
        draft = _draft(table, values, text, number)
        faults.add_draft(draft)
        if faults.are_many:
            return
        draft.put(continues_cluster=place > 0)
        yield draft.description()


def _draft(table: dict[str, Any], values: Mapping[str, str], text: str, number: int) -> Draft:
    draft = Draft()
    for key, value in table.items():
        try:
            if key in KEYS:
                KEYS[key](draft, _replaced(value, values))
        except InvalidValueError as error:
            draft.faults.append((line_of(text, number, key), f"{key} {error}"))
        except InvalidRequirementsError as error:
            draft.faults.append((line_of(text, number, key), f"{key}: {error}"))
    return draft


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
    """Return the line of `key` in the job with that number, or the job's first line if the key is not found.

    The TOML parser returns no positions, so the lines are searched for headers and keys.
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
