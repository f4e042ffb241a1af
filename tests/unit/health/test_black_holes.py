"""Which places are found to be black holes, and which are not for what jobs fail of anyway."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.resources.tree import QueueId
from pilotage.values.accounts import Account
from pilotage_server.core.health.black_holes import (
    BlackHole,
    EvidenceKey,
    HealthRules,
    Location,
    LocationLevel,
    find_black_holes,
    locations_of,
    suspected_locations,
)
from pilotage_server.core.health.evidence import AttemptGroup, Evidence, RunningAttempts, RunningFilter
from pilotage_server.core.health.throttles import Throttle, new_throttle, throttle_changes

NOW = datetime(2026, 1, 1, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RULES = HealthRules()  # a node may have 6 failures, a queue and a site 18
A, B = QueueId("S", "ce", "a"), QueueId("S", "ce", "b")
FAR = QueueId("T", "ce", "far")


def ended(queue: QueueId, node: str, *, good: int = 0, failed: int = 0, owner: str = "alice") -> list[AttemptGroup]:
    """Return what ended there: jobs that did well, and jobs that failed after at most 3 seconds."""
    spot = EvidenceKey(queue, node, Account("lhcb", "", owner))
    alike = ((True, failed), (False, good))
    return [AttemptGroup(spot, is_failure, number, NOW, timedelta(seconds=3)) for is_failure, number in alike if number]


def a_running_job(queue: QueueId, node: str, seconds: float) -> RunningAttempts:
    return RunningAttempts(EvidenceKey(queue, node, Account("lhcb", "", "alice")), timedelta(seconds=seconds))


def found(
    *told: list[AttemptGroup],
    known: Iterable[Location] = (),
    opened: Mapping[Location, datetime] = MappingProxyType({}),
    running: Iterable[RunningAttempts] = (),
    apart: timedelta = timedelta(seconds=1),
) -> list[str]:
    """Return the keys of the places that are found by what is told, one thing after the other up to now."""
    evidence = Evidence()
    for age, each in reversed(list(enumerate(reversed(told)))):
        evidence = evidence.with_ended(each, opened, RULES.interval, NOW - age * apart)
    counts = evidence.with_running(running, opened)
    return [each.location.key for each in find_black_holes(counts, frozenset(known), opened, RULES)]


def test_a_node_whose_jobs_fail_while_others_of_the_same_owner_do_well_is_one() -> None:
    assert found(ended(A, "n1", failed=6), ended(A, "n2", good=1)) == ["node S/n1"]


def test_a_job_elsewhere_that_has_clearly_outlasted_the_failures_speaks_against_the_node() -> None:
    bad = ended(A, "n1", failed=6)
    assert found(bad, running=[a_running_job(A, "n2", 7)]) == ["node S/n1"]
    assert found(bad, running=[a_running_job(A, "n2", 6.5)]) == []


def test_jobs_that_all_fail_after_a_while_speak_against_no_node_that_was_first() -> None:
    first = ended(A, "n1", failed=8)
    assert found(first, running=[a_running_job(A, f"n{number}", 5) for number in range(2, 9)]) == []


def test_fewer_failures_than_its_rate_allows_in_an_interval_are_none() -> None:
    assert found(ended(A, "n1", failed=5), ended(A, "n2", good=1)) == []


def test_failures_that_follow_the_job_to_most_other_nodes_are_not_held_against_any() -> None:
    assert found(*(ended(A, f"n{number}", failed=50) for number in range(5))) == []


def test_two_black_holes_among_good_nodes_are_both_found() -> None:
    bad = ended(A, "n1", failed=500), ended(A, "n2", failed=700)
    assert found(*bad, *(ended(A, f"good{number}", good=1) for number in range(3))) == ["node S/n1", "node S/n2"]


def test_two_bad_nodes_that_are_all_that_is_known_of_a_queue_are_its_fault() -> None:
    bad = ended(A, "n1", failed=500), ended(A, "n2", failed=700)
    assert found(*bad, *(ended(B, f"good{number}", good=1) for number in range(9))) == ["queue S/ce/a"]


def test_two_bad_nodes_of_four_in_a_queue_are_not_its_fault() -> None:
    bad = ended(A, "n1", failed=500), ended(A, "n2", failed=700)
    good = ended(A, "n3", good=1), ended(A, "n4", good=1), ended(B, "m", good=1)
    assert found(*bad, *good) == ["node S/n1", "node S/n2"]


def test_nodes_that_were_throttled_before_speak_against_their_queue() -> None:
    known = [Location(LocationLevel.NODE, "S", node="n1")]
    bad = ended(A, "n1", failed=6), ended(A, "n2", failed=12)
    assert found(*bad, ended(B, "good", good=1), known=known) == ["queue S/ce/a"]


def test_what_a_node_explains_is_not_held_against_its_queue() -> None:
    assert found(ended(A, "n1", failed=100), ended(A, "n2", good=2), ended(B, "n3", good=2)) == ["node S/n1"]


def test_a_queue_on_all_of_whose_nodes_jobs_fail_is_one_when_they_do_well_at_another() -> None:
    bad = [ended(A, f"n{number}", failed=9) for number in range(2)]
    assert found(*bad, ended(B, "m", good=3)) == ["queue S/ce/a"]


def test_a_site_is_one_when_failures_are_spread_over_queues_that_alone_are_not() -> None:
    bad = [ended(queue, f"n{number}{queue.queue}", failed=5) for queue in (A, B) for number in range(2)]
    assert found(*bad, ended(FAR, "m", good=3)) == ["site S"]


def test_one_owner_whose_jobs_run_nowhere_else_proves_nothing_and_two_do() -> None:
    alone = ended(A, "", failed=30)
    assert found(alone) == []
    assert found(alone, ended(A, "", failed=1, owner="bob")) == ["queue S/ce/a"]


def test_a_place_where_as_many_do_well_is_none() -> None:
    assert found(ended(A, "n1", failed=20, good=20), ended(A, "n2", good=1)) == []


def test_jobs_of_one_owner_that_fail_everywhere_do_not_hide_what_happens_to_another() -> None:
    everywhere = [ended(A, f"n{number}", failed=40, owner="mallory") for number in range(4)]
    assert found(*everywhere, ended(A, "n1", failed=8), ended(A, "n2", good=1)) == ["node S/n1"]


def test_a_place_that_is_known_is_not_found_again() -> None:
    known = [Location(LocationLevel.NODE, "S", node="n1")]
    assert found(ended(A, "n1", failed=600), ended(A, "n2", good=1), known=known) == []


def test_failures_count_together_that_are_less_than_an_interval_apart_whenever_that_began() -> None:
    quiet: list[list[AttemptGroup]] = [[]] * 6
    before, later = ended(A, "n1", failed=3), ended(A, "n1", failed=3)
    assert found([], *quiet, before, *quiet, later + ended(A, "n2", good=1), apart=MINUTE) == ["node S/n1"]


def test_failures_of_more_than_an_interval_ago_count_no_more() -> None:
    quiet: list[list[AttemptGroup]] = [[]] * 9
    before, later = ended(A, "n1", failed=5), ended(A, "n1", failed=5)
    assert found(before, *quiet, later + ended(A, "n2", good=1), apart=MINUTE) == []


def test_at_a_site_that_was_opened_its_nodes_are_judged_and_it_is_not() -> None:
    opened = {Location(LocationLevel.SITE, "S"): NOW - MINUTE}
    assert found(ended(A, "n1", failed=6), ended(A, "n2", good=1), opened=opened) == ["node S/n1"]
    everywhere = [each for node in ("n1", "n2", "n3") for queue in (A, B) for each in ended(queue, node, failed=5)]
    assert found(everywhere + ended(FAR, "m", good=3)) == ["site S"]
    assert found(everywhere + ended(FAR, "m", good=3), opened=opened) == []


def test_what_was_before_a_site_was_opened_speaks_against_nothing_in_it() -> None:
    broken, good = ended(A, "n1", failed=6), ended(A, "n2", good=1)
    assert found(broken, [], good, opened={Location(LocationLevel.SITE, "S"): NOW - MINUTE}, apart=MINUTE) == []
    assert found(broken, [], good, opened={Location(LocationLevel.SITE, "T"): NOW - MINUTE}, apart=MINUTE) == [
        "node S/n1"
    ]


THROTTLED = new_throttle(BlackHole(Location(LocationLevel.NODE, "S", node="n1"), 6, 7), RULES, NOW)


def reviewed(before: Throttle, *, failed: bool, matched: datetime) -> Throttle:
    """Return a throttle after one trial of its place, which was matched at this time."""
    tried = AttemptGroup(
        EvidenceKey(A, "n1", Account("lhcb", "", "alice")), failed, 1, matched, timedelta(seconds=3), trial=True
    )
    changes = throttle_changes([before], {}, [tried], RULES, matched + MINUTE)
    after = changes[0].new if changes else before
    assert after is not None
    return after


@pytest.mark.parametrize("failed", [True, False])
def test_trial_counts_only_when_matched_after_the_throttle(*, failed: bool) -> None:
    assert reviewed(THROTTLED, failed=failed, matched=NOW) is THROTTLED
    after = reviewed(THROTTLED, failed=failed, matched=NOW + MINUTE)
    assert (after.ends, after.failures, after.proofs) == ((8, 7, 0) if failed else (8, 6, 1))
    assert reviewed(after, failed=failed, matched=NOW + MINUTE) is after


def test_pause_doubles_with_each_failed_trial_up_to_the_longest() -> None:
    pauses_s, each = [THROTTLED.pause.total_seconds()], THROTTLED
    for _ in range(7):
        assert each.next_trial is not None
        each = reviewed(each, failed=True, matched=each.next_trial)
        pauses_s.append(each.pause.total_seconds())
    assert pauses_s == [100, 200, 400, 800, 1600, 3200, 3600, 3600]


def test_the_key_of_a_place_tells_it() -> None:
    for place in locations_of(QueueId("S", "ce", "with/slash"), "n1"):
        assert Location.from_key(place.key) == place


def test_only_places_with_as_many_failures_as_they_may_have_are_suspect_and_only_those_who_failed_there_accuse() -> (
    None
):
    told = [*ended(A, "n1", failed=6), *ended(A, "n1", good=9, owner="bob"), *ended(A, "n2", failed=5, owner="carol")]
    assert suspected(told) == {"node S/n1": {"alice"}}
    assert suspected([*told, *ended(B, "n3", failed=7, owner="dave")]).keys() == {"node S/n1", "node S/n3", "site S"}


def test_what_a_closed_place_explains_makes_no_place_suspect_that_is_not_wider() -> None:
    told = [*ended(A, "n1", failed=20), *ended(A, "n2", failed=20)]
    node, queue = Location(LocationLevel.NODE, "S", node="n1"), Location(LocationLevel.QUEUE, *A)
    assert suspected(told, closed=[node]).keys() == {"node S/n2", "queue S/ce/a", "site S"}
    assert suspected(told, closed=[queue]).keys() == {"site S"}
    assert suspected(told, opened=[queue]).keys() == {"node S/n1", "node S/n2", "site S"}


def suspected(
    told: Iterable[AttemptGroup], closed: Collection[Location] = (), opened: Collection[Location] = ()
) -> dict[str, set[str]]:
    """Return the keys of the suspect places and the owners whose jobs failed there."""
    counts = Evidence().with_ended(told, {}, RULES.interval, NOW).counts({})
    places = suspected_locations(counts, closed, opened, RULES)
    return {place.key: {account.owner for account in accounts} for place, accounts in places.items()}


SPOTS = [
    EvidenceKey(queue, node, Account("lhcb", "", owner)) for queue in (A, B, FAR) for node in "mn" for owner in "abc"
]


@given(
    bad=st.dictionaries(st.sampled_from(SPOTS), st.integers(1, 20), max_size=6),
    good=st.dictionaries(st.sampled_from(SPOTS), st.integers(1, 20), max_size=6),
    lasting=st.dictionaries(st.sampled_from(SPOTS), st.integers(1, 20)),
    closed=st.sets(st.sampled_from([place for spot in SPOTS for place in spot.locations]), max_size=3),
)
def test_what_is_not_wanted_of_the_jobs_that_run_has_no_say(
    bad: dict[EvidenceKey, int], good: dict[EvidenceKey, int], lasting: dict[EvidenceKey, int], closed: set[Location]
) -> None:
    told = [AttemptGroup(spot, True, number, NOW, MINUTE) for spot, number in bad.items()]
    told += [AttemptGroup(spot, False, number, NOW, MINUTE) for spot, number in good.items()]
    evidence = Evidence().with_ended(told, {}, RULES.interval, NOW)
    wanted = RunningFilter.of_suspects(suspected_locations(evidence.counts({}), closed, (), RULES), ())
    running = [
        RunningAttempts(spot, MINUTE, AttemptGroup(spot, False, number, NOW, MINUTE))
        for spot, number in lasting.items()
    ]
    seen = [each for each in running if is_wanted(each.key, wanted)]
    by_all, by_wanted = (
        find_black_holes(evidence.with_running(each, {}), closed, (), RULES) for each in (running, seen)
    )
    assert by_wanted == by_all


def is_wanted(spot: EvidenceKey, wanted: RunningFilter) -> bool:
    return spot.queue.site in wanted.sites or spot.account.owner in wanted.owners
