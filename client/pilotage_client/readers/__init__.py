"""Readers of job languages: each returns job descriptions, or raises an error with file and line."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path

from pilotage import clock
from pilotage.errors import InvalidInputError, InvalidJobError, Violation
from pilotage.job_description import JobDescription
from pilotage_client.files import content_of
from pilotage_client.readers.cfg import is_cfg, read_cfg
from pilotage_client.readers.draft import ReadError, as_json
from pilotage_client.readers.files import FileResolver
from pilotage_client.readers.jdl import read_jdl
from pilotage_client.readers.submit import read_submit
from pilotage_client.readers.submit_text import has_queue_statement
from pilotage_client.readers.toml import read_toml

__all__ = ["LANGUAGES", "ReadError", "as_json", "guess_language", "read_jobs", "read_jobs_with_files"]

LANGUAGES = ("cfg", "jdl", "submit", "toml")
"""The languages that `read_jobs` reads."""

_MOST_MISSING_FILES = 100

_SUFFIXES = {
    ".cfg": "cfg",
    ".jdl": "jdl",
    ".toml": "toml",
    ".sub": "submit",
    ".submit": "submit",
    ".condor": "submit",
    ".cmd": "submit",
    ".dag": "dag",
}
_DAG_COMMAND = re.compile(
    r"""\s*(?:(?:JOB|NODE|DATA|SUBDAG|SPLICE|FINAL|PARENT|SCRIPT|RETRY|VARS|PRIORITY|CATEGORY|MAXJOBS|CONFIG|DOT|INCLUDE
    |SERVICE|NODE_STATUS_FILE|JOBSTATE_LOG|SET_JOB_ATTR|ABORT[-_]DAG[-_]ON|PRE_SKIP|ENV|SUBMIT[-_]DESCRIPTION|PROVISIONER
    |DONE|REJECT|SAVE_POINT_FILE|CONNECT|PIN_IN|PIN_OUT)\s+[^\s=:]|REJECT\s*$)""",
    re.IGNORECASE | re.VERBOSE,
)
_BATCH_OPTION = re.compile(r"#(?:SBATCH|PBS|BSUB|\$)\s")
_DAG = "this is a DAG of DAGMan, not jobs; `pilotage submit` takes it as FILE.dag or with --language dag"
_SCRIPT = (
    "this is a script, as for sbatch, and no job file; name it as the executable of one, and write its options there"
)
_JSON = "this is JSON, and no job language; known are JDL, CFG, submit files and TOML"

_JDL_STATEMENT = re.compile(r"^\s*(?:\[|[A-Za-z_][\w.]*\s*=[^;]*;)", re.MULTILINE)


def read_jobs(path: Path, *, language: str | None = None, ignore_unsupported: bool = False) -> list[JobDescription]:
    """Return the jobs that a file describes, in its order.

    `language` is one of LANGUAGES, None = derived from the file's name and content. Input files need not exist; only
    files that a submit file includes or reads items from are opened. Paths are relative to the folder of the file.
    `ignore_unsupported` = statements that ask for something that is not done are ignored, and named in `ignored`.

    Raises
    ------
    ReadError
        The file cannot be read, does not describe jobs, or asks for something that is not done; with all faults.
    """
    text = text_of(path)
    return _read(path, text, language or guess_language(path, text), ignore_unsupported)


def read_jobs_with_files(
    path: Path,
    *,
    language: str | None = None,
    ignore_unsupported: bool = False,
    appended: Sequence[str] = (),
    text: str | None = None,
) -> list[JobDescription]:
    """Return the jobs that a file describes, ready for submission: with all their local files resolved.

    `text` = it has been read, such as from the standard input; None = it is read from `path`.

    `appended` are statements that precede each queue statement of a submit file, as with condor_submit -append.

    Raises
    ------
    ReadError
        As `read_jobs`.
    InvalidJobError
        Input files are missing, or their names are invalid in the job's folder.
    InvalidInputError
        Statements cannot be appended: they are invalid, or the file is not a submit file.
    """
    text = text_of(path) if text is None else text
    language = language or guess_language(path, text)
    # HTCondor transfers the executable from any path (its manual, transfer_executable).
    files = FileResolver(path.parent, ships_programs=language == "submit")
    jobs = _read(path, text, language, ignore_unsupported, appended)
    resolved: list[JobDescription] = []
    faults: dict[Violation, None] = {}
    for job in jobs:
        try:
            resolved.append(files.resolve(job))
        except InvalidJobError as error:
            faults |= {Violation(f"{path}: {each.where}", each.why): None for each in error.violations}
            if len(faults) >= _MOST_MISSING_FILES:
                break
    if faults:
        raise InvalidJobError(*faults)
    return resolved


def _read(
    path: Path, text: str, language: str, ignore_unsupported: bool, appended: Sequence[str] = ()
) -> list[JobDescription]:
    file = str(path)
    if appended and language != "submit":
        raise InvalidInputError(Violation("--append", f"{file} is not a submit file, only to these one can append"))
    if language != "toml" and (foreign := foreign_language(text)) is not None:
        raise ReadError(file, *foreign)
    match language:
        case "cfg":
            return read_cfg(text, file, ignore_unsupported=ignore_unsupported)
        case "dag":
            raise ReadError(file, None, _DAG)
        case "jdl":
            return read_jdl(text, file, ignore_unsupported=ignore_unsupported)
        case "submit":
            now = clock.now()
            return read_submit(text, file, path.parent, now, ignore_unsupported=ignore_unsupported, appended=appended)
        case "toml":
            return read_toml(text, file)
        case unknown:
            raise ReadError(file, None, f"unknown job language {unknown}; known are {', '.join(LANGUAGES)}")


def guess_language(path: Path, text: str) -> str:
    """Return the language of a file by its suffix, else by its text: one of LANGUAGES, or "dag".

    A submit file may have any name, and often has `.jdl`: its queue statement identifies it. A text in brackets is JDL,
    as in DIRAC.
    """
    by_name = _SUFFIXES.get(path.suffix.lower())
    if by_name in ("submit", "toml", "dag"):
        return by_name
    if has_queue_statement(text):
        return "submit"
    if (foreign := foreign_language(text)) is not None and foreign[1] == _DAG:
        return "dag"
    if not text.lstrip().startswith("[") and (by_name == "cfg" or (by_name is None and is_cfg(text))):
        return "cfg"
    if by_name is not None or _JDL_STATEMENT.search(text):
        return "jdl"
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return "submit"
    return "toml"


def foreign_language(text: str) -> tuple[int, str] | None:
    """Return line and name of a language that is no job language, as its text shows; None = it may be one."""
    if has_queue_statement(text):
        return None
    lines = text.split("\n")
    if text.startswith("#!"):
        options = (number for number, line in enumerate(lines, start=1) if _BATCH_OPTION.match(line))
        return next(options, 1), _SCRIPT
    first = next(
        (
            (number, line)
            for number, line in enumerate(lines, start=1)
            if line.strip(" \t\r") and not line.lstrip().startswith(("#", "//"))
        ),
        None,
    )
    if first is not None and _DAG_COMMAND.match(first[1]):
        return first[0], _DAG
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return None
    return 1, _JSON


def text_of(path: Path) -> str:
    """Return the text of a job file; raises ReadError if it cannot be read or is no text."""
    try:
        content = content_of(path)
    except OSError as error:
        raise ReadError(str(path), None, (error.strerror or "cannot be read").lower()) from error
    if b"\0" in content:
        raise ReadError(str(path), content[: content.index(b"\0")].count(b"\n") + 1, "not a text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")  # old files have names in this encoding, mostly in comments
