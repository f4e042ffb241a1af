"""The wheel with compiled modules: its content, its server, and its decisions."""

from __future__ import annotations

import json
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from support.packages import hot_modules, run_with
from support.server import running_server
from support.wire_grid import WireGrid, a_job

pytestmark = [pytest.mark.process, pytest.mark.timeout(900)]  # compiling takes minutes

ORACLES = (
    "tests/unit/queueing/test_account_order.py",
    "tests/unit/accounting/test_fair_share.py",
    "tests/unit/matching/test_matcher.py",
    "tests/unit/matching/test_match_encoding.py",
    "tests/unit/matching/test_wire.py",
    "tests/unit/queueing/test_index.py",
    "tests/model/matching/test_matcher_model.py",
    "tests/model/attempts/test_report_batches.py",
)
"""Tests that quickly show whether compiled modules decide like their sources, with few examples.

`make test-compiled` runs all of them with all examples.
"""

_WHERE = "import importlib, json, sys; print(json.dumps([importlib.import_module(n).__file__ for n in sys.argv[1:]]))"


def test_wheel_has_every_hot_module_compiled_and_as_source(compiled_packages: Path) -> None:
    done = run_with(compiled_packages, "-c", _WHERE, *hot_modules())
    assert done.returncode == 0, done.stderr
    for file in map(Path, json.loads(done.stdout)):
        assert file.is_relative_to(compiled_packages)
        assert file.name.endswith(tuple(EXTENSION_SUFFIXES))
        assert file.with_name(file.name.partition(".")[0] + ".py").is_file()


def test_compiled_server_reports_so_and_runs_jobs(
    compiled_packages: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = run_with(compiled_packages, "-m", "pilotage_server.main", "--version")
    assert version.stdout.endswith("(compiled)\n"), version.stderr
    monkeypatch.setenv("PYTHONPATH", str(compiled_packages))
    with running_server(tmp_path / "data") as server:
        grid = WireGrid(server)
        grid.put_tree()
        (job_id,) = grid.submit(a_job(Memory=2000))
        pilot = grid.start_pilot()
        (match,) = pilot.request_jobs().matches
        pilot.finish(match.job_id)
        assert grid.state_of(job_id) == "DONE"
        grid.close()
        assert '"compiled": true' in server.log() or "compiled=True" in server.log()


def test_compiled_modules_pass_the_oracle_tests(compiled_packages: Path) -> None:
    done = run_with(compiled_packages, "-m", "pytest", "-q", "-p", "no:cacheprovider", *ORACLES)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
