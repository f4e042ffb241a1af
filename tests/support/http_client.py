"""A client of the HTTP gateway, of the standard library."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """Status, headers by lower-case name, and content."""

    status: int
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.content)

    @property
    def fields(self) -> list[str]:
        """The paths of the violations in a problem."""
        return [each["field"] for each in self.json["violations"]]


@dataclass(frozen=True, slots=True)
class ServerSentEvent:
    """An event; `name` is "message" unless it has another one."""

    id: str
    name: str
    data: Any


class HttpClient:
    """Calls with this token, each over a new connection; no token = without the header."""

    def __init__(self, address: str, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        self._address = address
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._tls = tls

    def call(self, verb: str, path: str, body: Any = None, **headers: str) -> HttpAnswer:
        """Send a JSON body, or bytes as they are; underscores in names of headers stand for dashes."""
        with closing(self._connection()) as connection:
            response = self._send(connection, verb, path, body, headers)
            return HttpAnswer(response.status, _headers(response), response.read())

    def result(self, verb: str, path: str, body: Any = None, **headers: str) -> Any:
        """Return the JSON of a call that succeeds."""
        answer = self.call(verb, path, body, **headers)
        assert answer.status == http.client.OK, answer
        return answer.json

    def events(self, path: str, **headers: str) -> Iterator[ServerSentEvent]:
        """Yield the events of a stream; the connection lasts as long as the iterator."""
        with closing(self._connection()) as connection:
            response = self._send(connection, "GET", path, None, headers)
            assert response.status == http.client.OK, response.read()
            assert _headers(response)["content-type"].startswith("text/event-stream")
            fields: dict[str, str] = {}
            for line in response:
                name, _, text = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = text
                    continue
                yield ServerSentEvent(fields.get("id", ""), fields.get("event", "message"), json.loads(fields["data"]))
                fields = {}

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._address, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(self._address, timeout=TIMEOUT_S, context=self._tls)

    def _send(
        self, connection: http.client.HTTPConnection, verb: str, path: str, body: Any, headers: Mapping[str, str]
    ) -> http.client.HTTPResponse:
        content = body if body is None or isinstance(body, bytes) else json.dumps(body)
        more = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(verb, path, content, {**self._headers, **more})
        return connection.getresponse()


def _headers(response: http.client.HTTPResponse) -> dict[str, str]:
    return {name.lower(): text for name, text in response.getheaders()}
