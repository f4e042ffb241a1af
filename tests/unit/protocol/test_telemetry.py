"""Logs: the format of lines, a log that cannot be written, and the headers of traces."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from pilotage.telemetry import TraceContext, read_trace

SCRIPT = """
import structlog
from pilotage.telemetry import set_up_logging
set_up_logging(json=True)
for number in range(3):
    structlog.get_logger().info("line", number=number)
print("done")
"""


def test_each_line_is_json_on_standard_error() -> None:
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["number"] for line in process.stderr.splitlines()] == [0, 1, 2]


def test_unwritable_log_does_not_stop_program() -> None:
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert process.stdout == "done\n"


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.mark.parametrize(
    ("header", "context"),
    [
        (f"00-{TRACE}-{SPAN}-01", TraceContext(TRACE, SPAN, sampled=True)),
        (f"00-{TRACE}-{SPAN}-00", TraceContext(TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-fe", TraceContext(TRACE, SPAN)),
        (f"cc-{TRACE}-{SPAN}-01-of-a-later-version", TraceContext(TRACE, SPAN, sampled=True)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE}-{SPAN}-1", None),
        (f"00-{TRACE}-{SPAN}-01\n", None),
        (f"00-{TRACE}{'a' * 100_000}-{SPAN}-01", None),
        ("", None),
        (b"\xff\x00", None),
        (None, None),
    ],
)
def test_only_a_valid_header_is_read(header: object, context: TraceContext | None) -> None:
    """The rules are those of W3C Trace Context, 3.2 and 4."""
    assert read_trace(header) == context
