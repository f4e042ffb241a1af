"""One run: all surfaces, and another user whose latency is measured in turns without and with the inputs."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import linear_regression
from typing import Protocol

from fuzz.ad_surface import RandomAds
from fuzz.broker_surface import RandomMessages
from fuzz.call_surface import RandomCalls
from fuzz.other_user import OtherUser, p99_ms
from fuzz.reader_surface import READERS, read_random
from fuzz.tally import Tally
from fuzz.target import QUIET_VO, Target

SHARES = {
    "calls": 0.4,
    "messages": 0.2,
    "slot ads": 0.1,
    "job languages": 0.15,
    "trees": 0.1,
    "broker readers": 0.035,
    "routes": 0.01,
    "policies": 0.005,
}
"""Surface → its share of the inputs. A policy takes a tenth of a second, as HTCondor's parser is a process."""

MAX_GROWTH_MB = 20.0
MAX_SLOWDOWN = 5.0
ROUNDS = 20
WARM_UP_ROUNDS = 10
"""The first rounds fill bounded caches: those of 20,000 ad parts, of tokens, and of the database."""

QUIET_S = 2.0
"""How long the other user is alone before each round."""

_INPUTS_PER_JOB = 5
"""One job that fills the server's page caches for so many inputs: a million inputs leave a database of that size."""

_READERS_AT_ONCE = 2


class Surface(Protocol):
    """Something that sends inputs to the target."""

    def run(self, inputs: range, tally: Tally) -> None:
        """Send the inputs with these numbers."""


@dataclass
class Outcome:
    """What a run has found; latencies are those of the other user, in seconds."""

    inputs: dict[str, int] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)
    crashes: int = 0
    growth_mb: float = 0.0
    quiet_s: list[float] = field(default_factory=list)
    busy_s: list[float] = field(default_factory=list)

    @property
    def slowdown(self) -> float:
        """The p99 while inputs are sent divided by the p99 without; 1 = nothing was measured."""
        quiet_ms = p99_ms(self.quiet_s)
        return p99_ms(self.busy_s) / quiet_ms if quiet_ms else 1.0

    def add(self, tally: Tally) -> None:
        """Add the tally of a surface."""
        self.inputs[tally.surface] = self.inputs.get(tally.surface, 0) + tally.inputs
        self.faults += tally.faults

    def broken(self) -> dict[str, bool]:
        """Return the bounds, and whether each is broken."""
        return {
            "crashes": self.crashes > 0,
            "faults": bool(self.faults),
            "growth of the server's memory": self.growth_mb >= MAX_GROWTH_MB,
            "slowdown of another user": self.slowdown > MAX_SLOWDOWN,
        }


def all_inputs(count: int) -> dict[str, range]:
    """Return the numbers of the inputs of each surface; `count` is that of all."""
    return {name: range(max(1, round(share * count))) for name, share in SHARES.items()}


def run(
    inputs: Mapping[str, range], seed: int, say: Callable[[str], None] = lambda _: None, *, quiet_s: float = QUIET_S
) -> Outcome:
    """Send the inputs to their surfaces and return the outcome; the other user is alone `quiet_s` before each round."""
    outcome = Outcome()
    readers = [name for name in READERS if name in inputs]
    if len(readers) < len(inputs):
        _attack_target(inputs, seed, outcome, say, quiet_s)
    say(f"readers: {sum(len(inputs[name]) for name in readers)} inputs")
    with ThreadPoolExecutor(_READERS_AT_ONCE) as pool:
        for tally, crashes in pool.map(lambda name: read_random(name, inputs[name], seed), readers):
            outcome.add(tally)
            outcome.crashes += crashes
    return outcome


def _attack_target(
    inputs: Mapping[str, range], seed: int, outcome: Outcome, say: Callable[[str], None], quiet_s: float
) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="pilotage-fuzz-")))
        target = stack.enter_context(Target(folder))
        target.fill_caches(sum(map(len, inputs.values())) // _INPUTS_PER_JOB)
        user = OtherUser(target.server.address, target.server.token(owner="bob", vo=QUIET_VO))
        stack.callback(user.close)
        chosen = _surfaces(target, seed, inputs, stack)
        tallies = {name: Tally(name) for name in chosen}
        busy_s: dict[str, list[float]] = {name: [] for name in chosen}
        memory_mb: list[float] = []
        for step in range(ROUNDS):
            user.latencies_s()
            outcome.quiet_s += user.latencies_s(quiet_s)
            for name, surface in chosen.items():
                turn = inputs[name][len(inputs[name]) * step // ROUNDS : len(inputs[name]) * (step + 1) // ROUNDS]
                if turn:
                    surface.run(turn, tallies[name])
                    busy_s[name] += user.latencies_s()
                    _look_at(target, turn, tallies[name], outcome)
            memory_mb.append(target.memory_mb())
            say(f"round {step + 1} of {ROUNDS}: the server has {memory_mb[-1]:.0f} MB")
            if outcome.crashes:
                break
        else:
            user.latencies_s(quiet_s)
            outcome.growth_mb = growth_mb(memory_mb[WARM_UP_ROUNDS:])
        for name, tally in tallies.items():
            outcome.add(tally)
            outcome.busy_s += busy_s[name]
            say(f"{name}: {dict(tally.codes)}, p99 of the other user {p99_ms(busy_s[name]):.1f} ms")


def growth_mb(memory_mb: Sequence[float]) -> float:
    """Return the growth over all rounds, by the line that fits best.

    The garbage of failed calls waits for its collection, so two single values would differ by 30 MB without a growth.
    """
    return linear_regression(range(len(memory_mb)), memory_mb).slope * len(memory_mb)


def _surfaces(target: Target, seed: int, inputs: Mapping[str, range], stack: ExitStack) -> dict[str, Surface]:
    makers: dict[str, Callable[[], Surface]] = {
        "calls": partial(RandomCalls, target.grid, seed),
        "messages": lambda: stack.enter_context(RandomMessages(target.grid, target.broker, target.pilot_stamp, seed)),
        "slot ads": partial(RandomAds, target.grid, seed),
    }
    return {name: make() for name, make in makers.items() if name in inputs}


def _look_at(target: Target, turn: range, tally: Tally, outcome: Outcome) -> None:
    """Add what has gone wrong in the target; its logs say no input, so that the first of the turn stands for all."""
    crashes = target.crashes()
    outcome.crashes += len(crashes)
    for fault in (*crashes, *target.faults()):
        tally.add_fault(turn[0], f"or one of the next {len(turn)}: {fault}")
