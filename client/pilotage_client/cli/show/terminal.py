"""The terminal that a command prints to: its width, whether it shows colours, and the colours of states."""

from __future__ import annotations

import os
import shutil
import sys
from typing import TYPE_CHECKING, TextIO

import click

if TYPE_CHECKING:
    from rich.console import Console

_COLOR = "pilotage.color"
AUTO, ALWAYS, NEVER = "auto", "always", "never"


def _keep_color(context: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        context.meta[_COLOR] = value


COLOR = click.option(
    "--color",
    type=click.Choice((AUTO, ALWAYS, NEVER)),
    metavar="WHEN",
    expose_value=False,
    callback=_keep_color,
    help="auto (at a terminal, unless NO_COLOR is set), always or never.",
)


def is_terminal(stream: TextIO | None = None) -> bool:
    """Whether a stream (default: the standard output) is a terminal that can move its cursor."""
    return (stream or sys.stdout).isatty() and os.environ.get("TERM") != "dumb"


def table_width() -> int | None:
    """Return the columns that a table may take; None = it is not for a terminal, and may take any number."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def shows_colors(stream: TextIO | None = None) -> bool:
    """Whether what is printed has colours: as --color says, else at a terminal unless NO_COLOR is set."""
    context = click.get_current_context(silent=True)
    wanted = context.meta.get(_COLOR, AUTO) if context is not None else AUTO
    if wanted == AUTO:
        return is_terminal(stream) and not os.environ.get("NO_COLOR")
    return bool(wanted == ALWAYS)


def console(stream: TextIO | None = None) -> Console:
    """Return rich's console for a stream (default: the standard output)."""
    from rich.console import Console

    stream = stream or sys.stdout
    colors = shows_colors(stream)
    return Console(
        file=stream,
        force_terminal=True if colors or is_terminal(stream) else None,
        no_color=not colors,
        highlight=False,
        markup=False,
        emoji=False,
    )


def colored(text: str, style: str) -> str:
    """Return a text in a style of rich, as `click.echo(..., color=True)` prints it; as it is without colours."""
    if not style or not shows_colors():
        return text
    *attributes, color = style.split()
    if color == "dim":
        return click.style(text, dim=True)
    return click.style(text, fg=color, bold="bold" in attributes)


_GOOD, _ACTIVE, _PENDING, _STOPPED, _BAD, _PAST = "green", "cyan", "yellow", "magenta", "bold red", "dim"

_STYLES = {
    # jobs
    "DONE": _GOOD,
    "RUNNING": _ACTIVE,
    "MATCHED": _ACTIVE,
    "COMPLETING": _ACTIVE,
    "RACING": _ACTIVE,
    "SUSPENDED": _STOPPED,
    "RECEIVED": _PENDING,
    "WAITING": _PENDING,
    "BLOCKED": _PENDING,
    "HELD": _STOPPED,
    "FAILED": _BAD,
    "REMOVED": _PAST,
    # pilots
    "LOST": _BAD,
    "DRAINING": _STOPPED,
    "SUBMITTED": _PENDING,
    "REGISTERED": _PENDING,
    "ENDED": _PAST,
    # slots
    "CLAIMED": _ACTIVE,
    "UNCLAIMED": _GOOD,
    "OWNER": _STOPPED,
    "PREEMPTING": _STOPPED,
    "DRAINED": _STOPPED,
    "BUSY": _ACTIVE,
    "IDLE": _GOOD,
    # agents, downtimes, places
    "LEADER": _GOOD,
    "SILENT": _BAD,
    "DOWN": _BAD,
    "OPEN": _GOOD,
    "HELD BY AN OPERATOR": _STOPPED,
    "THROTTLED": _BAD,
    # attempts
    "EXITED": _GOOD,
    # findings
    "FAULT": _BAD,
    "WARNING": _PENDING,
    "OK": _GOOD,
    "NO": _BAD,
}


def state_style(state: str) -> str:
    """Return the style of a state by what it means, for rich; "" = none."""
    return _STYLES.get(state.upper(), "")
