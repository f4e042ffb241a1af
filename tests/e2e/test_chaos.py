"""Half a minute of faults on a grid of real processes, with each database, breaks no promise."""

from __future__ import annotations

import pytest

from chaos.run import Plan, run

FAULTS = 12


@pytest.mark.parametrize("backend", ["sqlite", "postgresql"])
def test_faults_break_no_promise(backend: str) -> None:
    outcome = run(Plan(duration_s=30, faults=FAULTS, database=backend, seed=7))
    assert outcome.failures == ()
    assert outcome.verdict.violations == ()
    assert outcome.injected.total() == FAULTS
    assert outcome.verdict.ended_once == outcome.verdict.acknowledged > 0
