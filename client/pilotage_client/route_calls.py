"""What people ask of routes: which there are, what they say to a job; and a router that is given up."""

from __future__ import annotations

from pilotage.v1 import route_service_pb2
from pilotage_client.connection import Connection, new_request_id


class RouteCalls(Connection):
    """The calls about job routers."""

    def routers(self) -> list[route_service_pb2.Router]:
        """Return the job routers by name, with the routes that they have last told of."""
        return list(self._routes.ListRoutes(route_service_pb2.ListRoutesRequest()).routers)

    def explain_routes(self, job_id: int) -> route_service_pb2.ExplainRoutesResponse:
        """Return what every route says to a job."""
        return self._routes.ExplainRoutes(route_service_pb2.ExplainRoutesRequest(job_id=job_id))

    def give_up_router(self, name: str) -> list[route_service_pb2.JobCopy]:
        """Free all jobs of a router that will never answer for its copies; returns these, which may still run."""
        copies: list[route_service_pb2.JobCopy] = []
        more = True
        while more:
            request = route_service_pb2.GiveUpCopiesRequest(request_id=new_request_id(), router=name)
            given_up = self._routes.GiveUpCopies(request)
            copies += given_up.copies
            more = given_up.more
        return copies
