"""The option --af of listings: values of attributes and expressions, as condor_q -autoformat prints them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from pilotage_client.cli.options import echo_json

if TYPE_CHECKING:
    from pilotage_client.condor.formats import AdFormat

_OPTION = re.compile(r"--?(?:af|autoformat)(?::(?P<qualifiers>\S*))?")


class AutoformatCommand(click.Command):
    """A command whose option --af takes all words up to the next option: `--af Owner JobStatus`, or `--af:jh Owner`.

    The command gets them as the parameter `af`: qualifiers first, then attributes; () = not given.
    """

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line; --af becomes an option that is repeated for each word."""
        found: list[str] = []
        is_inside = False
        for index, word in enumerate(args):
            if word == "--":
                return super().parse_args(ctx, found + args[index:])
            option = _OPTION.fullmatch(word)
            if option is not None:
                is_inside = True
                found += ["--af", f":{option['qualifiers'] or ''}"]
            else:
                is_inside = is_inside and not word.startswith("-")
                found += ["--af", word] if is_inside else [word]
        return super().parse_args(ctx, found)


AUTOFORMAT = click.option(
    "--af",
    multiple=True,
    metavar="ATTR...",
    help="Print only the values of attributes or expressions, a line each; --af:jh as condor_q -af:jh.",
)
"""The option of an `AutoformatCommand`; it takes all words up to the next option."""


def read_columns(af: Sequence[str]) -> AdFormat | None:
    """Return the format that --af asks for, None = it is not given; raises InvalidInputError for an expression."""
    if not af:
        return None
    columns = [word for word in af if not word.startswith(":")]
    if not columns:
        raise click.UsageError("--af needs attributes to print, such as --af Owner JobStatus")
    from pilotage_client.condor.formats import autoformat  # with the reader of ClassAds

    return autoformat(columns, "".join(word[1:] for word in af if word.startswith(":")), "--af")


def print_columns(ads: Iterable[str], form: AdFormat, *, as_json: bool) -> None:
    """Print the values of ads in a format; as JSON one object with the columns as keys for each."""
    from pilotage.classads.evaluation import Ad, evaluate
    from pilotage_client.condor.formats import print_ads

    if not as_json:
        print_ads(ads, form, lambda text: click.echo(text, nl=False))
        return
    for text in ads:
        ad = Ad.read(text)
        echo_json({column.text: _plain(evaluate(column.expression, ad)) for column in form.columns})


def _plain(value: Any) -> Any:
    from pilotage.classads.evaluation import NoValue
    from pilotage.classads.library import Expression

    match value:
        case NoValue():
            return value.value
        case Expression(text):
            return text
        case _:
            return value
