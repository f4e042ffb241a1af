"""The command pilotage-server: run a server, sign a token, change the set of keys, back up and restore."""

from __future__ import annotations

import os
import pwd
import sys
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path

import click

from pilotage import clock
from pilotage.command_line.groups import HELP, CommandGroup, ProgramGroup, examples
from pilotage.command_line.settings_options import SettingsCommand, settings_options
from pilotage.errors import InvalidInputError, NotFoundError, PilotageError, StateConflictError, Violation, WorldError
from pilotage.programs import ProgramExit
from pilotage.rpc.channel import split_address
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

_PATH = click.Path(path_type=Path)

PENDING = 3
"""Exit code of `migrate --check` if the schema is older than the program."""


class ServerProgram(ProgramGroup):
    """`pilotage-server`; all its errors but those of its input are its own failures."""

    def exit_code_of(self, error: PilotageError) -> int:
        """Return the exit code for an error."""
        return ProgramExit.INVALID_REQUEST if isinstance(error, InvalidInputError) else ProgramExit.FAILED


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command and return a `ProgramExit`, or `PENDING`."""
    return program.run(sys.argv[1:] if arguments is None else arguments)


@click.group(
    "pilotage-server",
    cls=ServerProgram,
    context_settings=HELP,
    epilog=examples("pilotage-server run --config /etc/pilotage/server.toml", "pilotage-server keys list"),
)
@click.version_option(f"{version('pilotage')} ({build_name()})", message="%(prog)s %(version)s")
def program() -> None:
    """Run and manage the server of Pilotage."""


_SETTINGS = settings_options(ServerSettings, ("data", "database"))
_VO = click.option("--vo", default="local", show_default=True, help="The VO of a token.")


def _login() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:  # the uid of a container may have no entry in passwd
        return f"uid{os.getuid()}"


_OWNER = click.option("--owner", default=_login, help="The owner of a token (default: the login name).")


@program.command(
    cls=SettingsCommand,
    epilog=examples(
        "pilotage-server run --data /var/lib/pilotage --listen 0.0.0.0:4711",
        "pilotage-server run --config /etc/pilotage/server.toml --check-settings",
    ),
)
@click.option("--ready-file", type=_PATH, help="Gets the addresses, as JSON, when the server is ready.")
@click.option("--bootstrap-tokens", type=_PATH, metavar="DIR", help="Keep a token for each role there.")
@_OWNER
@_VO
@settings_options(ServerSettings, ("data", "listen", "http_listen", "metrics_listen", "database", "log_level"))
def run(settings: ServerSettings, ready_file: Path | None, bootstrap_tokens: Path | None, owner: str, vo: str) -> None:
    """Serve until SIGTERM or SIGINT."""
    set_up_logging(json=settings.log_json, level=settings.log_level)
    set_up_tracing("pilotage-server")
    token_files = None
    if bootstrap_tokens is not None:
        token_files = TokenFiles(bootstrap_tokens, TokenOwner(owner, vo), clock.now)
    run_server(settings, ready_file, token_files)


@program.command(
    cls=SettingsCommand,
    epilog=examples(
        "pilotage-server token --role admin --lifetime-s 3600",
        "pilotage-server token --role user --owner alice --join head.example.org:4711",
    ),
)
@click.option("--group", "groups", multiple=True, help="A group; the first is the default one.")
@click.option("--role", "roles", multiple=True, required=True, type=click.Choice([*ROLES]), help="A role.")
@click.option(
    "--lifetime-s", type=float, default=DEFAULT_LIFETIME_S, show_default=True, help="Its lifetime in seconds."
)
@click.option(
    "--join",
    metavar="HOST:PORT",
    help="Print the command by which machines join within an hour, for tokens of the roles user and director.",
)
@_OWNER
@_VO
@_SETTINGS
def token(
    settings: ServerSettings,
    groups: tuple[str, ...],
    roles: tuple[str, ...],
    lifetime_s: float,
    join: str | None,
    owner: str,
    vo: str,
) -> None:
    """Print a token, signed with the key in the data folder."""
    if not 0 < lifetime_s <= settings.longest_token_s:
        raise InvalidInputError(Violation("--lifetime-s", f"is not 1 to {settings.longest_token_s:.0f} s"))
    identity = Identity(owner, vo, groups, frozenset(Role(name) for name in roles))
    lifetime = timedelta(seconds=lifetime_s)
    if join is None:
        sys.stdout.write(own_issuer(settings).issue(identity, lifetime, clock.now()) + "\n")
    else:
        _print_join_line(settings, identity, lifetime, join)


def _print_join_line(settings: ServerSettings, identity: Identity, lifetime: timedelta, address: str) -> None:
    split_address(address)
    if not identity.roles <= JOINABLE:
        raise InvalidInputError(Violation("--role", f"of a machine that joins is one of {', '.join(sorted(JOINABLE))}"))
    invited = replace(identity, roles=frozenset({Role.JOIN}), invitation=Invitation(identity.roles, lifetime))
    token = own_issuer(settings).issue(invited, JOIN_TOKEN_LIFETIME, clock.now())
    authority = AuthorityFiles(settings.tls_folder).load()
    if authority is not None and settings.tls_cert is None:
        token = f"{authority.fingerprint()}.{token}"
    elif settings.tls_cert is None:
        why = f"{settings.tls_folder} has no authority, which the first start with --listen makes"
        sys.stderr.write(
            f"pilotage-server: warning: {why}; the line is for a certificate that machines trust already\n"
        )
    sys.stdout.write(f"pilotage join {address} --token {token}\n")


@program.command(
    cls=SettingsCommand, epilog=examples("pilotage-server backup --data /var/lib/pilotage /backup/pilotage.tar")
)
@click.argument("file", type=_PATH)
@click.option("--without-files", is_flag=True, help="Only list the files.")
@_SETTINGS
def backup(settings: ServerSettings, file: Path, without_files: bool) -> None:
    """Write database (SQLite), keys and files to the new FILE, a tar archive."""
    back_up(settings, file, with_files=not without_files)


@program.command(
    "restore",
    cls=SettingsCommand,
    epilog=examples("pilotage-server restore --data /var/lib/pilotage --from /backup/pilotage.tar"),
)
@click.option("--from", "source", type=_PATH, metavar="FILE", help="First check and put back this backup.")
@click.option("--incarnation", type=int, default=1, metavar="N", help="At least this number (default: the next one).")
@_SETTINGS
def begin_again(settings: ServerSettings, source: Path | None, incarnation: int) -> None:
    """Begin a new incarnation after a backup was put back."""
    restore(settings, source, incarnation - 1)


@program.command(
    cls=SettingsCommand,
    epilog=examples("pilotage-server migrate --check", "pilotage-server migrate --data /var/lib/pilotage"),
)
@click.option("--check", is_flag=True, help="Only say what would run; exit code 3 if anything.")
@_SETTINGS
def migrate(settings: ServerSettings, check: bool) -> int:
    """Upgrade the schema of the database; servers of before stop."""
    with present_database(settings) as database:
        before = database.read(lambda transaction: read_schema(transaction.session))
        if before.fault():
            raise WorldError(before.fault(), transient=False)
        has, wants = f"the database has schema {before.present}", f"this program wants {before.wanted}"
        sys.stdout.write(f"{has}; {wants}\n")
        sys.stdout.writelines(
            f"{'pending' if check else 'runs'}: {each.number} {each.title}\n" for each in before.pending
        )
        if not before.pending:
            return 0
        if check:
            return PENDING
        upgrade(database)
    sys.stdout.write(f"the database has schema {before.wanted} now\n")
    return 0


@program.group(cls=CommandGroup)
def keys() -> None:
    """Show and change the keys that sign tokens."""


@keys.command("list", cls=SettingsCommand, epilog=examples("pilotage-server keys list --data /var/lib/pilotage"))
@_SETTINGS
def list_keys(settings: ServerSettings) -> None:
    """Show the keys, and which of them signs."""
    keys = _key_set(settings)
    signing = keys.signing(clock.now())
    for key in keys.all():
        state = "signs" if key is signing else "will sign" if key.signs_from > clock.now() else "verifies"
        since = f"from {_text(key.signs_from)}" if key.signs_from.year > 1 else "from the first start"
        sys.stdout.write(f"{key.kid}  {state:<9}  {since}  {key.path}\n")


@keys.command(cls=SettingsCommand, epilog=examples("pilotage-server keys rotate", "pilotage-server keys rotate --now"))
@click.option("--now", is_flag=True, help="Let it sign at once, for a stolen key.")
@_SETTINGS
def rotate(settings: ServerSettings, now: bool) -> None:
    """Create a key that signs after the overlap (key_overlap_s)."""
    overlap_s = 0.0 if now else settings.key_overlap_s
    key = KeyFiles(settings.key_file).add(clock.now() + timedelta(seconds=overlap_s))
    sys.stdout.write(f"{key.kid} signs from {_text(key.signs_from)}; copy {key.path} to servers that do not share it\n")


@keys.command(cls=SettingsCommand, epilog=examples("pilotage-server keys retire 5f2a"))
@click.argument("kid", metavar="KEY")
@click.option("--force", is_flag=True, help="Also if tokens that it has signed are still valid.")
@_SETTINGS
def retire(settings: ServerSettings, kid: str, force: bool) -> None:
    """Remove a key, unless it signs or its tokens may still be valid; they are refused within seconds."""
    keys = _key_set(settings)
    now = clock.now()
    if kid == keys.signing(now).kid:
        raise StateConflictError(f"key {kid} signs now: rotate first")
    if kid not in {key.kid for key in keys.all()}:
        raise NotFoundError("signing key", kid)
    # A key signs until the next one is due; the last token that it signed may live for the longest time.
    ends = [later.signs_from for key, later in pairwise(keys.all()) if key.kid == kid]
    last_use = max(ends, default=now) + timedelta(seconds=settings.longest_token_s)
    if last_use > now and not force:
        why = f"tokens of key {kid} may be valid until {_text(last_use)}; --force retires it all the same"
        raise StateConflictError(why)
    removed = KeyFiles(settings.key_file).remove(kid)
    sys.stdout.write(f"{removed.kid} is retired; remove {removed.path} from servers that do not share it\n")


@keys.command(cls=SettingsCommand, epilog=examples("pilotage-server keys adopt --data /var/lib/pilotage"))
@_SETTINGS
def adopt(settings: ServerSettings) -> None:
    """Make the keys here those of the database; other servers need them too."""
    take_keys(settings, _login())


def _key_set(settings: ServerSettings) -> KeySet:
    keys = KeyFiles(settings.key_file).load()
    if not keys:
        raise NotFoundError("signing key", str(settings.key_file))
    return KeySet(keys)


def _text(time: datetime) -> str:
    return f"{time:%Y-%m-%dT%H:%M:%SZ}"


if __name__ == "__main__":
    sys.exit(main())
