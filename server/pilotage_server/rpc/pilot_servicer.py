"""PilotService: pilots are registered, reported on, shown and drained."""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from pilotage.clock import Clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import pilot_service_pb2, pilot_service_pb2_grpc
from pilotage.wire import queue_from_wire, text_from_wire
from pilotage_server.core.identity import Identity, PilotCredential, Role
from pilotage_server.operations.pilots import (
    drain_pilots,
    list_pilots,
    register_pilots,
    renewable_credentials,
    report_glideins,
)
from pilotage_server.operations.turns import hold_turn
from pilotage_server.rpc.calls import caller
from pilotage_server.rpc.convert_pilots import (
    glidein_reports_from_wire,
    new_pilots_from_wire,
    pilot_to_wire,
    stamps_to_renew_from_wire,
)
from pilotage_server.rpc.convert_values import Fields, each, not_too_many, reason_from_wire, some
from pilotage_server.rpc.tokens import TokenIssuer
from pilotage_server.rpc.transactions import Transactions


@dataclass(frozen=True, slots=True)
class PilotTokens:
    """How pilots' tokens are made; `usual` is the life of one where nothing is asked, `longest` bounds it."""

    issuer: TokenIssuer
    clock: Clock
    usual: timedelta
    longest: timedelta

    def lifetime(self, wanted_s: float) -> timedelta:
        """Return how long a token holds; 0 = as usual."""
        wanted = timedelta(seconds=wanted_s) if wanted_s else self.usual
        if wanted > self.longest:
            why = f"is longer than {self.longest.total_seconds():.0f} s, the longest that a token may hold"
            raise InvalidInputError(Violation("lifetime_s", why))
        return wanted

    def issue(self, credential: PilotCredential, lifetime: timedelta) -> str:
        """Return the token of one pilot."""
        identity = Identity(f"pilot:{credential.stamp}", "", (), frozenset({Role.PILOT}), credential)
        return self.issuer.issue(identity, lifetime, self.clock())


class PilotServicer(pilot_service_pb2_grpc.PilotServiceServicer):
    """Registers pilots and shows them."""

    def __init__(self, transactions: Transactions, tokens: PilotTokens) -> None:
        self._transactions = transactions
        self._tokens = tokens

    async def RegisterPilots(
        self, request: pilot_service_pb2.RegisterPilotsRequest, context: Any
    ) -> pilot_service_pb2.RegisterPilotsResponse:
        identity = caller()
        wanted, turn = new_pilots_from_wire(request)
        lifetime = self._tokens.lifetime(request.lifetime_s)

        def register(unit: Any, world: Any) -> pilot_service_pb2.RegisterPilotsResponse:
            hold_turn(unit, turn)
            credentials = register_pilots(unit, world, identity, wanted, _new_stamp)
            stamps = [pilot_service_pb2.PilotCredential(stamp=made.stamp) for made in credentials]
            return pilot_service_pb2.RegisterPilotsResponse(pilots=stamps)

        # what is kept for a repeated request has no tokens: they are signed anew, so none lie in the database
        response = await self._transactions.once(
            identity, "RegisterPilots", request, pilot_service_pb2.RegisterPilotsResponse, register
        )
        for pilot in response.pilots:
            pilot.token = self._tokens.issue(PilotCredential(pilot.stamp, wanted.queue, wanted.vos), lifetime)
        return response

    async def RenewCredentials(
        self, request: pilot_service_pb2.RenewCredentialsRequest, context: Any
    ) -> pilot_service_pb2.RenewCredentialsResponse:
        stamps, lifetime = stamps_to_renew_from_wire(request), self._tokens.lifetime(request.lifetime_s)
        credentials = await self._transactions.read(lambda unit, _: renewable_credentials(unit, stamps))
        pilots = [
            pilot_service_pb2.PilotCredential(stamp=each.stamp, token=self._tokens.issue(each, lifetime))
            for each in credentials
        ]
        return pilot_service_pb2.RenewCredentialsResponse(pilots=pilots)

    async def ReportGlideins(
        self, request: pilot_service_pb2.ReportGlideinsRequest, context: Any
    ) -> pilot_service_pb2.ReportGlideinsResponse:
        identity, reports = caller(), glidein_reports_from_wire(request)

        def report(unit: Any, world: Any) -> pilot_service_pb2.ReportGlideinsResponse:
            heard = report_glideins(unit, world, identity, reports)
            return pilot_service_pb2.ReportGlideinsResponse(unknown_stamps=heard.unknown, worked_stamps=heard.worked)

        return await self._transactions.once(
            identity, "ReportGlideins", request, pilot_service_pb2.ReportGlideinsResponse, report
        )

    async def ListPilots(
        self, request: pilot_service_pb2.ListPilotsRequest, context: Any
    ) -> pilot_service_pb2.ListPilotsResponse:
        fields = Fields(request)
        queue = fields.if_set("queue", queue_from_wire)
        fields.done()

        def show(unit: Any, _: Any) -> pilot_service_pb2.ListPilotsResponse:
            pilots = list_pilots(unit, queue, ended=request.ended)
            return pilot_service_pb2.ListPilotsResponse(pilots=[pilot_to_wire(pilot) for pilot in pilots])

        return await self._transactions.read(show)

    async def DrainPilots(
        self, request: pilot_service_pb2.DrainPilotsRequest, context: Any
    ) -> pilot_service_pb2.DrainPilotsResponse:
        fields = Fields(request)
        fields("stamps", not_too_many)
        fields("stamps", some)
        stamps = fields("stamps", lambda stamps: each(stamps, text_from_wire))
        reason = fields("reason", reason_from_wire)
        fields.done()

        def drain(unit: Any, world: Any) -> pilot_service_pb2.DrainPilotsResponse:
            unknown = drain_pilots(unit, world, stamps, reason, evict=request.evict)
            return pilot_service_pb2.DrainPilotsResponse(unknown_stamps=unknown)

        return await self._transactions.once(
            caller(), "DrainPilots", request, pilot_service_pb2.DrainPilotsResponse, drain
        )


def _new_stamp() -> str:
    return secrets.token_hex(16)
