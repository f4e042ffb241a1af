"""Where the server is and who asks: flags, then the environment, then what `pilotage up` left in its data folder."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pilotage.errors import InvalidInputError, Violation

DEFAULT_DATA = Path("~/.local/share/pilotage")
UP_FILE = "up.json"

_TOKEN_KEYS = {"user": "token_file", "operator": "operator_token_file", "admin": "admin_token_file"}


@dataclass(frozen=True, slots=True)
class Location:
    """A server's addresses ("host:port", comma between several) and the caller's token."""

    server: str
    token: str


@dataclass(frozen=True, slots=True)
class Wishes:
    """What the command line says of the server; None = nothing. `acts_as`: user, operator or admin."""

    server: str | None = None
    token_file: Path | None = None
    data: Path | None = None
    acts_as: str = "user"


def data_folder(wished: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the data folder: the wished one, else PILOTAGE_DATA, else the default below the home folder."""
    return (wished or Path(environment.get("PILOTAGE_DATA") or DEFAULT_DATA)).expanduser()


def locate(wishes: Wishes, environment: Mapping[str, str] = os.environ) -> Location:
    """Return the server and token to use; raises InvalidInputError that says how to name the missing one."""
    folder = data_folder(wishes.data, environment)
    left_by_up = _read_up_file(folder / UP_FILE)
    if wishes.data is not None and wishes.server is None:
        environment = {}  # who names a folder means the server and the tokens that are named there
    server = wishes.server or environment.get("PILOTAGE_SERVER") or left_by_up.get("server")
    if not server:
        raise InvalidInputError(
            Violation(
                "server",
                f"no server is known, also not in {folder}; start one with `pilotage up`, or name one by "
                "--data, --server, PILOTAGE_DATA or PILOTAGE_SERVER",
            )
        )
    # The tokens of `pilotage up` are for its own server, and nothing to show to others.
    tokens = left_by_up if server == left_by_up.get("server") else {}
    return Location(server, _token(wishes, environment, tokens))


def _token(wishes: Wishes, environment: Mapping[str, str], left_by_up: Mapping[str, str]) -> str:
    if wishes.token_file is not None:
        return _read_token(wishes.token_file)
    if environment.get("PILOTAGE_TOKEN"):
        return environment["PILOTAGE_TOKEN"].strip()
    kept = left_by_up.get(_TOKEN_KEYS[wishes.acts_as])
    if kept:
        return _read_token(Path(kept))
    raise InvalidInputError(Violation("token", "no token is known; name one by --token-file or PILOTAGE_TOKEN"))


def _read_token(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInputError(Violation(str(path), f"the token cannot be read: {error}")) from error


def _read_up_file(path: Path) -> dict[str, str]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInputError(Violation(str(path), f"cannot be read: {error}")) from error
    return {str(key): str(value) for key, value in found.items()} if isinstance(found, dict) else {}
