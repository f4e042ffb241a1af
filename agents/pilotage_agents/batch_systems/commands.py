"""Commands of a batch system: run with an end to their patience, their whole process group gone when it is over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pilotage.command_runs import end, in_memory, text_in
from pilotage.errors import WorldError

_OUR_OWN = "PILOTAGE_"
"""Variables that begin so may hold our tokens, which are no business of a batch system and its jobs."""

_LAST_OF_ITS_OWN = 128
"""Exit codes above are said of a command: 128 + n = ended by signal n, 255 = ssh has not reached its host."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a command ended, and what it printed."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def complaint(self) -> str:
        """What it said of its failure, in one line."""
        said = " ".join((self.stderr.strip() or self.stdout.strip()).split())
        return said or f"exit code {self.exit_code}, and not a word"


async def ask(command: Sequence[str], *, timeout_s: float, stdin: bytes = b"") -> Answer:
    """Run a command to its end.

    Raises WorldError when it cannot be started, and a transient one when nobody knows what it has done: it does not end
    in time, a signal has ended it, or a shell or ssh says as much of it.
    """
    with in_memory() as given, in_memory() as output, in_memory() as errors:
        given.write(stdin)
        given.seek(0)
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=given,
                stdout=output,
                stderr=errors,
                env=without_our_own(os.environ),
                start_new_session=True,
            )
        except OSError as error:
            raise WorldError(f"{command[0]}: {error.strerror}", transient=False) from error
        try:
            async with asyncio.timeout(timeout_s):
                exit_code = await process.wait()
        except TimeoutError as error:
            raise WorldError(f"no answer within {timeout_s:g} s", transient=True) from error
        finally:
            await end(process)
        answer = Answer(exit_code, text_in(output), text_in(errors))
        if not 0 <= exit_code <= _LAST_OF_ITS_OWN:
            raise WorldError(answer.complaint, transient=True)
        return answer


def without_our_own(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables but for those that may hold our tokens."""
    return {name: value for name, value in variables.items() if not name.startswith(_OUR_OWN)}
