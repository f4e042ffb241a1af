"""Run all benches; prints their JSON lines, then a table.

With --scale 0.01 they only show that they work. At full size the table is also written to the documentation. Exits 1
if a budget is exceeded at full size, and 2 if a bench fails.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from harness.figures import missed, progress, table
from harness.machine import facts
from pilotage import clock

ON_EACH_DATABASE = ("rates", "door", "dependencies")
OF_ALL_SIZES = (
    "tails",
    "growth",
    "wide",
    "crowd",
    "lists",
    "refresh",
    "servers",
    "end_to_end",
    "pools",
    "slots",
    "policies",
    "router",
    "latency",
    "tls",
)
OF_FULL_SIZE = ("growth_plot", "peers")
"""One draws a plot of full size, one downloads programs from PyPI."""

FAILED = 2
PAGE = Path(__file__).parents[1] / "docs" / "reference" / "speed-figures.md"
"""The page for the figures of full size."""


def commands(scale: float) -> Iterator[list[str]]:
    """Yield the arguments of each bench."""
    size = ["--scale", str(scale)]
    for name in ON_EACH_DATABASE:
        for database in ("sqlite", "postgresql"):
            yield [name, "--database", database, *size]
    for name in (*OF_ALL_SIZES, *(OF_FULL_SIZE if scale >= 1 else ())):
        yield [name, *size]


def run(arguments: Sequence[str]) -> tuple[list[dict[str, Any]], bool]:
    """Run one bench and print its lines; returns them, and whether it succeeded."""
    name, *options = arguments
    progress(" ".join(arguments))
    command = [sys.executable, str(Path(__file__).with_name(f"bench_{name}.py")), *options]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(json.loads(line))
    return lines, process.returncode in (0, 1)


def main() -> int:
    """Run all benches; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--scale", type=float, default=1.0, help="the size as a part of the full one, such as 0.01")
    scale: float = parser.parse_args().scale
    at_a_time = 1 if scale >= 1 else 2  # at a small scale, benches may disturb one another
    with ThreadPoolExecutor(at_a_time) as workers:
        outcomes = list(workers.map(run, commands(scale)))
    lines = [line for bench_lines, _ in outcomes for line in bench_lines]
    print(table(lines) + missed(lines), end="")
    if not all(ended for _, ended in outcomes):
        return FAILED
    if scale < 1:
        return 0
    PAGE.write_text(page(lines))
    return 0 if all(line["ok"] for line in lines) else 1


def page(lines: Sequence[Mapping[str, object]]) -> str:
    """Return the page of the documentation with these figures."""
    machine = "".join(f"- {name}: {fact}\n" for name, fact in facts())
    head = f"# Figures of {clock.now():%Y-%m-%d}\n\nOn this page you find the figures of one run of `make bench`."
    return f"{head}\n\n{machine}\n{table(lines)}{missed(lines)}"


if __name__ == "__main__":
    sys.exit(main())
