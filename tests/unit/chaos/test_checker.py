"""The checker of chaos runs: it accepts a good history and names each broken promise."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from chaos.checker import judge
from chaos.history import Acknowledgement, History, Journal, Mark, MarkKind, Reading, Refusal, Transition


def feed(*states: str, job_id: int = 1, first: int = 1) -> tuple[Transition, ...]:
    """Return the transitions of a job through these states, as one follower gets them."""
    steps = zip(("", *states), states, strict=False)
    return tuple(Transition("f", first + at, job_id, before, after) for at, (before, after) in enumerate(steps))


def run(name: str, begin_s: float, end_s: float, *, ends: bool = True) -> tuple[Mark, ...]:
    """Return the marks of a payload of job 1 that is alive from `begin_s` to `end_s`."""
    last = MarkKind.END if ends else MarkKind.ALIVE
    return (Mark(1, name, MarkKind.START, begin_s), Mark(1, name, last, end_s))


GOOD = History(
    acknowledgements=(Acknowledgement("r", (1,)), Acknowledgement("r", (1,))),
    transitions=feed("WAITING", "MATCHED", "WAITING", "MATCHED", "RUNNING", "DONE"),
    readings=(Reading(1, "RUNNING"), Reading(1, "DONE", 0), Reading(1, "DONE", 0)),
    marks=(*run("a", 10, 12, ends=False), *run("b", 13, 15)),
)


def test_checker_accepts_good_history() -> None:
    verdict = judge(GOOD)
    assert verdict.violations == ()
    assert (verdict.acknowledged, verdict.ended_once, verdict.lost, verdict.doubled, verdict.runs) == (1, 1, 0, 0, 2)


@pytest.mark.parametrize(
    ("promise", "change"),
    [
        ("one effect", {"acknowledgements": (Acknowledgement("r", (1,)), Acknowledgement("r", ()))}),
        ("own ids", {"acknowledgements": (Acknowledgement("r", (1,)), Acknowledgement("s", (1,)))}),
        ("ends", {"readings": (Reading(1, "RUNNING"),)}),
        ("ends", {"readings": ()}),
        ("keeps its result", {"readings": (Reading(1, "DONE", 0), Reading(1, "DONE", 1))}),
        ("keeps its result", {"readings": (Reading(1, "DONE", 0), Reading(1, "WAITING"), Reading(1, "DONE", 0))}),
        ("ends once", {"transitions": feed("WAITING", "RUNNING")}),
        ("ends once", {"transitions": feed("WAITING", "RUNNING", "DONE", "DONE")}),
        ("feed in order", {"transitions": (*GOOD.transitions[:-1], replace(GOOD.transitions[-1], position=2))}),
        ("feed without gaps", {"transitions": (*GOOD.transitions[:2], *GOOD.transitions[3:])}),
        ("one at a time", {"marks": (*run("a", 10, 14, ends=False), *run("b", 13, 15))}),
        ("one at a time", {"marks": (*run("a", 10, 20), *run("b", 13, 15), *run("c", 21, 22))}),
        ("true results", {"marks": run("a", 10, 12, ends=False)}),
        ("true results", {"readings": (Reading(1, "FAILED", 9),)}),
        ("valid calls succeed", {"refusals": (Refusal("reader", "job 1 is unknown"),)}),
        ("max_starts", {"acknowledgements": (Acknowledgement("r", (1,), max_starts=1),)}),
    ],
)
def test_checker_names_broken_promise(promise: str, change: dict[str, object]) -> None:
    violations = judge(replace(GOOD, **change)).violations  # type: ignore[arg-type]
    assert {violation.promise for violation in violations} == {promise}


def test_long_run_overlaps_every_later_one() -> None:
    verdict = judge(replace(GOOD, marks=(*run("a", 10, 20), *run("b", 13, 15), *run("c", 16, 17))))
    assert len(verdict.violations) == 2


def test_journal_returns_what_was_written_without_cut_lines(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    refusal = Refusal("reader", "why")
    journal.write(*GOOD.acknowledgements, *GOOD.transitions, *GOOD.readings, refusal)
    lines = [f"{mark.run} {mark.kind} {mark.boot_s}\n" for mark in GOOD.marks]
    (journal.marks / "1").write_text("".join(lines) + "c start 2")
    assert journal.read() == replace(GOOD, refusals=(refusal,))
