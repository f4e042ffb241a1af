"""The verdict of fuzz runs: which log lines are faults, which bounds are broken, and that inputs can be repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fuzz.ad_surface import expression
from fuzz.call_surface import all_methods, path_of
from fuzz.mutation import Mutator
from fuzz.run import Outcome, all_inputs, growth_mb
from fuzz.target import Log
from pilotage_server.rpc.framework.access import REQUIRED_ROLES

ERROR = {"exc_type": "ValueError", "exc_value": "bad", "frames": [{"filename": "a.py", "lineno": 3}]}


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (json.dumps({"level": "info", "event": "started"}), ""),
        (json.dumps({"level": "warning", "event": "message refused"}), ""),
        (json.dumps({"level": "warning", "event": "x", "exception": [ERROR]}), "ValueError: bad at a.py:3"),
        (json.dumps({"level": "error", "event": "call failed"}), "call failed"),
        ("Traceback (most recent call last):", "Traceback"),
        ("[1]", "[1]"),
    ],
)
def test_log_line_is_a_fault(tmp_path: Path, line: str, fault: str) -> None:
    path = tmp_path / "log"
    path.write_text(line + "\n")
    log = Log(path)
    found = log.faults()
    assert len(found) == bool(fault)
    assert all(fault in each for each in found)
    assert log.faults() == []


def test_unfinished_log_line_is_read_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("Trace")
    log = Log(path)
    assert log.faults() == []
    path.write_text("Traceback\n")
    assert log.faults() == ["Traceback"]


@pytest.mark.parametrize(
    ("outcome", "bound"),
    [
        (Outcome(), None),
        (Outcome(crashes=1), "crashes"),
        (Outcome(faults=["calls:1: x"]), "faults"),
        (Outcome(growth_mb=20.0), "growth of the server's memory"),
        (Outcome(quiet_s=[0.001] * 10, busy_s=[0.006] * 10), "slowdown of another user"),
        (Outcome(quiet_s=[0.001] * 10, busy_s=[0.004] * 10, growth_mb=19.9), None),
    ],
)
def test_broken_bounds_are_named(outcome: Outcome, bound: str | None) -> None:
    assert [name for name, is_broken in outcome.broken().items() if is_broken] == ([] if bound is None else [bound])


def test_equal_seeds_make_equal_inputs() -> None:
    methods = list(all_methods())
    for number in range(50):
        one, other = (Mutator((1, "calls", number)) for _ in range(2))
        method = methods[number % len(methods)]
        assert one.message(method.input_type) == other.message(method.input_type)
        assert one.mutated(b"abc") == other.mutated(b"abc")
        assert expression(one) == expression(other)


def test_all_methods_are_called() -> None:
    assert {path_of(method) for method in all_methods()} == REQUIRED_ROLES.keys()


def test_shares_make_all_inputs() -> None:
    assert sum(map(len, all_inputs(1_000_000).values())) == 1_000_000


@pytest.mark.parametrize("leak_mb", [0, 2])
def test_growth_is_a_trend_and_no_single_value(leak_mb: float) -> None:
    rounds = [200 + noise_mb + leak_mb * number for number, noise_mb in enumerate((0, 30, 0, 30, 0, 0, 30, 0, 30, 0))]
    assert growth_mb(rounds) == pytest.approx(10 * leak_mb)
