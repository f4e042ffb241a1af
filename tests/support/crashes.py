"""Lets a process die in the middle of one of its calls to the outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any


class DiedError(BaseException):
    """The process is no more: nothing that it would have done afterwards happens."""


class Death:
    """Counts calls and dies at one of them: before it reached the other side, or after that had done what was asked."""

    def __init__(self, at_call: int, *, is_done: bool) -> None:
        self.calls = 0
        self._at_call = at_call
        self._is_done = is_done

    async def during(self, call: Callable[[], Awaitable[Any]]) -> Any:
        """Make a call, or die of it."""
        self.calls += 1
        if self.calls > self._at_call:
            raise DiedError
        if self.calls < self._at_call:
            return await call()
        if self._is_done:
            await call()
        raise DiedError


class Mortal:
    """Passes calls on to another object until its process dies."""

    def __init__(self, object_: Any, death: Death) -> None:
        self._object = object_
        self._death = death

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        method = getattr(self._object, name)

        async def call(*arguments: Any) -> Any:
            return await self._death.during(lambda: method(*arguments))

        return call


class MortalPlaces:
    """Places that a process goes to until it dies."""

    def __init__(self, places: Any, death: Death) -> None:
        self._places = places
        self._death = death

    async def open(self, target: Any) -> Mortal:
        return Mortal(await self._places.open(target), self._death)
