"""Completion in bash, zsh and fish: the script of a shell, and values that the server knows.

A shell calls `pilotage` for each completion. An error gives no values: a broken connection must not disturb typing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem, get_completion_class

from pilotage.errors import PilotageError

if TYPE_CHECKING:
    from pilotage_client.api import Client

SHELLS = ("bash", "zsh", "fish")

_MOST = 50
"""Values that are offered at once."""

_TIMEOUT_S = 2.0
"""How long a completion may wait for the server."""

Complete = Callable[[click.Context, str], list[CompletionItem]]


@click.command()
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print the script that completes commands, options, jobs, sites and queues in a shell.

    Load it at the start of your shell: `eval "$(pilotage completion bash)"` in ~/.bashrc, likewise with zsh in
    ~/.zshrc, or write it to ~/.config/fish/completions/pilotage.fish.
    """
    kind = get_completion_class(shell)
    assert kind is not None, "click knows the shell"
    root = click.get_current_context().find_root().command
    click.echo(kind(root, {}, "pilotage", "_PILOTAGE_COMPLETE").source())


def asks_server(values: Callable[[Client, str], Iterable[tuple[str, str]]]) -> Complete:
    """Return a callback that completes with values and their descriptions, from the server of the command line."""

    def complete(ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        with suppress(PilotageError, OSError):
            return _matching(_asked(ctx, incomplete, values), incomplete)
        return []

    return complete


def _asked(
    ctx: click.Context, incomplete: str, values: Callable[[Client, str], Iterable[tuple[str, str]]]
) -> list[tuple[str, str]]:
    from pilotage_client.api import Client  # loads gRPC, which names of commands do not need
    from pilotage_client.connection import ServerOptions

    names = ("server", "token_file", "data", "ca_file", "context")
    server, token_file, data, ca_file, context = (ctx.params.get(name) for name in names)
    options = ServerOptions(server, token_file, data, "user", ca_file, context)
    with Client.located(options, timeout_s=_TIMEOUT_S) as client:
        return list(values(client, incomplete))


def _matching(values: Iterable[tuple[str, str]], incomplete: str) -> list[CompletionItem]:
    found = dict(each for each in values if each[0].lower().startswith(incomplete.lower()))
    return [CompletionItem(value, help=about) for value, about in islice(found.items(), _MOST)]


def _jobs(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    newest = islice(client.clusters(page_size=_MOST), _MOST)
    return [(each.selection, " ".join(filter(None, (each.name, f"{each.jobs} jobs")))) for each in newest]


def _places(client: Client, incomplete: str) -> Iterable[tuple[str, str]]:
    """Return sites; behind a slash queues."""
    if "/" not in incomplete:
        return _sites(client, incomplete)
    found = client.queues(site=incomplete.partition("/")[0])
    return [(f"{each.site}/{each.ce}/{each.queue}", "") for each in found]


def _sites(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    return [(each.site, "") for each in client.queues()]


def _ces(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    return [(f"{each.site}/{each.ce}", "") for each in client.queues()]


def _nodes(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    return [(f"{each.site}/{each.node}", "") for each in client.pilots() if each.node]


def _pools(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    return [(each.id, f"{each.waiting} waiting jobs") for each in client.pools()]


def _owners(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    return [(each.owner, f"{each.vo}/{each.group}") for each in client.shares().accounts]


def _stamps(client: Client, _incomplete: str) -> Iterable[tuple[str, str]]:
    return [(each.stamp, each.node) for each in client.pilots()]


def _contexts(_ctx: click.Context, incomplete: str) -> list[CompletionItem]:
    from pilotage_client.contexts import load_contexts

    with suppress(PilotageError, OSError):
        return _matching([(name, each.server) for name, each in load_contexts().by_name.items()], incomplete)
    return []


_IDS, _PLACES, _SITES = asks_server(_jobs), asks_server(_places), asks_server(_sites)

_BY_NAME: Mapping[str, Complete] = {
    **dict.fromkeys(("ids", "job", "workflows", "after", "after_ok", "after_any", "after_settled"), _IDS),
    **dict.fromkeys(("queue", "queues"), _PLACES),
    **dict.fromkeys(("site", "sites"), _SITES),
    "ce": asks_server(_ces),
    **dict.fromkeys(("node", "nodes", "on"), asks_server(_nodes)),
    "pool": asks_server(_pools),
    **dict.fromkeys(("owner", "owners"), asks_server(_owners)),
    "targets": asks_server(_stamps),
    "context": _contexts,
}
"""Completion by the name of a parameter, which means the same in all commands."""


def complete_values(command: click.Command) -> None:
    """Let the parameters of a command complete values that the server or this machine knows."""
    for parameter in command.params:
        wanted = _completion_of(parameter)
        if wanted is not None and not isinstance(parameter.type, (click.Choice, click.Path)):
            # Other modules define the parameters; here is one place that says how all are completed.
            parameter.shell_complete = wanted  # type: ignore[assignment, method-assign]


def _completion_of(parameter: click.Parameter) -> Complete | None:
    metavar = parameter.metavar or ""
    if metavar.startswith("SITE["):
        return _PLACES
    return _contexts if metavar.strip("[]") == "CONTEXT" else _BY_NAME.get(parameter.name or "")
