"""The Python API: `Client` has all calls of users and operators, over jobs, the grid, races, routes and the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, overload

from pilotage.accounts import Quota, split_account, split_group
from pilotage.errors import Faults
from pilotage.resources.selection import EligibleCEs, EligibleNodes, EligibleQueues, NodeType, down_to, node_type
from pilotage.resources.tree import QueueId
from pilotage.rpc.wire import queue_to_wire, quota_to_wire, section_to_wire, time_to_wire
from pilotage.v1 import (
    diagnosis_service_pb2,
    identity_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    pool_service_pb2,
    race_service_pb2,
    resource_service_pb2,
    route_service_pb2,
    share_service_pb2,
)
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.job_calls import JobCalls
from pilotage_client.notifications import NotificationCalls
from pilotage_client.operations import OperationsCalls, node_parts

NodeName: TypeAlias = tuple[str, str]
"""A node's site and its host name."""


class OperatorCalls(Connection):
    """Calls of operators: tree, bans, black holes, pilots, nodes, shares; and identities."""

    def tree(self) -> resource_service_pb2.GetTreeResponse:
        """Return the active tree as it was given."""
        return self._resources.GetTree(resource_service_pb2.GetTreeRequest())

    def put_tree(self, text: str, format_name: str, *, dry_run: bool = False) -> resource_service_pb2.PutTreeResponse:
        """Activate a new version of the tree, or only return its changes; raises InvalidInputError with all faults."""
        request = resource_service_pb2.PutTreeRequest(
            request_id=new_request_id(), text=text, format=format_name, validate_only=dry_run
        )
        return self._resources.PutTree(request, timeout=300)

    def ban(self, node: Sequence[str], *, reason: str, until: datetime | None = None) -> resource_service_pb2.BanInfo:
        """Ban a site, CE or queue (1 to 3 names); `until` None = until the ban is removed."""
        site, ce, queue = node_parts(node)
        request = resource_service_pb2.BanRequest(
            request_id=new_request_id(),
            site=site,
            ce=ce,
            queue=queue,
            reason=reason,
            until=time_to_wire(until),
        )
        return self._resources.Ban(request).ban

    def unban(self, node: Sequence[str]) -> list[resource_service_pb2.BanInfo]:
        """Remove the bans of a site, CE or queue (1 to 3 names) and return them."""
        site, ce, queue = node_parts(node)
        request = resource_service_pb2.UnbanRequest(request_id=new_request_id(), site=site, ce=ce, queue=queue)
        return list(self._resources.Unban(request).bans)

    def bans(self) -> list[resource_service_pb2.BanInfo]:
        """Return the present bans."""
        return list(self._resources.ListBans(resource_service_pb2.ListBansRequest()).bans)

    def throttles(self) -> list[resource_service_pb2.Throttle]:
        """Return the circuit breakers that are not closed, and those that were closed recently."""
        return list(self._resources.ListThrottles(resource_service_pb2.ListThrottlesRequest()).throttles)

    def hold_place(
        self, place: resource_service_pb2.Place, *, reason: str, until: datetime | None = None
    ) -> tuple[resource_service_pb2.Throttle, list[str]]:
        """Stop jobs to a site, a queue or a node; returns its circuit breaker and warnings.

        `until` None = until `open_place`.
        """
        request = resource_service_pb2.HoldPlaceRequest(
            request_id=new_request_id(), place=place, reason=reason, until=time_to_wire(until)
        )
        held = self._resources.HoldPlace(request)
        return held.throttle, list(held.warnings)

    def open_place(self, place: resource_service_pb2.Place) -> resource_service_pb2.Throttle:
        """Allow jobs to a throttled or held place again."""
        request = resource_service_pb2.OpenPlaceRequest(request_id=new_request_id(), place=place)
        return self._resources.OpenPlace(request).throttle

    def register_pilot(
        self, queue: QueueId | None, *, lifetime_s: float = 0, queue_set: Sequence[str] = ()
    ) -> pilot_service_pb2.PilotCredential:
        """Return stamp and token of one pilot that is started by hand in `queue`; None = in one of `queue_set`."""
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=new_request_id(),
            queue=queue_to_wire(queue) if queue is not None else None,
            count=1,
            lifetime_s=lifetime_s,
            queue_set=queue_set,
        )
        return self._pilots.RegisterPilots(request).pilots[0]

    def drain_pilots(
        self,
        stamps: Sequence[str] = (),
        *,
        place: Sequence[str] = (),
        node: NodeName | None = None,
        reason: str,
        evict: bool = False,
    ) -> pilot_service_pb2.DrainPilotsResponse:
        """Drain pilots by stamps, all of a site, CE or queue (`place`, 1 to 3 names), or all on a node.

        Returns their number, and the stamps that are unknown or have ended.
        """
        site, ce, queue = node_parts(place)
        request = pilot_service_pb2.DrainPilotsRequest(
            request_id=new_request_id(),
            stamps=stamps,
            site=node[0] if node else site,
            ce=ce,
            queue=queue,
            node=node[1] if node else "",
            reason=reason,
            evict=evict,
        )
        return self._pilots.DrainPilots(request)

    def revoke_pilots(
        self, stamps: Sequence[str] = (), *, node: Sequence[str] = (), reason: str
    ) -> pilot_service_pb2.RevokePilotsResponse:
        """End the credentials of pilots by stamps, or of all pilots of a site, CE or queue (`node`, 1 to 3 names)."""
        site, ce, queue = node_parts(node)
        request = pilot_service_pb2.RevokePilotsRequest(
            request_id=new_request_id(), stamps=stamps, site=site, ce=ce, queue=queue, reason=reason
        )
        return self._pilots.RevokePilots(request)

    def set_node_attributes(
        self, nodes: Sequence[NodeName], new: Mapping[str, str], unset: Sequence[str] = ()
    ) -> list[node_service_pb2.NodeSettings]:
        """Set ClassAd expressions as attributes of nodes, and unset others; returns the attributes of each."""
        request = node_service_pb2.SetNodeAttributesRequest(
            request_id=new_request_id(), nodes=map(_node_id, nodes), set=new, unset=unset
        )
        return list(self._nodes.SetNodeAttributes(request).nodes)

    def node_attributes(self, nodes: Sequence[NodeName] = ()) -> list[node_service_pb2.NodeSettings]:
        """Return the attributes set on these nodes; empty = on all."""
        request = node_service_pb2.ListNodeAttributesRequest(nodes=map(_node_id, nodes))
        return list(self._nodes.ListNodeAttributes(request).nodes)

    def set_shares(
        self,
        *,
        factors: Mapping[str, float | None] = MappingProxyType({}),
        quotas: Mapping[str, Quota | None] = MappingProxyType({}),
    ) -> None:
        """Set priority factors by VO/GROUP/OWNER and quotas by VO/GROUP; None restores the server's settings."""
        request = share_service_pb2.SetSharesRequest(request_id=new_request_id())
        for name, factor in factors.items():
            vo, group, owner = split_account(name)
            account = matcher_service_pb2.Account(vo=vo, group=group, owner=owner)
            request.priority_factors.add(account=account, factor=factor)
        for name, quota in quotas.items():
            vo, group = split_group(name)
            request.group_quotas.add(vo=vo, group=group, quota=None if quota is None else quota_to_wire(quota))
        self._shares.SetShares(request)

    def diagnose(self) -> diagnosis_service_pb2.DiagnoseResponse:
        """Return what the server finds on itself, its database, agents, queues and pilots; operators only."""
        return self._diagnosis.Diagnose(diagnosis_service_pb2.DiagnoseRequest())

    def who_am_i(self) -> identity_service_pb2.WhoAmIResponse:
        """Return the identity that the server sees."""
        return self._identity.WhoAmI(identity_service_pb2.WhoAmIRequest())

    def issue_token(self, request: identity_service_pb2.IssueTokenRequest) -> identity_service_pb2.IssueTokenResponse:
        """Create a token; admins only."""
        return self._identity.IssueToken(request)

    def join(self, machine: identity_service_pb2.JoinRequest) -> identity_service_pb2.JoinResponse:
        """Exchange the join token of this connection for the tokens of a machine."""
        return self._identity.Join(machine)

    def revoke_token(self, token: str, *, reason: str) -> identity_service_pb2.Revocation:
        """Revoke a valid token; users may revoke their own."""
        return self._revoke(reason, token=token)

    def revoke_token_id(self, token_id: str, *, issuer: str = "", reason: str) -> identity_service_pb2.Revocation:
        """Revoke a token by its id (jti); `issuer` empty = the server."""
        return self._revoke(reason, token_id=identity_service_pb2.TokenId(id=token_id, issuer=issuer))

    def revoke_tokens_of(self, owner: str = "", *, vo: str = "", reason: str) -> identity_service_pb2.Revocation:
        """Revoke all tokens of an owner that were issued until now.

        `owner` empty = the caller; `vo` empty = all VOs.
        """
        return self._revoke(reason, owner=identity_service_pb2.OwnerTokens(owner=owner, vo=vo))

    def _revoke(self, reason: str, **tokens: Any) -> identity_service_pb2.Revocation:
        request = identity_service_pb2.RevokeTokensRequest(request_id=new_request_id(), reason=reason, **tokens)
        return self._identity.RevokeTokens(request).revocation

    def revocations(self) -> list[identity_service_pb2.Revocation]:
        """Return the revocations that have not expired, the newest first; users see those of their own tokens."""
        return list(self._identity.ListRevocations(identity_service_pb2.ListRevocationsRequest()).revocations)


def _node_id(name: NodeName) -> node_service_pb2.NodeId:
    site, node = name
    return node_service_pb2.NodeId(site=site, node=node)


class GridCalls(Connection):
    """Read-only calls about the grid."""

    def pools(self, vo: str = "") -> list[pool_service_pb2.Pool]:
        """Return the visible pools, those with most waiting jobs first."""
        return list(self._pools.ListPools(pool_service_pb2.ListPoolsRequest(vo=vo)).pools)

    def pilots(
        self,
        *,
        ended: bool = False,
        site: str = "",
        queue: QueueId | None = None,
        node: str = "",
        states: Sequence[str] = (),
        since: datetime | None = None,
        registered_by: str = "",
    ) -> list[pilot_service_pb2.Pilot]:
        """Return the pilots that meet all of the conditions, newest first.

        `since` = that lived then or later. Ended ones are included with `ended`, `states` and `since`.
        """
        request = pilot_service_pb2.ListPilotsRequest(
            ended=ended,
            site=site,
            queue=None if queue is None else queue_to_wire(queue),
            node=node,
            states=[pilot_service_pb2.PilotState.Value(f"PILOT_STATE_{state}") for state in states],
            since=time_to_wire(since),
            registered_by=registered_by,
        )
        return list(self._pilots.ListPilots(request).pilots)

    def slots(
        self, constraint: str = "", *, node: NodeName | None = None, ads_wanted: bool = False
    ) -> list[node_service_pb2.SlotInfo]:
        """Return the slots of live pilots on a node (None = on all), by node and name.

        With a constraint only those whose ad satisfies it.
        """
        on = None if node is None else _node_id(node)
        request = node_service_pb2.ListSlotsRequest(constraint=constraint, ads_wanted=ads_wanted, node=on)
        return list(self._nodes.ListSlots(request).slots)

    def request_reports(self, node: NodeName) -> node_service_pb2.RequestReportsResponse:
        """Make the pilots on a node report their slots at once; `slots` shows as `answered` when each has done so."""
        request = node_service_pb2.RequestReportsRequest(request_id=new_request_id(), node=_node_id(node))
        return self._nodes.RequestReports(request)

    def shares(self, vo: str = "") -> share_service_pb2.ListSharesResponse:
        """Return the visible shares: groups by name, or by group_sort_expression; accounts in the order of matching."""
        return self._shares.ListShares(share_service_pb2.ListSharesRequest(vo=vo))

    def usage(
        self,
        by: Sequence[str] = (),
        *,
        since: date | None = None,
        until: date | None = None,
        vo: str = "",
        groups: Sequence[str] = (),
        owners: Sequence[str] = (),
        sites: Sequence[str] = (),
    ) -> list[share_service_pb2.UsageSum]:
        """Return sums of what ended attempts have used, one for each combination of the keys `by`, ordered by them.

        Keys are "day", "month", "vo", "group", "owner" and "site". Days are in UTC, both included. Empty = all.
        """
        request = share_service_pb2.ListUsageRequest(
            since=since.isoformat() if since else "",
            until=until.isoformat() if until else "",
            vo=vo,
            groups=groups,
            owners=owners,
            sites=sites,
            by=[share_service_pb2.UsageKey.Value(f"USAGE_KEY_{key.upper()}") for key in by],
        )
        return list(self._shares.ListUsage(request).sums)

    def queues(self, *, vo: str = "", site: str = "") -> list[resource_service_pb2.QueueInfo]:
        """Return queues with their effective values and the origins of these, in the tree's order."""
        return list(self._resources.ListQueues(resource_service_pb2.ListQueuesRequest(vo=vo, site=site)).queues)

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: Literal["Queue"] = ...,
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> EligibleQueues: ...

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: Literal["CE"],
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> EligibleCEs: ...

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: Literal["Site"],
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> list[str]: ...

    @overload
    def eligible_nodes(
        self,
        *,
        vo: str = ...,
        level: str,
        ce_select: Mapping[str, object] | None = ...,
        queue_select: Mapping[str, object] | None = ...,
    ) -> EligibleNodes: ...

    def eligible_nodes(
        self,
        *,
        vo: str = "",
        level: str = NodeType.QUEUE,
        ce_select: Mapping[str, object] | None = None,
        queue_select: Mapping[str, object] | None = None,
    ) -> EligibleNodes:
        """Return the eligible part of the tree without banned and empty parts; `vo` empty = the caller's VO.

        `ce_select` and `queue_select` are compared with the values of computing elements and queues, as a Requirements
        section. Level "Queue" gives {SITE: {CE: [QUEUE…]}}, "CE" {SITE: [CE…]}, "Site" [SITE…].

        Raises
        ------
        InvalidInputError
            The level is unknown, or a selection is invalid.
        """
        lowest, faults = node_type(level), Faults()
        request = resource_service_pb2.GetEligibleNodesRequest(vo=vo, level=lowest)
        with faults.within("ce_select"):
            section_to_wire(ce_select or {}, request.ce_select)
        with faults.within("queue_select"):
            section_to_wire(queue_select or {}, request.queue_select)
        faults.raise_any()
        answer = self._resources.GetEligibleNodes(request)
        return down_to(lowest, {site.name: {ce.name: list(ce.queues) for ce in site.ces} for site in answer.sites})


class RaceCalls(Connection):
    """Read-only calls about races."""

    def races(
        self, job_ids: Sequence[int] = (), *, owner: str = "", open_only: bool = False
    ) -> Iterator[race_service_pb2.Race]:
        """Yield the races of these original jobs (empty = of any), the newest original first.

        `owner` empty = the caller, "*" = all visible races; `open_only` = without ended ones.
        """
        request = race_service_pb2.ListRacesRequest(job_ids=job_ids, owner=owner, open=open_only)
        while True:
            page = self._races.ListRaces(request)
            yield from page.races
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def race_costs(self, *, owner: str = "") -> list[race_service_pb2.RaceCost]:
        """Return the costs of ended races, by account."""
        return list(self._races.ListRaces(race_service_pb2.ListRacesRequest(owner=owner, page_size=1)).costs)


class RouteCalls(Connection):
    """Calls about job routers."""

    def routers(self) -> list[route_service_pb2.Router]:
        """Return the job routers by name, with the routes of their last reports."""
        return list(self._routes.ListRoutes(route_service_pb2.ListRoutesRequest()).routers)

    def explain_routes(self, job_id: int) -> route_service_pb2.ExplainRoutesResponse:
        """Return the verdict of every route on a job."""
        return self._routes.ExplainRoutes(route_service_pb2.ExplainRoutesRequest(job_id=job_id))

    def give_up_router(self, name: str) -> list[route_service_pb2.JobCopy]:
        """Free all jobs of a router that is lost for good; returns its routed jobs, which may still run."""
        copies: list[route_service_pb2.JobCopy] = []
        more = True
        while more:
            request = route_service_pb2.GiveUpCopiesRequest(request_id=new_request_id(), router=name)
            given_up = self._routes.GiveUpCopies(request)
            copies += given_up.copies
            more = given_up.more
        return copies


class Client(JobCalls, NotificationCalls, GridCalls, RaceCalls, RouteCalls, OperatorCalls, OperationsCalls):
    """A connection to a server with one token; raises the errors of `pilotage.errors`."""
