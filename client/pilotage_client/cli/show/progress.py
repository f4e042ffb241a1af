"""Progress at a terminal, on the standard error: a bar of jobs by state, and what a command does when it takes long.

Without a terminal nothing is shown.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate
from threading import Timer
from typing import TYPE_CHECKING

from pilotage.clock import boot_time_s
from pilotage.text import count_text
from pilotage_client.cli.show.terminal import console, is_terminal, state_style
from pilotage_client.models import FINAL_STATES, STATES, JobStatus

if TYPE_CHECKING:
    from rich.text import Text

_QUIET_S = 1.0
"""A command that is done within this time shows nothing."""
_BAR_WIDTH = 30
_RATE_AFTER_S = 5.0
"""The shortest time from which a rate is shown."""

_ORDER = ("DONE", "FAILED", "REMOVED", "HELD", "COMPLETING", "RUNNING", "RACING", "SUSPENDED", "MATCHED")
"""The states in the order of their parts of the bar; the others follow."""


@contextmanager
def wait_progress() -> Iterator[Callable[[Sequence[JobStatus]], None] | None]:
    """Yield a function that shows the states of the jobs that are waited for; None without a terminal."""
    if not is_terminal(sys.stderr):
        yield None
        return
    from rich.live import Live

    shown = console(sys.stderr)
    began_s = boot_time_s()
    ended_before: list[int] = []

    def show(jobs: Sequence[JobStatus]) -> None:
        states = Counter(job.state for job in jobs)
        ended = sum(states[state] for state in FINAL_STATES)
        if not ended_before:
            ended_before.append(ended)
        elapsed_s = boot_time_s() - began_s
        rate = (ended - ended_before[0]) / elapsed_s if elapsed_s >= _RATE_AFTER_S else 0.0
        live.update(progress_line(states, elapsed_s, rate), refresh=True)

    with Live(console=shown, transient=True, auto_refresh=False) as live:
        yield show


def progress_line(states: Mapping[str, int], elapsed_s: float, rate: float) -> Text:
    """Return a line with a bar of the jobs by state, their numbers, the time so far, and ended jobs a second."""
    from rich.text import Text

    total = sum(states.values())
    ended = sum(states.get(state, 0) for state in FINAL_STATES)
    line = Text(no_wrap=True, overflow="ellipsis")
    for part, style in bar_parts(states, _BAR_WIDTH):
        line.append(part, style)
    line.append(f" {ended:,} of {count_text(total, 'job')} ended")
    failed = states.get("FAILED", 0)
    if failed:
        line.append(f", {failed:,} failed", state_style("FAILED"))
    for state in STATES:
        if states.get(state) and state not in FINAL_STATES:
            line.append(f", {states[state]:,} {state.lower()}", state_style(state))
    line.append(f", {_duration(elapsed_s)}")
    if rate > 0:
        line.append(f", {rate:.1f}/s, about {_duration((total - ended) / rate)} left")
    return line


def bar_parts(states: Mapping[str, int], width: int) -> Iterator[tuple[str, str]]:
    """Yield the parts of a bar of this width with their styles: ended jobs are filled, others light."""
    order = [*_ORDER, *(state for state in STATES if state not in _ORDER)]
    total = sum(states.values()) or 1
    ends = [round(width * count / total) for count in accumulate(states.get(state, 0) for state in order)]
    for state, begin, end in zip(order, (0, *ends), ends, strict=False):
        if end > begin:
            yield ("█" if state in FINAL_STATES else "░") * (end - begin), state_style(state)


def _duration(seconds: float) -> str:
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{seconds:02}"


@contextmanager
def activity(text: str) -> Iterator[Callable[[str], None]]:
    """Show at a terminal what a command does, when it takes longer than a second; yields a function for new texts."""
    if not is_terminal(sys.stderr):
        yield lambda _: None
        return
    from rich.status import Status

    status = Status(text, console=console(sys.stderr))
    start = Timer(_QUIET_S, status.start)
    start.daemon = True
    start.start()
    try:
        yield status.update
    finally:
        start.cancel()
        start.join()  # it may be starting
        status.stop()
