"""IdentityService: the caller's identity, and tokens that an administrator issues."""

from __future__ import annotations

from datetime import timedelta
from importlib.metadata import version
from typing import Any

from pilotage.clock import Clock
from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.wire import text_from_wire, time_to_wire
from pilotage.v1 import identity_service_pb2, identity_service_pb2_grpc
from pilotage.values.wire.fields import Fields, all_from_wire
from pilotage_server.core.identity import AGENT_NAMES, UNBOUND, AgentBounds, Identity, Role, name_fault
from pilotage_server.rpc.framework.calls import caller_token
from pilotage_server.rpc.framework.tokens import TokenIssuer
from pilotage_server.rpc.framework.wire_values import check_not_empty


class IdentityServicer(identity_service_pb2_grpc.IdentityServiceServicer):
    """Shows identities and issues tokens."""

    def __init__(self, issuer: TokenIssuer, clock: Clock, longest: timedelta) -> None:
        self._issuer = issuer
        self._clock = clock
        self._longest = longest

    async def WhoAmI(
        self, request: identity_service_pb2.WhoAmIRequest, context: Any
    ) -> identity_service_pb2.WhoAmIResponse:
        token = caller_token()
        identity = token.identity
        return identity_service_pb2.WhoAmIResponse(
            owner=identity.owner,
            vo=identity.vo,
            groups=identity.groups,
            roles=sorted(identity.roles),
            expires=time_to_wire(token.expires),
            server_version=version("pilotage"),
            bounds=identity_service_pb2.AgentBounds(
                queues=identity.bounds.queues, vos=identity.bounds.vos, turns=identity.bounds.turns
            ),
        )

    async def IssueToken(
        self, request: identity_service_pb2.IssueTokenRequest, context: Any
    ) -> identity_service_pb2.IssueTokenResponse:
        identity, lifetime = self._requested_token(request)
        now = self._clock()
        token = self._issuer.issue(identity, lifetime, now)
        return identity_service_pb2.IssueTokenResponse(token=token, expires=time_to_wire(now + lifetime))

    def _requested_token(self, request: identity_service_pb2.IssueTokenRequest) -> tuple[Identity, timedelta]:
        fields = Fields(request)
        owner, vo = fields("owner", _joinable_name), fields("vo", _joinable_name)
        fields("roles", check_not_empty)
        roles = fields("roles", lambda names: all_from_wire(names, role_for_token))
        groups = fields("groups", lambda names: all_from_wire(names, _group_name))
        bounds = fields("bounds", agent_bounds_from_wire)
        lifetime = fields.length("lifetime_s")
        longest_s = self._longest.total_seconds()
        fields.faults.unless(bool(request.owner.strip()), "owner", "is missing")
        fields.faults.unless(0 < request.lifetime_s <= longest_s, "lifetime_s", f"is not 1 to {longest_s:.0f} s")
        is_agent = not AGENT_NAMES.keys().isdisjoint(roles or ())
        fields.faults.unless(is_agent or bounds == UNBOUND, "bounds", "are for the tokens of agents only")
        fields.done()
        return Identity(owner, vo, groups, frozenset(roles), bounds=bounds), lifetime


def agent_bounds_from_wire(message: identity_service_pb2.AgentBounds) -> AgentBounds:
    """Return the bounds of an agent's token."""
    fields = Fields(message)
    bounds = AgentBounds(
        fields("queues", lambda patterns: all_from_wire(patterns, queue_pattern)),
        fields("vos", lambda names: all_from_wire(names, text_from_wire)),
        fields("turns", lambda names: all_from_wire(names, text_from_wire)),
    )
    fields.done()
    return bounds


def queue_pattern(text: str) -> str:
    """Return a pattern of queues; raises InvalidInputError unless it has the form SITE/CE/QUEUE."""
    if text.count("/") < 2 or not all(text.split("/", 2)):
        raise InvalidInputError(Violation("", f'"{text}" is not SITE/CE/QUEUE, with "*" for any of them'))
    return text_from_wire(text)


def _joinable_name(name: str) -> str:
    if fault := name_fault(name):
        raise InvalidInputError(Violation("", fault))
    return text_from_wire(name)


def _group_name(name: str) -> str:
    if fault := name_fault(name, may_nest=True):
        raise InvalidInputError(Violation("", fault))
    return text_from_wire(name)


def role_for_token(name: str) -> Role:
    """Return the role of a name; raises InvalidInputError for those of pilots, which enrolment gives."""
    allowed = [role for role in Role if role not in {Role.PILOT, Role.ENROLMENT}]
    if name not in allowed:
        why = f'"{name}" is not one of {", ".join(allowed)}'
        raise InvalidInputError(Violation("", why))
    return Role(name)
