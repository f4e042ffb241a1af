"""Graphs of steps from top to bottom: the places of boxes, and the curves of edges. Templates draw them as SVG.

A box stands below all that it waits for (layers by the longest path). In a layer, boxes stand near the middle of their
neighbours (barycentres). An edge that passes layers goes around their boxes through waypoints.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

BOX_WIDTH, BOX_HEIGHT = 196, 44
GAP, LAYER_GAP = 24, 46
MARGIN = 10
_WAYPOINT_WIDTH = 12
_MOST_WAYPOINTS = 1_000
"""Edges above this number are drawn straight, the longest of them; they may pass behind boxes."""
_SWEEPS = 4


@dataclass(frozen=True, slots=True)
class DrawnGraph:
    """The left upper corner of each box, the path of each edge, and the sizes of the drawing and of boxes."""

    boxes: Sequence[tuple[float, float]]
    paths: Sequence[str]
    width: float
    height: float
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


def drawn_graph(count: int, edges: Sequence[tuple[int, int]]) -> DrawnGraph:
    """Return the drawing of `count` boxes; an edge (a, b) says that b waits for a. There must be no cycle."""
    layer_of = _layers(count, edges)
    chains = _chains(count, edges, layer_of)
    graph = _Layered(count, chains, layer_of)
    graph.order()
    xs = graph.places()
    left = min((xs[box] for box in range(count)), default=0.0) - BOX_WIDTH / 2
    left = min([left, *(xs[each] - _WAYPOINT_WIDTH / 2 for each in range(count, len(xs)))]) - MARGIN
    xs = [round(x - left, 1) for x in xs]
    tops = [MARGIN + layer * (BOX_HEIGHT + LAYER_GAP) for layer in layer_of]
    right = max((x + (BOX_WIDTH if each < count else _WAYPOINT_WIDTH) / 2 for each, x in enumerate(xs)), default=0.0)
    return DrawnGraph(
        [(round(xs[box] - BOX_WIDTH / 2, 1), float(tops[box])) for box in range(count)],
        [_path(chain, xs, tops) for chain in chains],
        right + MARGIN,
        max(tops[:count], default=0) + BOX_HEIGHT + MARGIN,
    )


def _layers(count: int, edges: Iterable[tuple[int, int]]) -> list[int]:
    """Return the layer of each box: one below its lowest parent; a box without parents is just above its children."""
    children: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for parent, child in edges:
        children[parent].append(child)
        waits[child] += 1
    roots = [box for box in range(count) if not waits[box]]
    layer_of, ready = [0] * count, list(roots)
    for box in ready:  # it grows meanwhile
        for child in children[box]:
            layer_of[child] = max(layer_of[child], layer_of[box] + 1)
            waits[child] -= 1
            if not waits[child]:
                ready.append(child)
    for box in roots:
        layer_of[box] = min((layer_of[child] for child in children[box]), default=1) - 1
    return layer_of


def _chains(count: int, edges: Sequence[tuple[int, int]], layer_of: list[int]) -> list[list[int]]:
    """Return each edge as a chain from its parent to its child, and append the layers of waypoints between."""
    chains: list[list[int]] = [[] for _ in edges]
    left = _MOST_WAYPOINTS
    for place in sorted(range(len(edges)), key=lambda each: layer_of[edges[each][1]] - layer_of[edges[each][0]]):
        parent, child = edges[place]
        between = range(layer_of[parent] + 1, layer_of[child])
        left -= len(between)
        first = len(layer_of)
        if left >= 0:
            layer_of += between
        chains[place] = [parent, *range(first, len(layer_of)), child]
    return chains


class _Layered:
    """Boxes and waypoints by layer, with their neighbours above and below."""

    def __init__(self, count: int, chains: Iterable[Sequence[int]], layer_of: Sequence[int]) -> None:
        self._layers: list[list[int]] = [[] for _ in range(max(layer_of, default=-1) + 1)]
        for each, layer in enumerate(layer_of):
            self._layers[layer].append(each)
        self._above: list[list[int]] = [[] for _ in layer_of]
        self._below: list[list[int]] = [[] for _ in layer_of]
        for chain in chains:
            for upper, lower in pairwise(chain):
                if layer_of[lower] == layer_of[upper] + 1:  # others are drawn straight
                    self._below[upper].append(lower)
                    self._above[lower].append(upper)
        self._widths = [BOX_WIDTH + GAP if each < count else _WAYPOINT_WIDTH for each in range(len(layer_of))]

    def order(self) -> None:
        """Order each layer so that few edges cross."""
        best, fewest = [list(layer) for layer in self._layers], self._crossings()
        for sweep in range(_SWEEPS):
            if not fewest:
                break
            downwards = sweep % 2 == 0
            neighbours = self._above if downwards else self._below
            rank = self._ranks()
            for layer in self._layers if downwards else reversed(self._layers):
                middles = {each: _mean([rank[other] for other in neighbours[each]], rank[each]) for each in layer}
                layer.sort(key=middles.__getitem__)
                rank.update((each, place) for place, each in enumerate(layer))
            crossings = self._crossings()
            if crossings < fewest:
                best, fewest = [list(layer) for layer in self._layers], crossings
        self._layers = best

    def _ranks(self) -> dict[int, float]:
        return {each: place for layer in self._layers for place, each in enumerate(layer)}

    def _crossings(self) -> int:
        rank, crossings = self._ranks(), 0
        for layer in self._layers:
            ends: list[float] = []
            for each in layer:
                own = [rank[other] for other in self._below[each]]
                crossings += sum(len(ends) - bisect_right(ends, end) for end in own)
                for end in own:
                    insort(ends, end)
        return crossings

    def places(self) -> list[float]:
        """Return the middle of each box and waypoint: near the mean of its neighbours, in the order of its layer."""
        xs = [0.0] * len(self._widths)
        for layer in self._layers:
            self._put(layer, [xs[each] for each in layer], xs)
        for sweep in range(_SWEEPS):
            downwards = sweep % 2 == 0
            neighbours = self._above if downwards else self._below
            for layer in self._layers if downwards else reversed(self._layers):
                self._put(layer, [_mean([xs[other] for other in neighbours[each]], xs[each]) for each in layer], xs)
        return xs

    def _put(self, layer: Sequence[int], wanted: Sequence[float], xs: list[float]) -> None:
        """Set the places of a layer as near as possible to the wanted ones, so that nothing overlaps."""
        distances = [(self._widths[one] + self._widths[other]) / 2 for one, other in pairwise(layer)]
        offsets = list(accumulate(distances, initial=0.0))
        free = _ascending([want - offset for want, offset in zip(wanted, offsets, strict=False)])
        for each, place, offset in zip(layer, free, offsets, strict=False):
            xs[each] = place + offset


def _ascending(wanted: Iterable[float]) -> Iterator[float]:
    """Yield the numbers that never fall and are nearest to the wanted ones, by the sum of squares (PAVA)."""
    blocks: list[tuple[float, int]] = []  # mean and length
    for want in wanted:
        mean, length = want, 1
        while blocks and blocks[-1][0] > mean:
            other, longer = blocks.pop()
            mean = (mean * length + other * longer) / (length + longer)
            length += longer
        blocks.append((mean, length))
    for mean, length in blocks:
        for _ in range(length):
            yield mean


def _mean(numbers: Sequence[float], otherwise: float) -> float:
    return sum(numbers) / len(numbers) if numbers else otherwise


def _path(chain: Sequence[int], xs: Sequence[float], tops: Sequence[float]) -> str:
    """Return the path of an edge: a curve between layers, and a line beside the boxes of a layer that it passes."""
    x, y = xs[chain[0]], tops[chain[0]] + BOX_HEIGHT
    parts = [f"M{x:g} {y:g}"]
    for each in chain[1:]:
        top = tops[each]
        middle = (y + top) / 2
        parts.append(f"C{x:g} {middle:g} {xs[each]:g} {middle:g} {xs[each]:g} {top:g}")
        x, y = xs[each], top
        if each != chain[-1]:
            y = top + BOX_HEIGHT
            parts.append(f"V{y:g}")
    return "".join(parts)
