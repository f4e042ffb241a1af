"""DiagnosisService: what an operator must know of this server and of what it serves."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from datetime import timedelta
from importlib.metadata import version
from typing import Any

from pilotage.clock import BootClock, Clock
from pilotage.rpc.wire import time_to_wire
from pilotage.v1 import diagnosis_service_pb2, diagnosis_service_pb2_grpc
from pilotage_server.core.diagnosis import Finding, FindingLevel
from pilotage_server.operations.diagnosis import commit_something, diagnose
from pilotage_server.rpc.framework.transactions import Transactions

CheckProcess = Callable[[], Iterable[Finding]]
"""Returns the findings on this process and its machine, from memory and small files."""

_LEVELS = {
    FindingLevel.OK: diagnosis_service_pb2.FINDING_LEVEL_OK,
    FindingLevel.WARNING: diagnosis_service_pb2.FINDING_LEVEL_WARNING,
    FindingLevel.FAULT: diagnosis_service_pb2.FINDING_LEVEL_FAULT,
}


class DiagnosisServicer(diagnosis_service_pb2_grpc.DiagnosisServiceServicer):
    """Examines the installation."""

    def __init__(
        self, transactions: Transactions, check_process: CheckProcess, clock: Clock, boot_clock: BootClock
    ) -> None:
        self._transactions = transactions
        self._check_process = check_process
        self._clock = clock
        self._boot_clock = boot_clock

    async def Diagnose(
        self, request: diagnosis_service_pb2.DiagnoseRequest, context: Any
    ) -> diagnosis_service_pb2.DiagnoseResponse:
        release = version("pilotage")
        began_s = self._boot_clock()
        await self._transactions.write(commit_something)
        commit = timedelta(seconds=self._boot_clock() - began_s)
        found = await self._transactions.read(lambda transaction, state: diagnose(transaction, state, commit, release))
        here = await asyncio.to_thread(lambda: tuple(self._check_process()))  # it reads disks and files
        return diagnosis_service_pb2.DiagnoseResponse(
            findings=[_to_wire(each) for each in (*found, *here)],
            server_time=time_to_wire(self._clock()),
            server_version=release,
        )


def _to_wire(finding: Finding) -> diagnosis_service_pb2.Finding:
    return diagnosis_service_pb2.Finding(
        check=finding.check, level=_LEVELS[finding.level], text=finding.text, advice=finding.advice
    )
