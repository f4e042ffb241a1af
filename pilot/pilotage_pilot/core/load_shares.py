"""A machine's load shared out over its slots: what their jobs cause is theirs, the rest is its owner's.

Rules
-----
The owner's load goes first to slots that the owner has back, one core's worth each, and the last slot takes what is
left, so that the slots' loads add up to the machine's. A job's load outlives it: where its dynamic slot is gone, what
is left of it is its parent's, and not the owner's. Source: HTCondor manual, LoadAvg and CondorLoadAvg.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pilotage_pilot.core.slot_facts import parent_of

_PLACES = 2


def load_shares(load: float, condor_loads: Mapping[str, float], slots: Sequence[str]) -> dict[str, dict[str, float]]:
    """Return the load attributes of each of these slots, which stand in the order in which the owner gets them."""
    condor = _of_slots(condor_loads, slots)
    total_condor = sum(condor.values())
    total = max(load, total_condor)  # the kernel's average lags behind what the jobs use
    left = total - total_condor
    shares: dict[str, dict[str, float]] = {}
    for name in slots:
        is_last = len(shares) + 1 == len(slots)
        owners = left if is_last else min(1.0, left)
        left -= owners
        shares[name] = {
            "LoadAvg": round(owners + condor[name], _PLACES),
            "CondorLoadAvg": round(condor[name], _PLACES),
            "TotalLoadAvg": round(total, _PLACES),
            "TotalCondorLoadAvg": round(total_condor, _PLACES),
        }
    return shares


def _of_slots(condor_loads: Mapping[str, float], slots: Sequence[str]) -> dict[str, float]:
    found = dict.fromkeys(slots, 0.0)
    for name, load in condor_loads.items():
        heir = name if name in found else parent_of(name)
        found[heir] = found.get(heir, 0.0) + max(0.0, load)
    return found
