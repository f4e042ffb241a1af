"""The command pilotage-server: run a server, sign a token, change the set of keys, back up and restore."""

from __future__ import annotations

import argparse
import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from typing import Any

from pilotage import clock
from pilotage.errors import InvalidInputError, NotFoundError, PilotageError, StateConflictError, Violation, WorldError
from pilotage.programs import ProgramExit
from pilotage.rpc.channel import split_address
from pilotage.settings_options import add_settings_options, read_settings_options, report_faults
from pilotage.telemetry import set_up_logging
from pilotage.tracing.recording import set_up_tracing
from pilotage_server.app import build_name, own_issuer, run_server
from pilotage_server.backup import back_up, present_database, restore, take_keys
from pilotage_server.core.identity import JOINABLE, Identity, Invitation, Role
from pilotage_server.own_authority import AuthorityFiles
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet
from pilotage_server.settings import ServerSettings
from pilotage_server.storage.database.engine import read_schema, upgrade
from pilotage_server.token_files import ROLES, TokenFiles, TokenOwner

DEFAULT_LIFETIME_S = 30 * 86400.0
"""Default lifetime of a token signed by the command."""

JOIN_TOKEN_LIFETIME = timedelta(hours=1)
"""How long machines may join by a line that the command prints."""

PENDING = 3
"""Exit code of `migrate --check` if the schema is older than the program."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return a `ProgramExit`, or `PENDING`."""
    options = _parser().parse_args(arguments)
    try:
        settings = read_settings_options(ServerSettings, options)
        if options.command == "token":
            _print_token(settings, options)
        elif options.command == "keys":
            _KEY_COMMANDS[options.keys_command](settings, options)
        elif options.command == "backup":
            back_up(settings, options.file, with_files=not options.without_files)
        elif options.command == "migrate":
            return _migrate(settings, options)
        elif options.command == "restore":
            restore(settings, options.source, options.incarnation - 1)
        else:
            _run(settings, options)
    except InvalidInputError as error:
        report_faults("pilotage-server", error)
        return ProgramExit.INVALID_REQUEST
    except PilotageError as error:
        sys.stderr.write(f"pilotage-server: {' '.join(str(error).split())}\n")  # one line
        return ProgramExit.FAILED
    return ProgramExit.DONE


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="pilotage-server", description="The server of Pilotage.")
    release = f"%(prog)s {version('pilotage')} ({build_name()})"
    parser.add_argument("--version", action="version", version=release)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="serve until SIGTERM or SIGINT")
    run.add_argument("--ready-file", type=Path, help="gets the addresses, as JSON, when the server is ready")
    run.add_argument("--bootstrap-tokens", type=Path, metavar="DIR", help="keep a token for each role there")
    token = commands.add_parser("token", help="print a token, signed with the key in the data folder")
    token.add_argument("--group", action="append", default=[], help="a group; the first is the default one")
    token.add_argument("--role", action="append", required=True, choices=[*ROLES], help="a role")
    token.add_argument("--lifetime-s", type=float, default=DEFAULT_LIFETIME_S, help="its lifetime in seconds")
    token.add_argument(
        "--join",
        metavar="HOST:PORT",
        help="print the command by which machines join within an hour, for tokens of the roles user and director",
    )
    others = (*_add_key_commands(commands), *_add_backup_commands(commands))
    add_settings_options(run, ServerSettings, ("data", "listen", "metrics_listen", "database", "log_level"))
    for command in (token, *others):
        add_settings_options(command, ServerSettings, ("data", "database"))
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
    backup = commands.add_parser("backup", help="write database (SQLite), keys and files to a new file, a tar archive")
    backup.add_argument("file", type=Path, metavar="FILE", help="the new file")
    backup.add_argument("--without-files", action="store_true", help="only list the files")
    migrating = commands.add_parser("migrate", help="upgrade the schema of the database; servers of before stop")
    migrating.add_argument("--check", action="store_true", help="only say what would run; exit code 3 if anything")
    restoring = commands.add_parser("restore", help="begin a new incarnation after a backup was put back")
    restoring.add_argument(
        "--from", dest="source", type=Path, metavar="FILE", help="first check and put back this backup"
    )
    restoring.add_argument(
        "--incarnation", type=int, default=1, metavar="N", help="at least this number (default: the next one)"
    )
    return backup, migrating, restoring


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the uid of a container may have no entry in passwd
        return f"uid{os.getuid()}"


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
    issuer, lifetime = own_issuer(settings), timedelta(seconds=options.lifetime_s)
    if options.join is None:
        sys.stdout.write(issuer.issue(identity, lifetime, clock.now()) + "\n")
        return
    split_address(options.join)
    if not roles <= JOINABLE:
        raise InvalidInputError(Violation("--role", f"of a machine that joins is one of {', '.join(sorted(JOINABLE))}"))
    invited = replace(identity, roles=frozenset({Role.JOIN}), invitation=Invitation(roles, lifetime))
    token = issuer.issue(invited, JOIN_TOKEN_LIFETIME, clock.now())
    authority = AuthorityFiles(settings.tls_folder).load()
    if authority is not None and settings.tls_cert is None:
        token = f"{authority.fingerprint()}.{token}"
    elif settings.tls_cert is None:
        why = f"{settings.tls_folder} has no authority, which the first start with --listen makes"
        sys.stderr.write(
            f"pilotage-server: warning: {why}; the line is for a certificate that machines trust already\n"
        )
    sys.stdout.write(f"pilotage join {options.join} --token {token}\n")


def _migrate(settings: ServerSettings, options: argparse.Namespace) -> int:
    """Upgrade the database, or with --check say what that would do; returns the exit code."""
    with present_database(settings) as database:
        before = database.read(lambda transaction: read_schema(transaction.session))
        if before.fault():
            raise WorldError(before.fault(), transient=False)
        has, wants = f"the database has schema {before.present}", f"this program wants {before.wanted}"
        sys.stdout.write(f"{has}; {wants}\n")
        sys.stdout.writelines(
            f"{'pending' if options.check else 'runs'}: {each.number} {each.title}\n" for each in before.pending
        )
        if not before.pending:
            return 0
        if options.check:
            return PENDING
        upgrade(database)
    sys.stdout.write(f"the database has schema {before.wanted} now\n")
    return 0


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
    if options.kid not in {key.kid for key in keys.all()}:
        raise NotFoundError("signing key", options.kid)
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
    take_keys(settings, _login())


_KEY_COMMANDS = {"list": _list_keys, "rotate": _rotate_keys, "retire": _retire_key, "adopt": _adopt_keys}


if __name__ == "__main__":
    sys.exit(main())
