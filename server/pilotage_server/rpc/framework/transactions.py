"""Runs operations for servicers: in the database's threads, one transaction each, once per request id."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from google.protobuf.message import Message

from pilotage_server.core.identity import Identity
from pilotage_server.operations.idempotency import IdempotentRequest, run_once
from pilotage_server.operations.server_state import ServerState
from pilotage_server.storage.database.engine import Database
from pilotage_server.storage.database.group_commit import Batch
from pilotage_server.storage.database.transaction import Transaction

Item = TypeVar("Item")
Result = TypeVar("Result")
Response = TypeVar("Response", bound=Message)
Operation = Callable[[Transaction, ServerState], Result]


class RepeatableRequest(Protocol):
    """A request with an idempotency key: repeated calls have one effect."""

    request_id: str

    def SerializeToString(self, *, deterministic: bool = ...) -> bytes:
        """Return the message's bytes."""


@dataclass(frozen=True, slots=True)
class Transactions:
    """Runs operations, which also convert their results: in the database's thread, not in the loop."""

    database: Database
    state: ServerState

    async def read(self, operation: Operation[Result]) -> Result:
        """Return the result of `operation`, which writes nothing."""
        return await asyncio.wrap_future(
            self.database.submit_read(lambda transaction: operation(transaction, self.state))
        )

    async def write(self, operation: Operation[Result]) -> Result:
        """Return the result of `operation` once its changes are on disk."""
        return await asyncio.wrap_future(
            self.database.submit_write(lambda transaction: operation(transaction, self.state))
        )

    async def write_batch(self, batch: Batch[Item, Result], item: Item) -> Result:
        """Return the result of the batch for `item` once its changes are on disk."""
        return await asyncio.wrap_future(self.database.submit_batch(batch, item))

    async def once(
        self,
        caller: Identity,
        method: str,
        request: RepeatableRequest,
        response_type: type[Response],
        operation: Operation[Response],
    ) -> Response:
        """Return the response of `operation`, or the stored response if the request was handled before."""

        def run(transaction: Transaction, state: ServerState) -> bytes:
            key = IdempotentRequest.of(caller, method, request.request_id, digest(request))
            return run_once(transaction, key, lambda: operation(transaction, state).SerializeToString())

        return response_type.FromString(await self.write(run))


def digest(request: RepeatableRequest) -> str:
    """Return the SHA-256 of the message, which distinguishes different requests with one id."""
    return hashlib.sha256(request.SerializeToString(deterministic=True)).hexdigest()
