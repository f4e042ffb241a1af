"""What came of the inputs of one surface."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import grpc

from pilotage.errors import PilotageError

UNHANDLED = {grpc.StatusCode.INTERNAL, grpc.StatusCode.UNKNOWN}
LONGEST_FAULT = 2000


@dataclass
class Tally:
    """The number of inputs, the status codes of their answers, and the faults that they found.

    Each fault begins with the surface and the number of its input, which `--only` sends again.
    """

    surface: str
    inputs: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)

    def add_call(self, number: int, method: str, content: bytes, error: PilotageError | None) -> None:
        """Count a call; `error` None = it had an answer."""
        self.inputs += 1
        cause = None if error is None else error.__cause__
        code = cause.code() if isinstance(cause, grpc.RpcError) else None
        self.codes["OK" if error is None else "no answer" if code is None else code.name] += 1
        if code in UNHANDLED:
            self.add_fault(number, f"{method}: {error} for {content.hex()}")

    def add_fault(self, number: int, why: str) -> None:
        """Add a fault that this input found."""
        self.faults.append(f"{self.surface}:{number}: {why[:LONGEST_FAULT]}")
