"""The macros of an array's jobs, which make one description many.

Rules
-----
Only the numbers of the job itself are filled in, so a rendered file name is as safe as the one that was
checked. `$(Cluster)` is the id of the array's first job, `$(Process)` the place in it (HTCondor manual,
condor_submit: the same names); letter case does not matter. Any other text stays as it is.
"""

from __future__ import annotations

import re

_MACRO = re.compile(r"\$\((?:(cluster|clusterid)|process|procid)\)", re.IGNORECASE)


def split_at_process(text: str) -> tuple[str, ...]:
    """Return the pieces of the text between which the job's place in its array stands; `$(Cluster)` is spelled so."""
    first, *rest = _MACRO.split(text)
    pieces = [first]
    for cluster, piece in zip(rest[::2], rest[1::2], strict=True):
        if cluster:
            pieces[-1] += f"$(Cluster){piece}"
        else:
            pieces.append(piece)
    return tuple(pieces)


def render_text(text: str, cluster: int, process: int) -> str:
    """Return the text with `$(Cluster)`, `$(ClusterId)`, `$(Process)` and `$(ProcId)` filled in."""
    if "$(" not in text:
        return text
    return _MACRO.sub(lambda macro: str(cluster if macro[1] else process), text)
