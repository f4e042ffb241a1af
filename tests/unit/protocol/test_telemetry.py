"""Logs: the format of lines, and a log that cannot be written."""

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


def test_each_line_is_json_on_standard_error() -> None:
    process = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60, check=True)
    assert [json.loads(line)["number"] for line in process.stderr.splitlines()] == [0, 1, 2]


def test_unwritable_log_does_not_stop_program() -> None:
    with open("/dev/full", "wb") as full:
        process = subprocess.run(
            [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=full, text=True, timeout=60, check=False
        )
    assert process.stdout == "done\n"
