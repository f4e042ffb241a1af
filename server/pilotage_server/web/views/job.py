"""One job: its story, why it is in its state, attempts, output, files, use and description, with live updates."""

from __future__ import annotations

import codecs
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

from markupsafe import escape
from starlette.responses import Response, StreamingResponse

from pilotage.job_description import render_text
from pilotage.v1 import job_service_pb2
from pilotage_server.web.calls import CallFailedError
from pilotage_server.web.formats import state_name
from pilotage_server.web.live import Emit, LiveResponse, StreamCount, resumed_after
from pilotage_server.web.pages import SECURITY_HEADERS, PageMaker, PageView, Shown, Visit
from pilotage_server.web.sessions import PageError
from pilotage_server.web.views.job_filters import FINAL
from pilotage_server.web.views.jobs import CHANGES

SHOWN_OUTPUT = 64 * 1024
"""Bytes of the output of an ended job on its page, the last ones; the file has all."""


@dataclass(frozen=True, slots=True)
class ShownOutput:
    """Output of a job; `skipped` = bytes before the text, `problem` = why there is none, `partial` = why it stopped."""

    text: str = ""
    skipped: int = 0
    problem: str = ""
    partial: str = ""


def job_id_of(visit: Visit) -> int:
    """Return the id in the path; raises PageError."""
    job_id: int = visit.request.path_params["job_id"]
    if job_id >= 2**63:
        raise PageError(HTTPStatus.NOT_FOUND, f"there is no job {job_id}")
    return job_id


async def collect_job(visit: Visit) -> Shown:
    """Return what the page of a job shows, apart from live output."""
    shown = await collect_state(visit)
    request = job_service_pb2.GetJobDescriptionRequest(job_id=job_id_of(visit))
    description = (await visit.calls("JobService/GetJobDescription", request)).description
    is_error, is_final = bool(visit.query("error")), state_name(shown["job"].state) in FINAL
    output = ShownOutput()
    if is_final:
        output = await _ended_output(visit, shown["job"], description, shown["files"], is_error=is_error)
    return {**shown, "description": description, "output": output, "is_error": is_error, "is_live": not is_final}


async def collect_state(visit: Visit) -> Shown:
    """Return what changes while a job lives: its state, why it is in it, its story, attempts and files."""
    job_id, call = job_id_of(visit), visit.calls
    why = await call("JobService/ExplainJob", job_service_pb2.ExplainJobRequest(job_id=job_id))
    events = await call("JobService/GetJobEvents", job_service_pb2.GetJobEventsRequest(job_id=job_id))
    attempts = await call("JobService/ListAttempts", job_service_pb2.ListAttemptsRequest(job_ids=[job_id]))
    files = await call("JobService/ListOutputFiles", job_service_pb2.ListOutputFilesRequest(job_id=job_id))
    return {
        "job": why.job,
        "why": why,
        "events": events.events,
        "attempts": attempts.attempts,
        "files": files,
        "changes": [CHANGES[verb] for verb in _offered(state_name(why.job.state))],
        "position": events.events[-1].position if events.events else 0,
    }


def _offered(state: str) -> list[str]:
    return [verb for verb in ("release", "hold", "remove") if state in CHANGES[verb].states] or ["reschedule"]


JOB = PageView("/jobs/{job_id:int}", "", ("JobService/ExplainJob",), "job.html", collect_job)


async def _ended_output(visit: Visit, job: Any, description: Any, files: Any, *, is_error: bool) -> ShownOutput:
    """Return the end of the output of a job that has ended."""
    name = description.stderr or "stderr" if is_error else description.stdout or "stdout"
    name = render_text(name, job.cluster, job.process)
    size = next((file.size for file in files.files if file.name == name), 0)
    start = max(0, size - SHOWN_OUTPUT)
    request = job_service_pb2.FollowOutputRequest(
        job_id=job.id, error=is_error, attempt=files.attempt if start else 0, offset=start
    )
    content, partial = bytearray(), ""
    try:
        async with aclosing(visit.calls.stream("JobService/FollowOutput", request)) as pieces:
            async for piece in pieces:
                content += piece.content
                partial = partial or piece.partial
    except CallFailedError as failed:
        return ShownOutput(problem=str(failed))
    return ShownOutput(content.decode("utf-8", "replace"), start, partial=partial)


class JobLife:
    """What happens to a job, as live updates of its page; and its files."""

    def __init__(self, pages: PageMaker) -> None:
        self._pages = pages
        self._count = StreamCount()

    async def follow(self, visit: Visit) -> Response:
        """Return the live updates of a job's page: `state` replaces what shows its state, `output` is added."""
        job_id, after = job_id_of(visit), visit.query("after")
        position = int(after) if after.isascii() and after.isdigit() and len(after) < 19 else 0

        async def follow_state(emit: Emit) -> None:
            await self._follow_state(visit, job_id, position, emit)

        async def follow_output(emit: Emit) -> None:
            await _follow_output(visit, job_id, bool(visit.query("error")), emit)

        return LiveResponse((follow_state, follow_output), self._count)

    async def _follow_state(self, visit: Visit, job_id: int, position: int, emit: Emit) -> None:
        request = job_service_pb2.WatchEventsRequest(job_ids=[job_id], after_position=position)
        async with aclosing(visit.calls.stream("JobService/WatchEvents", request)) as messages:
            async for message in messages:
                if not message.events:
                    await emit("", "", "")
                    continue
                shown = await collect_state(visit)
                await emit("state", self._pages.part(JOB.template, "state", visit, shown), "")
                if state_name(shown["job"].state) in FINAL:
                    return

    async def download(self, visit: Visit) -> Response:
        """Return a file of a job; a browser stores it and does not show it."""
        job_id, checksum = job_id_of(visit), visit.request.path_params["checksum"]
        request = job_service_pb2.DownloadFileRequest(job_id=job_id, checksum=checksum)
        pieces = visit.calls.stream("JobService/DownloadFile", request)
        first = await anext(pieces, None)

        async def contents() -> AsyncIterator[bytes]:
            async with aclosing(pieces):
                if first is not None:
                    yield first.content
                async for piece in pieces:
                    yield piece.content

        name = visit.query("name").rpartition("/")[2] or checksum
        headers = {
            **SECURITY_HEADERS,
            "Cache-Control": "no-store",
            "Content-Disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}",
        }
        return StreamingResponse(contents(), headers=headers, media_type="application/octet-stream")


async def _follow_output(visit: Visit, job_id: int, is_error: bool, emit: Emit) -> None:
    """Emit the output of a job as text; the id of an event is where the browser resumes."""
    attempt, offset = resumed_after(visit.request)
    request = job_service_pb2.FollowOutputRequest(
        job_id=job_id, error=is_error, follow=True, attempt=attempt, offset=offset
    )
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    async with aclosing(visit.calls.stream("JobService/FollowOutput", request)) as pieces:
        async for piece in pieces:
            if not piece.content:
                await emit("", "", "")
                continue
            if attempt and piece.attempt != attempt:
                decoder.reset()
                await emit("output", f"\n[attempt {piece.attempt}]\n", "")
            attempt = piece.attempt
            end = piece.offset + len(piece.content)
            await emit("output", str(escape(decoder.decode(piece.content))), f"{attempt}-{end}")
