"""Wire ↔ domain for ResourceService and PoolService."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from heapq import nsmallest

from pilotage.resource_tree import QueueId
from pilotage.v1 import pool_service_pb2, resource_service_pb2
from pilotage.wire import queue_to_wire, section_to_wire, time_to_wire
from pilotage_server.core.ban_records import BanRecord, Node
from pilotage_server.core.demand import Demand, QueueSupply
from pilotage_server.core.empty_returns import EmptyReturns
from pilotage_server.core.tree_changes import TreeEffect
from pilotage_server.operations.bans import BanOrder
from pilotage_server.operations.demand import DemandAnswer
from pilotage_server.operations.pool_views import PoolView
from pilotage_server.operations.resources import QueueView
from pilotage_server.rpc.convert_values import Fields, amounts_to_wire, reason_from_wire
from pilotage_server.storage.trees import TreeText

MOST_CHANGES = 1000
"""How many pools a response lists with what they gain and lose."""

MOST_QUEUES_NAMED = 5000
"""How many queues these lists name in all: 10,000 pools times 5,000 queues would be no message any more."""


def tree_effect_to_wire(effect: TreeEffect) -> resource_service_pb2.PutTreeResponse:
    """Return what a tree changes."""
    budget = MOST_QUEUES_NAMED
    changes: list[resource_service_pb2.PoolChange] = []
    for change in effect.changes[:MOST_CHANGES]:
        message = resource_service_pb2.PoolChange(
            pool_id=change.pool_id, gained_count=len(change.gained), lost_count=len(change.lost)
        )
        message.gained.extend(map(queue_to_wire, _first(budget, change.gained)))
        message.lost.extend(map(queue_to_wire, _first(budget - len(message.gained), change.lost)))
        budget -= len(message.gained) + len(message.lost)
        changes.append(message)
    return resource_service_pb2.PutTreeResponse(
        version=effect.version,
        warnings=[str(warning) for warning in effect.warnings],
        changes=changes,
        pools_changed=len(effect.changes),
        jobs_runnable=effect.jobs_runnable,
        jobs_stuck=effect.jobs_stuck,
        pools_rekeyed=effect.pools_rekeyed,
    )


def _first(count: int, queues: Iterable[QueueId]) -> list[QueueId]:
    return nsmallest(count, queues) if count else []


def tree_text_to_wire(tree: TreeText) -> resource_service_pb2.GetTreeResponse:
    """Return the tree in force."""
    return resource_service_pb2.GetTreeResponse(
        version=tree.version,
        text=tree.text,
        format=tree.format,
        created=time_to_wire(tree.created),
        created_by=tree.created_by,
    )


def queue_view_to_wire(view: QueueView) -> resource_service_pb2.QueueInfo:
    """Return the message of a queue with its effective values."""
    message = resource_service_pb2.QueueInfo(
        queue=queue_to_wire(view.id),
        origins=view.origins,
        enabled=view.enabled,
        banned=view.banned,
        pools=view.pools,
        waiting=view.waiting,
        running=view.running,
        pilots=view.pilots,
    )
    section_to_wire(view.parameters, message.parameters)
    return message


def eligible_to_wire(
    sites: Mapping[str, Mapping[str, Sequence[str]]],
) -> resource_service_pb2.GetEligibleNodesResponse:
    """Return the tree of what fits."""
    return resource_service_pb2.GetEligibleNodesResponse(
        sites=[
            resource_service_pb2.EligibleSite(
                name=site,
                ces=[resource_service_pb2.EligibleCe(name=ce, queues=queues) for ce, queues in ces.items()],
            )
            for site, ces in sites.items()
        ]
    )


def ban_from_wire(message: resource_service_pb2.BanRequest) -> BanOrder:
    """Return what is to be banned; raises InvalidInputError with every fault of the request."""
    fields = Fields(message)
    _check_place(fields, message)
    order = BanOrder(_node(message), fields("reason", reason_from_wire), fields.time("until"))
    fields.done()
    return order


def unban_from_wire(message: resource_service_pb2.UnbanRequest) -> Node:
    """Return what is to be used again; raises InvalidInputError with every fault of the request."""
    fields = Fields(message)
    _check_place(fields, message)
    fields.done()
    return _node(message)


_Place = resource_service_pb2.BanRequest | resource_service_pb2.UnbanRequest


def _check_place(fields: Fields, message: _Place) -> None:
    for name in ("site", "ce", "queue"):
        fields.text(name)
    fields.faults.unless(bool(message.site), "site", "is missing")
    fields.faults.unless(bool(message.ce) or not message.queue, "ce", "is missing, but a queue is named")


def _node(message: _Place) -> Node:
    return Node(message.site, message.ce or None, message.queue or None)


def ban_to_wire(record: BanRecord) -> resource_service_pb2.BanInfo:
    """Return the message of a ban."""
    return resource_service_pb2.BanInfo(
        id=record.id,
        site=record.ban.site,
        ce=record.ban.ce or "",
        queue=record.ban.queue or "",
        reason=record.ban.reason,
        until=time_to_wire(record.ban.until),
        by=record.by,
        since=time_to_wire(record.since),
    )


def pool_to_wire(pool: PoolView) -> pool_service_pb2.Pool:
    """Return the message of a pool."""
    message = pool_service_pb2.Pool(
        id=pool.id,
        vo=pool.vo,
        waiting=pool.waiting,
        running=pool.running,
        queues=[queue_to_wire(queue) for queue in pool.queues],
        mapped=time_to_wire(pool.mapped),
        tree_version=pool.tree_version,
        created=time_to_wire(pool.created),
    )
    section_to_wire(pool.requirements, message.requirements)
    return message


def demand_to_wire(answer: DemandAnswer) -> pool_service_pb2.GetDemandResponse:
    """Return the demand and what there is already."""
    return pool_service_pb2.GetDemandResponse(
        demands=[_demand(demand) for demand in answer.demands],
        supplies=[_supply(supply) for supply in answer.supplies],
    )


def _demand(demand: Demand) -> pool_service_pb2.Demand:
    return pool_service_pb2.Demand(
        pool_id=demand.pool_id,
        vo=demand.vo,
        waiting=demand.waiting,
        request=amounts_to_wire(demand.amounts),
        cpu_time_s=demand.cpu_time_s or 0.0,
        queue_indexes=demand.queue_indexes,
    )


def _supply(supply: QueueSupply) -> pool_service_pb2.QueueSupply:
    message = pool_service_pb2.QueueSupply(
        known=supply.known,
        banned=supply.banned,
        pilots_waiting=supply.pilots_waiting,
        pilots_running=supply.pilots_running,
        idle_cpus=sum(idle.free.cpus * idle.count for idle in supply.idle),
        throttled=supply.throttled,
        held=supply.held,
        idle=[pool_service_pb2.IdleSlots(free=amounts_to_wire(idle.free), count=idle.count) for idle in supply.idle],
        empty_returns=_empty_returns(supply.empty_returns) if supply.empty_returns is not None else None,
    )
    section_to_wire(supply.parameters, message.parameters)
    return message


def _empty_returns(returns: EmptyReturns) -> pool_service_pb2.EmptyReturns:
    return pool_service_pb2.EmptyReturns(
        pilots=returns.pilots, sendings=returns.sendings, last_s=returns.last_ago.total_seconds()
    )
