"""Reads HTCondor configuration files with HTCondor's own parser, in a child process with a time limit.

A child, because the parser ends its process at the first fault, does not terminate on cyclic macros, and keeps one
table per process (HTCondor 25).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pilotage.classads.library import ClassAdLibraryMissingError
from pilotage.condor.config_child import CANNOT_BLOCK, NO_LIBRARY
from pilotage.condor.text import definitions, find_cycle, reference_graph
from pilotage.errors import InvalidInputError, Violation

_CHILD = "pilotage.condor.config_child"
_CYCLE_TIMEOUT_S = 5.0
"""The time limit, in seconds, for a text with an apparent macro cycle: without a real cycle it is read quickly."""

_NO_USER_CONFIG = "USER_CONFIG_FILE =\n"  # the text is read without the user's own settings
_FAULT = re.compile(
    r'Config source Error "(?P<file>[^"]*)", Line (?P<line>\d+)(?:, Include Depth \d+)?: *(?P<message>.*)'
)
_COMMAND = re.compile(
    r'(?:Config source Error "|while reading config source )(?P<command>[^"\n]*)(?:"|$)', re.MULTILINE
)
_COMMAND_FAULT = re.compile(r"not a valid command, errno=\d+ *: *(?P<why>.+)$", re.MULTILINE)
_MISSING = re.compile(r"(?:can't open file|Can't read config source) (?P<file>.*?)(?:: (?P<why>.*))?$", re.MULTILINE)
_PREFIX = re.compile(r"^(?:error: |config source )", re.IGNORECASE)
_INCLUDE = re.compile(
    r"^(?P<start>\s*@?include(?:\s+ifexist)?\s*:\s*)(?P<name>[^\s$|](?:[^$|]*[^\s$|])?)\s*$", re.IGNORECASE
)
"""An include statement of a file whose name has no macro."""

_POSITION = re.compile(r"Configuration Error Line \d+ while reading")


class InvalidConfigurationError(InvalidInputError):
    """The configuration cannot be read; the violation has the file, the line and the parser's message."""


@dataclass(frozen=True, slots=True)
class KnobRequest:
    """What to return of a configuration.

    `names` are knobs; `lists` are knobs whose text lists further knobs, which are returned too; `variants` is a regular
    expression of prefixes with which any of these may also be defined, such as `SLOT1_`. `programs` is a regular
    expression of knobs whose text is a program with its own macros, such as a transform: it is returned unexpanded,
    with the knobs that it refers to.
    """

    names: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    variants: str = ""
    programs: str = ""


@dataclass(frozen=True, slots=True)
class ConfigurationContext:
    """How a configuration is read.

    `prologue` is configuration text that comes first; `subsystem` is the daemon as which it is read (`STARTD.X` is then
    X); `allow_commands` lets it run commands; `timeout_s` limits the reading, in seconds.
    """

    prologue: str = ""
    subsystem: str = "STARTD"
    allow_commands: bool = False
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """The content of a configuration: `values` are the requested knobs, expanded; `names` are all that it defines.

    `programs` are the unexpanded texts of the requested programs, by their names as spelled. Other names are in lower
    case and include HTCondor's own knobs. A knob with an empty definition has no value and is not in `names`.
    `emptied` are the knobs of the file itself that have a text, of which nothing is left after its expansion.
    """

    values: Mapping[str, str]
    names: frozenset[str]
    programs: Mapping[str, str]
    emptied: frozenset[str]

    def get(self, name: str) -> str | None:
        """Return the expanded text of a requested knob, None = it has none."""
        return self.values.get(name.lower())


def read_configuration(path: Path, request: KnobRequest, context: ConfigurationContext | None = None) -> Configuration:
    """Return the requested content of the file at `path`.

    A relative name in an include statement is relative to the folder of the file with the statement; one that is made
    of macros, and those in commands, are relative to the folder of `path`.

    Raises
    ------
    InvalidConfigurationError
        When it cannot be read, or needs a missing file or a command that is not allowed.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    context = context or ConfigurationContext()
    text = read_text(path)
    with tempfile.TemporaryDirectory(prefix="pilotage-config-") as folder:
        root, copies = Path(folder, "root"), _Copies(Path(folder))
        copy = copies.add(path, text)
        root.write_text(f"{_NO_USER_CONFIG}{context.prologue}\ninclude : {copy}\n", encoding="utf-8")
        circle = _cycle_violation(path, text, context)
        timeout_s = context.timeout_s if circle is None else min(context.timeout_s, _CYCLE_TIMEOUT_S)
        result, messages, code = _run_parser(
            root, path.resolve().parent, _knobs(request, text), replace(context, timeout_s=timeout_s)
        )
        if code is None:
            why = f"reading did not end within {context.timeout_s:g} s"
            raise InvalidConfigurationError(circle or Violation(str(path), why))
        if code != 0:
            raise _parser_error(path, copies.with_original_names(messages), may_run=context.allow_commands)
    values, programs = MappingProxyType(result["values"]), MappingProxyType(result["programs"])
    return Configuration(values, frozenset(result["names"]), programs, frozenset(result["emptied"]))


def read_text(path: Path) -> str:
    """Return the text of a configuration file; raises InvalidConfigurationError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidConfigurationError(Violation(str(path), f"cannot be read: {error.strerror}")) from error
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise InvalidConfigurationError(Violation(f"{path}, line {line}", "is not text in UTF-8")) from error
    if "\0" in text:  # the parser would drop the rest of the line
        line = text.count("\n", 0, text.index("\0")) + 1
        raise InvalidConfigurationError(Violation(f"{path}, line {line}", "holds a NUL character"))
    return text


class _Copies:
    """Copies of a configuration file and of all that it includes, in `folder`.

    Copies, because a file's name may look like a macro or a command, because without a final newline the parser
    miscounts lines, and because it resolves names of included files against its working folder alone.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies: dict[Path, Path] = {}
        self._originals: dict[Path, Path] = {}

    def add(self, path: Path, text: str) -> Path:
        """Write the copy of the file at `path`, and those of the files that it includes; returns its own."""
        copy = self._folder / f"text{len(self._copies)}"
        self._copies[path.resolve()], self._originals[copy] = copy, path
        around = path.resolve().parent
        lines = (
            _INCLUDE.sub(lambda found: found["start"] + str(self._included(around / found["name"])), line)
            for line in text.rstrip().split("\n")
        )
        copy.write_text("\n".join(lines) + "\n", encoding="utf-8", errors="surrogateescape")
        return copy

    def _included(self, path: Path) -> Path:
        """Return the copy of an included file; one that cannot be read is named as it is, as it may not be needed."""
        if (known := self._copies.get(path.resolve())) is not None:
            return known
        try:
            return self.add(path, path.read_text(encoding="utf-8", errors="surrogateescape"))
        except OSError:
            return path

    def with_original_names(self, messages: str) -> str:
        """Return the parser's messages with the names of the files in place of those of the copies."""
        for copy, path in reversed(self._originals.items()):  # text10 before text1
            messages = messages.replace(str(copy), str(path))
        return messages


def _knobs(request: KnobRequest, text: str) -> dict[str, Any]:
    """Return what the child is to find, with the names that the text defines."""
    return asdict(request) | {"defined": sorted({each.name.lower() for each in definitions(text)})}


def _run_parser(
    root: Path, folder: Path, knobs: dict[str, Any], context: ConfigurationContext
) -> tuple[dict[str, Any], str, int | None]:
    """Return the child's result, the parser's messages and the exit code, None = it timed out."""
    request = {
        **knobs,
        "root": str(root),
        "subsystem": context.subsystem,
        "allow_commands": context.allow_commands,
    }
    with subprocess.Popen(
        [sys.executable, "-P", "-m", _CHILD],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=folder,
        env=_environment(),
        start_new_session=True,
        encoding="utf-8",
        errors="replace",
    ) as child:
        try:
            output, stderr = child.communicate(json.dumps(request), timeout=context.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # and the commands that it runs
            return {}, "", None
    result = json.loads(output.rstrip().rpartition("\n")[2]) if child.returncode == 0 else {}
    return result, stderr, child.returncode


def _environment() -> dict[str, str]:
    """Return this environment without variables that would change the text's meaning, with the import path."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("_CONDOR_")}
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path if folder)
    return kept | {"PYTHONPATH": path, "CONDOR_CONFIG": os.devnull}


def _cycle_violation(path: Path, text: str, context: ConfigurationContext) -> Violation | None:
    """Return the violation to report if reading times out; an apparent cycle may be inactive."""
    found = [*definitions(context.prologue), *definitions(text)]
    cycle = find_cycle(reference_graph(found))
    if not cycle:
        return None
    spelled = {definition.name.lower(): definition for definition in found}
    line = spelled[cycle[0]].line
    names = " → ".join(spelled[name].name for name in cycle)
    return Violation(f"{path}, line {line}", f"macros refer to one another in a circle: {names}")


def _parser_error(path: Path, stderr: str, *, may_run: bool) -> Exception:
    """Return the error for the parser's messages in `stderr`; `may_run` = the text may run commands."""
    if NO_LIBRARY in stderr:
        return ClassAdLibraryMissingError()
    faults = ((found["file"], int(found["line"])) for found in _FAULT.finditer(stderr))
    place = next(((_source(path, file), line) for file, line in faults if line > 0), None)
    where = f"{place[0]}, line {place[1]}" if place else str(path)
    return InvalidConfigurationError(Violation(where, _reason(stderr, place, may_run=may_run)))


def _source(path: Path, named: str) -> Path:
    """Return the file that the parser has named; included files are relative to the folder of the text."""
    beside = path.parent / named
    return beside if named != str(path) and beside.is_file() else Path(named)


def _reason(stderr: str, place: tuple[Path, int] | None, *, may_run: bool) -> str:
    if CANNOT_BLOCK in stderr:
        return f"{CANNOT_BLOCK}, so the text is read only where they are allowed"
    if "not a valid command" in stderr:
        command = _COMMAND.search(stderr)
        name = command["command"].rstrip("| ") if command else "unknown"
        why = _COMMAND_FAULT.search(stderr)
        if may_run:
            return f"cannot run the command {name}: {why['why'].strip() if why else 'it is not valid'}"
        return f"wants to run a command: {name}"
    missing = _MISSING.search(stderr)
    if missing is not None:
        return f"needs the file {missing['file'].strip()}: {missing['why'] or 'it cannot be read'}"
    messages = [
        _PREFIX.sub("", _FAULT.sub(lambda found: found["message"], line).strip()) for line in stderr.splitlines()
    ]
    reasons = [reason for reason in messages if reason and not _POSITION.match(reason) and "Parse_config" not in reason]
    if reasons:
        return "; ".join(dict.fromkeys(reasons))
    quoted = _line(*place) if place else ""
    return "HTCondor's parser does not understand this" + (f": {quoted}" if quoted else "")


def _line(path: Path, number: int) -> str:
    """Return a line of a file, "" if there is none."""
    try:
        lines = read_text(path).splitlines()
    except InvalidConfigurationError:
        return ""
    return lines[number - 1].strip() if number <= len(lines) else ""
