"""Send random inputs to a live grid and to all readers; print figures; exit code 1 = a bound is broken."""

from __future__ import annotations

import argparse
import json
import random
import sys

from fuzz.other_user import p99_ms
from fuzz.run import MAX_GROWTH_MB, MAX_SLOWDOWN, SHARES, Outcome, all_inputs, run

_SHOWN = 20


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs over all surfaces (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=None, help="the same inputs again (default: a new seed)")
    parser.add_argument("--only", type=_one_input, default=None, metavar="SURFACE:NUMBER[-NUMBER]", help=_only_help())
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    inputs = options.only or all_inputs(options.inputs)
    outcome = run(inputs, seed, lambda text: print(f"# {text}", file=sys.stderr, flush=True))
    for fault in outcome.faults[:_SHOWN]:
        print(f"# seed {seed}, {fault}", file=sys.stderr)
    for figure in _figures(outcome):
        print(json.dumps({**figure, "seed": seed}))
    return 1 if any(outcome.broken().values()) else 0


def _only_help() -> str:
    return f"these inputs of one surface: {', '.join(SHARES)}"


def _one_input(text: str) -> dict[str, range]:
    surface, _, numbers = text.partition(":")
    first, _, last = numbers.partition("-")
    if surface not in SHARES:
        raise argparse.ArgumentTypeError(f"the surfaces are {', '.join(SHARES)}")
    return {surface: range(int(first), int(last or first) + 1)}


def _figures(outcome: Outcome) -> list[dict[str, object]]:
    broken = outcome.broken()
    figures = (
        *((f"inputs: {name}", count, "1", None) for name, count in outcome.inputs.items()),
        ("crashes", outcome.crashes, "1", 0),
        ("faults", len(outcome.faults), "1", 0),
        ("growth of the server's memory", round(outcome.growth_mb, 1), "MB", MAX_GROWTH_MB),
        ("p99 of another user, alone", round(p99_ms(outcome.quiet_s), 2), "ms", None),
        ("p99 of another user, meanwhile", round(p99_ms(outcome.busy_s), 2), "ms", None),
        ("slowdown of another user", round(outcome.slowdown, 2), "1", MAX_SLOWDOWN),
    )
    return [
        {"name": f"fuzz: {name}", "figure": figure, "unit": unit, "budget": budget, "ok": not broken.get(name, False)}
        for name, figure, unit, budget in figures
    ]


if __name__ == "__main__":
    sys.exit(main())
