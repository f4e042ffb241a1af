"""Workflows: a list, and the graph of one with the states of its jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from itertools import accumulate, pairwise
from typing import Any
from urllib.parse import urlencode

from pilotage.v1 import job_service_pb2
from pilotage_server.web.formats import KINDS, number_text, state_name
from pilotage_server.web.graphs import BOX_WIDTH, drawn_graph
from pilotage_server.web.pages import PageView, Shown, Visit
from pilotage_server.web.sessions import PageError
from pilotage_server.web.views.job_filters import jobs_address

PAGE = 50
"""Workflows on a page."""

LONGEST_TEXT = 26
"""Characters of a name that a box has room for; longer names are cut there, and are whole in the table."""

KIND_TEXTS: Mapping[str, str] = {
    "AFTER_OK": "until all its jobs are DONE",
    "AFTER": "until its jobs have started",
    "AFTER_ANY": "until its jobs have ended, however",
    "AFTER_SETTLED": "until its jobs have ended or cannot run",
}
"""What an edge waits for, for people."""

_WORST = ("FAILED", "HELD", "RACING", "RUNNING", "SUSPENDED", "COMPLETING", "MATCHED", "WAITING", "RECEIVED")
_ORDER = (*_WORST, "BLOCKED", "REMOVED", "DONE")
"""States in the order in which one of them stands for all jobs of a step."""

GONE = "NOT STORED"


async def collect_workflows(visit: Visit) -> Shown:
    """Return a page of workflows, the newest first: of the owner in the address, else all that the visitor sees."""
    owner = visit.query("owner")
    request = job_service_pb2.ListWorkflowsRequest(owner=owner or "*", page_size=PAGE, page_token=visit.query("page"))
    found = await visit.calls("JobService/ListWorkflows", request)
    fields = {name: text for name, text in (("owner", owner), ("page", found.next_page_token)) if text}
    return {
        "workflows": found.workflows,
        "owner": owner,
        "sees_all": visit.sees_all,
        "further": urlencode(fields) if found.next_page_token else "",
        "is_first": not visit.query("page"),
        "jobs_address": jobs_address,
    }


WORKFLOWS = PageView("/workflows", "Workflows", ("JobService/ListWorkflows",), "workflows.html", collect_workflows)


@dataclass(frozen=True, slots=True)
class StepBox:
    """A step as it is drawn and listed; `state` is the one that stands for its jobs, `text` it with its number.

    `address` = where its jobs are seen, "" = none is stored. `parts` = begin, width and kind of the parts of its bar.
    `waits` = places and names of its parents, and until when.
    """

    place: int
    step: Any
    name: str
    state: str
    text: str
    parts: Sequence[tuple[float, float, str]]
    address: str
    waits: Sequence[tuple[int, str, str]]
    x: float
    y: float

    @property
    def short_name(self) -> str:
        """The name as far as the box has room for it."""
        return self.name if len(self.name) <= LONGEST_TEXT else self.name[: LONGEST_TEXT - 1] + "\u2026"

    @property
    def kind(self) -> str:
        """The kind of its state, which has a colour."""
        return KINDS.get(self.state, "off")


async def collect_workflow(visit: Visit) -> Shown:
    """Return a workflow with the drawing of its graph."""
    workflow: int = visit.request.path_params["workflow"]
    if not 0 < workflow < 2**63:
        raise PageError(HTTPStatus.NOT_FOUND, f"there is no workflow {workflow}")
    found = await visit.calls("JobService/GetWorkflow", job_service_pb2.GetWorkflowRequest(id=workflow))
    pairs = [(edge.parent, edge.child) for edge in found.edges]
    drawn = await asyncio.to_thread(drawn_graph, len(found.steps), pairs)  # may take a tenth of a second
    kinds = [_kind_name(edge) for edge in found.edges]
    names = [_name(step) for step in found.steps]
    waits: list[list[tuple[int, str, str]]] = [[] for _ in names]
    for (parent, child), kind in zip(pairs, kinds, strict=True):
        waits[child].append((parent, names[parent], KIND_TEXTS[kind]))
    return {
        "workflow": found.workflow,
        "boxes": [
            _box(place, step, names[place], waits[place], corner)
            for place, (step, corner) in enumerate(zip(found.steps, drawn.boxes, strict=True))
        ],
        "edges": list(zip(drawn.paths, kinds, strict=True)),
        "kinds": {kind: text for kind, text in KIND_TEXTS.items() if kind in kinds},
        "drawn": drawn,
        "jobs_address": jobs_address,
    }


WORKFLOW = PageView("/workflows/{workflow:int}", "", ("JobService/GetWorkflow",), "workflow.html", collect_workflow)


def _kind_name(edge: Any) -> str:
    return job_service_pb2.DependencyKind.Name(edge.kind).removeprefix("DEPENDENCY_KIND_")


def _name(step: Any) -> str:
    if step.name:
        return f"{step.name} \u2026" if step.jobs > 1 else str(step.name)
    return f"jobs {step.first}\u2013{step.first + step.jobs - 1}" if step.jobs > 1 else f"job {step.first}"


def _box(
    place: int, step: Any, name: str, waits: Sequence[tuple[int, str, str]], corner: tuple[float, float]
) -> StepBox:
    counts = {state_name(each.state): each.jobs for each in step.counts}
    state = next((each for each in _ORDER if each in counts), GONE)
    text = state
    if step.jobs > 1 and counts:
        of_all = "" if counts[state] == step.jobs else f" of {number_text(step.jobs)}"
        text = f"{number_text(counts[state])}{of_all} {state}"
    ordered = [each for each in reversed(_ORDER) if each in counts]
    ends = accumulate((counts[each] * BOX_WIDTH / step.jobs for each in ordered), initial=0.0)
    parts = [
        (round(begin, 1), round(end - begin, 1), KINDS[each])
        for (begin, end), each in zip(pairwise(ends), ordered, strict=True)
    ]
    address = "" if state == GONE else f"/jobs/{step.first}" if step.jobs == 1 else jobs_address(step)
    return StepBox(place, step, name, state, text, parts if step.jobs > 1 else [], address, waits, *corner)
