"""The command pilotage-server: run a server, sign a token, change the set of keys, back up and restore."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Sequence
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pilotage import clock
from pilotage.errors import InvalidInputError, NotFoundError, PilotageError, StateConflictError, Violation
from pilotage.telemetry import set_up_logging
from pilotage.tracing.recording import set_up_tracing
from pilotage_server.app import build_name, own_issuer, run_server
from pilotage_server.backup import back_up, restore, take_keys
from pilotage_server.core.identity import Identity, Role
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.settings import ServerSettings, read_settings
from pilotage_server.token_files import ROLES, TokenFiles, TokenOwner

DEFAULT_LIFETIME_S = 30 * 86400.0
"""Default lifetime of a token signed by the command."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code: 0 success, 1 failure, 2 invalid request."""
    options = _parser().parse_args(arguments)
    try:
        settings = _settings(options)
        if options.command == "token":
            _print_token(settings, options)
        elif options.command == "keys":
            _KEY_COMMANDS[options.keys_command](settings, options)
        elif options.command == "backup":
            back_up(settings, options.to, with_files=not options.without_files)
        elif options.command == "restore":
            restore(settings, options.source, options.incarnation - 1)
        else:
            _run(settings, options)
    except InvalidInputError as error:
        return _report_error(error, 2)
    except PilotageError as error:
        return _report_error(error, 1)
    return 0


def _report_error(error: PilotageError, code: int) -> int:
    sys.stderr.write(f"pilotage-server: {' '.join(str(error).split())}\n")  # one line
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pilotage-server", description="The server of Pilotage.")
    release = f"%(prog)s {version('pilotage')} ({build_name()})"
    parser.add_argument("--version", action="version", version=release)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve until SIGTERM or SIGINT")
    run.add_argument("--listen", help="HOST:PORT; port 0 = any free one (default 127.0.0.1:4711)")
    run.add_argument("--metrics-listen", help="HOST:PORT of /metrics, /healthz and /readyz (default: nowhere)")
    run.add_argument("--database", help="the database's URL (default: SQLite in the data folder)")
    run.add_argument("--ready-file", type=Path, help="gets the addresses, as JSON, when the server is ready")
    run.add_argument("--bootstrap-tokens", type=Path, metavar="DIR", help="keep a token for each role there")
    token = commands.add_parser("token", help="print a token, signed with the key in the data folder")
    token.add_argument("--group", action="append", default=[], help="a group; the first is the default one")
    token.add_argument("--role", action="append", required=True, choices=[*ROLES], help="a role")
    token.add_argument("--lifetime-s", type=float, default=DEFAULT_LIFETIME_S, help="its lifetime in seconds")
    others = (*_add_key_commands(commands), *_add_backup_commands(commands))
    for command in (run, token, *others):
        command.add_argument("--data", type=Path, help="the folder of the server's data")
        command.add_argument("--config", type=Path, help="settings, as a TOML file")
    for command in others:
        command.add_argument("--database", help="the database's URL (default: SQLite in the data folder)")
    for command in (run, token):
        command.add_argument("--owner", default=_login(), help="the owner of a token (default: the login name)")
        command.add_argument("--vo", default="local", help="the VO of a token")
    return parser


def _add_key_commands(commands: Any) -> tuple[argparse.ArgumentParser, ...]:
    keys = commands.add_parser("keys", help="show and change the keys that sign tokens")
    actions = keys.add_subparsers(dest="keys_command", required=True)
    listing = actions.add_parser("list", help="show the keys, and which of them signs")
    rotate = actions.add_parser("rotate", help="create a key that signs after the overlap (key_overlap_s)")
    rotate.add_argument("--now", action="store_true", help="let it sign at once, for a stolen key")
    retire = actions.add_parser("retire", help="remove a key; its tokens are refused within seconds")
    retire.add_argument("kid", metavar="KEY", help="the id of the key")
    retire.add_argument("--force", action="store_true", help="also if tokens that it has signed are still valid")
    adopt = actions.add_parser("adopt", help="make the keys here those of the database; other servers need them too")
    return listing, rotate, retire, adopt


def _add_backup_commands(commands: Any) -> tuple[argparse.ArgumentParser, ...]:
    backup = commands.add_parser("backup", help="write database (SQLite), keys and files to a new folder")
    backup.add_argument("--to", type=Path, required=True, metavar="DIR", help="the new folder")
    backup.add_argument("--without-files", action="store_true", help="only list the files")
    restoring = commands.add_parser("restore", help="begin a new incarnation after a backup was put back")
    restoring.add_argument(
        "--from", dest="source", type=Path, metavar="DIR", help="first put back what 'backup' has written there"
    )
    restoring.add_argument(
        "--incarnation", type=int, default=1, metavar="N", help="at least this number (default: the next one)"
    )
    return backup, restoring


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the uid of a container may have no entry in passwd
        return f"uid{os.getuid()}"


def _settings(options: argparse.Namespace) -> ServerSettings:
    names = ("data", "listen", "metrics_listen", "database")
    values = {name: getattr(options, name, None) for name in names}
    return read_settings({name: value for name, value in values.items() if value is not None}, options.config)


def _run(settings: ServerSettings, options: argparse.Namespace) -> None:
    set_up_logging(json=settings.log_json, level=settings.log_level)
    set_up_tracing("pilotage-server")
    token_files = None
    if options.bootstrap_tokens is not None:
        token_files = TokenFiles(options.bootstrap_tokens, TokenOwner(options.owner, options.vo), clock.now)
    run_server(settings, options.ready_file, token_files)


def _print_token(settings: ServerSettings, options: argparse.Namespace) -> None:
    if not 0 < options.lifetime_s <= settings.longest_token_s:
        raise InvalidInputError(Violation("--lifetime-s", f"is not 1 to {settings.longest_token_s:.0f} s"))
    roles = frozenset(Role(name) for name in options.role)
    identity = Identity(options.owner, options.vo, tuple(options.group), roles)
    issuer = own_issuer(settings)
    sys.stdout.write(issuer.issue(identity, timedelta(seconds=options.lifetime_s), clock.now()) + "\n")


def _list_keys(settings: ServerSettings, _options: argparse.Namespace) -> None:
    keys = _key_set(settings)
    signing = keys.signing(clock.now())
    for key in keys.all():
        state = "signs" if key is signing else "will sign" if key.signs_from > clock.now() else "verifies"
        since = f"from {_text(key.signs_from)}" if key.signs_from.year > 1 else "from the first start"
        sys.stdout.write(f"{key.kid}  {state:<9}  {since}  {key.path}\n")


def _rotate_keys(settings: ServerSettings, options: argparse.Namespace) -> None:
    overlap_s = 0.0 if options.now else settings.key_overlap_s
    key = KeyFiles(settings.key_file).add(clock.now() + timedelta(seconds=overlap_s))
    sys.stdout.write(f"{key.kid} signs from {_text(key.signs_from)}; copy {key.path} to servers that do not share it\n")


def _retire_key(settings: ServerSettings, options: argparse.Namespace) -> None:
    """Remove a key, unless it signs or its tokens may still be valid."""
    keys = _key_set(settings)
    now = clock.now()
    if options.kid == keys.signing(now).kid:
        raise StateConflictError(f"key {options.kid} signs now: rotate first")
    # A key signs until the next one is due; the last token that it signed may live for the longest time.
    ends = [later.signs_from for key, later in pairwise(keys.all()) if key.kid == options.kid]
    last_use = max(ends, default=now) + timedelta(seconds=settings.longest_token_s)
    if last_use > now and not options.force:
        why = f"tokens of key {options.kid} may be valid until {_text(last_use)}; --force retires it all the same"
        raise StateConflictError(why)
    removed = KeyFiles(settings.key_file).remove(options.kid)
    sys.stdout.write(f"{removed.kid} is retired; remove {removed.path} from servers that do not share it\n")


def _key_set(settings: ServerSettings) -> KeySet:
    keys = KeyFiles(settings.key_file).load()
    if not keys:
        raise NotFoundError("signing key", str(settings.key_file))
    return KeySet(keys)


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


def _adopt_keys(settings: ServerSettings, _options: argparse.Namespace) -> None:
    take_keys(settings)


_KEY_COMMANDS = {"list": _list_keys, "rotate": _rotate_keys, "retire": _retire_key, "adopt": _adopt_keys}


if __name__ == "__main__":
    sys.exit(main())
