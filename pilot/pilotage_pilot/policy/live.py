"""Evaluates a policy for slots that run elsewhere, given by their ads, with their jobs and with jobs that wait.

Rules
-----
A slot keeps its ad and its number; the policy's expressions and published attributes replace those of its own policy.
Attributes that only its own policy publishes stay. Its type is that of the policy's layout, which a pilot has after a
restart. Nothing is changed anywhere.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pilotage.classads.evaluation import Ad, compile_expression, evaluate, is_true
from pilotage.classads.text import overlaid
from pilotage.condor.config import ConfigurationContext
from pilotage.errors import InvalidInputError, Violation
from pilotage.values.amounts import Amounts
from pilotage_pilot.core.ads.policy_ads import policy_attributes
from pilotage_pilot.core.policy import JobAd, Knobs, SlotKey, SlotPolicyEvaluator
from pilotage_pilot.policy.loading import Loaded, load_policy

TRUTHS = ("WANT_SUSPEND", "SUSPEND", "CONTINUE", "PREEMPT", "WANT_VACATE", "KILL", "IS_OWNER")
"""The expressions whose truth is shown for a slot with its own job."""


@dataclass(frozen=True, slots=True)
class LiveSlot:
    """A slot's ad and the ad of its job, None = it has none."""

    ad: Ad
    job: JobAd | None


def read_live_slots(text: str) -> tuple[list[LiveSlot], list[JobAd]]:
    """Return the slots and the waiting jobs of {"slots": [{"ad": AD, "job": AD or null}], "jobs": [AD]}.

    The ads are texts in the new ClassAd syntax. Raises InvalidInputError.
    """
    try:
        given = json.loads(text)
        ads = [(Ad.read(each["ad"]), each["job"]) for each in given["slots"]]
        slots = [LiveSlot(ad, JobAd.read(job) if job else None) for ad, job in ads]
        return slots, [JobAd.read(each) for each in given["jobs"]]
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidInputError(Violation("--slots", f"is not a list of slots and jobs: {error}")) from error


def try_policy(
    path: Path, slots: Sequence[LiveSlot], jobs: Sequence[JobAd], context: ConfigurationContext
) -> list[dict[str, Any]]:
    """Return what the policy in the file says for each slot: as JSON, in their order.

    "values" are the truths of expressions for the slot's own job (null = neither true nor false), "starts" is START for
    each of `jobs`, and "starts_now" is START of the slot's present policy. "slots" is how many slots the policy lays
    out on the slot's node, which only a restart of the pilot would change. Raises as `load_policy`.
    """
    loaded: dict[Amounts, Loaded] = {}
    found: list[dict[str, Any]] = []
    for slot in slots:
        size = Amounts(_whole(slot.ad, "DetectedCpus", "Cpus"), _whole(slot.ad, "DetectedMemory", "Memory"))
        if size not in loaded:
            loaded[size] = load_policy(path, size, context)
        found.append(_said(loaded[size], slot, jobs))
    return found


def _said(loaded: Loaded, slot: LiveSlot, jobs: Sequence[JobAd]) -> dict[str, Any]:
    number = _whole(slot.ad, "SlotID", "")
    key = next((each.key for each in loaded.layout.slots if each.key.slot_id == number), SlotKey(number or 1))
    my = Ad(overlaid(slot.ad.plain(), policy_attributes(loaded.policy, key)))
    knobs = Knobs.of(loaded.policy, key, {})
    own = SlotPolicyEvaluator(knobs, my, slot.job)
    return {
        "slots": len(loaded.layout.slots),
        "values": {name: own.truth(name) for name in TRUTHS},
        "starts": [SlotPolicyEvaluator(knobs, my, job).truth("START") for job in jobs],
        "starts_now": [_starts_now(slot.ad, job) for job in jobs],
    }


def _starts_now(ad: Ad, job: JobAd) -> bool:
    """Return START of a slot's present policy; a slot without one takes every job."""
    return "Start" not in ad.library_ad or is_true(evaluate(compile_expression("MY.Start"), ad, job.ad))


def _whole(ad: Ad, *names: str) -> int:
    """Return the first of these attributes that is a whole number; 0 = none is."""
    values = (ad.value(name) for name in names if name)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool)), 0)


def print_live(path: Path, source: Path, context: ConfigurationContext) -> None:
    """Print what the policy says for the slots in the file `source`, "-" = the standard input, as JSON."""
    text = sys.stdin.read() if str(source) == "-" else source.read_text(encoding="utf-8")
    slots, jobs = read_live_slots(text)
    sys.stdout.write(json.dumps(try_policy(path, slots, jobs, context)) + "\n")
