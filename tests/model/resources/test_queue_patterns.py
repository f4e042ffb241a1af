"""Coverage of patterns of queues: a covered pattern matches no queue that its cover does not match."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from pilotage.resources.queue_patterns import is_covered, matches_any
from pilotage.resources.tree import QueueId

names = st.text("aB", min_size=1, max_size=3)
queues = st.builds(QueueId, names, names, names)
parts = st.lists(st.sampled_from(["a", "B", "*", "?", "[a]", "[!a]"]), min_size=1, max_size=3).map("".join)
patterns = st.builds("{}/{}/{}".format, parts, parts, parts)


@given(patterns, st.lists(patterns, max_size=3), st.lists(queues, max_size=20))
@example("[/a/B]*", ["*/a/*"], [QueueId("B", "B", "B")])
@example("[]/a/B]*", ["*/a/*"], [QueueId("B", "B", "B")])
def test_covered_pattern_matches_nothing_else(pattern: str, cover: list[str], found: list[QueueId]) -> None:
    if is_covered(pattern, cover):
        assert all(matches_any(queue, cover) for queue in found if matches_any(queue, (pattern,)))


@given(patterns, queues)
def test_pattern_is_covered_by_itself_and_by_all(pattern: str, queue: QueueId) -> None:
    assert is_covered(pattern, ("x/x/x", pattern.swapcase()))
    assert is_covered(pattern, ("*/*/*",))
    assert not matches_any(queue, (pattern,)) or is_covered(str(queue), ("*",))
