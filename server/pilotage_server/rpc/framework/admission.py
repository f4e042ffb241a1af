"""Admission: which calls are served now, so that no caller takes the server from the others.

Rules
-----
A call is *open* from its arrival to its end, and *in flight* while it does not merely wait, as long polls and feeds do.
The number of calls in flight is limited. Methods that no user may call, such as heartbeats, reports and requests for
jobs, have a limit of their own: users cannot exhaust it. Each owner, VO and pilot has quotas of both numbers.

Beyond a limit calls are refused, not queued. A refusal asks the client to retry after a delay that grows with the rate
of refusals, which spreads the retries.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import grpc
from grpc_status import rpc_status

from pilotage.clock import BootClock
from pilotage.errors import OverloadedError
from pilotage.rpc.status import status_of
from pilotage.telemetry import LimitedWarning
from pilotage_server.core.identity import Identity, Role, holder_of
from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from pilotage_server.rpc.framework.calls import Call

SHORTEST_DELAY_S = 0.1
LONGEST_DELAY_S = 5.0
"""Bounds of the retry delay of a refused call."""

REFUSALS_HALF_LIFE_S = 1.0
"""Half-life of a refusal in the count of recent refusals."""


@dataclass(frozen=True, slots=True)
class CallQuota:
    """The most calls of an owner, a VO or a pilot: in flight, and open."""

    in_flight: int
    open: int


UNLIMITED = CallQuota(10**9, 10**9)


@dataclass(frozen=True, slots=True)
class CallLimits:
    """The limits of calls. `in_flight` holds twice: for methods that users may call, and for the others."""

    in_flight: int
    owner: CallQuota = UNLIMITED
    vo: CallQuota = UNLIMITED
    pilot: CallQuota = UNLIMITED


class Refusals:
    """The recent refusals of one limit, and the status of the next one. For the serving thread only."""

    def __init__(self, most: int, clock: BootClock) -> None:
        self._most = most
        self._clock = clock
        self._recent = 0.0
        self._refused_s = float("-inf")
        self._warn = LimitedWarning("calls are refused", clock)

    def status(self, reason: str) -> grpc.Status:
        """Return the status that refuses one more call for this reason."""
        now_s = self._clock()
        self._recent = 1 + self._recent * 0.5 ** ((now_s - self._refused_s) / REFUSALS_HALF_LIFE_S)
        self._refused_s = now_s
        self._warn(why=reason)
        delay_s = SHORTEST_DELAY_S * (1 + self._recent / self._most)
        return _overloaded_status(reason, round(min(delay_s, LONGEST_DELAY_S), 1))


@lru_cache
def _overloaded_status(reason: str, delay_s: float) -> grpc.Status:
    status: grpc.Status = rpc_status.to_status(status_of(OverloadedError(reason, delay_s)))
    return status


class _Quota:
    """The calls of an owner, a VO or a pilot, and their quota; `name` = whose they are, for messages."""

    __slots__ = ("_clock", "_name", "_quota", "_refusals", "calls", "open")

    def __init__(self, name: str, quota: CallQuota, clock: BootClock) -> None:
        self.calls: set[Call[Any]] = set()  # in flight; add and discard of a set are atomic
        self.open = 0
        self._name = name
        self._quota = quota
        self._clock = clock
        self._refusals: Refusals | None = None

    def refusal(self) -> grpc.Status | None:
        """Return the status that refuses one more call; None = there is room."""
        if self.open >= self._quota.open:
            why = f"{self._name} has {self.open} open calls, such as feeds and long polls, the most that it may have"
            return self._refuse(f"{why}; end some of them")
        return self.refusal_in_flight()

    def refusal_in_flight(self) -> grpc.Status | None:
        """Return the status that refuses one more call in flight; None = there is room."""
        if len(self.calls) >= self._quota.in_flight:
            return self._refuse(f"{self._name} has {len(self.calls)} calls under way, the most that it may have")
        return None

    def _refuse(self, reason: str) -> grpc.Status:
        if self._refusals is None:
            self._refusals = Refusals(self._quota.in_flight, self._clock)
        return self._refusals.status(reason)


class CallerCalls:
    """The calls of one caller. `open` and `close` are for the serving thread only."""

    __slots__ = ("_all", "_own", "_vo")

    def __init__(self, all_: set[Call[Any]], own: _Quota, vo: _Quota | None) -> None:
        self._all = all_
        self._own = own
        self._vo = vo

    def refusal(self) -> grpc.Status | None:
        """Return the status that refuses one more call of this caller; None = there is room."""
        return self._own.refusal() or (None if self._vo is None else self._vo.refusal())

    def refusal_in_flight(self) -> grpc.Status | None:
        """Return the status that refuses one more call in flight of this caller; None = there is room."""
        return self._own.refusal_in_flight() or (None if self._vo is None else self._vo.refusal_in_flight())

    def open(self, call: Call[Any]) -> None:
        """Count a call that has arrived."""
        self._own.open += 1
        if self._vo is not None:
            self._vo.open += 1
        self.add(call)

    def close(self, call: Call[Any]) -> None:
        """Do not count a call any more: it has ended."""
        self._own.open -= 1
        if self._vo is not None:
            self._vo.open -= 1
        self.discard(call)

    def add(self, call: Call[Any]) -> None:
        """Count an open call as in flight; in any thread."""
        self._all.add(call)
        self._own.calls.add(call)
        if self._vo is not None:
            self._vo.calls.add(call)
        if call.is_over:  # it may have ended in another thread meanwhile
            self.discard(call)

    def discard(self, call: Call[Any]) -> None:
        """Do not count a call as in flight any more; in any thread."""
        self._all.discard(call)
        self._own.calls.discard(call)
        if self._vo is not None:
            self._vo.calls.discard(call)

    @property
    def is_unused(self) -> bool:
        """Whether the caller has no open call."""
        return not self._own.open


FEW_CALLERS = 10_000
"""So many callers are remembered although they may have no open call."""


class CallsInFlight:
    """The calls in flight of one class of methods, and those of each caller. For the serving thread only."""

    def __init__(self, limits: CallLimits, clock: BootClock) -> None:
        self._limits = limits
        self._clock = clock
        self._calls: set[Call[Any]] = set()
        self._refusals = Refusals(limits.in_flight, clock)
        self._callers: dict[tuple[str, str], CallerCalls] = {}
        self._vos: dict[str, _Quota] = {}
        self._sweep_at = FEW_CALLERS

    def __len__(self) -> int:
        """Return the number of calls in flight."""
        return len(self._calls)

    def overload_status(self) -> grpc.Status | None:
        """Return the status that refuses one more call; None = there is room."""
        if len(self._calls) < self._limits.in_flight:
            return None
        return self._refusals.status(f"the server is overloaded: it has {len(self._calls)} calls under way")

    def calls_of(self, identity: Identity) -> CallerCalls:
        """Return the calls of a caller."""
        key = holder_of(identity)
        found = self._callers.get(key)
        if found is None:
            self._sweep()
            found = self._callers[key] = self._new_caller(identity)
        return found

    def _new_caller(self, identity: Identity) -> CallerCalls:
        if identity.pilot is not None:
            own = _Quota(f"the pilot {identity.pilot.stamp}", self._limits.pilot, self._clock)
            return CallerCalls(self._calls, own, None)
        vo = self._vos.get(identity.vo)
        if vo is None:
            vo = self._vos[identity.vo] = _Quota(f"the VO {identity.vo}", self._limits.vo, self._clock)
        own = _Quota(f"{identity.owner} of the VO {identity.vo}", self._limits.owner, self._clock)
        return CallerCalls(self._calls, own, vo)

    def _sweep(self) -> None:
        """Forget callers without open calls once there are many callers."""
        if len(self._callers) < self._sweep_at:
            return
        self._callers = {key: calls for key, calls in self._callers.items() if not calls.is_unused}
        self._vos = {name: vo for name, vo in self._vos.items() if vo.open}
        self._sweep_at = max(FEW_CALLERS, 2 * len(self._callers))


class Admission:
    """The calls in flight of both classes of methods."""

    def __init__(self, limits: CallLimits, clock: BootClock) -> None:
        self.of_users = CallsInFlight(limits, clock)
        self.of_others = CallsInFlight(limits, clock)

    def calls_to(self, method: str) -> CallsInFlight:
        """Return the calls among which those of a method count."""
        return self.of_users if Role.USER in REQUIRED_ROLES.get(method, ()) else self.of_others
