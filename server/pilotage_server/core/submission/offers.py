"""Warnings at submission about requests that no queue can fulfil: misspelled parameters, and sizes too large."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterator, Mapping

from pilotage.resources.eligibility import SIZES, asked_sizes
from pilotage.resources.requirements import JobNeeds, Requirements
from pilotage.text import did_you_mean, fold
from pilotage.units import Amount

_SIMILAR = 0.75
"""The least similarity of a name that may be meant."""


def unstated_names(requirements: Requirements, stated: Collection[str]) -> Iterator[str]:
    """Yield a warning for each required parameter that is not among the names that queues state, if there are any."""
    by_folded = {fold(name): name for name in stated}
    for item in requirements.items:
        if by_folded and fold(item.name) not in by_folded:
            nearest = difflib.get_close_matches(fold(item.name), by_folded, n=1, cutoff=_SIMILAR)
            hint = f"; did you mean {by_folded[nearest[0]]}?" if nearest else ""
            yield f"no queue states the parameter {item.name}{hint}"


def unknown_sites(needs: JobNeeds, sites: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each site of a job that the tree lacks; `sites` are its sites by folded name, if any."""
    for name in needs.sites:
        if sites and name not in sites:
            yield f"Site: the tree has no site {name}{did_you_mean(name, sites.values())}"


def too_large_sizes(needs: JobNeeds, largest: Mapping[str, Amount]) -> Iterator[str]:
    """Yield a warning for each size that is larger than what all queues state; `largest` are their largest amounts."""
    for name, asked in asked_sizes(needs).items():
        most = largest.get(name)
        if most is not None and most < asked:
            unit = SIZES[name]
            offered = f"the largest offers {most}{unit}"
            yield f"{name}: no queue offers {asked}{unit}, {offered}; the job waits until one does"
