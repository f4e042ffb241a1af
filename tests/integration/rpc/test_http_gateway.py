"""The HTTP gateway of a running server: the same calls, tokens, refusals and streams as over gRPC."""

from __future__ import annotations

import hashlib
import socket
import ssl
from collections.abc import Iterator
from contextlib import closing
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from pilotage.job_description import JobDescription
from pilotage_server.core.identity import Role
from support.http_client import HttpClient
from support.server import RunningServer, running_server
from support.wire_grid import WireGrid, a_job

pytestmark = pytest.mark.process

LOOPBACK = "127.0.0.1:0"
OPEN_CALLS = 3
HEAD_S = 1
ORIGIN = "https://portal.example.org"


@pytest.fixture(scope="module")
def http_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    folder = tmp_path_factory.mktemp("server") / "data"
    settings = {
        "http_listen": LOOPBACK,
        "max_open_calls_per_owner": OPEN_CALLS,
        "handshake_s": HEAD_S,
        "web_page": False,
    }
    with running_server(folder, **settings) as server:
        yield server


@pytest.fixture
def grid(http_server: RunningServer) -> Iterator[WireGrid]:
    grid = WireGrid(http_server)
    grid.put_tree()
    yield grid
    grid.close()


def client_of(grid: WireGrid, *roles: Role, owner: str = "alice") -> HttpClient:
    return HttpClient(grid.server.http_address, grid.server.token(*roles, owner=owner, vo=grid.vo))


def submitted(client: HttpClient, **description: Any) -> int:
    body = {"descriptions": [{"executable": "/bin/true", **description}]}
    (job_id,) = client.result("POST", "/v1/jobs", body)["job_ids"]
    assert isinstance(job_id, int), "64-bit integers are numbers"
    return job_id


def test_job_goes_from_submission_to_output(grid: WireGrid) -> None:
    client, content = client_of(grid), b"input" * 200_000
    checksum = hashlib.sha256(content).hexdigest()
    assert client.result("POST", "/v1/files/missing", {"checksums": [checksum]}) == {"missing": [checksum]}
    assert client.result("PUT", f"/v1/files/{checksum}", content) == {"checksum": checksum}
    job_id = submitted(client, input_files=[{"name": "data", "checksum": checksum, "size": len(content)}])
    assert "wait" in client.result("GET", f"/v1/jobs/{job_id}/why")["summary"]
    assert client.call("GET", f"/v1/jobs/{job_id}/files/{checksum}").content == content

    pilot = grid.start_pilot()
    pilot.request_jobs()
    pilot.finish(job_id, outputs={"stdout": b"hello\n", "out/log": b"logged"})

    ended = client.result("POST", "/v1/jobs/wait", {"job_ids": [job_id], "timeout_s": 20})
    assert (ended["all_final"], ended["jobs"][0]["state"]) == (True, "JOB_STATE_DONE")
    assert client.result("GET", f"/v1/jobs/{job_id}") == ended["jobs"][0]
    files = {each["name"]: each for each in client.result("GET", f"/v1/jobs/{job_id}/files")["files"]}
    log = client.call("GET", f"/v1/jobs/{job_id}/files/{files['out/log']['checksum']}")
    assert (log.headers["content-type"], log.content) == ("application/octet-stream", b"logged")
    output = list(client.events(f"/v1/jobs/{job_id}/output"))
    assert [(event.id, event.name) for event in output] == [("1-6", "message"), ("1-6", "message"), ("", "end")]
    assert (output[0].data["content"], output[1].data["over"]) == ("aGVsbG8K", True)
    (resumed, _, _) = client.events(f"/v1/jobs/{job_id}/output", Last_Event_ID="1-4")
    assert resumed.data["content"] == "bwo=", "the rest behind 4 bytes"
    story = client.result("GET", f"/v1/jobs/{job_id}/events")["events"]
    assert [each["to"] for each in story][-1] == "JOB_STATE_DONE"
    (attempt,) = client.result("GET", f"/v1/jobs/{job_id}/attempts")["attempts"]
    assert attempt["node"] == "node1"


def test_jobs_are_listed_in_pages_and_changed(grid: WireGrid) -> None:
    client = client_of(grid)
    first, second = submitted(client), submitted(client, hold=True)
    path = "/v1/jobs?condition.states=JOB_STATE_WAITING&condition.states=JOB_STATE_HELD&page_size=1"
    page = client.result("GET", path)
    rest = client.result("GET", f"{path}&page_token={page['next_page_token']}")
    assert [job["id"] for job in (*page["jobs"], *rest["jobs"])] == [first, second]
    change = {"job_ids": [first, second], "change": "JOB_CHANGE_REMOVE", "reason": "not needed"}
    answers = [client.result("POST", "/v1/jobs/change", change, Idempotency_Key="once") for _ in range(2)]
    assert answers[0] == answers[1], "a repeated call has one effect"
    assert [each["refusal"] for each in answers[0]["results"]] == ["", ""]
    assert client.result("GET", "/v1/jobs?condition.states=JOB_STATE_WAITING")["jobs"] == []
    queue = "queue.site=SITE&queue.ce=ce1&queue.queue=long"
    grid.start_pilot()
    assert len(client_of(grid, Role.OPERATOR).result("GET", f"/v1/pilots?{queue}")["pilots"]) >= 1


def test_refusals_are_problems_with_their_status(grid: WireGrid) -> None:
    client, operator = client_of(grid), client_of(grid, Role.OPERATOR, owner="olga")
    job_id = submitted(client)
    ban = {"site": "SITE", "reason": "broken cooling"}
    assert operator.call("POST", "/v1/bans", ban).status == HTTPStatus.OK
    assert operator.call("DELETE", "/v1/bans?site=SITE").status == HTTPStatus.OK
    anonymous = HttpClient(grid.server.http_address)
    large = anonymous.call("POST", "/v1/jobs", b"x" * 2**20)
    assert (large.status, large.headers["www-authenticate"]) == (HTTPStatus.UNAUTHORIZED, "Bearer")
    assert client.call("PATCH", "/v1/jobs", {}).headers["allow"] == "GET, HEAD, POST"
    for who, verb, path, body, expected, reason in (
        (client_of(grid, owner="mallory"), "GET", f"/v1/jobs/{job_id}", None, HTTPStatus.NOT_FOUND, "NOT_FOUND"),
        (client, "POST", "/v1/bans", ban, HTTPStatus.FORBIDDEN, "PERMISSION_DENIED"),
        (client, "GET", f"/v1/jobs/{job_id}/output", None, HTTPStatus.CONFLICT, "STATE_CONFLICT"),
        (client, "GET", "/v1/nothing", None, HTTPStatus.NOT_FOUND, "NOT_FOUND"),
        (client, "PATCH", "/v1/jobs", {}, HTTPStatus.METHOD_NOT_ALLOWED, "METHOD_NOT_ALLOWED"),
        (client, "POST", "/v1/jobs", b"x" * (16 * 2**20 + 1), HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "BODY_TOO_LARGE"),
        (client, "PUT", f"/v1/files/{'0' * 64}", b"other", HTTPStatus.BAD_REQUEST, "INVALID_INPUT"),
    ):
        answer = who.call(verb, path, body)
        assert (answer.status, answer.json["reason"]) == (expected, reason), answer
        assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    ("verb", "path", "body", "field"),
    [
        ("POST", "/v1/jobs", {"descriptions": [{}, {"executable": "x", "count": "two"}]}, "descriptions[1].count"),
        ("POST", "/v1/jobs", {"descriptions": [{"executable": "x", "cuont": 2}]}, "descriptions[0].cuont"),
        ("POST", "/v1/jobs", {"descriptions": [{"attributes": {"a": {"flag": 1}}}]}, ".attributes[a].flag"),
        ("POST", "/v1/jobs", {"descriptions": {"executable": "x"}}, "descriptions"),
        ("POST", "/v1/jobs", {"descriptions": [{"executable": ""}]}, "descriptions[0].executable"),
        ("POST", "/v1/jobs/change", {"job_ids": [1], "change": "REMOVE"}, "change"),
        ("POST", "/v1/jobs", b"{", ""),
        ("POST", "/v1/jobs", [], ""),
        ("POST", "/v1/jobs?group=x", {}, "group"),
        ("PUT", "/v1/jobs/7/description", {"job_id": 8}, "job_id"),
        ("GET", "/v1/jobs?page_size=many", None, "page_size"),
        ("GET", "/v1/jobs?newest_first=yes", None, "newest_first"),
        ("GET", "/v1/jobs?condition.owner=a&condition.owner=b", None, "condition.owner"),
        ("GET", "/v1/slots?queue.place=x", None, "queue.place"),
        ("GET", "/v1/jobs/first", None, "job_ids[0]"),
    ],
)  # fmt: skip
def test_invalid_request_names_its_field(grid: WireGrid, verb: str, path: str, body: Any, field: str) -> None:
    answer = client_of(grid).call(verb, path, body)
    assert answer.status == HTTPStatus.BAD_REQUEST, answer
    assert any(each.endswith(field) for each in answer.fields), answer.json


def test_call_beyond_the_quota_is_refused_until_others_end(grid: WireGrid) -> None:
    client = client_of(grid)
    streams = [client.events("/v1/events") for _ in range(OPEN_CALLS)]
    for stream in streams:
        next(stream)
    refused = client.call("GET", "/v1/identity")
    assert (refused.status, refused.headers["retry-after"]) == (HTTPStatus.TOO_MANY_REQUESTS, "1")
    assert "open calls" in refused.json["detail"]
    assert grid.state_of(grid.submit(a_job())[0]) == "WAITING", "calls over gRPC have quotas of their own"
    for stream in streams:
        stream.close()  # type: ignore[attr-defined] # a generator: the server notices that its client is gone
    while client.call("GET", "/v1/identity").status == HTTPStatus.TOO_MANY_REQUESTS:
        pass


def test_connection_without_a_whole_request_is_closed(http_server: RunningServer) -> None:
    host, port = http_server.http_address.split(":")
    with socket.create_connection((host, int(port)), timeout=20) as slow:
        slow.sendall(b"GET /v1/jobs HTTP/1.1\r\nHost: x\r\n")
        assert slow.recv(100) == b"", "the server has closed it"


def test_feed_resumes_after_a_restart(tmp_path: Path) -> None:
    with running_server(tmp_path / "data", http_listen=LOOPBACK) as server, closing(WireGrid(server)) as grid:
        client = client_of(grid)
        first = submitted(client)
        feed = client.events("/v1/events")
        last = next(feed)
        assert [event["job_id"] for event in last.data["events"]] == [first]
        second = submitted(client)
        assert next(feed).data["events"][0]["job_id"] == second
        assert server.stop() == 0
        assert list(feed) == [], "a stopping server ends its streams without the event `end`"
        server.start()
        client = client_of(grid)
        third = submitted(client)
        resumed = client.events("/v1/events?until_now=true", Last_Event_ID=last.id)
        seen = [event["job_id"] for message in resumed for event in message.data.get("events", [])]
        assert seen == [second, third]


def test_gateway_beyond_loopback_is_encrypted_and_lets_pages_of_origins_call(tmp_path: Path) -> None:
    settings = {"http_listen": "0.0.0.0:0", "http_origins": [ORIGIN]}
    with running_server(tmp_path / "data", **settings) as server:
        address = server.http_address.replace("0.0.0.0", "127.0.0.1")
        trust = ssl.create_default_context(cafile=str(server.data / "tls" / "authority.pem"))
        client = HttpClient(address, server.token(), trust)
        assert client.result("GET", "/v1/identity")["owner"] == "alice"
        with closing(WireGrid(server)) as grid:
            assert grid.put_tree() == 1, "gRPC, on loopback, stays without TLS"
        asks = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        answers = [client.call("OPTIONS", "/v1/jobs", Origin=origin, **asks) for origin in (ORIGIN, "https://other")]
        allowed = [answer.headers.get("access-control-allow-origin") for answer in answers]
        assert allowed == [ORIGIN, None]
        assert [answer.status for answer in answers] == [HTTPStatus.OK, HTTPStatus.BAD_REQUEST]
        own = {"Sec_Fetch_Site": "same-origin"}
        logged_in = client.call("POST", "/login", f"token={server.token()}".encode(), **own)
        assert "; Secure" in logged_in.headers["set-cookie"]


def test_preflight_is_refused_by_default(http_server: RunningServer) -> None:
    client = HttpClient(http_server.http_address)
    answer = client.call("OPTIONS", "/v1/jobs", Origin=ORIGIN, **{"Access-Control-Request-Method": "POST"})
    assert (answer.status, answer.headers.get("access-control-allow-origin")) == (HTTPStatus.METHOD_NOT_ALLOWED, None)
    described = client.result("GET", "/openapi.json")
    assert described["paths"]["/v1/jobs/{job_id}"]["get"]["operationId"] == "GetJob"


def test_web_page_can_be_turned_off(http_server: RunningServer) -> None:
    assert HttpClient(http_server.http_address).call("GET", "/").status == HTTPStatus.NOT_FOUND


def test_description_as_json_is_the_submitted_one(grid: WireGrid) -> None:
    client = client_of(grid)
    (job_id,) = grid.submit(JobDescription("/bin/echo", arguments="a 'b c'", request_memory_mib=2**33))
    description = client.result("GET", f"/v1/jobs/{job_id}/description")["description"]
    assert (description["arguments"], description["request_memory_mib"]) == ("a 'b c'", 2**33)
    edited = client.result("PUT", f"/v1/jobs/{job_id}/description", {"description": {**description, "name": "new"}})
    assert edited["job"]["name"] == "new"
