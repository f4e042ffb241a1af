"""PilotService and NodeService: pilots, glideins, nodes, slots and node attributes."""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from operator import itemgetter
from typing import Any

import structlog

from pilotage.clock import Clock
from pilotage.errors import InvalidInputError, PermissionDeniedError, Violation
from pilotage.mqtt.settings import BrokerLogin
from pilotage.rpc.proof import NONCE_BYTES, hash_of_nonce
from pilotage.rpc.wire import (
    enum_from_wire,
    enum_to_wire,
    queue_from_wire,
    queue_to_wire,
    section_to_wire,
    text_from_wire,
    time_to_wire,
)
from pilotage.v1 import (
    matcher_service_pb2,
    node_service_pb2,
    node_service_pb2_grpc,
    pilot_service_pb2,
    pilot_service_pb2_grpc,
)
from pilotage.values.leadership import Leadership
from pilotage.values.pilots import GlideinReport, PilotState
from pilotage.values.wire.amounts import amounts_to_wire
from pilotage.values.wire.fields import Fields, all_from_wire, name_from_wire, reason_from_wire
from pilotage.values.wire.leadership import leadership_from_wire, release_from_wire
from pilotage.values.wire.pilots import glidein_report_from_wire
from pilotage_server.core.attempts.reports import ReportedSlot
from pilotage_server.core.identity import NO_QUEUE, Identity, PilotCredential, Role
from pilotage_server.core.pilots.node_use import FarmUse, NodeUse
from pilotage_server.core.pilots.nodes import NodeId, NodeSettings
from pilotage_server.core.pilots.pilots import PilotFilter, SecondUse, SlotInfo
from pilotage_server.core.pilots.slot_counts import NodeSlotCounts
from pilotage_server.core.resources.bans import TreeNode
from pilotage_server.operations.attempts.pilot_calls import credential_of
from pilotage_server.operations.leadership import lock_leadership_of
from pilotage_server.operations.pilots.enrolment import EnrolmentRefused, enrol_pilot, renew_pilot
from pilotage_server.operations.pilots.nodes import (
    count_slots,
    get_node_use,
    list_node_attributes,
    list_slots,
    request_reports,
    set_node_attributes,
)
from pilotage_server.operations.pilots.pilots import (
    MAX_AT_ONCE,
    NewPilots,
    PilotInfo,
    drain_pilots,
    get_pilot_log,
    list_pilots,
    living_queues,
    put_pilot_logs,
    register_pilots,
    renewable_credentials,
    report_glideins,
)
from pilotage_server.operations.pilots.revocation import PilotsToRevoke, revoke_pilots
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller, caller_address
from pilotage_server.rpc.framework.proofs import PilotProofs
from pilotage_server.rpc.framework.tokens import TokenIssuer, TokenVerifier
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import check_count, queue_set_from_wire
from pilotage_server.storage.database.transaction import Transaction

log = structlog.get_logger()


def new_pilots_from_wire(message: pilot_service_pb2.RegisterPilotsRequest) -> tuple[NewPilots, Leadership | None]:
    """Return the wanted pilots, and the leadership of the agent that registers them."""
    fields = Fields(message)
    queue = fields.if_set("queue", queue_from_wire)
    queue_set = fields("queue_set", queue_set_from_wire)
    fields.faults.unless((queue is None) is bool(queue_set), "queue", "give either a queue or a queue_set")
    count = fields("count", _pilot_count)
    vos = fields("vos", lambda vos: all_from_wire(vos, _vo))
    fields.length("lifetime_s")
    leadership = fields.if_set("turn", leadership_from_wire)
    fields.done()
    return NewPilots(queue or NO_QUEUE, count, vos, queue_set), leadership


def stamps_to_renew_from_wire(message: pilot_service_pb2.RenewCredentialsRequest) -> tuple[str, ...]:
    """Return the stamps of the pilots whose credentials are renewed."""
    fields = Fields(message)
    fields.faults.unless(1 <= len(message.stamps) <= MAX_AT_ONCE, "stamps", f"names none, or more than {MAX_AT_ONCE}")
    stamps = fields("stamps", lambda stamps: all_from_wire(stamps, text_from_wire))
    fields.length("lifetime_s")
    fields.done()
    return stamps


def _pilot_count(number: int) -> int:
    if not 1 <= number <= MAX_AT_ONCE:
        raise InvalidInputError(Violation("", f"{number} is not a number of pilots from 1 to {MAX_AT_ONCE}"))
    return number


def _vo(text: str) -> str:
    if not text.strip() or "\0" in text:
        raise InvalidInputError(Violation("", "is not the name of a VO"))
    return text


def glidein_reports_from_wire(message: pilot_service_pb2.ReportGlideinsRequest) -> tuple[GlideinReport, ...]:
    """Return an agent's reports on glideins."""
    fields = Fields(message)
    fields("reports", check_count)
    reports = fields("reports", lambda reports: all_from_wire(reports, glidein_report_from_wire))
    fields.done()
    return reports


def pilot_filter_from_wire(message: pilot_service_pb2.ListPilotsRequest) -> PilotFilter:
    """Return which pilots are listed."""
    fields = Fields(message)
    wanted = PilotFilter(
        queue=fields.if_set("queue", queue_from_wire),
        site=fields.text("site"),
        node=fields.text("node"),
        states=frozenset(fields("states", lambda numbers: all_from_wire(numbers, _pilot_state)) or ()),
        since=fields.time("since"),
        registered_by=fields.text("registered_by"),
        ended=message.ended,
    )
    fields.done()
    return wanted


def _pilot_state(number: int) -> PilotState:
    name = enum_from_wire(pilot_service_pb2.PilotState, number)
    if not name:
        raise InvalidInputError(Violation("", "is not a state of pilots"))
    return PilotState[name]


def pilot_to_wire(info: PilotInfo) -> pilot_service_pb2.Pilot:
    """Return the message of a pilot."""
    pilot = info.pilot
    return pilot_service_pb2.Pilot(
        stamp=pilot.stamp,
        queue=queue_to_wire(pilot.queue) if pilot.queue != NO_QUEUE else None,
        queue_set=pilot.queue_set,
        glidein_id=pilot.glidein_id,
        state=enum_to_wire(pilot_service_pb2.PilotState, pilot.state.name),
        reason=pilot.reason,
        node=pilot.node,
        registered=time_to_wire(pilot.registered),
        last_seen=time_to_wire(pilot.last_seen),
        ends=time_to_wire(pilot.ends),
        jobs=info.jobs,
        jobs_ended=pilot.jobs_ended,
        vos=pilot.vos,
        alarm=pilot.alarm,
        isolation=pilot.isolation or "",
        credential_ends=time_to_wire(pilot.credential_ends),
    )


def slot_info_to_wire(info: SlotInfo, ad: str = "") -> node_service_pb2.SlotInfo:
    """Return the message of a slot with its location, and with its ad if that is wanted."""
    return node_service_pb2.SlotInfo(
        slot=_slot_to_wire(info.slot),
        node=info.node,
        pilot_stamp=info.pilot_stamp,
        queue=queue_to_wire(info.queue),
        last_seen=time_to_wire(info.last_seen),
        ad=ad,
        isolation=info.isolation,
        answered=time_to_wire(info.answered),
    )


def node_ids_from_wire(messages: Sequence[node_service_pb2.NodeId]) -> tuple[NodeId, ...]:
    """Return the nodes of a call."""
    check_count(messages)
    return all_from_wire(messages, _node_id)


def _node_id(message: node_service_pb2.NodeId) -> NodeId:
    fields = Fields(message)
    node = NodeId(fields("site", _name), fields("node", _name))
    fields.done()
    return node


def _name(text: str) -> str:
    if not text.strip():
        raise InvalidInputError(Violation("", "is missing"))
    return text_from_wire(text)


def node_settings_to_wire(settings: NodeSettings) -> node_service_pb2.NodeSettings:
    """Return the message of a node's attributes."""
    return node_service_pb2.NodeSettings(
        node=node_service_pb2.NodeId(site=settings.node.site, node=settings.node.node),
        settings=[
            node_service_pb2.NodeSetting(
                name=each.name, expression=each.expression, set_by=each.set_by, set=time_to_wire(each.set)
            )
            for each in settings.settings
        ],
    )


def farm_use_to_wire(farm: FarmUse) -> node_service_pb2.GetNodeUseResponse:
    """Return the message of the use of nodes, and of the jobs that wait for them."""
    return node_service_pb2.GetNodeUseResponse(
        nodes=[_node_use_to_wire(node) for node in farm.nodes],
        waiting=_widths_to_wire(farm.widths),
        queues=map(queue_to_wire, farm.queues),
        demands=[
            node_service_pb2.WaitingJobs(cpus=each.cpus, jobs=each.jobs, queue_indexes=each.queues)
            for each in farm.waiting
        ],
    )


def _node_use_to_wire(use: NodeUse) -> node_service_pb2.NodeUse:
    return node_service_pb2.NodeUse(
        node=node_service_pb2.NodeId(site=use.node.site, node=use.node.node),
        parts=[
            node_service_pb2.PartUse(
                free_cpus=part.free_cpus, running=_widths_to_wire(part.running), queue_index=part.queue
            )
            for part in use.parts
        ],
        settable=use.settable,
        holds=use.is_true,
        told_by=use.set_by,
    )


def _widths_to_wire(jobs: Mapping[int, int]) -> list[node_service_pb2.WidthCount]:
    return [node_service_pb2.WidthCount(cpus=cpus, jobs=count) for cpus, count in sorted(jobs.items())]


def _node_slots_to_wire(found: NodeSlotCounts) -> node_service_pb2.NodeSlots:
    return node_service_pb2.NodeSlots(
        node=node_service_pb2.NodeId(site=found.node.site, node=found.node.node),
        slots=[
            node_service_pb2.SlotCount(**condition._asdict(), slots=total.slots, cpus=total.cpus)
            for condition, total in sorted(found.counts.items(), key=itemgetter(0))
        ],
        draining=found.draining,
        last_seen=time_to_wire(found.last_seen),
    )


def _slot_to_wire(slot: ReportedSlot) -> matcher_service_pb2.SlotState:
    message = matcher_service_pb2.SlotState(
        name=slot.name,
        state=slot.state,
        activity=slot.activity,
        amounts=amounts_to_wire(slot.amounts),
        free=amounts_to_wire(slot.free),
        job_id=slot.job_id,
        since=time_to_wire(slot.since),
        load=slot.load,
        partitionable=slot.partitionable,
        attempt=slot.attempt,
        since_state=time_to_wire(slot.since_state),
    )
    section_to_wire(slot.attributes, message.attributes)
    return message


@dataclass(frozen=True, slots=True)
class PilotTokens:
    """Issues enrolment secrets, and the tokens of enrolled pilots with their keys."""

    issuer: TokenIssuer
    verifier: TokenVerifier
    proofs: PilotProofs
    clock: Clock
    bound_lifetime: timedelta
    default_lifetime: timedelta
    max_lifetime: timedelta

    def lifetime(self, wanted_s: float) -> timedelta:
        """Return the lifetime of an enrolment secret, 0 s = the default; raises InvalidInputError above the maximum."""
        wanted = timedelta(seconds=wanted_s) if wanted_s else self.default_lifetime
        if wanted > self.max_lifetime:
            why = f"is longer than {self.max_lifetime.total_seconds():.0f} s, the longest that a token may hold"
            raise InvalidInputError(Violation("lifetime_s", why))
        return wanted

    def issue(self, credential: PilotCredential, lifetime: timedelta) -> str:
        """Return the enrolment secret of one pilot: a token that only enrols."""
        return self.issuer.issue(_pilot_identity(credential, Role.ENROLMENT), lifetime, self.clock())

    def issue_bound(self, credential: PilotCredential) -> pilot_service_pb2.BoundToken:
        """Return the token of an enrolled pilot, with its key."""
        now = self.clock()
        token = self.issuer.issue(_pilot_identity(credential, Role.PILOT), self.bound_lifetime, now)
        key = self.proofs.key_of(self.verifier.verify(token, now))  # by the signing key that the token names
        return pilot_service_pb2.BoundToken(
            token=token,
            key=key,
            server_time=time_to_wire(now),
            renew_after_s=self.bound_lifetime.total_seconds() / 2,
        )


def _pilot_identity(credential: PilotCredential, role: Role) -> Identity:
    return Identity(f"pilot:{credential.stamp}", "", (), frozenset({role}), credential)


def nonce_hash_from_wire(nonce: bytes) -> str:
    """Return the hash of a pilot's random bytes."""
    if len(nonce) != NONCE_BYTES:
        raise InvalidInputError(Violation("", f"has {len(nonce)} bytes, not {NONCE_BYTES}"))
    return hash_of_nonce(nonce)


MakeBrokerLogin = Callable[[str], Awaitable[BrokerLogin]]
"""Makes the login of a pilot, given by its stamp, at the broker; raises WorldError."""


class PilotServicer(pilot_service_pb2_grpc.PilotServiceServicer):
    """Registers, enrols, shows, drains and revokes pilots."""

    def __init__(
        self,
        transactions: Transactions,
        tokens: PilotTokens,
        second_use: SecondUse,
        make_broker_login: MakeBrokerLogin | None = None,
    ) -> None:
        self._transactions = transactions
        self._make_broker_login = make_broker_login
        self._tokens = tokens
        self._second_use = second_use

    async def RegisterPilots(
        self, request: pilot_service_pb2.RegisterPilotsRequest, context: Any
    ) -> pilot_service_pb2.RegisterPilotsResponse:
        identity = caller()
        wanted, leadership = new_pilots_from_wire(request)
        lifetime = self._tokens.lifetime(request.lifetime_s)

        def register(transaction: Any, state: Any) -> pilot_service_pb2.RegisterPilotsResponse:
            lock_leadership_of(transaction, identity, leadership)
            credentials = register_pilots(transaction, state, identity, wanted, _new_stamp)
            stamps = [pilot_service_pb2.PilotCredential(stamp=made.stamp) for made in credentials]
            return pilot_service_pb2.RegisterPilotsResponse(pilots=stamps)

        # The stored answer has no tokens, so that none lie in the database; a repeated request gets new ones.
        response = await self._transactions.once(
            identity, "RegisterPilots", request, pilot_service_pb2.RegisterPilotsResponse, register
        )
        for pilot in response.pilots:
            pilot.token = self._tokens.issue(wanted.credential(pilot.stamp, wanted.vos), lifetime)
        return response

    async def RenewCredentials(
        self, request: pilot_service_pb2.RenewCredentialsRequest, context: Any
    ) -> pilot_service_pb2.RenewCredentialsResponse:
        stamps, lifetime = stamps_to_renew_from_wire(request), self._tokens.lifetime(request.lifetime_s)
        bounds = caller().bounds
        credentials = await self._transactions.read(
            lambda transaction, _: renewable_credentials(transaction, stamps, bounds)
        )
        pilots = [
            pilot_service_pb2.PilotCredential(stamp=each.stamp, token=self._tokens.issue(each, lifetime))
            for each in credentials
        ]
        return pilot_service_pb2.RenewCredentialsResponse(pilots=pilots)

    async def Enrol(self, request: pilot_service_pb2.EnrolRequest, context: Any) -> pilot_service_pb2.EnrolResponse:
        credential = credential_of(caller())
        fields = Fields(request)
        nonce_hash = fields("nonce", nonce_hash_from_wire)
        landed = fields.if_set("queue", queue_from_wire)
        release = fields("release", release_from_wire)
        fields.done()
        address, second_use = caller_address(), self._second_use
        enrolled = await self._transactions.write(
            lambda transaction, state: enrol_pilot(
                transaction, state, credential, landed, nonce_hash, address, second_use, release
            )
        )
        return pilot_service_pb2.EnrolResponse(token=self._bound(credential, enrolled))

    async def RenewToken(
        self, request: pilot_service_pb2.RenewTokenRequest, context: Any
    ) -> pilot_service_pb2.RenewTokenResponse:
        credential = credential_of(caller())
        renewed = await self._transactions.read(lambda transaction, _: renew_pilot(transaction, credential))
        return pilot_service_pb2.RenewTokenResponse(token=self._bound(credential, renewed))

    async def GetBrokerLogin(
        self, request: pilot_service_pb2.GetBrokerLoginRequest, context: Any
    ) -> pilot_service_pb2.GetBrokerLoginResponse:
        stamp = credential_of(caller()).stamp
        is_living = await self._transactions.read(partial(living_queues, stamps=[stamp]))
        if self._make_broker_login is None or not is_living:
            return pilot_service_pb2.GetBrokerLoginResponse()
        login = await self._make_broker_login(stamp)
        return pilot_service_pb2.GetBrokerLoginResponse(username=login.username, password=login.password)

    def _bound(
        self, credential: PilotCredential, result: PilotCredential | EnrolmentRefused
    ) -> pilot_service_pb2.BoundToken:
        """Return the token of an enrolled pilot; raises PermissionDeniedError for one that is refused."""
        if isinstance(result, EnrolmentRefused):
            if result.is_alarm:
                log.error("enrolment secret used again", stamp=credential.stamp, peer=caller_address())
            raise PermissionDeniedError(f"pilot {credential.stamp} is not enrolled: {result.why}")
        return self._tokens.issue_bound(result)

    async def ReportGlideins(
        self, request: pilot_service_pb2.ReportGlideinsRequest, context: Any
    ) -> pilot_service_pb2.ReportGlideinsResponse:
        identity, reports = caller(), glidein_reports_from_wire(request)

        def report(transaction: Any, state: Any) -> pilot_service_pb2.ReportGlideinsResponse:
            results = report_glideins(transaction, state, identity, reports)
            return pilot_service_pb2.ReportGlideinsResponse(
                unknown_stamps=results.unknown, worked_stamps=results.worked, logs_wanted=results.silent
            )

        return await self._transactions.once(
            identity, "ReportGlideins", request, pilot_service_pb2.ReportGlideinsResponse, report
        )

    async def PutPilotLogs(
        self, request: pilot_service_pb2.PutPilotLogsRequest, context: Any
    ) -> pilot_service_pb2.PutPilotLogsResponse:
        identity, fields = caller(), Fields(request)
        fields.faults.unless(len(request.logs) <= MOST_LOGS, "logs", f"are more than {MOST_LOGS}")
        logs = fields("logs", lambda logs: all_from_wire(logs, _pilot_log_from_wire))
        fields.done()
        await self._transactions.write(lambda transaction, _: put_pilot_logs(transaction, identity, logs))
        return pilot_service_pb2.PutPilotLogsResponse()

    async def GetPilotLog(
        self, request: pilot_service_pb2.GetPilotLogRequest, context: Any
    ) -> pilot_service_pb2.GetPilotLogResponse:
        fields = Fields(request)
        stamp = fields.text("stamp")
        fields.done()
        sent, text = await self._transactions.read(lambda transaction, _: get_pilot_log(transaction, stamp))
        return pilot_service_pb2.GetPilotLogResponse(
            log=pilot_service_pb2.PilotLog(stamp=stamp, text=text), sent=time_to_wire(sent)
        )

    async def ListPilots(
        self, request: pilot_service_pb2.ListPilotsRequest, context: Any
    ) -> pilot_service_pb2.ListPilotsResponse:
        wanted = pilot_filter_from_wire(request)

        def show(transaction: Any, _: Any) -> pilot_service_pb2.ListPilotsResponse:
            pilots = list_pilots(transaction, wanted)
            return pilot_service_pb2.ListPilotsResponse(pilots=[pilot_to_wire(pilot) for pilot in pilots])

        return await self._transactions.read(show)

    async def DrainPilots(
        self, request: pilot_service_pb2.DrainPilotsRequest, context: Any
    ) -> pilot_service_pb2.DrainPilotsResponse:
        identity, (pilots, reason) = caller(), pilots_to_drain_from_wire(request)

        def drain(transaction: Any, state: Any) -> pilot_service_pb2.DrainPilotsResponse:
            done = drain_pilots(transaction, state, identity, pilots, reason, evict=request.evict)
            return pilot_service_pb2.DrainPilotsResponse(unknown_stamps=done.unknown, drained=len(done.stamps))

        return await self._transactions.once(
            identity, "DrainPilots", request, pilot_service_pb2.DrainPilotsResponse, drain
        )

    async def RevokePilots(
        self, request: pilot_service_pb2.RevokePilotsRequest, context: Any
    ) -> pilot_service_pb2.RevokePilotsResponse:
        identity, wanted, reason = caller(), pilots_to_revoke_from_wire(request), request.reason

        def revoke(transaction: Transaction, state: ServerState) -> pilot_service_pb2.RevokePilotsResponse:
            done = revoke_pilots(transaction, state, identity, wanted, reason)
            return pilot_service_pb2.RevokePilotsResponse(revoked=len(done.stamps), unknown_stamps=done.unknown)

        response = await self._transactions.once(
            identity, "RevokePilots", request, pilot_service_pb2.RevokePilotsResponse, revoke
        )
        where = "/".join(filter(None, (request.site, request.ce, request.queue)))
        log.warning(
            "pilots revoked",
            count=response.revoked,
            place=where,
            stamps=list(wanted.stamps[:10]),
            by=identity.owner,
            reason=reason,
        )
        return response


MOST_LOGS = 100
"""The most outputs of one call."""


def _pilot_log_from_wire(message: pilot_service_pb2.PilotLog) -> tuple[str, str]:
    fields = Fields(message)
    log_of_pilot = (fields.text("stamp"), fields.text("text"))
    fields.done()
    return log_of_pilot


def pilots_to_drain_from_wire(
    message: pilot_service_pb2.DrainPilotsRequest,
) -> tuple[Sequence[str] | TreeNode | NodeId, str]:
    """Return the pilots to drain, by stamps or by their place, and the reason."""
    fields = Fields(message)
    fields("stamps", check_count)
    stamps = fields("stamps", lambda stamps: all_from_wire(stamps, text_from_wire))
    site, ce, queue, node = (fields.text(name) for name in ("site", "ce", "queue", "node"))
    reason = fields("reason", reason_from_wire)
    fields.faults.unless(bool(site) is not bool(stamps), "stamps", "give either stamps or a site")
    fields.faults.unless(bool(site) or not (ce or queue or node), "site", "is missing, but a part of it is named")
    fields.faults.unless(not (node and (ce or queue)), "node", "is named with its site alone")
    fields.done()
    if stamps:
        return stamps, reason
    return NodeId(site, node) if node else TreeNode(site, ce or None, queue or None), reason


def pilots_to_revoke_from_wire(message: pilot_service_pb2.RevokePilotsRequest) -> PilotsToRevoke:
    """Return the pilots to revoke; raises InvalidInputError with all faults of the request."""
    fields = Fields(message)
    fields("stamps", check_count)
    stamps = fields("stamps", lambda stamps: all_from_wire(stamps, text_from_wire))
    site, ce, queue = fields.text("site"), fields.text("ce"), fields.text("queue")
    fields("reason", reason_from_wire)
    fields.faults.unless(bool(site) is not bool(stamps), "stamps", "give either stamps or a site")
    fields.faults.unless(bool(site) or not (ce or queue), "site", "is missing, but a CE or a queue is named")
    fields.done()
    return PilotsToRevoke(stamps, TreeNode(site, ce or None, queue or None) if site else None)


def _new_stamp() -> str:
    return secrets.token_hex(16)


class NodeServicer(node_service_pb2_grpc.NodeServiceServicer):
    """Shows nodes and slots, and sets attributes of nodes."""

    def __init__(self, transactions: Transactions) -> None:
        self._transactions = transactions

    async def ListSlots(
        self, request: node_service_pb2.ListSlotsRequest, context: Any
    ) -> node_service_pb2.ListSlotsResponse:
        fields = Fields(request)
        queue = fields.if_set("queue", queue_from_wire)
        constraint = fields("constraint", text_from_wire)
        node = fields.if_set("node", _node_id)
        fields.done()

        def show(transaction: Transaction, _: ServerState) -> node_service_pb2.ListSlotsResponse:
            slots = list_slots(transaction, queue, constraint, node=node, ads_wanted=request.ads_wanted)
            return node_service_pb2.ListSlotsResponse(slots=[slot_info_to_wire(each.info, each.ad) for each in slots])

        return await self._transactions.read(show)

    async def CountSlots(
        self, request: node_service_pb2.CountSlotsRequest, context: Any
    ) -> node_service_pb2.CountSlotsResponse:
        fields = Fields(request)
        site = fields("site", text_from_wire)
        fields.done()
        nodes = await self._transactions.read(lambda transaction, _: count_slots(transaction, site))
        return node_service_pb2.CountSlotsResponse(nodes=map(_node_slots_to_wire, nodes))

    async def RequestReports(
        self, request: node_service_pb2.RequestReportsRequest, context: Any
    ) -> node_service_pb2.RequestReportsResponse:
        fields = Fields(request)
        node = fields("node", _node_id)
        fields.done()

        def ask(transaction: Transaction, state: ServerState) -> node_service_pb2.RequestReportsResponse:
            stamps = request_reports(transaction, state, node)
            return node_service_pb2.RequestReportsResponse(pilot_stamps=stamps, requested=time_to_wire(transaction.now))

        return await self._transactions.once(
            caller(), "RequestReports", request, node_service_pb2.RequestReportsResponse, ask
        )

    async def SetNodeAttributes(
        self, request: node_service_pb2.SetNodeAttributesRequest, context: Any
    ) -> node_service_pb2.SetNodeAttributesResponse:
        identity = caller()
        fields = Fields(request)
        nodes = fields("nodes", node_ids_from_wire)
        leadership = fields.if_set("turn", leadership_from_wire)
        fields.done()
        change = (dict(request.set), tuple(request.unset))

        def set_them(transaction: Transaction, state: ServerState) -> node_service_pb2.SetNodeAttributesResponse:
            lock_leadership_of(transaction, identity, leadership)
            agent = leadership.agent if leadership is not None else ""
            changed = set_node_attributes(transaction, state, identity, nodes, change, agent)
            return node_service_pb2.SetNodeAttributesResponse(nodes=map(node_settings_to_wire, changed))

        return await self._transactions.once(
            identity, "SetNodeAttributes", request, node_service_pb2.SetNodeAttributesResponse, set_them
        )

    async def ListNodeAttributes(
        self, request: node_service_pb2.ListNodeAttributesRequest, context: Any
    ) -> node_service_pb2.ListNodeAttributesResponse:
        fields = Fields(request)
        nodes = fields("nodes", node_ids_from_wire)
        fields.done()

        def show(transaction: Transaction, _: ServerState) -> node_service_pb2.ListNodeAttributesResponse:
            return node_service_pb2.ListNodeAttributesResponse(
                nodes=map(node_settings_to_wire, list_node_attributes(transaction, nodes))
            )

        return await self._transactions.read(show)

    async def GetNodeUse(
        self, request: node_service_pb2.GetNodeUseRequest, context: Any
    ) -> node_service_pb2.GetNodeUseResponse:
        fields = Fields(request)
        attribute = fields("attribute", name_from_wire)
        fields("queues", check_count)
        queues = fields("queues", lambda queues: all_from_wire(queues, queue_from_wire))
        fields.done()
        bounds = caller().bounds
        return await self._transactions.read(
            lambda transaction, state: farm_use_to_wire(get_node_use(transaction, state, queues, attribute, bounds))
        )
