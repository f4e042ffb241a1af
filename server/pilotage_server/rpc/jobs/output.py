"""FollowOutput: streams the output of a job, of a running attempt as its pilot sends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, replace
from typing import Any

from pilotage.clock import BootClock
from pilotage.v1 import job_service_pb2
from pilotage.values.wire.fields import Fields, job_id_from_wire
from pilotage_server.core.identity import Identity
from pilotage_server.operations.attempts.tails import want_tail
from pilotage_server.operations.jobs.output import OutputPosition, OutputView, view_output
from pilotage_server.rpc.framework.calls import caller, idle, wait_time_s
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.storage.blobs.base import FileStore

POLL_S = 0.5
"""How often a call looks for new output. Pilots post to any server, so it looks into the database."""

KEEPALIVE_S = 30.0
"""Interval of empty messages while there is nothing new."""

Response = job_service_pb2.FollowOutputResponse


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A stream of a job; `follow` = what comes later counts too."""

    identity: Identity
    job_id: int
    is_error: bool
    follow: bool


class OutputCalls:
    """The method that follows output; `is_open` = whether the server goes on serving."""

    def __init__(
        self, transactions: Transactions, store: FileStore, boot_clock: BootClock, is_open: Callable[[], bool]
    ) -> None:
        self._output_transactions = transactions
        self._output_store = store
        self._output_clock = boot_clock
        self._is_open = is_open

    async def FollowOutput(
        self, request: job_service_pb2.FollowOutputRequest, context: Any
    ) -> AsyncIterator[job_service_pb2.FollowOutputResponse]:
        wanted, position = _from_wire(request, caller())
        sent_s = self._output_clock()
        while True:
            view = await self._view(wanted, position)
            position = view.position
            async for message in self._messages(view):
                yield message
                position, sent_s = replace(position, offset=message.offset + len(message.content)), self._output_clock()
            if view.is_over:
                yield Response(attempt=position.attempt, offset=position.offset, partial=view.partial, over=True)
                return
            wait_s = wait_time_s(context, POLL_S, POLL_S)
            if wait_s == 0 or not self._is_open():
                return
            if view.is_ended:
                position = position.past(position.attempt)
                continue
            if self._output_clock() - sent_s >= KEEPALIVE_S:
                yield Response(attempt=position.attempt, offset=position.offset)
                sent_s = self._output_clock()
            with idle():
                await asyncio.sleep(wait_s)

    async def _view(self, wanted: _Wanted, position: OutputPosition) -> OutputView:
        """Return what there is, after asking the pilot to send it if necessary."""
        view = await self._output_transactions.read(
            lambda transaction, _: view_output(
                transaction, wanted.identity, wanted.job_id, position, is_error=wanted.is_error, follow=wanted.follow
            )
        )
        stream = view.wanted
        if stream is not None:
            await self._output_transactions.write(
                lambda transaction, state: want_tail(transaction, state, stream, view.stamp)
            )
        return view

    async def _messages(self, view: OutputView) -> AsyncIterator[job_service_pb2.FollowOutputResponse]:
        attempt, offset = view.position.attempt, view.position.offset
        if view.content:
            yield Response(attempt=attempt, offset=offset, content=view.content)
        if view.file is not None and view.file.size > offset:
            pieces = await asyncio.to_thread(self._output_store.read, view.file.checksum, offset)
            while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                yield Response(attempt=attempt, offset=offset, content=piece)
                offset += len(piece)
        if view.partial and not view.is_over:
            yield Response(attempt=attempt, offset=offset, partial=view.partial)


def _from_wire(message: job_service_pb2.FollowOutputRequest, identity: Identity) -> tuple[_Wanted, OutputPosition]:
    fields = Fields(message)
    job_id = fields("job_id", job_id_from_wire)
    attempt, offset = fields.count("attempt"), fields.count("offset")
    fields.done()
    return _Wanted(identity, job_id, message.error, message.follow), OutputPosition(attempt, offset)
