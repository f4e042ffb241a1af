"""`pilotage up --policy`: this machine's own pilots run a site's policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.commands import running_up
from support.site_policies import SHIPPED

pytestmark = pytest.mark.process


def test_the_pilots_of_this_machine_have_the_policys_slots(tmp_path: Path) -> None:
    policy = str(SHIPPED / "whole-machine.conf")
    with running_up(tmp_path / "data", "--port", "0", "--cpus", "2", "--policy", policy) as up:
        up.start()
        with up.client() as client:
            up.until(lambda: len(client.slots()) >= 3)
            slots = {info.slot.name: info.slot.state for info in client.slots()}
    assert slots == {"slot1": "Unclaimed", "slot2": "Unclaimed", "slot3": "Owner"}


def test_a_policy_that_cannot_be_run_is_told_before_anything_starts(tmp_path: Path) -> None:
    policy = tmp_path / "broken.conf"
    policy.write_text("START = True\nPREEMPT = ((\n")
    with running_up(tmp_path / "data", "--port", "0", "--policy", str(policy)) as up:
        code, said = up.run()
    assert code == 2
    assert str(policy) in said
    assert "PREEMPT" in said
    assert not (tmp_path / "data").exists()
