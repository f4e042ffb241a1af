"""Pilots that hear a broker."""

from __future__ import annotations

from pilotage_pilot.core import events as ev
from pilotage_pilot.core.events import BrokerChanged
from pilotage_pilot.core.instructions import RequestJobs
from pilotage_pilot.core.rules import PilotRules
from support.pilot_bench import PilotBench

HOUR_S = 3600.0
SELDOM = PilotRules(idle_ask_s=HOUR_S)


def a_listener(rules: PilotRules = SELDOM, jitter: float = 1.0) -> PilotBench:
    """Return a pilot that hears a broker from its start and has asked for nothing yet."""
    bench = PilotBench(cpus=2, rules=rules, opened=False)
    bench.feed(BrokerChanged(connected=True, jitter=jitter))
    bench.open()
    return bench


def ask_in_vain(bench: PilotBench) -> None:
    """Answer the request that is under way with nothing, and let so much time pass that the next one may be sent."""
    bench.feed(ev.JobsGranted(bench.one(RequestJobs).request_id))
    bench.pass_time(1)


def a_resting_pilot(rules: PilotRules = SELDOM) -> PilotBench:
    """Return one that has asked in vain."""
    bench = a_listener(rules)
    ask_in_vain(bench)
    assert bench.take(RequestJobs) == []
    return bench
