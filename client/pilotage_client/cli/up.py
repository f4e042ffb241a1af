"""The commands `up`, which runs the stack on this machine, `join`, and `context` for the servers that it has joined."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import identity_service_pb2
from pilotage_client.cli.options import ONE_JSON, CommandGroup, echo_json
from pilotage_client.cli.show.columns import Column, Listing, View, view_options
from pilotage_client.cli.show.operator_outputs import ContextJson
from pilotage_client.connection import data_folder
from pilotage_client.contexts import Context, load_contexts
from pilotage_client.joining import JoinToken, join, with_port
from pilotage_client.up.up import UpOptions, check_policy, run_up, this_machine
from pilotage_client.up.worker import run_worker


@click.command()
@click.option("--data", type=click.Path(path_type=Path), help="The data folder (default: PILOTAGE_DATA).")
@click.option("--port", type=click.IntRange(0, 65535), default=4711, show_default=True, help="0 = any free port.")
@click.option(
    "--listen",
    metavar="[ADDRESS]",
    is_flag=False,
    flag_value="0.0.0.0",  # noqa: S104 - that is what the option asks for
    help="Let other machines join, with TLS: listen at this address, or at all of this machine.",
)
@click.option("--pilot-only", is_flag=True, help="Run pilots alone, for the server that this machine has joined.")
@click.option("--context", metavar="NAME", help="With --pilot-only: the joined server (default: the current context).")
@click.option("--cpus", type=click.IntRange(1, 1024), help="The number of cores to use (default: all of this machine).")
@click.option(
    "--tree",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Activate this resource tree; CEs of CEType local get pilots.",
)
@click.option(
    "--policy",
    type=click.Path(path_type=Path, dir_okay=False, exists=True, resolve_path=True),
    help="The HTCondor policy of this machine's pilots.",
)
@click.option(
    "--writable",
    type=click.Path(path_type=Path, exists=True, resolve_path=True),
    multiple=True,
    help="A path that jobs may write to, although they are isolated; repeatable.",
)
def up(
    data: Path | None,
    port: int,
    listen: str | None,
    pilot_only: bool,
    context: str | None,
    cpus: int | None,
    tree: Path | None,
    policy: Path | None,
    writable: tuple[Path, ...],
) -> None:
    """Run server, agents and pilots on this machine, in the foreground; Ctrl-C stops them.

    Running jobs then return to the queue; the next `pilotage up` continues with all jobs.
    """
    if pilot_only and (listen is not None or tree is not None):
        raise click.UsageError("--listen and --tree are for the machine of the server, not for --pilot-only")
    if context is not None and not pilot_only:
        raise click.UsageError("--context belongs to --pilot-only")
    if policy is not None:
        check_policy(policy, cpus)
    options = UpOptions(data_folder(data), port, cpus, tree, policy, writable, listen)
    if pilot_only:
        name, joined = _joined(context)
        run_worker(name, joined, options, click.echo)
    else:
        run_up(options, click.echo)


def _joined(name: str | None) -> tuple[str, Context]:
    """Return the context of this name, or the current one; raises InvalidInputError unless it is a worker's."""
    contexts = load_contexts()
    chosen = name or contexts.chosen()
    if not chosen:
        raise InvalidInputError(Violation("--pilot-only", "this machine has joined no server: `pilotage join`"))
    found = contexts.named(chosen)
    if not found.director_token:
        why = f"the context {chosen} may not run jobs: join with a token of `pilotage token join --as worker`"
        raise InvalidInputError(Violation("--pilot-only", why))
    return chosen, found


@click.command("join")
@click.argument("address", metavar="HOST[:PORT]")
@click.option("--token", "text", required=True, help="What `pilotage token join` has printed; - = standard input.")
@click.option("--name", help="The name of the context (default: the server's host).")
@click.option("--machine", help="The name of this machine (default: its host name).")
@click.option(
    "--ca-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="The authority of the server's certificate, if the token names none.",
)
@click.option("--cpus", type=click.IntRange(1, 1024), help="The cores for jobs (default: all of this machine).")
@ONE_JSON
def join_server(
    address: str,
    text: str,
    name: str | None,
    machine: str | None,
    ca_file: Path | None,
    cpus: int | None,
    as_json: bool,
) -> None:
    """Join a server on another machine: check its authority, and keep its address and tokens in a context."""
    token = JoinToken.parse(sys.stdin.read() if text == "-" else text)
    contexts = load_contexts()  # a damaged file is reported before the join
    address = with_port(address)
    name = name or address.partition(",")[0].rpartition(":")[0].strip("[]")
    contexts.check_name(name, address)
    here = this_machine(Path.home())
    request = identity_service_pb2.JoinRequest(
        machine=machine or here.name, cpus=cpus or here.cpus, memory_mib=here.memory_mib, disk_mib=here.disk_mib
    )
    joined = join(address, token, request, ca_file.read_bytes() if ca_file else None)
    contexts.put(name, joined)
    if as_json:
        echo_json(_context_json((name, joined, True)))
        return
    click.echo(f"joined {address}; the context {name} is the current one")
    if joined.token:
        click.echo("submit jobs: pilotage submit FILE")
    if joined.queue:
        click.echo(f"run jobs here, in the queue {joined.queue}: pilotage up --pilot-only")


@click.group("context", cls=CommandGroup)
def context_group() -> None:
    """Show and choose the servers that `pilotage join` has joined."""


def _context_json(context: tuple[str, Context, bool]) -> ContextJson:
    """Return a context with its name, and whether it is the current one."""
    name, found, is_current = context
    return {
        "name": name,
        "current": is_current,
        "server": found.server,
        "authority": found.fingerprint() or None,
        "submits": bool(found.token),
        "queue": found.queue or None,
    }


def _may(context: Context) -> str:
    may = {"submit jobs": context.token, "run jobs": context.director_token}
    return " and ".join(what for what, token in may.items() if token)


CONTEXTS = Listing(
    ContextJson,
    _context_json,
    Column("current", " ", text=lambda is_current: "*" if is_current else "", priority=0),
    Column("name", priority=0),
    Column("server", priority=1, shortest=16),
    Column("may", value=lambda context: _may(context[1]), priority=2),
    Column("queue", priority=3, shortest=16),
    empty="no context; `pilotage join` makes one",
)


@context_group.command("list")
@view_options(CONTEXTS)
def list_contexts(view: View) -> None:
    """Show the contexts; * marks the current one."""
    contexts = load_contexts()
    chosen = contexts.chosen()
    CONTEXTS.echo([(name, each, name == chosen) for name, each in contexts.by_name.items()], view)


@context_group.command("show")
@click.argument("name", required=False)
@ONE_JSON
def show_context(name: str | None, as_json: bool) -> None:
    """Show a context (default: the current one), without its tokens."""
    contexts = load_contexts()
    chosen = contexts.chosen()
    name = name or chosen
    if not name:
        raise InvalidInputError(Violation("context", "none is current; `pilotage context use NAME` chooses one"))
    found = contexts.named(name)
    if as_json:
        echo_json(_context_json((name, found, name == chosen)))
        return
    click.echo(f"{name}{' (current)' if name == chosen else ''}, in {contexts.file}")
    click.echo(f"server {found.server}, authority {found.fingerprint() or 'of the system'}")
    click.echo(f"may {_may(found)}{f' in the queue {found.queue}' if found.queue else ''}")


@context_group.command("use")
@click.argument("name")
@ONE_JSON
def use_context(name: str, as_json: bool) -> None:
    """Make a context the current one."""
    contexts = load_contexts()
    contexts.use(name)
    if as_json:
        echo_json(_context_json((name, contexts.named(name), True)))
    else:
        click.echo(f"the context {name} is the current one")


@context_group.command("remove")
@click.argument("name")
@ONE_JSON
def remove_context(name: str, as_json: bool) -> None:
    """Remove a context with its tokens from this machine; they stay valid until they end or are revoked."""
    contexts = load_contexts()
    removed = contexts.named(name)
    contexts.remove(name)
    if as_json:
        echo_json(_context_json((name, removed, False)))
    else:
        click.echo(f"the context {name} is removed")


COMMANDS = (up, join_server, context_group)
