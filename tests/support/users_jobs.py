"""A user of a real server: jobs by the wire."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pilotage.classads.evaluation import Ad
from pilotage.classads.library import AdValue
from pilotage.v1 import job_service_pb2, jobs_pb2
from pilotage.v1.job_service_pb2_grpc import JobServiceStub
from pilotage.v1.values_pb2 import Value
from support.server import RunningServer, request_id


@dataclass
class RealJobs:
    """A user of a real server."""

    server: RunningServer

    def submit(self, jobs: int = 1, *, executable: str = "simulate", files: Sequence[Any] = (), **ad: Any) -> list[int]:
        attributes = {name: Value(flag=each) if each is True else Value(text=each) for name, each in ad.items()}
        description = jobs_pb2.JobDescription(
            executable=executable, attributes=attributes, count=jobs, input_files=files
        )
        request = job_service_pb2.SubmitJobsRequest(request_id=request_id(), descriptions=[description])
        return list(self._call("SubmitJobs", request).job_ids)

    def change(self, change: str, job_id: int) -> None:
        number = job_service_pb2.JobChange.Value(f"JOB_CHANGE_{change.upper()}")
        request = job_service_pb2.ChangeJobsRequest(request_id=request_id(), job_ids=[job_id], change=number)
        self._call("ChangeJobs", request)

    def state(self, job_id: int) -> str:
        job = self._call("GetJobs", job_service_pb2.GetJobsRequest(job_ids=[job_id])).jobs[0]
        return jobs_pb2.JobState.Name(job.state).removeprefix("JOB_STATE_")

    def ad(self, job_id: int) -> dict[str, AdValue]:
        """Return the ad of a job, as people see it."""
        return Ad.read(self._call("GetJobAd", job_service_pb2.GetJobAdRequest(job_id=job_id)).ad).plain()

    def output(self, job_id: int) -> dict[str, bytes]:
        with self.server.channel(self.server.token()) as channel:
            stub = JobServiceStub(channel)
            files = stub.ListOutputFiles(job_service_pb2.ListOutputFilesRequest(job_id=job_id)).files
            asked = [job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=file.checksum) for file in files]
            pieces = [b"".join(piece.content for piece in stub.DownloadFile(each)) for each in asked]
        return dict(zip((file.name for file in files), pieces, strict=True))

    def _call(self, method: str, request: Any) -> Any:
        with self.server.channel(self.server.token()) as channel:
            return getattr(JobServiceStub(channel), method)(request)
