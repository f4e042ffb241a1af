"""Values of metrics: samples, and histograms that cost little to fill."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable
from typing import NamedTuple

from pilotage.metrics.table import MetricDefinition


class Observations:
    """The values that a histogram has counted, by bucket. One thread at a time may observe; any may read."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Sample(NamedTuple):
    """One value of a metric; `labels` are the values of its labels, in order."""

    metric: MetricDefinition
    labels: tuple[str, ...]
    value: float | Observations


Source = Callable[[], Iterable[Sample]]
"""Returns samples as they are now. It is called in a thread of the endpoint and must not wait for I/O."""
