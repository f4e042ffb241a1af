"""ListWorkflows and GetWorkflow."""

from __future__ import annotations

from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.v1 import job_service_pb2
from pilotage.values.wire.dependencies import kind_to_wire
from pilotage.values.wire.fields import Fields
from pilotage_server.core.jobs.clusters import WorkflowStep, WorkflowView
from pilotage_server.operations.jobs.workflows import list_workflows, view_workflow, view_workflow_of
from pilotage_server.rpc.framework.calls import caller
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.jobs.wire import cluster_page_size, cluster_to_wire, counts_to_wire


class WorkflowCalls:
    """The methods that show workflows."""

    def __init__(self, transactions: Transactions) -> None:
        self._workflow_transactions = transactions

    async def ListWorkflows(
        self, request: job_service_pb2.ListWorkflowsRequest, context: Any
    ) -> job_service_pb2.ListWorkflowsResponse:
        identity, fields = caller(), Fields(request)
        owner, page_token = fields.text("owner"), fields.text("page_token")
        page_size = fields("page_size", cluster_page_size)
        fields.done()
        page = await self._workflow_transactions.read(
            lambda transaction, _: list_workflows(transaction, identity, owner, page_size, page_token)
        )
        workflows = [cluster_to_wire(each) for each in page.clusters]
        return job_service_pb2.ListWorkflowsResponse(workflows=workflows, next_page_token=page.next_page_token)

    async def GetWorkflow(
        self, request: job_service_pb2.GetWorkflowRequest, context: Any
    ) -> job_service_pb2.GetWorkflowResponse:
        identity, fields = caller(), Fields(request)
        workflow, job_id = fields.count("id"), fields.count("job_id")
        fields.done()
        if (workflow > 0) is (job_id > 0):
            raise InvalidInputError(Violation("", "names no single workflow; set either id or job_id"))

        def view(transaction: Any, _: Any) -> job_service_pb2.GetWorkflowResponse:
            found = (
                view_workflow(transaction, identity, workflow)
                if workflow
                else view_workflow_of(transaction, identity, job_id)
            )
            return _workflow_to_wire(found)

        return await self._workflow_transactions.read(view)


def _workflow_to_wire(found: WorkflowView) -> job_service_pb2.GetWorkflowResponse:
    edges = (
        job_service_pb2.WorkflowEdge(parent=parent, child=child, kind=kind_to_wire(kind))
        for kind, parent, child in found.edges
    )
    return job_service_pb2.GetWorkflowResponse(
        workflow=cluster_to_wire(found.summary), steps=map(_step_to_wire, found.steps), edges=edges
    )


def _step_to_wire(step: WorkflowStep) -> job_service_pb2.WorkflowStep:
    return job_service_pb2.WorkflowStep(
        first=step.ids.start,
        jobs=len(step.ids),
        name=step.name,
        counts=counts_to_wire(step.counts),
        outside=step.outside,
    )
