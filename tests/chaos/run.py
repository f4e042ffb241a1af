"""One run: the clients work, faults come at random, everything is healed, and the history is judged."""

from __future__ import annotations

import random
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from chaos.checker import Verdict, judge
from chaos.faults import Fault, faults_of
from chaos.grid import Grid
from pilotage.clock import boot_time_s

_END_TIMEOUT_S = 180.0
_MOST_AT_ONCE = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """How long faults are injected, how many, and on which database; the seed decides which and when."""

    duration_s: float
    faults: int
    database: str
    seed: int


@dataclass(frozen=True, slots=True)
class Outcome:
    """What happened; `failures` are processes that ended by themselves.

    `folder` keeps the history of a run that broke a promise, else None.
    """

    injected: Counter[str]
    verdict: Verdict
    failures: tuple[str, ...]
    folder: Path | None

    @property
    def is_good(self) -> bool:
        """Whether all promises were kept."""
        return not self.verdict.violations and not self.failures


def run(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Outcome:
    """Run the plan and return what came of it."""
    folder = Path(tempfile.mkdtemp(prefix="pilotage-chaos-"))
    with Grid(folder, plan.database) as grid:
        grid.start_clients(plan.seed, _END_TIMEOUT_S)
        grid.wait_for_payload()
        injected, failures = _inject_all(plan, grid, progress)
        progress("all faults are healed; waiting for the jobs")
        if (code := grid.finish_clients()) != 0:
            failures.append(f"the clients ended with code {code}")
        failures += [*grid.revive_servers(), *grid.ended_others()]
        outcome = Outcome(injected, judge(grid.journal.read()), tuple(failures), grid.journal.folder)
        grid.save_logs(grid.journal.folder)
    if not outcome.is_good:
        return outcome
    shutil.rmtree(folder)
    return replace(outcome, folder=None)


def _inject_all(plan: Plan, grid: Grid, progress: Callable[[str], None]) -> tuple[Counter[str], list[str]]:
    """Inject the faults, each kind in turn in random order; returns how often each was injected, and failures.

    A server that ends by itself is a failure, and is started again.
    """
    failures: list[str] = []
    dice = random.Random(plan.seed)
    kinds = faults_of(grid)
    injected: Counter[str] = Counter()
    active: list[tuple[float, str, ExitStack]] = []
    started_s = boot_time_s()
    pause = threading.Event()
    deck: list[Fault] = []
    try:
        for number in range(plan.faults):
            _heal(active, lambda end_s: boot_time_s() >= end_s or len(active) >= _MOST_AT_ONCE)
            if not any(name.startswith("server") for _, name, _ in active):
                failures += grid.revive_servers()
            fault = next(_possible(deck, active), None)
            if fault is None:
                deck += dice.sample(kinds, len(kinds))
                fault = next(_possible(deck, active))
            deck.remove(fault)
            stack = ExitStack()
            victim = stack.enter_context(fault.inject(dice))
            progress(f"{boot_time_s() - started_s:6.1f} s: {fault.name}: {victim}")
            injected[fault.name] += 1
            active.append((boot_time_s() + dice.uniform(0, fault.longest_s), fault.name, stack))
            due_s = started_s + (number + 1) * plan.duration_s / plan.faults
            while boot_time_s() < due_s:
                pause.wait(min(0.2, max(0.0, due_s - boot_time_s())))
                _heal(active, lambda end_s: boot_time_s() >= end_s)
    finally:
        _heal(active, lambda _: True)
    failures += grid.revive_servers()
    for server in grid.servers:
        server.wait_until_ready()
    return injected, failures


def _possible(deck: list[Fault], active: list[tuple[float, str, ExitStack]]) -> Iterator[Fault]:
    """Yield the possible faults of the deck whose first word, their victim, no active fault has."""
    victims = {name.split()[0] for _, name, _ in active}
    return (fault for fault in deck if fault.name.split()[0] not in victims and fault.is_possible())


def _heal(active: list[tuple[float, str, ExitStack]], is_due: Callable[[float], bool]) -> None:
    for each in sorted(active, key=lambda each: each[0]):
        if is_due(each[0]):
            active.remove(each)
            each[2].close()
