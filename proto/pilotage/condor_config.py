"""Reads HTCondor configuration files with HTCondor's own parser, in a child process with a time limit.

In a child because the parser ends the process at the first fault, never ends where macros chase one another,
and keeps one table for the whole process (HTCondor 25).
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
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pilotage.classads import ClassAdLibraryMissingError
from pilotage.condor_config_child import CANNOT_BAR, NO_LIBRARY
from pilotage.condor_text import definitions, find_cycle, reference_graph
from pilotage.errors import InvalidInputError, Violation

_CHILD = "pilotage.condor_config_child"
_CIRCLE_S = 5.0
"""So long a text is waited for, in seconds, that seems to have macros in a circle: if it has none it is soon read."""

_QUIET = "USER_CONFIG_FILE =\n"  # the text is read as it stands, not as the user's own settings have it
_FAULT = re.compile(
    r'Config source Error "(?P<file>[^"]*)", Line (?P<line>\d+)(?:, Include Depth \d+)?: *(?P<words>.*)'
)
_COMMAND = re.compile(
    r'(?:Config source Error "|while reading config source )(?P<command>[^"\n]*)(?:"|$)', re.MULTILINE
)
_MISSING = re.compile(r"(?:can't open file|Can't read config source) (?P<file>.*?)(?:: (?P<why>.*))?$", re.MULTILINE)
_PREFIX = re.compile(r"^(?:error: |config source )", re.IGNORECASE)
_POSITION = re.compile(r"Configuration Error Line \d+ while reading")


class InvalidConfigurationError(InvalidInputError):
    """The configuration cannot be read; the violation says the file, the line and the parser's words."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What to return of a configuration.

    `names` are knobs; `lists` are knobs whose text lists further knobs, which are returned too; `variants` is a
    regular expression of the prefixes with which any of these may also be defined, such as `SLOT1_`. `programs` is
    a regular expression of the knobs whose text is a program with macros of its own, such as a transform: it is
    returned as it stands, and the knobs that it refers to are returned too.
    """

    names: tuple[str, ...] = ()
    lists: tuple[str, ...] = ()
    variants: str = ""
    programs: str = ""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """How a configuration is read.

    `prologue` is configuration text that comes first; `subsystem` is the daemon as which it is read
    (`STARTD.X` is then X); `allow_commands` lets it run commands; `timeout_s` bounds the reading, in seconds.
    """

    prologue: str = ""
    subsystem: str = "STARTD"
    allow_commands: bool = False
    timeout_s: float = 20.0


@dataclass(frozen=True, slots=True)
class Configuration:
    """What a configuration says: `values` are the expanded texts of what was asked for, `names` all it defines.

    `programs` are the texts of the programs asked for, macros and all, by their names as they are spelled. Other
    names are in lower case, HTCondor's own knobs among them. A knob that is defined as nothing has no value.
    """

    values: Mapping[str, str]
    names: frozenset[str]
    programs: Mapping[str, str]

    def get(self, name: str) -> str | None:
        """Return the expanded text of a knob that was asked for, None = it has none."""
        return self.values.get(name.lower())


def read_configuration(path: Path, asked: Asked, around: Surroundings | None = None) -> Configuration:
    """Return what the file at `path` says of what is asked; relative names in it are relative to its folder.

    Raises
    ------
    InvalidConfigurationError
        When it cannot be read, needs a file that is not there, or a command that is not allowed.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    around = around or Surroundings()
    text = read_text(path)
    with tempfile.TemporaryDirectory(prefix="pilotage-config-") as folder:
        # A copy: a file's own name may look like a macro or a command, and a last line without an end miscounts.
        copy, root = Path(folder, "text"), Path(folder, "root")
        copy.write_text(text.rstrip() + "\n", encoding="utf-8")
        root.write_text(f"{_QUIET}{around.prologue}\ninclude : {copy}\n", encoding="utf-8")
        circle = _circle(path, text, around)
        patience_s = around.timeout_s if circle is None else min(around.timeout_s, _CIRCLE_S)
        said, words, code = _ask(root, path.resolve().parent, asked, replace(around, timeout_s=patience_s))
        if code is None:
            why = f"reading did not end within {around.timeout_s:g} s"
            raise InvalidConfigurationError(circle or Violation(str(path), why))
        if code != 0:
            raise _fault(path, words.replace(str(copy), str(path)))
    values, programs = MappingProxyType(said["values"]), MappingProxyType(said["programs"])
    return Configuration(values, frozenset(said["names"]), programs)


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


def _ask(root: Path, folder: Path, asked: Asked, around: Surroundings) -> tuple[dict[str, Any], str, int | None]:
    """Return what the child found, the parser's words and the exit code, None = it did not end in time."""
    request = {
        "root": str(root),
        "names": asked.names,
        "lists": asked.lists,
        "variants": asked.variants,
        "programs": asked.programs,
        "subsystem": around.subsystem,
        "allow_commands": around.allow_commands,
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
            output, words = child.communicate(json.dumps(request), timeout=around.timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)  # and the commands that it runs
            return {}, "", None
    said = json.loads(output.rstrip().rpartition("\n")[2]) if child.returncode == 0 else {}
    return said, words, child.returncode


def _environment() -> dict[str, str]:
    """Return this process's environment without what would change the text's meaning, and with its import path."""
    kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("_CONDOR_")}
    path = os.pathsep.join(str(Path(folder).absolute()) for folder in sys.path if folder)
    return kept | {"PYTHONPATH": path, "CONDOR_CONFIG": os.devnull}


def _circle(path: Path, text: str, around: Surroundings) -> Violation | None:
    """Return the fault that the reading never ends for, if it does not: a circle may not be in force."""
    found = [*definitions(around.prologue), *definitions(text)]
    cycle = find_cycle(reference_graph(found))
    if not cycle:
        return None
    spelled = {definition.name.lower(): definition for definition in found}
    line = spelled[cycle[0]].line
    names = " → ".join(spelled[name].name for name in cycle)
    return Violation(f"{path}, line {line}", f"macros refer to one another in a circle: {names}")


def _fault(path: Path, words: str) -> Exception:
    """Return the error that the parser's `words` tell of."""
    if NO_LIBRARY in words:
        return ClassAdLibraryMissingError()
    faults = ((found["file"], int(found["line"])) for found in _FAULT.finditer(words))
    place = next(((_source(path, file), line) for file, line in faults if line > 0), None)
    where = f"{place[0]}, line {place[1]}" if place else str(path)
    return InvalidConfigurationError(Violation(where, _reason(words, place)))


def _source(path: Path, named: str) -> Path:
    """Return the file that the parser has named: those that a text includes are found from its own folder."""
    beside = path.parent / named
    return beside if named != str(path) and beside.is_file() else Path(named)


def _reason(words: str, place: tuple[Path, int] | None) -> str:
    if CANNOT_BAR in words:
        return f"{CANNOT_BAR}, so the text is read only where they are allowed"
    if "not a valid command" in words:
        command = _COMMAND.search(words)
        return f"wants to run a command: {command['command'].rstrip('| ') if command else 'unknown'}"
    missing = _MISSING.search(words)
    if missing is not None:
        return f"needs the file {missing['file'].strip()}: {missing['why'] or 'it cannot be read'}"
    said = [_PREFIX.sub("", _FAULT.sub(lambda found: found["words"], line).strip()) for line in words.splitlines()]
    reasons = [reason for reason in said if reason and not _POSITION.match(reason) and "Parse_config" not in reason]
    if reasons:
        return "; ".join(dict.fromkeys(reasons))
    quoted = _line(*place) if place else ""
    return "HTCondor's parser does not understand this" + (f": {quoted}" if quoted else "")


def _line(path: Path, number: int) -> str:
    """Return a line of a file, "" where there is none."""
    try:
        lines = read_text(path).splitlines()
    except InvalidConfigurationError:
        return ""
    return lines[number - 1].strip() if number <= len(lines) else ""
