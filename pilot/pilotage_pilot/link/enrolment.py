"""The pilot's credential: an enrolment secret that works once, then a token with a key that only this process has.

The key and the random bytes that it is bound to never leave the memory. The file of the secret is removed after the
enrolment, if the pilot may remove it; a copy of it is useless then.
"""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from pilotage.clock import BootClock
from pilotage.errors import PilotageError, ProofTimeError
from pilotage.resources.tree import QueueId
from pilotage.rpc.proof import NONCE_BYTES, BoundToken
from pilotage.rpc.wire import queue_to_wire, time_from_wire
from pilotage.v1 import pilot_service_pb2

if TYPE_CHECKING:
    from pilotage.v1.pilot_service_pb2_grpc import PilotServiceAsyncStub

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class EnrolmentSecret:
    """A pilot's enrolment secret, and the file that has it; None = no file has it."""

    text: str = field(repr=False)
    file: Path | None = None

    def discard(self) -> None:
        """Remove the file of the secret, which has been used."""
        if self.file is None:
            return
        try:
            self.file.unlink(missing_ok=True)
        except OSError as error:
            log.info("used enrolment secret is not removed", path=str(self.file), reason=error.strerror)


class EnrolledCredential:
    """Enrols the pilot before its first call, and renews its token; gives each call its token and proof.

    `landed` = the queue that a pilot with a secret for a set of queues is in; None = the secret names its queue.
    """

    def __init__(self, secret: EnrolmentSecret, boot_clock: BootClock, landed: QueueId | None = None) -> None:
        self._secret = secret
        self._landed = landed
        self._boot_clock = boot_clock
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._bound: BoundToken | None = None
        self._renew_at_s = 0.0
        self._enrolling = asyncio.Lock()

    def token(self) -> str:
        """Return the present token; before the enrolment this is the secret."""
        return self._secret.text if self._bound is None else self._bound.token

    def prove(self, method: str) -> str:
        """Return the proof of a call of `method`; "" before the enrolment, which needs none."""
        return "" if self._bound is None else self._bound.prove(method)

    def correct_time(self, error: ProofTimeError) -> None:
        """Use the time of the server from now on; its clock has changed."""
        if self._bound is not None:
            log.warning("the clock of the server has changed")
            self._bound.set_time(datetime.fromtimestamp(error.server_time_ms / 1000, UTC))

    async def enrol(self, pilots: PilotServiceAsyncStub) -> None:
        """Enrol unless that is done; a failed call is repeated with the same bytes. Raises a PilotageError."""
        if self._bound is not None:
            return
        async with self._enrolling:
            if self._bound is None:
                queue = queue_to_wire(self._landed) if self._landed is not None else None
                request = pilot_service_pb2.EnrolRequest(nonce=self._nonce, queue=queue, release=version("pilotage"))
                answer = await pilots.Enrol(request)
                self._use(answer.token)
                self._secret.discard()
                log.info("pilot is enrolled")

    async def renew_if_due(self, pilots: PilotServiceAsyncStub) -> None:
        """Renew the token if it is time; a failure is logged, because the present token still works."""
        if self._boot_clock() < self._renew_at_s:
            return
        try:
            answer = await pilots.RenewToken(pilot_service_pb2.RenewTokenRequest())
        except PilotageError as error:
            log.warning("token is not renewed", reason=str(error))
        else:
            self._use(answer.token)

    def _use(self, token: pilot_service_pb2.BoundToken) -> None:
        self._bound = BoundToken(token.token, token.key, time_from_wire(token.server_time), self._boot_clock)
        self._renew_at_s = self._boot_clock() + token.renew_after_s
