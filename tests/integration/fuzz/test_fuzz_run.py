"""A small fuzz run with fixed inputs: every surface gets its inputs, and none of them finds a fault."""

from __future__ import annotations

from fuzz.run import all_inputs, run


def test_small_fuzz_run_finds_no_fault() -> None:
    inputs = all_inputs(1000)
    outcome = run(inputs, seed=1, quiet_s=0.05)
    assert outcome.inputs == {surface: len(numbers) for surface, numbers in inputs.items()}
    assert outcome.faults == []
    assert outcome.crashes == 0
