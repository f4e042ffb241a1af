"""A job ends, and a webhook hears of it: server, pilot and notifier as real processes."""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from support.commands import Command, environment_of, up_command

pytestmark = pytest.mark.process

Received = queue.Queue[tuple[dict[str, str], dict[str, Any]]]


@contextmanager
def web_server(*statuses: int) -> Iterator[tuple[str, Received]]:
    """Run a web server that answers with these statuses, the last one repeated; yields its URL and the requests."""
    received: Received = queue.Queue()
    left = list(statuses)

    class Hook(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(left.pop(0) if len(left) > 1 else left[0])
            self.end_headers()
            received.put((dict(self.headers.items()), body))

        def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002 - the library's own name
            """Print nothing."""

    with HTTPServer(("127.0.0.1", 0), Hook) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/hook", received
        finally:
            server.shutdown()
            thread.join()


def test_webhook_hears_of_failure_and_end(tmp_path: Path) -> None:
    jobs = tmp_path / "jobs.toml"
    with web_server(204) as (url, received), up_command(tmp_path / "data") as up:
        up.start()
        pilotage = Command(environment_of(tmp_path, PILOTAGE_DATA=str(up.data)))
        jobs.write_text(
            f'executable = "/bin/sh"\narguments = "-c \'exit {{code}}\'"\nparameters = {{code = [3, 0]}}\n'
            f'notify = {{url = "{url}", secret = "wine"}}\n'
        )
        submitted = pilotage.run("submit", jobs, "--json")
        assert submitted.returncode == 0, submitted.stderr
        first, last = json.loads(submitted.stdout)["jobs"]
        found = dict[str, dict[str, Any]]()
        while len(found) < 2:
            headers, body = received.get(timeout=120)
            assert headers["Pilotage-Signature"].startswith("sha256=")
            assert headers["Pilotage-Notification"] == str(body["id"])
            found[body["occasion"]] = body
    assert found["failure"]["job"]["id"] == first
    assert "exit code 3" in found["failure"]["text"]
    assert (found["end"]["states"], found["end"]["last_job"]) == ({"DONE": 1, "FAILED": 1}, last)
