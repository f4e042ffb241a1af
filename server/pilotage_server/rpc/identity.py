"""IdentityService: the caller's identity, tokens that an administrator issues, and revocations of tokens."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version
from typing import Any

import structlog

from pilotage.clock import Clock
from pilotage.errors import InvalidInputError, UnauthenticatedError, Violation
from pilotage.rpc.wire import queue_to_wire, text_from_wire, time_to_wire
from pilotage.v1 import identity_service_pb2, identity_service_pb2_grpc
from pilotage.values.wire.fields import Fields, all_from_wire, name_from_wire, reason_from_wire
from pilotage_server.core.identity import (
    AGENT_NAMES,
    JOINABLE,
    UNBOUND,
    AgentBounds,
    Identity,
    Invitation,
    Role,
    name_fault,
)
from pilotage_server.core.revocations import Revocation
from pilotage_server.operations.put_tree import (
    Worker,
    compare_tree,
    get_tree,
    put_tree_after,
    tree_with_worker,
    try_tree,
)
from pilotage_server.operations.revocations import TokensToRevoke, list_revocations, record_token, revoke_tokens
from pilotage_server.operations.server_state import ServerState
from pilotage_server.rpc.framework.calls import caller, caller_token
from pilotage_server.rpc.framework.scopes import SCOPES
from pilotage_server.rpc.framework.tokens import TokenIssuer, TokenVerifier
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.framework.wire_values import check_not_empty, queue_pattern
from pilotage_server.storage.database.transaction import Transaction

log = structlog.get_logger()


class IdentityServicer(identity_service_pb2_grpc.IdentityServiceServicer):
    """Shows identities, and issues and revokes tokens."""

    def __init__(
        self,
        transactions: Transactions,
        issuer: TokenIssuer,
        verifier: TokenVerifier,
        clock: Clock,
        longest: timedelta,
        authority: Callable[[], str],
    ) -> None:
        self._transactions = transactions
        self._issuer = issuer
        self._verifier = verifier
        self._clock = clock
        self._longest = longest
        self._authority = authority

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
        admin = caller()
        identity, lifetime = self._requested_token(request)
        now = self._clock()
        token = self._issuer.issue(identity, lifetime, now, request.scopes)
        await self._record_tokens(admin, [(identity, token)], now + lifetime)
        return identity_service_pb2.IssueTokenResponse(
            token=token, expires=time_to_wire(now + lifetime), authority=self._authority()
        )

    async def _record_tokens(self, by: Identity, made: Iterable[tuple[Identity, str]], expires: datetime) -> None:
        """Store in the audit that a caller makes tokens that end at this time."""
        ids = [(identity, self._verifier.verify(token, self._clock()).id) for identity, token in made]

        def record(transaction: Transaction, _: ServerState) -> None:
            for identity, token_id in ids:
                record_token(transaction, by, identity, token_id, expires)

        await self._transactions.write(record)

    def _requested_token(self, request: identity_service_pb2.IssueTokenRequest) -> tuple[Identity, timedelta]:
        fields = Fields(request)
        owner, vo = fields("owner", _joinable_name), fields("vo", _joinable_name)
        fields("roles", check_not_empty)
        roles = fields("roles", lambda names: all_from_wire(names, role_for_token))
        groups = fields("groups", lambda names: all_from_wire(names, _group_name))
        bounds = fields("bounds", agent_bounds_from_wire)
        fields("scopes", lambda scopes: all_from_wire(scopes, _known_scope))
        lifetime = fields.length("lifetime_s")
        longest_s = self._longest.total_seconds()
        fields.faults.unless(bool(request.owner.strip()), "owner", "is missing")
        fields.faults.unless(0 < request.lifetime_s <= longest_s, "lifetime_s", f"is not 1 to {longest_s:.0f} s")
        is_agent = not AGENT_NAMES.keys().isdisjoint(roles or ())
        fields.faults.unless(is_agent or bounds == UNBOUND, "bounds", "are for the tokens of agents only")
        joins = request.joined_lifetime_s != 0
        joined = fields.length("joined_lifetime_s")
        if joins:
            fields.faults.unless(
                0 < request.joined_lifetime_s <= longest_s, "joined_lifetime_s", f"is not 1 to {longest_s:.0f} s"
            )
            fields.faults.unless(JOINABLE.issuperset(roles or ()), "roles", "of a join token are user and director")
            is_plain = bounds == UNBOUND and not request.scopes
            fields.faults.unless(is_plain, "joined_lifetime_s", "is for tokens without bounds and scopes")
        fields.done()
        if joins:
            invited = Invitation(frozenset(roles), joined)
            return Identity(owner, vo, groups, frozenset({Role.JOIN}), invitation=invited), lifetime
        return Identity(owner, vo, groups, frozenset(roles), bounds=bounds), lifetime

    async def Join(self, request: identity_service_pb2.JoinRequest, context: Any) -> identity_service_pb2.JoinResponse:
        identity, worker = caller(), _worker_from_wire(request)
        assert identity.invitation is not None, "the token of a call to Join is a join token"
        roles, lifetime = identity.invitation.roles, identity.invitation.lifetime
        now = self._clock()
        response = identity_service_pb2.JoinResponse(expires=time_to_wire(now + lifetime))
        if Role.DIRECTOR in roles:
            await self._add_queue(identity, worker)
            response.queue.CopyFrom(queue_to_wire(worker.queue))
        made = []
        if Role.USER in roles:
            user = replace(identity, roles=frozenset({Role.USER}), invitation=None)
            response.user_token = self._issuer.issue(user, lifetime, now)
            made.append((user, response.user_token))
        if Role.DIRECTOR in roles:
            bounds = AgentBounds(queues=(str(worker.queue),))
            director = Identity(f"director:{worker.name}", "", (), frozenset({Role.DIRECTOR}), bounds=bounds)
            response.director_token = self._issuer.issue(director, lifetime, now)
            made.append((director, response.director_token))
        await self._record_tokens(identity, made, now + lifetime)
        log.info("machine joined", machine=worker.name, roles=sorted(roles), by=identity.owner)
        return response

    async def _add_queue(self, identity: Identity, worker: Worker) -> None:
        """Give the machine a queue in the tree; repeated while other trees come in between."""
        while True:
            present = await self._transactions.read(lambda transaction, _: get_tree(transaction))
            new = await asyncio.to_thread(tree_with_worker, present, worker)
            if new is None:
                return
            tried = await self._transactions.read(partial(try_tree, new=new))
            difference = await asyncio.to_thread(compare_tree, present, new)
            put = partial(put_tree_after, identity=identity, new=new, tried=tried, difference=difference)
            if await self._transactions.write(put):
                return

    async def RevokeTokens(
        self, request: identity_service_pb2.RevokeTokensRequest, context: Any
    ) -> identity_service_pb2.RevokeTokensResponse:
        identity, wanted, reason = caller(), self._tokens_to_revoke(request), request.reason

        def revoke(transaction: Transaction, state: ServerState) -> identity_service_pb2.RevokeTokensResponse:
            revocation = revoke_tokens(transaction, state, identity, wanted, reason)
            return identity_service_pb2.RevokeTokensResponse(revocation=revocation_to_wire(revocation))

        response = await self._transactions.once(
            identity, "RevokeTokens", request, identity_service_pb2.RevokeTokensResponse, revoke
        )
        made = response.revocation
        log.warning(
            "tokens revoked", kind=made.kind, subject=made.subject, issuer=made.issuer, by=made.by, reason=made.reason
        )
        return response

    def _tokens_to_revoke(self, request: identity_service_pb2.RevokeTokensRequest) -> TokensToRevoke:
        fields = Fields(request)
        fields("reason", reason_from_wire)
        given = request.WhichOneof("tokens")
        wanted = None
        if given == "token":
            wanted = fields("token", self._given_token)
        elif given == "token_id":
            wanted = fields("token_id", self._token_of_id)
        elif given == "owner":
            wanted = fields("owner", _tokens_of_owner)
        else:
            fields.faults.add("tokens", "names nothing: give a token, the id of a token, or an owner")
        fields.done()
        assert wanted is not None, "a request without faults names tokens"
        return wanted

    def _given_token(self, text: str) -> TokensToRevoke:
        try:
            token = self._verifier.verify(text.strip(), self._clock())
        except UnauthenticatedError as error:  # the caller's own token is another one, and is valid
            raise InvalidInputError(Violation("", f"needs no revocation: {error}")) from error
        owner = token.identity.owner
        if token.identity.pilot is not None:
            why = f"is that of a pilot, which could renew it: revoke the pilot {token.identity.pilot.stamp}"
            raise InvalidInputError(Violation("", why))
        return TokensToRevoke(owner, token.identity.vo, token.issuer, token.id, token.expires)

    def _token_of_id(self, message: identity_service_pb2.TokenId) -> TokensToRevoke:
        fields = Fields(message)
        id_, issuer = fields("id", name_from_wire), fields.text("issuer") or self._issuer.name
        names = self._verifier.issuer_names
        fields.faults.unless(issuer in names, "issuer", f"is not one of {', '.join(names)}")
        fields.done()
        return TokensToRevoke(issuer=issuer, token_id=id_)

    async def ListRevocations(
        self, request: identity_service_pb2.ListRevocationsRequest, context: Any
    ) -> identity_service_pb2.ListRevocationsResponse:
        identity = caller()

        def show(transaction: Transaction, _: ServerState) -> identity_service_pb2.ListRevocationsResponse:
            found = list_revocations(transaction, identity)
            return identity_service_pb2.ListRevocationsResponse(revocations=map(revocation_to_wire, found))

        return await self._transactions.read(show)


_MACHINE_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,254}")


def _worker_from_wire(request: identity_service_pb2.JoinRequest) -> Worker:
    """Return the machine that joins; letter case of its name does not count."""
    fields = Fields(request)
    name = fields.text("machine").lower()
    valid = _MACHINE_NAME.fullmatch(name) is not None
    fields.faults.unless(valid, "machine", f'"{name}" is not a name of letters, digits, dots, dashes and underscores')
    worker = Worker(name, fields.count("cpus"), fields.count("memory_mib"), fields.count("disk_mib"))
    fields.faults.unless(bool(worker.cpus), "cpus", "is missing")
    fields.done()
    return worker


def revocation_to_wire(revocation: Revocation) -> identity_service_pb2.Revocation:
    """Return the message of a revocation."""
    return identity_service_pb2.Revocation(
        kind=revocation.kind,
        subject=revocation.subject,
        issuer=revocation.issuer,
        owner=revocation.owner,
        vo=revocation.vo,
        reason=revocation.reason,
        by=revocation.by,
        made=time_to_wire(revocation.made),
        expires=time_to_wire(revocation.expires),
    )


def _tokens_of_owner(message: identity_service_pb2.OwnerTokens) -> TokensToRevoke:
    fields = Fields(message)
    owner, vo = fields.text("owner"), fields.text("vo")
    is_pilot = message.owner.startswith("pilot:")
    fields.faults.unless(not is_pilot, "owner", "is a pilot, which could renew its token: revoke the pilot itself")
    fields.done()
    return TokensToRevoke(owner, vo) if owner else TokensToRevoke(caller().owner, vo or caller().vo)


def _known_scope(scope: str) -> str:
    if scope not in SCOPES:
        raise InvalidInputError(Violation("", f'"{scope}" is not one of {", ".join(SCOPES)}'))
    return scope


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


def _joinable_name(name: str) -> str:
    if fault := name_fault(name):
        raise InvalidInputError(Violation("", fault))
    return text_from_wire(name)


def _group_name(name: str) -> str:
    if fault := name_fault(name, may_nest=True):
        raise InvalidInputError(Violation("", fault))
    return text_from_wire(name)


def role_for_token(name: str) -> Role:
    """Return the role of a name; raises InvalidInputError for those that other calls give."""
    allowed = [role for role in Role if role not in {Role.PILOT, Role.ENROLMENT, Role.JOIN}]
    if name not in allowed:
        why = f'"{name}" is not one of {", ".join(allowed)}'
        raise InvalidInputError(Violation("", why))
    return Role(name)
