"""Slot ads of a pilot whose policies and attributes are random ClassAd expressions."""

from __future__ import annotations

import hashlib

from fuzz.mutation import Mutator
from fuzz.tally import Tally
from pilotage.errors import PilotageError
from pilotage.v1 import job_service_pb2, matcher_service_pb2
from support.server import request_id
from support.wire_grid import WireGrid, WirePilot, a_job

_RENEW_EVERY = 500
_JOBS = 5
_TIMEOUT_S = 5.0

_TERMS = (
    *("TARGET.RequestMemory", "MY.Memory", "Cpus", "RequestCpus", "1", "0", "-1", "1e308", '"a"', "true", "undefined"),
    *("error", "{1, 2}", "[a = 1]", "time()", "CurrentTime", "S1", "S2", 'regexp("(a*)*b", S2)', "strcat(S1, S1)"),
    *("eval(S1)", 'eval("eval(S1)")', "size(S1)", "random()", "ifThenElse(S1, S2, S1)", 'split(S2, ",")'),
    *("unparse(S1)", "sum({1, S1})", "MY", "TARGET", "parent.S1", "splitUserName(S2)", 'stringListSize("a,b")'),
)
_OPERATORS = (" + ", " * ", " && ", " || ", " == ", " =?= ", " < ", " ? S1 : ", " / ", " % ", ".", " >> ", " is ")


def expression(mutator: Mutator, depth: int = 4) -> str:
    """Return a random ClassAd expression; a part of them are malformed."""
    dice = mutator.random.random()
    if depth == 0 or dice < 0.3:
        return mutator.random.choice(_TERMS) if dice < 0.28 else mutator.text()
    left, right = expression(mutator, depth - 1), expression(mutator, depth - 1)
    if dice < 0.4:
        return f"eval({left})"
    if dice < 0.5:
        return "(" * mutator.random.randrange(60) + left + ")"
    return left + mutator.random.choice(_OPERATORS) + right


class RandomAds:
    """Offers slots to waiting jobs; the inputs depend on the seed and on their number."""

    def __init__(self, grid: WireGrid, seed: int) -> None:
        self._grid = grid
        self._seed = seed
        self._pilot: WirePilot | None = None
        self._jobs: list[int] = []

    def run(self, inputs: range, tally: Tally) -> None:
        """Offer the ads with these numbers."""
        for number in inputs:
            if number % _RENEW_EVERY == 0 or self._pilot is None:
                self._pilot = self._renewed_pilot()
            request = _request(Mutator((self._seed, "slot ads", number)), self._pilot)
            error = None
            try:
                self._pilot.matcher.RequestJobs(request, timeout=_TIMEOUT_S)
            except PilotageError as refusal:
                error = refusal
            tally.add_call(number, "RequestJobs", request.SerializeToString(), error)

    def _renewed_pilot(self) -> WirePilot:
        """Return a new pilot, with new jobs that wait for it; the old jobs are removed."""
        if self._jobs:
            change = job_service_pb2.JOB_CHANGE_REMOVE
            request = job_service_pb2.ChangeJobsRequest(
                request_id=request_id(), job_ids=self._jobs, change=change, reason="not needed"
            )
            self._grid.jobs.ChangeJobs(request)
        self._grid.put_tree()
        self._jobs = self._grid.submit(*[a_job(Memory=500)] * _JOBS)
        return self._grid.start_pilot()


def _request(mutator: Mutator, pilot: WirePilot) -> matcher_service_pb2.RequestJobsRequest:
    attributes = "; ".join(f"{name} = {expression(mutator)}" for name in ("S1", "S2", "Rank"))
    text = f"[{attributes}]"
    part = matcher_service_pb2.AdPart(key=hashlib.sha256(text.encode()).hexdigest(), text=text)
    changes = f"[START = {expression(mutator)}; Memory = 4000; MaxJobRetirementTime = {expression(mutator)}]"
    wanted = mutator.random.random() < 0.1
    request = pilot.request(ad_parts=[part.key], ad_changes=changes, job_ad_wanted=wanted)
    request.ad_parts.append(part)
    return request
