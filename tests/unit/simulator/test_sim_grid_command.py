"""The command `sim_grid.py` on a real log: two configurations under one trace."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from support.shared_data import shared_data_dir

SIM_GRID = Path(__file__).parents[3] / "bench" / "sim_grid.py"
LOG = "LPC-EGEE-2004-1.2-cln.swf.gz"


@pytest.mark.skipif(shared_data_dir() is None, reason="there is no real input")
def test_configurations_are_compared_under_a_real_log(tmp_path: Path) -> None:
    changed = tmp_path / "changed"
    shutil.copytree(SIM_GRID.parent / "simulator" / "example", changed)
    (changed / "model.toml").write_text("start_delay_s = 7200\n")
    plot = tmp_path / "cores.svg"
    command = [sys.executable, str(SIM_GRID), "--trace", LOG, "--days", "1", "--jobs", "200"]
    done = subprocess.run(
        [*command, "--what-if", str(changed), "--plot", str(plot)], capture_output=True, text=True, check=True
    )
    now, later, *differences = map(json.loads, done.stdout.splitlines())
    assert now["jobs"]["submitted"] == later["jobs"]["submitted"] == 200
    (waiting,) = (each for each in differences if each["differs"] == "waiting_s.median")
    assert waiting == {"differs": "waiting_s.median", "before": now["waiting_s"]["median"], "after": waiting["after"]}
    assert waiting["after"] > waiting["before"] > 0
    assert plot.read_text().count("<svg") == 1
