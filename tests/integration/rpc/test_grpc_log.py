"""gRPC writes no lines of its own into the logs of the programs."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

FAILING_CALL = """
import {module}
from concurrent.futures import ThreadPoolExecutor
import grpc
try:
    grpc.server(ThreadPoolExecutor(1)).add_insecure_port("203.0.113.1:1")  # no address of this host
except RuntimeError:
    print("refused")
"""


def written_by(module: str, **environment: str) -> str:
    """Return the standard error of a program that imports this module and makes gRPC log an error."""
    variables = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | environment
    command = [sys.executable, "-c", FAILING_CALL.format(module=module)]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "refused\n"
    return done.stderr


@pytest.mark.parametrize("module", ["pilotage.programs", "pilotage_client.cli.main", "pilotage_pilot.command_line"])
def test_grpc_is_silent(module: str) -> None:
    assert written_by(module) == ""


def test_environment_lets_grpc_log() -> None:
    assert "Failed to add port" in written_by("pilotage.programs", GRPC_VERBOSITY="ERROR")
