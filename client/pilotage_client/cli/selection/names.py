"""Names that people type: the nearest known one to a misspelled one, and long ids by a unique prefix."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import click
from click.shell_completion import CompletionItem

from pilotage.errors import InvalidInputError, Violation
from pilotage.text import did_you_mean, fold
from pilotage_client.api import Client

_MOST_LISTED = 5
_WHOLE_POOL_ID = 64


class NameChoice(click.ParamType):  # type: ignore[type-arg]  # generic in newer releases of click only
    """One of some names in any letter case; a misspelled one is answered with the nearest."""

    name = "state"

    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """Return the name as it is known."""
        found = next((name for name in self.names if fold(name) == fold(value)), None)
        if found is None:
            self.fail(f"{value!r} is none of {', '.join(self.names)}{did_you_mean(value, self.names)}", param, ctx)
        return found

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the word for the value in help texts."""
        return "STATE"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names that begin so."""
        return [CompletionItem(name) for name in self.names if fold(name).startswith(fold(incomplete))]


def by_prefix(prefix: str, ids: Iterable[str], what: str, where: str) -> str:
    """Return the only id that begins with a prefix.

    Raises
    ------
    InvalidInputError
        None or several begin so; `what` is the word for what has the ids.
    """
    known = sorted(set(ids))
    found = [each for each in known if each.startswith(prefix)]
    if len(found) == 1 or prefix in found:
        return prefix if prefix in found else found[0]
    if not found:
        raise InvalidInputError(Violation(where, f"no {what} begins with {prefix}{did_you_mean(prefix, known)}"))
    shown = ", ".join(found[:_MOST_LISTED]) + (" and others" if len(found) > _MOST_LISTED else "")
    raise InvalidInputError(Violation(where, f"{len(found)} {what}s begin with {prefix}: {shown}"))


def pool_id(client: Client, text: str) -> str:
    """Return the id of the pool that begins with a text; "" = any pool. A whole id need not be known any more."""
    if not text or len(text) == _WHOLE_POOL_ID:
        return text
    return by_prefix(text, (pool.id for pool in client.pools()), "pool", "--pool")


def stamps(client: Client, texts: Sequence[str], *, ended: bool = False) -> list[str]:
    """Return the stamps of the pilots that begin with these texts; whole ones need not be known."""
    if all(len(text) == _WHOLE_STAMP for text in texts):
        return [*texts]
    known = [pilot.stamp for pilot in client.pilots(ended=ended)]
    return [text if len(text) == _WHOLE_STAMP else by_prefix(text, known, "pilot", text) for text in texts]


_WHOLE_STAMP = 32


def check_place(client: Client, site: str, ce: str = "", queue: str = "") -> None:
    """Raise InvalidInputError if the tree has no such site, CE or queue, with the nearest name."""
    if not site:
        return
    queues = client.queues()
    levels = (
        ("site", site, {each.site for each in queues}, "the tree"),
        ("ce", ce, {each.ce for each in queues if fold(each.site) == fold(site)}, site),
        (
            "queue",
            queue,
            {each.queue for each in queues if (fold(each.site), fold(each.ce)) == (fold(site), fold(ce))},
            f"{site}/{ce}",
        ),
    )
    for level, wanted, known, parent in levels:
        if wanted and fold(wanted) not in map(fold, known):
            raise InvalidInputError(
                Violation(f"--{level}", f"{parent} has no {level} {wanted}{did_you_mean(wanted, known)}")
            )
