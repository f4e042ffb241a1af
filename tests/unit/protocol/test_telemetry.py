"""Logs: where lines go, and what becomes of those that nobody takes."""

from __future__ import annotations

import json
import subprocess
import sys

SCRIPT = """
import structlog
from pilotage.telemetry import set_up_logging
set_up_logging(json=True)
for number in range(3):
    structlog.get_logger().info("line", number=number)
print("done")
"""


def test_a_line_is_one_json_object_on_standard_error() -> None:
    ran = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["number"] for line in ran.stderr.splitlines()] == [0, 1, 2]


def test_work_goes_on_where_the_log_cannot_be_written() -> None:
    with open("/dev/full", "wb") as full:
        ran = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert ran.stdout == "done\n"
