"""Readers of job languages: each gives job descriptions or an error with file and line."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from pilotage import clock
from pilotage.job_description import JobDescription
from pilotage_client.bounded_files import content_of
from pilotage_client.readers.jdl import read_jdl
from pilotage_client.readers.local_files import resolve_local_files
from pilotage_client.readers.read_error import ReadError
from pilotage_client.readers.shown import as_json
from pilotage_client.readers.submit import read_submit
from pilotage_client.readers.submit_text import has_queue_statement
from pilotage_client.readers.toml import read_toml

__all__ = ["LANGUAGES", "ReadError", "as_json", "guess_language", "read_jobs", "read_jobs_with_files"]

LANGUAGES = ("jdl", "submit", "toml")
"""What `read_jobs` reads."""

_SUFFIXES = {
    ".jdl": "jdl",
    ".toml": "toml",
    ".sub": "submit",
    ".submit": "submit",
    ".condor": "submit",
    ".cmd": "submit",
}
_JDL_STATEMENT = re.compile(r"^\s*(?:\[|[A-Za-z_][\w.]*\s*=[^;]*;)", re.MULTILINE)


def read_jobs(path: Path, *, language: str | None = None) -> list[JobDescription]:
    """Return the jobs that a file describes, in its order.

    `language` is one of LANGUAGES, None = told from the file's name and content. Nothing but the file itself, and
    files that a submit file includes or takes items from, needs to be there; paths in it start at its folder.

    Raises
    ------
    ReadError
        When the file cannot be read or does not describe jobs.
    """
    text = _text_of(path)
    return _read(path, text, language or guess_language(path, text))


def read_jobs_with_files(path: Path, *, language: str | None = None) -> list[JobDescription]:
    """Return the jobs that a file describes with every local file of theirs found, as they are submitted.

    Raises
    ------
    ReadError
        When the file cannot be read or does not describe jobs.
    InvalidJobError
        When a file that a job brings is not there, or has no place in the job's folder.
    """
    text = _text_of(path)
    spoken = language or guess_language(path, text)
    # HTCondor ships the executable wherever it lies (its manual, transfer_executable).
    ships_programs = spoken == "submit"
    return [resolve_local_files(each, path.parent, ships_programs=ships_programs) for each in _read(path, text, spoken)]


def _read(path: Path, text: str, language: str) -> list[JobDescription]:
    file = str(path)
    match language:
        case "jdl":
            return read_jdl(text, file)
        case "submit":
            return read_submit(text, file, path.parent, clock.now())
        case "toml":
            return read_toml(text, file)
        case unknown:
            raise ReadError(file, None, f"there is no job language {unknown}; known are {', '.join(LANGUAGES)}")


def guess_language(path: Path, text: str) -> str:
    """Return the language of a file from the end of its name, else from its text.

    A submit file goes by any name, `.jdl` too, as its authors often call it: only it has a queue statement.
    """
    by_name = _SUFFIXES.get(path.suffix.lower())
    if by_name in ("submit", "toml"):
        return by_name
    if has_queue_statement(text):
        return "submit"
    if by_name == "jdl" or _JDL_STATEMENT.search(text):
        return "jdl"
    return "toml" if _is_toml(text) else "submit"


def _is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def _text_of(path: Path) -> str:
    try:
        content = content_of(path)
    except OSError as error:
        raise ReadError(str(path), None, (error.strerror or "cannot be read").lower()) from error
    if b"\0" in content:
        raise ReadError(str(path), content[: content.index(b"\0")].count(b"\n") + 1, "not a text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")  # old files have names in it, most often in comments
