"""The command line of the chaos run: prints figures as JSON lines; exit code 1 = a promise was broken."""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys

from chaos.run import Plan, run

_SHOWN = 20


def main() -> int:
    """Run each chosen database and return the exit code."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30, help="how long faults are injected (default: 30)")
    parser.add_argument("--faults", type=int, default=200, help="how many faults are injected (default: 200)")
    parser.add_argument("--database", choices=("sqlite", "postgresql", "both"), default="both")
    parser.add_argument("--seed", type=int, default=None, help="the same faults again (default: a new seed)")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))  # the run stops its processes first
    seed = random.SystemRandom().randrange(10**6) if options.seed is None else options.seed
    chosen = ("sqlite", "postgresql") if options.database == "both" else (options.database,)
    good = [_run(Plan(options.minutes * 60, options.faults, database, seed)) for database in chosen]
    return 0 if all(good) else 1


def _run(plan: Plan) -> bool:
    outcome = run(plan, lambda text: print(f"# {plan.database} {text}", file=sys.stderr, flush=True))
    verdict = outcome.verdict
    for violation in verdict.violations[:_SHOWN]:
        print(f"# broken: {violation}", file=sys.stderr)
    for failure in outcome.failures[:_SHOWN]:
        print(f"# failed: {failure}", file=sys.stderr)
    is_good = outcome.is_good
    figures = {
        "faults injected": outcome.injected.total(),
        "jobs acknowledged": verdict.acknowledged,
        "jobs ended once": verdict.ended_once,
        "jobs lost": verdict.lost,
        "jobs doubled": verdict.doubled,
        "starts of payloads": verdict.runs,
    }
    for name, figure in figures.items():
        line = {"name": f"chaos {plan.database}: {name}", "figure": figure, "unit": "1", "budget": None, "ok": is_good}
        print(json.dumps({**line, "seed": plan.seed}))
    print(
        json.dumps(
            {
                "name": f"chaos {plan.database}: kinds",
                "figure": len(outcome.injected),
                "unit": "1",
                "budget": None,
                "ok": is_good,
                "kinds": dict(sorted(outcome.injected.items())),
            }
        )
    )
    if outcome.folder is not None:
        print(f"# the history is kept in {outcome.folder}", file=sys.stderr)
    return is_good


if __name__ == "__main__":
    sys.exit(main())
