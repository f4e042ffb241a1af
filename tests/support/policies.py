"""A node under a policy, to be asked what its expressions are for a slot and a job."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

import pytest

from pilotage.classads.evaluation import Ad, Result
from pilotage.classads.library import AdValue
from pilotage.classads.text import new_job_ad, overlaid
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.attributes import NodeFacts
from pilotage_pilot.core.ads.policy_ads import unattended_slot_ad
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.policy import Evaluated, evaluate_all
from pilotage_pilot.policy.loading import Loaded, load_policy

NOW_S = 1_700_000_000
NOW = Now(datetime.fromtimestamp(NOW_S, UTC), boot_s=100_000.0)
SHIPPED = Path(__file__).parents[2] / "deploy" / "policies"

Job: TypeAlias = Mapping[str, AdValue]

SINGLE: Job = {}
CLAIMED = "Claimed"


@lru_cache(maxsize=64)
def _load(path: Path, node: Amounts) -> Loaded:
    return load_policy(path, node)


class PolicyBench:
    """A quiet node of so many cores under the policy of a file."""

    def __init__(self, path: Path, cpus: int = 8, memory_mib: int = 16054) -> None:
        self._size = Amounts(cpus, memory_mib)
        self.loaded = _load(path, self._size)

    def values(self, slot: int, job: Job | None = None, **changes: AdValue) -> dict[str, Evaluated]:
        """Return all expressions of a slot for a job, with `changes` made to the slot's ad."""
        loaded = self.loaded
        static = loaded.layout.slot(slot)
        node = NodeFacts.of("node", self._size, loaded.layout)
        my = Ad(overlaid(unattended_slot_ad(loaded.policy, static, loaded.layout, node, NOW), changes))
        target = None if job is None else Ad(overlaid(new_job_ad(NOW_S), job))
        return evaluate_all(loaded.policy, static.key, my, target)

    def value(self, name: str, slot: int, job: Job | None = None, **changes: AdValue) -> Result:
        """Return what one expression of a slot is."""
        return self.values(slot, job, **changes)[name].value


def either(*names: tuple[str, str]) -> list[object]:
    """Return the parameters of a fixture that is each of these policies in turn, given as (whose, file)."""
    return [pytest.param(name, id=f"{kind}: {name}") for kind, name in names]


def bench_of(request: pytest.FixtureRequest, shared_data: Path, cpus: int) -> PolicyBench:
    """Return the bench of the policy that is a fixture's parameter, shipped or as its authors published it."""
    name = request.param
    return PolicyBench((SHIPPED if "-" in name or name == "bologna.conf" else shared_data / "policies") / name, cpus)
