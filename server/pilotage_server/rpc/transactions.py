"""Runs operations for the event loop: in the database's threads, in one transaction each, once per request."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from pilotage_server.core.identity import Identity
from pilotage_server.operations.idempotency import Asked, once
from pilotage_server.operations.world import World
from pilotage_server.storage.engine import Database, Unit

Result = TypeVar("Result")
Response = TypeVar("Response", bound=Message)
Operation = Callable[[Unit, World], Result]


class Request(Protocol):
    """A message that makes a repeated call have one effect."""

    request_id: str

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:  # noqa: N802 - protobuf's own name
        """Return the message's bytes."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """The way from a call to an operation; results are converted in the database's thread, not in the loop."""

    database: Database
    world: World

    async def read(self, operation: Operation[Result]) -> Result:
        """Return what `operation` reads."""
        return await asyncio.wrap_future(self.database.submit_read(lambda unit: operation(unit, self.world)))

    async def write(self, operation: Operation[Result]) -> Result:
        """Return what `operation` gives, once what it did is on disk."""
        return await asyncio.wrap_future(self.database.submit_write(lambda unit: operation(unit, self.world)))

    async def once(
        self, caller: Identity, method: str, request: Request, kind: type[Response], operation: Operation[Response]
    ) -> Response:
        """Return the response of `operation`, or the one that the same request had before."""

        def run(unit: Unit, world: World) -> bytes:
            asked = Asked.of(caller, method, request.request_id, digest(request))
            return once(unit, asked, lambda: operation(unit, world).SerializeToString())

        return kind.FromString(await self.write(run))


def digest(request: Request) -> str:
    """Return what tells requests of one id apart: SHA-256 of the message."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
