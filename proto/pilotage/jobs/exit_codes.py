"""Exit codes of jobs that the program of the job has not chosen itself."""

from __future__ import annotations

from enum import IntEnum


class PayloadExit(IntEnum):
    """Such codes; `SIGNAL` + n stands for signal n."""

    CANNOT_RUN = 126
    """Routed jobs: the shell cannot open the job's folder, its input or output, or cannot execute its program."""
    NOT_FOUND = 127
    """Routed jobs: the shell does not find the job's program."""
    SIGNAL = 128
    """Routed jobs: 128 + n = signal n ended the program, such as 137 after SIGKILL."""
    RUNTIME_FAILED = 255
    """apptainer and singularity, with a last line `FATAL: …`: the container did not start. The job fails."""
