"""The command line of the fuzz run: prints figures as JSON lines; exit code 1 = a bound is broken."""

from __future__ import annotations

import argparse
import json
import random
import sys

from fuzz.run import MAX_GROWTH_MB, MAX_SLOWDOWN, Outcome, run

_SHOWN = 20


def main() -> int:
    """Run and return the exit code."""
    parser = argparse.ArgumentParser(prog="fuzz", description=__doc__)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="inputs over all surfaces (default: 1,000,000)")
    parser.add_argument("--seed", type=int, default=None, help="the same inputs again (default: a new seed)")
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    outcome = run(options.inputs, seed, lambda text: print(f"# {text}", file=sys.stderr, flush=True))
    for fault in outcome.unhandled[:_SHOWN]:
        print(f"# unhandled: {fault}", file=sys.stderr)
    _print_figures(outcome, seed)
    return 1 if any(outcome.broken().values()) else 0


def _print_figures(outcome: Outcome, seed: int) -> None:
    broken = outcome.broken()
    figures = (
        *((f"inputs: {name}", count, "1", None) for name, count in outcome.inputs.items()),
        ("crashes", outcome.crashes, "1", 0),
        ("unhandled exceptions", len(outcome.unhandled), "1", 0),
        ("growth of the server's memory", round(outcome.growth_mb, 1), "MB", MAX_GROWTH_MB),
        ("p99 of another user, alone", round(outcome.quiet_p99_ms, 2), "ms", None),
        ("p99 of another user, meanwhile", round(outcome.p99_ms, 2), "ms", None),
        ("slowdown of another user", round(outcome.slowdown, 2), "1", MAX_SLOWDOWN),
    )
    for name, figure, unit, budget in figures:
        line = {"name": f"fuzz: {name}", "figure": figure, "unit": unit, "budget": budget}
        print(json.dumps({**line, "ok": not broken.get(name, False), "seed": seed}))


if __name__ == "__main__":
    sys.exit(main())
