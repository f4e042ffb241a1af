"""A node: its pilots, its slots with their jobs, and the attributes that operators have set on it."""

from __future__ import annotations

import re
from http import HTTPStatus

from pilotage.v1 import job_service_pb2, matcher_service_pb2, node_service_pb2, pilot_service_pb2
from pilotage_server.web.pages import PageView, Shown, Visit
from pilotage_server.web.sessions import PageError
from pilotage_server.web.views.slots import kind_of_slot

MOST_SLOTS = 500
MOST_PILOTS = 50


async def collect_node(visit: Visit) -> Shown:
    """Return the node that the address names, and the ad of the slot that it names."""
    call, site, name, slot = visit.calls, visit.query("site"), visit.query("node"), visit.query("slot")
    if not site or not name:
        raise PageError(HTTPStatus.NOT_FOUND, "the address names no node")
    node = node_service_pb2.NodeId(site=site, node=name)
    request = node_service_pb2.ListSlotsRequest(node=node, ads_wanted=bool(slot))
    slots = sorted((await call("NodeService/ListSlots", request)).slots, key=_place_in_list)
    pilots_of_node = pilot_service_pb2.ListPilotsRequest(site=site, node=name)
    pilots = (await call("PilotService/ListPilots", pilots_of_node)).pilots
    if not pilots and not slots:
        raise PageError(HTTPStatus.NOT_FOUND, f"node {name} of {site} has no pilot")
    shown = slots[:MOST_SLOTS]
    settings = []
    if visit.may("NodeService/ListNodeAttributes"):
        wanted = node_service_pb2.ListNodeAttributesRequest(nodes=[node])
        found = (await call("NodeService/ListNodeAttributes", wanted)).nodes
        settings = [setting for each in found for setting in each.settings]
    ids = sorted({each.slot.job_id for each in shown if each.slot.job_id})
    runs = [job_service_pb2.IdRun(first=job_id, count=1) for job_id in ids]
    theirs = job_service_pb2.JobCondition(owner="*", runs=runs)  # without the jobs that the visitor may not see
    listed = job_service_pb2.ListJobsRequest(condition=theirs, copies=True)
    jobs = (await call("JobService/ListJobs", listed)).jobs if ids else ()
    return {
        "site": site,
        "node": name,
        "pilots": pilots[:MOST_PILOTS],
        "pilot_count": len(pilots),
        "states": {value: text.removeprefix("PILOT_STATE_") for text, value in pilot_service_pb2.PilotState.items()},
        "slots": [
            (each, kind_of_slot(each.slot.state, each.slot.activity, divided=_is_divided(each.slot))) for each in shown
        ],
        "slot_count": len(slots),
        "jobs": {job.id: job for job in jobs},
        "settings": settings,
        "ads": [each for each in shown if each.slot.name == slot],
    }


def _place_in_list(listed: node_service_pb2.SlotInfo) -> str:
    """Return a key by which slot2 comes before slot10."""
    return re.sub(r"\d+", lambda digits: digits[0].zfill(9), listed.slot.name)


def _is_divided(slot: matcher_service_pb2.SlotState) -> bool:
    return slot.partitionable and not slot.free.cpus


NODE = PageView("/node", "", ("NodeService/ListSlots", "PilotService/ListPilots"), "node.html", collect_node)
