"""The Python API: `Client` has all calls of users and operators, over jobs, the grid, races, routes and the tree."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from types import MappingProxyType
from typing import Any, Literal, TypeAlias, overload

from pilotage.accounts import Quota, split_account, split_group
from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.resources.node_types import EligibleCEs, EligibleNodes, EligibleQueues, down_to, node_type
from pilotage.resources.queue_id import QueueId
from pilotage.rpc.wire import queue_to_wire, quota_to_wire, section_to_wire
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
from pilotage_client import models
from pilotage_client.connection import Connection, new_request_id
from pilotage_client.job_calls import JobCalls
from pilotage_client.models.reading import listed, moment_to_wire, one_of, value_of
from pilotage_client.models.tables import Rows
from pilotage_client.notifications import NotificationCalls
from pilotage_client.operations import OperationsCalls, node_parts

NodeName: TypeAlias = tuple[str, str]
"""A node's site and its host name."""


class OperatorCalls(Connection):
    """Calls of operators: tree, bans, black holes, pilots, nodes, shares; and identities."""

    def tree(self) -> models.operations.TreeInfo:
        """Return the active tree as it was given."""
        return value_of(models.operations.TreeInfo, self._resources.GetTree(resource_service_pb2.GetTreeRequest()))

    def put_tree(self, text: str, format_name: str, *, dry_run: bool = False) -> models.operations.TreeChanges:
        """Activate a new version of the tree, or only return its changes; raises InvalidTreeError with all faults."""
        request = resource_service_pb2.PutTreeRequest(
            request_id=new_request_id(), text=text, format=format_name, validate_only=dry_run
        )
        return value_of(models.operations.TreeChanges, self._resources.PutTree(request, timeout=300))

    def ban(self, node: Sequence[str], *, reason: str, until: datetime | None = None) -> models.operations.BanInfo:
        """Ban a site, CE or queue (1 to 3 names); `until` None = until the ban is removed. Raises InvalidInputError."""
        site, ce, queue = node_parts(node)
        request = resource_service_pb2.BanRequest(
            request_id=new_request_id(),
            site=site,
            ce=ce,
            queue=queue,
            reason=reason,
            until=moment_to_wire("until", until),
        )
        return value_of(models.operations.BanInfo, self._resources.Ban(request).ban)

    def unban(self, node: Sequence[str]) -> list[models.operations.BanInfo]:
        """Remove the bans of a site, CE or queue (1 to 3 names) and return them.

        Raises InvalidInputError, NotFoundError.
        """
        site, ce, queue = node_parts(node)
        request = resource_service_pb2.UnbanRequest(request_id=new_request_id(), site=site, ce=ce, queue=queue)
        return [value_of(models.operations.BanInfo, each) for each in self._resources.Unban(request).bans]

    def bans(self) -> list[models.operations.BanInfo]:
        """Return the present bans."""
        bans = self._resources.ListBans(resource_service_pb2.ListBansRequest()).bans
        return [value_of(models.operations.BanInfo, each) for each in bans]

    def throttles(self) -> list[models.operations.ThrottleInfo]:
        """Return the circuit breakers that are not closed, and those that were closed recently."""
        found = self._resources.ListThrottles(resource_service_pb2.ListThrottlesRequest()).throttles
        return list(map(models.operations.throttle_info, found))

    def hold_place(
        self, place: Sequence[str], *, reason: str, until: datetime | None = None
    ) -> tuple[models.operations.ThrottleInfo, list[str]]:
        """Stop jobs to a site, a node or a queue; returns its circuit breaker and warnings.

        `place` has the names of the site, of a site and its node, or of a site, a CE and its queue. `until` None =
        until `open_place`. Raises InvalidInputError.
        """
        request = resource_service_pb2.HoldPlaceRequest(
            request_id=new_request_id(), place=_place(place), reason=reason, until=moment_to_wire("until", until)
        )
        held = self._resources.HoldPlace(request)
        return models.operations.throttle_info(held.throttle), list(held.warnings)

    def open_place(self, place: Sequence[str]) -> models.operations.ThrottleInfo:
        """Allow jobs to a throttled or held place again; `place` is as in `hold_place`.

        Raises InvalidInputError, NotFoundError.
        """
        request = resource_service_pb2.OpenPlaceRequest(request_id=new_request_id(), place=_place(place))
        return models.operations.throttle_info(self._resources.OpenPlace(request).throttle)

    def register_pilot(
        self, queue: QueueId | None, *, lifetime_s: float = 0, queue_set: Sequence[str] = ()
    ) -> models.grid.PilotSecret:
        """Return stamp and token of one pilot that is started by hand in `queue`; None = in one of `queue_set`.

        Raises InvalidInputError, NotFoundError.
        """
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=new_request_id(),
            queue=queue_to_wire(queue) if queue is not None else None,
            count=1,
            lifetime_s=lifetime_s,
            queue_set=listed("queue_set", queue_set),
        )
        return value_of(models.grid.PilotSecret, self._pilots.RegisterPilots(request).pilots[0])

    def drain_pilots(
        self,
        stamps: Sequence[str] = (),
        *,
        place: Sequence[str] = (),
        node: NodeName | None = None,
        reason: str,
        evict: bool = False,
    ) -> models.grid.PilotsChanged:
        """Drain pilots by stamps, all of a site, CE or queue (`place`, 1 to 3 names), or all on a node.

        Returns their number, and the stamps that are unknown or have ended. Raises InvalidInputError.
        """
        site, ce, queue = node_parts(place)
        request = pilot_service_pb2.DrainPilotsRequest(
            request_id=new_request_id(),
            stamps=listed("stamps", stamps),
            site=node[0] if node else site,
            ce=ce,
            queue=queue,
            node=node[1] if node else "",
            reason=reason,
            evict=evict,
        )
        done = self._pilots.DrainPilots(request)
        return models.grid.PilotsChanged(done.drained, tuple(done.unknown_stamps))

    def revoke_pilots(
        self, stamps: Sequence[str] = (), *, node: Sequence[str] = (), reason: str
    ) -> models.grid.PilotsChanged:
        """End the credentials of pilots by stamps, or of all pilots of a site, CE or queue (`node`, 1 to 3 names).

        Raises InvalidInputError.
        """
        site, ce, queue = node_parts(node)
        request = pilot_service_pb2.RevokePilotsRequest(
            request_id=new_request_id(),
            stamps=listed("stamps", stamps),
            site=site,
            ce=ce,
            queue=queue,
            reason=reason,
        )
        done = self._pilots.RevokePilots(request)
        return models.grid.PilotsChanged(done.revoked, tuple(done.unknown_stamps))

    def set_node_attributes(
        self, nodes: Sequence[NodeName], new: Mapping[str, str], unset: Sequence[str] = ()
    ) -> list[models.grid.NodeAttributeSet]:
        """Set ClassAd expressions as attributes of nodes, and unset others; returns the attributes of each.

        Raises InvalidInputError, NotFoundError.
        """
        request = node_service_pb2.SetNodeAttributesRequest(
            request_id=new_request_id(), nodes=map(_node_id, nodes), set=new, unset=listed("unset", unset)
        )
        return list(map(models.grid.node_attributes, self._nodes.SetNodeAttributes(request).nodes))

    def node_attributes(self, nodes: Sequence[NodeName] = ()) -> list[models.grid.NodeAttributeSet]:
        """Return the attributes set on these nodes; empty = on all."""
        request = node_service_pb2.ListNodeAttributesRequest(nodes=map(_node_id, nodes))
        return list(map(models.grid.node_attributes, self._nodes.ListNodeAttributes(request).nodes))

    def set_shares(
        self,
        *,
        factors: Mapping[str, float | None] = MappingProxyType({}),
        quotas: Mapping[str, Quota | None] = MappingProxyType({}),
    ) -> None:
        """Set priority factors by VO/GROUP/OWNER and quotas by VO/GROUP; None restores the server's settings.

        Raises InvalidInputError.
        """
        request = share_service_pb2.SetSharesRequest(request_id=new_request_id())
        for name, factor in factors.items():
            vo, group, owner = split_account(name)
            account = matcher_service_pb2.Account(vo=vo, group=group, owner=owner)
            request.priority_factors.add(account=account, factor=factor)
        for name, quota in quotas.items():
            vo, group = split_group(name)
            request.group_quotas.add(vo=vo, group=group, quota=None if quota is None else quota_to_wire(quota))
        self._shares.SetShares(request)

    def diagnose(self) -> models.operations.Diagnosis:
        """Return what the server finds on itself, its database, agents, queues and pilots; operators only."""
        return models.operations.diagnosis(self._diagnosis.Diagnose(diagnosis_service_pb2.DiagnoseRequest()))

    def who_am_i(self) -> models.accounts.IdentityInfo:
        """Return the identity that the server sees."""
        return value_of(models.accounts.IdentityInfo, self._identity.WhoAmI(identity_service_pb2.WhoAmIRequest()))

    def issue_token(
        self,
        owner: str,
        roles: Sequence[str],
        *,
        lifetime_s: float,
        vo: str = "",
        groups: Sequence[str] = (),
        bounds: models.accounts.AgentLimits | None = None,
        scopes: Sequence[str] = (),
        joined_lifetime_s: float = 0,
    ) -> models.accounts.IssuedToken:
        """Create a token; admins only.

        `bounds` are those of an agent, `scopes` narrow what the roles may do with jobs. Above 0, `joined_lifetime_s`
        makes a join token: `join` exchanges it for tokens with the roles that live so long. Raises InvalidInputError.
        """
        limits = bounds or models.accounts.AgentLimits()
        request = identity_service_pb2.IssueTokenRequest(
            owner=owner,
            vo=vo,
            groups=listed("groups", groups),
            roles=listed("roles", roles),
            lifetime_s=lifetime_s,
            bounds=identity_service_pb2.AgentBounds(
                queues=listed("bounds.queues", limits.queues), vos=listed("bounds.vos", limits.vos), turns=limits.turns
            ),
            scopes=listed("scopes", scopes),
            joined_lifetime_s=joined_lifetime_s,
        )
        return value_of(models.accounts.IssuedToken, self._identity.IssueToken(request))

    def join(
        self, machine: str, *, cpus: int = 0, memory_mib: int = 0, disk_mib: int = 0
    ) -> models.accounts.JoinedMachine:
        """Exchange the join token of this connection for the tokens of a machine; its sizes are those of a worker.

        Raises InvalidInputError.
        """
        request = identity_service_pb2.JoinRequest(machine=machine, cpus=cpus, memory_mib=memory_mib, disk_mib=disk_mib)
        return models.accounts.joined_machine(self._identity.Join(request))

    def revoke_token(self, token: str, *, reason: str) -> models.accounts.RevocationInfo:
        """Revoke a valid token; users may revoke their own. Raises InvalidInputError."""
        return self._revoke(reason, token=token)

    def revoke_token_id(self, token_id: str, *, issuer: str = "", reason: str) -> models.accounts.RevocationInfo:
        """Revoke a token by its id (jti); `issuer` empty = the server. Raises InvalidInputError."""
        return self._revoke(reason, token_id=identity_service_pb2.TokenId(id=token_id, issuer=issuer))

    def revoke_tokens_of(self, owner: str = "", *, vo: str = "", reason: str) -> models.accounts.RevocationInfo:
        """Revoke all tokens of an owner that were issued until now.

        `owner` empty = the caller; `vo` empty = all VOs. Raises InvalidInputError.
        """
        return self._revoke(reason, owner=identity_service_pb2.OwnerTokens(owner=owner, vo=vo))

    def _revoke(self, reason: str, **tokens: Any) -> models.accounts.RevocationInfo:
        request = identity_service_pb2.RevokeTokensRequest(request_id=new_request_id(), reason=reason, **tokens)
        return value_of(models.accounts.RevocationInfo, self._identity.RevokeTokens(request).revocation)

    def revocations(self) -> list[models.accounts.RevocationInfo]:
        """Return the revocations that have not expired, the newest first; users see those of their own tokens."""
        found = self._identity.ListRevocations(identity_service_pb2.ListRevocationsRequest()).revocations
        return [value_of(models.accounts.RevocationInfo, each) for each in found]


def _node_id(name: NodeName) -> node_service_pb2.NodeId:
    site, node = name
    return node_service_pb2.NodeId(site=site, node=node)


def _place(names: Sequence[str]) -> resource_service_pb2.Place:
    match names.split("/", 2) if isinstance(names, str) else names:
        case [site]:
            return resource_service_pb2.Place(site=site)
        case [site, node]:
            return resource_service_pb2.Place(site=site, node=node)
        case [site, ce, queue]:
            return resource_service_pb2.Place(site=site, ce=ce, queue=queue)
        case _:
            why = "is not a place: give the names of SITE, of SITE and NODE, or of SITE, CE and QUEUE"
            raise InvalidInputError(Violation("place", why))


def _pilot_state_number(name: str) -> pilot_service_pb2.PilotState.ValueType:
    return pilot_service_pb2.PilotState.Value(f"PILOT_STATE_{one_of('states', name.upper(), models.grid.PILOT_STATES)}")


def _usage_key_number(name: str) -> share_service_pb2.UsageKey.ValueType:
    return share_service_pb2.UsageKey.Value(
        f"USAGE_KEY_{one_of('by', name.lower(), models.accounts.USAGE_KEYS).upper()}"
    )


class GridCalls(Connection):
    """Read-only calls about the grid."""

    def pools(self, vo: str = "") -> Rows[models.grid.PoolInfo]:
        """Return the visible pools, those with most waiting jobs first."""
        found = self._pools.ListPools(pool_service_pb2.ListPoolsRequest(vo=vo)).pools
        return Rows(value_of(models.grid.PoolInfo, pool) for pool in found)

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
    ) -> Rows[models.grid.PilotStatus]:
        """Return the pilots that meet all of the conditions, newest first.

        `since` = that lived then or later. Ended ones are included with `ended`, `states` and `since`.
        Raises InvalidInputError.
        """
        request = pilot_service_pb2.ListPilotsRequest(
            ended=ended,
            site=site,
            queue=None if queue is None else queue_to_wire(queue),
            node=node,
            states=map(_pilot_state_number, listed("states", states)),
            since=moment_to_wire("since", since),
            registered_by=registered_by,
        )
        return Rows(map(models.grid.pilot_info, self._pilots.ListPilots(request).pilots))

    def slots(
        self, constraint: str = "", *, node: NodeName | None = None, ads_wanted: bool = False
    ) -> Rows[models.grid.SlotDetails]:
        """Return the slots of live pilots on a node (None = on all), by node and name.

        With a constraint only those whose ad satisfies it. Raises InvalidInputError.
        """
        on = None if node is None else _node_id(node)
        request = node_service_pb2.ListSlotsRequest(constraint=constraint, ads_wanted=ads_wanted, node=on)
        return Rows(map(models.grid.slot_info, self._nodes.ListSlots(request).slots))

    def request_reports(self, node: NodeName) -> models.grid.RequestedReports:
        """Make the pilots on a node report their slots at once; `slots` shows as `answered` when each has done so.

        Raises NotFoundError.
        """
        request = node_service_pb2.RequestReportsRequest(request_id=new_request_id(), node=_node_id(node))
        return value_of(models.grid.RequestedReports, self._nodes.RequestReports(request))

    def shares(self, vo: str = "") -> models.accounts.ShareReport:
        """Return the visible shares: groups by name, or by group_sort_expression; accounts in the order of matching."""
        return models.accounts.share_report(self._shares.ListShares(share_service_pb2.ListSharesRequest(vo=vo)))

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
    ) -> list[models.accounts.UsageTotal]:
        """Return sums of what ended attempts have used, one for each combination of the keys `by`, ordered by them.

        Keys are "day", "month", "vo", "group", "owner" and "site". Days are in UTC, both included. Empty = all.
        Raises InvalidInputError.
        """
        request = share_service_pb2.ListUsageRequest(
            since=since.isoformat() if since else "",
            until=until.isoformat() if until else "",
            vo=vo,
            groups=listed("groups", groups),
            owners=listed("owners", owners),
            sites=listed("sites", sites),
            by=map(_usage_key_number, listed("by", by)),
        )
        return [value_of(models.accounts.UsageTotal, each) for each in self._shares.ListUsage(request).sums]

    def queues(self, *, vo: str = "", site: str = "") -> Rows[models.grid.QueueInfo]:
        """Return queues with their effective values and the origins of these, in the tree's order."""
        found = self._resources.ListQueues(resource_service_pb2.ListQueuesRequest(vo=vo, site=site)).queues
        return Rows(map(models.grid.queue_info, found))

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
        level: str = "Queue",
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
    ) -> Iterator[models.routes.RaceInfo]:
        """Yield the races of these original jobs (empty = of any), the newest original first.

        `owner` empty = the caller, "*" = all visible races; `open_only` = without ended ones.
        """
        request = race_service_pb2.ListRacesRequest(job_ids=job_ids, owner=owner, open=open_only)
        while True:
            page = self._races.ListRaces(request)
            yield from map(models.routes.race_info, page.races)
            if not page.next_page_token:
                return
            request.page_token = page.next_page_token

    def race_costs(self, *, owner: str = "") -> list[models.routes.RaceCostInfo]:
        """Return the costs of ended races, by account."""
        request = race_service_pb2.ListRacesRequest(owner=owner, page_size=1)
        return list(map(models.routes.race_cost_info, self._races.ListRaces(request).costs))


class RouteCalls(Connection):
    """Calls about job routers."""

    def routers(self) -> list[models.routes.RouterInfo]:
        """Return the job routers by name, with the routes of their last reports."""
        return list(
            map(models.routes.router_info, self._routes.ListRoutes(route_service_pb2.ListRoutesRequest()).routers)
        )

    def explain_routes(self, job_id: int) -> models.routes.RouteExplanation:
        """Return the verdict of every route on a job. Raises NotFoundError."""
        answer = self._routes.ExplainRoutes(route_service_pb2.ExplainRoutesRequest(job_id=job_id))
        return models.routes.route_explanation(job_id, answer)

    def give_up_router(self, name: str) -> list[models.routes.RoutedJobInfo]:
        """Free all jobs of a router that is lost for good; returns its routed jobs, which may still run.

        Raises NotFoundError.
        """
        copies: list[models.routes.RoutedJobInfo] = []
        more = True
        while more:
            request = route_service_pb2.GiveUpCopiesRequest(request_id=new_request_id(), router=name)
            given_up = self._routes.GiveUpCopies(request)
            copies += map(models.routes.routed_job_info, given_up.copies)
            more = given_up.more
        return copies


class Client(JobCalls, NotificationCalls, GridCalls, RaceCalls, RouteCalls, OperatorCalls, OperationsCalls):
    """A connection to a server with one token.

    Besides the errors that its text names, every call raises UnauthenticatedError if the token is not valid,
    PermissionDeniedError if it lacks the role or the ownership, and ServerUnreachableError or OverloadedError if no
    server answers.
    """
