"""Contexts: the servers that this user has joined, each with its address, authority and tokens, in one private file."""

from __future__ import annotations

import json
import os
import re
import ssl
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from hashlib import sha256
from pathlib import Path

from pilotage.errors import InvalidInputError, NotFoundError, Violation
from pilotage_client.files import write_private

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._:-]*")


@dataclass(frozen=True, slots=True)
class Context:
    """A server ("host:port", several with commas), its authority (PEM; "" = the system's), and the tokens for it.

    `token` is the user's, `director_token` that of a machine that runs jobs at `queue` (SITE/CE/QUEUE); "" = none.
    """

    server: str
    authority: str = ""
    token: str = field(default="", repr=False)
    director_token: str = field(default="", repr=False)
    queue: str = ""

    def fingerprint(self) -> str:
        """Return the SHA-256 of the authority, hexadecimal; "" = the system's authorities are trusted."""
        if not self.authority:
            return ""
        return sha256(ssl.PEM_cert_to_DER_cert(self.authority)).hexdigest()


@dataclass(frozen=True, slots=True)
class Contexts:
    """The contexts by name, and the name of the current one, "" = none."""

    file: Path
    by_name: Mapping[str, Context]
    current: str

    def named(self, name: str) -> Context:
        """Return a context; raises NotFoundError."""
        found = self.by_name.get(name)
        if found is None:
            raise NotFoundError("context", name)
        return found

    def chosen(self, environment: Mapping[str, str] = os.environ) -> str:
        """Return the name in PILOTAGE_CONTEXT, else that of the current context; "" = none."""
        return environment.get("PILOTAGE_CONTEXT") or self.current

    def check_name(self, name: str, server: str) -> None:
        """Raise InvalidInputError for a name that is invalid, or of another server, whose tokens would be lost."""
        if not _NAME.fullmatch(name):
            why = "is no name of letters, digits, dots, colons, dashes and underscores: give another one with --name"
            raise InvalidInputError(Violation(name, why))
        known = self.by_name.get(name)
        if known is not None and known.server != server:
            why = f"is the context of {known.server}: give another name with --name, or remove that context"
            raise InvalidInputError(Violation(name, why))

    def put(self, name: str, context: Context) -> None:
        """Store a context and make it the current one; raises as `check_name`.

        A token that it lacks stays as it is, unless the server has another authority now.
        """
        self.check_name(name, context.server)
        known = self.by_name.get(name)
        if known is not None and known.authority == context.authority:
            user = context.token or known.token
            worker = known if not context.director_token else context
            context = replace(context, token=user, director_token=worker.director_token, queue=worker.queue)
        self._write({**self.by_name, name: context}, name)

    def use(self, name: str) -> None:
        """Make a context the current one; raises NotFoundError."""
        self.named(name)
        self._write(self.by_name, name)

    def remove(self, name: str) -> None:
        """Remove a context with its tokens; raises NotFoundError."""
        self.named(name)
        left = {each: context for each, context in self.by_name.items() if each != name}
        self._write(left, "" if name == self.current else self.current)

    def _write(self, contexts: Mapping[str, Context], current: str) -> None:
        lines = [
            "# Servers that `pilotage join` has joined. It holds tokens: keep it private.",
            f"current = {_toml(current)}",
        ]
        for name, context in contexts.items():
            lines += ["", f"[contexts.{_toml(name)}]"]
            lines += [f"{key} = {_toml(value)}" for key, value in asdict(context).items() if value]
        self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_private(self.file, "\n".join(lines) + "\n")


def _toml(text: str) -> str:
    """Return a text in TOML; JSON strings are valid basic strings of TOML."""
    return json.dumps(text, ensure_ascii=False)


def contexts_file(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the file of the contexts, below XDG_CONFIG_HOME or ~/.config (XDG Base Directory Specification)."""
    return Path(environment.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "pilotage" / "contexts.toml"


def load_contexts(environment: Mapping[str, str] = os.environ) -> Contexts:
    """Return the contexts of the user; without a file there are none.

    Raises InvalidInputError if others may read the file, or if it is damaged.
    """
    path = contexts_file(environment)
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        if mode & 0o077:
            raise _faulty(path, f"is open to others (mode {mode:o}), and holds tokens: chmod 600 it")
        content = tomllib.loads(path.read_text(encoding="utf-8"))
        current, tables = content.pop("current", ""), content.pop("contexts", {})
        if content or not isinstance(current, str) or not isinstance(tables, dict):
            raise ValueError("it has other keys than current and contexts, or values of other types")
        return Contexts(path, {name: _context(name, table) for name, table in tables.items()}, current)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts(path, {}, "")
    except OSError as error:
        raise _faulty(path, f"cannot be read: {error.strerror}") from error
    except ValueError as error:  # also of text that is not UTF-8, or not TOML
        raise _faulty(path, f"is damaged: {error}; repair it, or remove it and join again") from error


def _context(name: str, table: object) -> Context:
    """Return the context of a table; raises ValueError."""
    known = {each.name for each in fields(Context)}
    if not isinstance(table, dict) or not all(isinstance(value, str) for value in table.values()):
        raise ValueError(f"the context {name} has a value that is no text")
    if not table.get("server") or not table.keys() <= known:
        raise ValueError(f"the context {name} has no server, or another key than {', '.join(sorted(known))}")
    return Context(**table)


def _faulty(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(Violation(str(path), why))
