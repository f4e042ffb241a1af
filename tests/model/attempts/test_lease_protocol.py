"""The protocol of leases in Promela: all its states keep the invariants, and without a rule one of them is violated."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.spin import search

MODEL = Path(__file__).with_name("lease_protocol.pml")
TWO_ALIVE = "!((pilots[0].alive&&pilots[1].alive))"


@pytest.mark.parametrize("macros", [["RESCHEDULES=1"], ["RESTORES=1", "LEASE=3"], ["MAX_STARTS=1"]])
def test_all_states_keep_the_invariants(spin: Path, tmp_path: Path, macros: list[str]) -> None:
    assert search(spin, MODEL, tmp_path, *macros).violated == ""


@pytest.mark.parametrize(
    ("mutant", "violated"),
    [
        ("MARGIN=1", TWO_ALIVE),
        ("NO_WATCHDOG", TWO_ALIVE),
        ("COUNT_FROM_ANSWER", TWO_ALIVE),
        ("NO_FENCE RESCHEDULES=1", TWO_ALIVE),
        ("NO_CAS", "(db.outcomes<=1)"),
        ("NO_LIMIT MAX_STARTS=1", "((1==0)||(starts<=1))"),
        ("NO_INCARNATION RESTORES=1 LEASE=3", TWO_ALIVE),
        ("NO_RESTORE_FENCE RESTORES=1 LEASE=3", TWO_ALIVE),
        ("NO_RESTORE_FENCE_OF_LEASED RESTORES=1 LEASE=3", TWO_ALIVE),
        ("RESTORE_FENCE_ENDS_BY_REPORT RESTORES=1 LEASE=3", TWO_ALIVE),
        ("EARLY_ACKNOWLEDGEMENT", "(!(acknowledged)||(db.state!="),
    ],
)
def test_each_rule_is_needed(spin: Path, tmp_path: Path, mutant: str, violated: str) -> None:
    assert search(spin, MODEL, tmp_path, *mutant.split()).violated.startswith(violated)


@pytest.mark.parametrize(
    ("event", "macros"),
    [
        ("adopted && db.state == DONE", []),
        ("db.count == 2 && db.state == DONE", []),
        ("restored_late && db.state == DONE", ["RESTORES=1", "LEASE=3"]),
        ("db.state == FAILED", ["MAX_STARTS=1"]),
    ],
)
def test_model_reaches_what_it_is_about(spin: Path, tmp_path: Path, event: str, macros: list[str]) -> None:
    assert search(spin, MODEL, tmp_path, "REACHES", f"REACH=({event})", *macros).violated.startswith("!(")
