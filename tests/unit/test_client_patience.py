"""Patience with a server that is away, in virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

from pilotage.errors import NotFoundError, ServerUnreachableError, WorldError
from pilotage_client.patience import Patience


class Outage:
    """A server that is away until some virtual second, and whoever waits for it."""

    def __init__(self, back_s: float = math.inf) -> None:
        self.back_s = back_s
        self.now_s = 0.0
        self.calls: list[float] = []
        self.told: list[str] = []

    def call(self) -> str:
        self.calls.append(self.now_s)
        if self.now_s < self.back_s:
            raise ServerUnreachableError("no server answers")
        return "answer"

    def patience(self, patience_s: float) -> Patience:
        def sleep(seconds: float) -> None:
            self.now_s += seconds

        return Patience(patience_s, self.told.append, clock=lambda: self.now_s, sleep=sleep)


def test_an_outage_is_told_once_and_outlasted() -> None:
    outage = Outage(back_s=60)
    assert outage.patience(300)(outage.call) == "answer"
    assert outage.told == ["no server answers; trying again for up to 300 s"]
    assert 60 <= outage.now_s <= 65


def test_pauses_grow_to_a_bound() -> None:
    outage = Outage(back_s=60)
    outage.patience(300)(outage.call)
    pauses = [later - earlier for earlier, later in zip(outage.calls, outage.calls[1:], strict=False)]
    assert pauses[0] < 1
    assert pauses == sorted(pauses)
    assert max(pauses) <= 5


@pytest.mark.parametrize("patience_s", [0, 1, 100])
def test_patience_ends_with_the_error_and_not_before(patience_s: float) -> None:
    outage = Outage()
    with pytest.raises(ServerUnreachableError):
        outage.patience(patience_s)(outage.call)
    assert outage.now_s == patience_s
    assert len(outage.told) == (1 if patience_s else 0)


def test_the_end_that_a_call_has_goes_before_patience() -> None:
    outage = Outage()
    with pytest.raises(ServerUnreachableError):
        outage.patience(300)(outage.call, until_s=12)
    assert outage.now_s == 12
    assert "up to 12 s" in outage.told[0]


def test_a_second_outage_has_the_whole_patience_again() -> None:
    outage = Outage(back_s=8)
    patiently = outage.patience(10)
    patiently(outage.call)
    outage.back_s = outage.now_s + 8
    assert patiently(outage.call) == "answer"
    assert len(outage.told) == 2


@pytest.mark.parametrize("error", [NotFoundError("job", "7"), WorldError("the disk is full", transient=False)])
def test_an_error_that_will_not_pass_is_raised_at_once(error: Exception) -> None:
    outage = Outage()
    with pytest.raises(type(error)):
        outage.patience(300)(raiser(error))
    assert (outage.now_s, outage.told) == (0, [])


def raiser(error: Exception) -> Callable[[], None]:
    def act() -> None:
        raise error

    return act
