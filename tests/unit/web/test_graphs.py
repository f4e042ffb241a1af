"""The drawing of graphs: edges lead down, boxes are apart, and few edges cross."""

from __future__ import annotations

import re
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from pilotage_server.web.graphs import BOX_HEIGHT, BOX_WIDTH, DrawnGraph, drawn_graph


@st.composite
def graphs(draw: st.DrawFn) -> tuple[int, list[tuple[int, int]]]:
    """Return a number of boxes, in any order, and edges without a cycle."""
    count = draw(st.integers(0, 40))
    numbers = draw(st.permutations(range(count)))
    pairs = draw(st.sets(st.tuples(st.integers(0, 39), st.integers(0, 39)), max_size=80))
    return count, [(numbers[one], numbers[other]) for one, other in pairs if one < other < count]


def points(path: str) -> list[tuple[float, float]]:
    """Return the points of a path, with those that control its curves."""
    found: list[tuple[float, float]] = []
    for command, text in re.findall(r"([MCV])([^MCV]*)", path):
        numbers = [float(each) for each in text.split()]
        found += [(found[-1][0], numbers[0])] if command == "V" else zip(numbers[::2], numbers[1::2], strict=True)
    return found


@given(graphs())
def test_edges_lead_down_from_box_to_box(graph: tuple[int, list[tuple[int, int]]]) -> None:
    count, edges = graph
    drawn = drawn_graph(count, edges)
    for (parent, child), path in zip(edges, drawn.paths, strict=True):
        heights = [y for _, y in points(path)]
        assert heights == sorted(heights)
        (upper_x, upper_y), (lower_x, lower_y) = drawn.boxes[parent], drawn.boxes[child]
        assert upper_y + BOX_HEIGHT < lower_y
        begin, end = points(path)[0], points(path)[-1]
        assert abs(begin[0] - upper_x - BOX_WIDTH / 2) < 0.2, "from the middle of its parent"
        assert abs(end[0] - lower_x - BOX_WIDTH / 2) < 0.2, "to the middle of its child"
        assert (begin[1], end[1]) == (upper_y + BOX_HEIGHT, lower_y)


@given(graphs())
def test_boxes_are_apart_and_in_the_drawing(graph: tuple[int, list[tuple[int, int]]]) -> None:
    drawn = drawn_graph(*graph)
    for place, (x, y) in enumerate(drawn.boxes):
        assert 0 <= x <= x + BOX_WIDTH <= drawn.width
        assert 0 <= y <= y + BOX_HEIGHT <= drawn.height
        for other_x, other_y in drawn.boxes[:place]:
            assert abs(x - other_x) > BOX_WIDTH or abs(y - other_y) > BOX_HEIGHT


@given(graphs())
def test_long_edges_pass_no_box(graph: tuple[int, list[tuple[int, int]]]) -> None:
    drawn = drawn_graph(*graph)
    for path in drawn.paths:
        corners = points(path)
        lines = [(x, y) for (x, y), (next_x, next_y) in pairwise(corners) if x == next_x and next_y - y == BOX_HEIGHT]
        for x, y in lines:
            assert not any(top == y and left < x < left + BOX_WIDTH for left, top in drawn.boxes)


def test_diamond_is_symmetric() -> None:
    drawn = drawn_graph(4, [(0, 1), (0, 2), (1, 3), (2, 3)])
    assert drawn.boxes[0][0] == drawn.boxes[3][0]
    assert drawn.boxes[1][0] + drawn.boxes[2][0] == 2 * drawn.boxes[0][0]
    assert [y for _, y in drawn.boxes] == sorted(y for _, y in drawn.boxes)


def test_boxes_are_reordered_so_that_edges_do_not_cross() -> None:
    drawn = drawn_graph(6, [(0, 5), (1, 4), (2, 3)])
    assert column(drawn, 0) == column(drawn, 5)
    assert column(drawn, 1) == column(drawn, 4)
    assert column(drawn, 2) == column(drawn, 3)


def column(drawn: DrawnGraph, box: int) -> float:
    return drawn.boxes[box][0]


def test_box_without_parents_is_just_above_its_child() -> None:
    drawn = drawn_graph(4, [(0, 1), (1, 2), (3, 2)])
    assert drawn.boxes[3][1] == drawn.boxes[1][1]


def test_very_many_long_edges_are_drawn() -> None:
    chain = [(box, box + 1) for box in range(199)]
    drawn = drawn_graph(200, chain + [(0, box) for box in range(2, 200)])
    assert len(drawn.paths) == len(chain) + 198
    assert drawn.width < 60 * BOX_WIDTH
