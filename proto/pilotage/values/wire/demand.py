"""Demand and supply ↔ wire."""

from __future__ import annotations

from datetime import timedelta

from pilotage.rpc.wire import section_from_wire, section_to_wire
from pilotage.v1 import pool_service_pb2
from pilotage.values.demand import Demand, DemandAnswer, EmptyReturns, IdleSlots, LimitRoom, QueueSupply
from pilotage.values.wire.amounts import amounts_from_wire, amounts_to_wire


def demand_answer_to_wire(answer: DemandAnswer) -> pool_service_pb2.GetDemandResponse:
    """Return the message of the demand and the supplies."""
    return pool_service_pb2.GetDemandResponse(
        demands=[_demand_to_wire(demand) for demand in answer.demands],
        supplies=[_supply_to_wire(supply) for supply in answer.supplies],
        set_supply=_supply_to_wire(answer.set_supply),
        limits=[
            pool_service_pb2.LimitRoom(
                limit=each.limit, room=each.room, queue_indexes=each.queue_indexes, counts_cores=each.counts_cores
            )
            for each in answer.limits
        ],
    )


def demand_answer_from_wire(message: pool_service_pb2.GetDemandResponse) -> DemandAnswer:
    """Return the demand and the supplies."""
    return DemandAnswer(
        tuple(_demand_from_wire(demand) for demand in message.demands),
        tuple(_supply_from_wire(supply) for supply in message.supplies),
        _supply_from_wire(message.set_supply),
        tuple(
            LimitRoom(each.limit, each.room, tuple(each.queue_indexes), each.counts_cores) for each in message.limits
        ),
    )


def _demand_to_wire(demand: Demand) -> pool_service_pb2.Demand:
    return pool_service_pb2.Demand(
        pool_id=demand.pool_id,
        vo=demand.vo,
        waiting=demand.waiting,
        request=amounts_to_wire(demand.amounts),
        cpu_time_s=demand.cpu_time_s or 0.0,
        queue_indexes=demand.queue_indexes,
        limit_indexes=demand.limit_indexes,
    )


def _demand_from_wire(message: pool_service_pb2.Demand) -> Demand:
    return Demand(
        message.pool_id,
        message.vo,
        message.waiting,
        amounts_from_wire(message.request),
        tuple(message.queue_indexes),
        message.cpu_time_s or None,
        tuple(message.limit_indexes),
    )


def _supply_to_wire(supply: QueueSupply) -> pool_service_pb2.QueueSupply:
    message = pool_service_pb2.QueueSupply(
        known=supply.known,
        banned=supply.banned,
        pilots_waiting=supply.pilots_waiting,
        pilots_running=supply.pilots_running,
        idle_cpus=supply.idle_cpus,
        throttled=supply.throttled,
        held=supply.held,
        idle=[pool_service_pb2.IdleSlots(free=amounts_to_wire(idle.free), count=idle.count) for idle in supply.idle],
        empty_returns=_empty_to_wire(supply.empty_returns) if supply.empty_returns is not None else None,
    )
    section_to_wire(supply.parameters, message.parameters)
    return message


def _supply_from_wire(message: pool_service_pb2.QueueSupply) -> QueueSupply:
    return QueueSupply(
        message.known,
        message.banned,
        message.pilots_waiting,
        message.pilots_running,
        tuple(IdleSlots(amounts_from_wire(idle.free), idle.count) for idle in message.idle),
        section_from_wire(message.parameters),
        message.throttled,
        message.held,
        _empty_from_wire(message.empty_returns) if message.HasField("empty_returns") else None,
    )


def _empty_to_wire(returns: EmptyReturns) -> pool_service_pb2.EmptyReturns:
    return pool_service_pb2.EmptyReturns(
        pilots=returns.pilots, sendings=returns.sendings, last_s=returns.last_ago.total_seconds()
    )


def _empty_from_wire(message: pool_service_pb2.EmptyReturns) -> EmptyReturns:
    return EmptyReturns(message.pilots, message.sendings, timedelta(seconds=message.last_s))
