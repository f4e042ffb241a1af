"""What operators do: the tree, bans, pilots, nodes, tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

from pilotage.account_names import split_account, split_group
from pilotage.quotas import Quota
from pilotage.resource_tree import QueueId
from pilotage.v1 import (
    identity_service_pb2,
    matcher_service_pb2,
    node_service_pb2,
    pilot_service_pb2,
    resource_service_pb2,
    share_service_pb2,
)
from pilotage.wire import queue_to_wire, quota_to_wire, time_to_wire
from pilotage_client.connection import Connection, new_request_id

NodeName: TypeAlias = tuple[str, str]
"""A node's site and its host name."""


class OperatorCalls(Connection):
    """The calls that operate the grid, and those about who may."""

    def tree(self) -> resource_service_pb2.GetTreeResponse:
        """Return the tree in force as it was given."""
        return self._resources.GetTree(resource_service_pb2.GetTreeRequest())

    def put_tree(
        self, text: str, format_name: str, *, validate_only: bool = False
    ) -> resource_service_pb2.PutTreeResponse:
        """Bring a new version of the tree, or only see what it would change; all faults come as InvalidInputError."""
        request = resource_service_pb2.PutTreeRequest(
            request_id=new_request_id(), text=text, format=format_name, validate_only=validate_only
        )
        return self._resources.PutTree(request, timeout=300)

    def ban(self, node: Sequence[str], *, reason: str, until: datetime | None = None) -> resource_service_pb2.BanInfo:
        """Take a site, CE or queue (1 to 3 names) out of use; `until` None = until it is taken back."""
        site, ce, queue = _three(node)
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
        """Take back the bans of a site, CE or queue (1 to 3 names) and return them."""
        site, ce, queue = _three(node)
        request = resource_service_pb2.UnbanRequest(request_id=new_request_id(), site=site, ce=ce, queue=queue)
        return list(self._resources.Unban(request).bans)

    def bans(self) -> list[resource_service_pb2.BanInfo]:
        """Return the bans in force."""
        return list(self._resources.ListBans(resource_service_pb2.ListBansRequest()).bans)

    def throttles(self) -> list[resource_service_pb2.Throttle]:
        """Return the places that get no more than single jobs, and those that were opened lately."""
        return list(self._resources.ListThrottles(resource_service_pb2.ListThrottlesRequest()).throttles)

    def hold_place(
        self, place: resource_service_pb2.Place, *, reason: str, until: datetime | None = None
    ) -> tuple[resource_service_pb2.Throttle, list[str]]:
        """Let a site, a queue or a node get no job, and return its throttle and warnings.

        `until` None = until it is opened.
        """
        request = resource_service_pb2.HoldPlaceRequest(
            request_id=new_request_id(), place=place, reason=reason, until=time_to_wire(until)
        )
        held = self._resources.HoldPlace(request)
        return held.throttle, list(held.warnings)

    def open_place(self, place: resource_service_pb2.Place) -> resource_service_pb2.Throttle:
        """Let a place get jobs again that is throttled or held."""
        request = resource_service_pb2.OpenPlaceRequest(request_id=new_request_id(), place=place)
        return self._resources.OpenPlace(request).throttle

    def register_pilot(self, queue: QueueId, *, lifetime_s: float = 0) -> pilot_service_pb2.PilotCredential:
        """Return stamp and token for one pilot that is started by hand in `queue`."""
        request = pilot_service_pb2.RegisterPilotsRequest(
            request_id=new_request_id(), queue=queue_to_wire(queue), count=1, lifetime_s=lifetime_s
        )
        return self._pilots.RegisterPilots(request).pilots[0]

    def drain_pilots(self, stamps: Sequence[str], *, reason: str, evict: bool = False) -> list[str]:
        """Let pilots end; returns the stamps that the server does not know or that have ended."""
        request = pilot_service_pb2.DrainPilotsRequest(
            request_id=new_request_id(), stamps=stamps, reason=reason, evict=evict
        )
        return list(self._pilots.DrainPilots(request).unknown_stamps)

    def set_node_attributes(
        self, nodes: Sequence[NodeName], new: Mapping[str, str], unset: Sequence[str] = ()
    ) -> list[node_service_pb2.NodeSettings]:
        """Set ClassAd expressions as attributes of nodes, and unset others; returns what is set on each now."""
        request = node_service_pb2.SetNodeAttributesRequest(
            request_id=new_request_id(), nodes=map(_node_id, nodes), set=new, unset=unset
        )
        return list(self._nodes.SetNodeAttributes(request).nodes)

    def node_attributes(self, nodes: Sequence[NodeName] = ()) -> list[node_service_pb2.NodeSettings]:
        """Return what is set on these nodes, none named = on all."""
        request = node_service_pb2.ListNodeAttributesRequest(nodes=map(_node_id, nodes))
        return list(self._nodes.ListNodeAttributes(request).nodes)

    def set_shares(
        self,
        *,
        factors: Mapping[str, float | None] = MappingProxyType({}),
        quotas: Mapping[str, Quota | None] = MappingProxyType({}),
    ) -> None:
        """Set priority factors by VO/GROUP/OWNER and quotas by VO/GROUP; None = as the server's settings say again."""
        request = share_service_pb2.SetSharesRequest(request_id=new_request_id())
        for name, factor in factors.items():
            vo, group, owner = split_account(name)
            account = matcher_service_pb2.Account(vo=vo, group=group, owner=owner)
            request.priority_factors.add(account=account, factor=factor)
        for name, quota in quotas.items():
            vo, group = split_group(name)
            request.group_quotas.add(vo=vo, group=group, quota=None if quota is None else quota_to_wire(quota))
        self._shares.SetShares(request)

    def who_am_i(self) -> identity_service_pb2.WhoAmIResponse:
        """Return the identity that the server sees."""
        return self._identity.WhoAmI(identity_service_pb2.WhoAmIRequest())

    def issue_token(self, request: identity_service_pb2.IssueTokenRequest) -> identity_service_pb2.IssueTokenResponse:
        """Make a token for somebody; admins only."""
        return self._identity.IssueToken(request)


def _node_id(name: NodeName) -> node_service_pb2.NodeId:
    site, node = name
    return node_service_pb2.NodeId(site=site, node=node)


def _three(node: Sequence[str]) -> tuple[str, str, str]:
    site, ce, queue = (*node, "", "")[:3]
    return site, ce, queue
