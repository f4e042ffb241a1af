"""Black holes: which locations are found from ended and running attempts, and their throttles."""

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
OTHER_SITE_QUEUE = QueueId("T", "ce", "far")


def ended(queue: QueueId, node: str, *, good: int = 0, failed: int = 0, owner: str = "alice") -> list[AttemptGroup]:
    """Return the ended attempts: successes, and failures after at most 3 seconds."""
    key = EvidenceKey(queue, node, Account("lhcb", "", owner))
    counts = ((True, failed), (False, good))
    return [AttemptGroup(key, is_failure, number, NOW, timedelta(seconds=3)) for is_failure, number in counts if number]


def a_running_job(queue: QueueId, node: str, seconds: float) -> RunningAttempts:
    return RunningAttempts(EvidenceKey(queue, node, Account("lhcb", "", "alice")), timedelta(seconds=seconds))


def found(
    *groups: list[AttemptGroup],
    known: Iterable[Location] = (),
    opened: Mapping[Location, datetime] = MappingProxyType({}),
    running: Iterable[RunningAttempts] = (),
    apart: timedelta = timedelta(seconds=1),
) -> list[str]:
    """Return the keys of the locations found; the groups ended at intervals of `apart`, the last of them now."""
    evidence = Evidence()
    for age, group in reversed(list(enumerate(reversed(groups)))):
        evidence = evidence.with_ended(group, opened, RULES.interval, NOW - age * apart)
    counts = evidence.with_running(running, opened)
    return [black_hole.location.key for black_hole in find_black_holes(counts, frozenset(known), opened, RULES)]


def test_failing_node_is_found_when_owner_succeeds_elsewhere() -> None:
    assert found(ended(A, "n1", failed=6), ended(A, "n2", good=1)) == ["node S/n1"]


def test_job_that_outlasts_the_failures_elsewhere_counts_as_success() -> None:
    bad = ended(A, "n1", failed=6)
    assert found(bad, running=[a_running_job(A, "n2", 7)]) == ["node S/n1"]
    assert found(bad, running=[a_running_job(A, "n2", 6.5)]) == []


def test_jobs_that_fail_everywhere_later_accuse_no_node() -> None:
    first = ended(A, "n1", failed=8)
    assert found(first, running=[a_running_job(A, f"n{number}", 5) for number in range(2, 9)]) == []


def test_fewer_failures_than_the_limit_are_tolerated() -> None:
    assert found(ended(A, "n1", failed=5), ended(A, "n2", good=1)) == []


def test_failures_on_most_nodes_are_the_fault_of_the_job() -> None:
    assert found(*(ended(A, f"n{number}", failed=50) for number in range(5))) == []


def test_finds_two_black_holes_among_good_nodes() -> None:
    bad = ended(A, "n1", failed=500), ended(A, "n2", failed=700)
    assert found(*bad, *(ended(A, f"good{number}", good=1) for number in range(3))) == ["node S/n1", "node S/n2"]


def test_failures_on_all_known_nodes_accuse_the_queue() -> None:
    bad = ended(A, "n1", failed=500), ended(A, "n2", failed=700)
    assert found(*bad, *(ended(B, f"good{number}", good=1) for number in range(9))) == ["queue S/ce/a"]


def test_two_bad_nodes_of_four_do_not_accuse_the_queue() -> None:
    bad = ended(A, "n1", failed=500), ended(A, "n2", failed=700)
    good = ended(A, "n3", good=1), ended(A, "n4", good=1), ended(B, "m", good=1)
    assert found(*bad, *good) == ["node S/n1", "node S/n2"]


def test_nodes_throttled_before_count_against_their_queue() -> None:
    known = [Location(LocationLevel.NODE, "S", node="n1")]
    bad = ended(A, "n1", failed=6), ended(A, "n2", failed=12)
    assert found(*bad, ended(B, "good", good=1), known=known) == ["queue S/ce/a"]


def test_failures_of_a_black_hole_do_not_count_against_its_queue() -> None:
    assert found(ended(A, "n1", failed=100), ended(A, "n2", good=2), ended(B, "n3", good=2)) == ["node S/n1"]


def test_failing_queue_is_found_when_jobs_succeed_at_another() -> None:
    bad = [ended(A, f"n{number}", failed=9) for number in range(2)]
    assert found(*bad, ended(B, "m", good=3)) == ["queue S/ce/a"]


def test_failures_spread_over_queues_accuse_the_site() -> None:
    bad = [ended(queue, f"n{number}{queue.queue}", failed=5) for queue in (A, B) for number in range(2)]
    assert found(*bad, ended(OTHER_SITE_QUEUE, "m", good=3)) == ["site S"]


def test_without_other_evidence_two_failing_owners_are_needed() -> None:
    alone = ended(A, "", failed=30)
    assert found(alone) == []
    assert found(alone, ended(A, "", failed=1, owner="bob")) == ["queue S/ce/a"]


def test_node_with_as_many_successes_is_no_black_hole() -> None:
    assert found(ended(A, "n1", failed=20, good=20), ended(A, "n2", good=1)) == []


def test_owner_with_faulty_jobs_does_not_hide_a_black_hole() -> None:
    everywhere = [ended(A, f"n{number}", failed=40, owner="mallory") for number in range(4)]
    assert found(*everywhere, ended(A, "n1", failed=8), ended(A, "n2", good=1)) == ["node S/n1"]


def test_known_location_is_not_found_again() -> None:
    known = [Location(LocationLevel.NODE, "S", node="n1")]
    assert found(ended(A, "n1", failed=600), ended(A, "n2", good=1), known=known) == []


def test_failures_within_a_sliding_interval_add_up() -> None:
    idle_minutes: list[list[AttemptGroup]] = [[]] * 6
    before, later = ended(A, "n1", failed=3), ended(A, "n1", failed=3)
    assert found([], *idle_minutes, before, *idle_minutes, later + ended(A, "n2", good=1), apart=MINUTE) == [
        "node S/n1"
    ]


def test_failures_older_than_the_interval_expire() -> None:
    idle_minutes: list[list[AttemptGroup]] = [[]] * 9
    before, later = ended(A, "n1", failed=5), ended(A, "n1", failed=5)
    assert found(before, *idle_minutes, later + ended(A, "n2", good=1), apart=MINUTE) == []


def test_site_opened_by_an_operator_is_not_found_but_its_nodes_are() -> None:
    opened = {Location(LocationLevel.SITE, "S"): NOW - MINUTE}
    assert found(ended(A, "n1", failed=6), ended(A, "n2", good=1), opened=opened) == ["node S/n1"]
    everywhere = [group for node in ("n1", "n2", "n3") for queue in (A, B) for group in ended(queue, node, failed=5)]
    assert found(everywhere + ended(OTHER_SITE_QUEUE, "m", good=3)) == ["site S"]
    assert found(everywhere + ended(OTHER_SITE_QUEUE, "m", good=3), opened=opened) == []


def test_failures_before_a_site_was_opened_are_ignored() -> None:
    broken, good = ended(A, "n1", failed=6), ended(A, "n2", good=1)
    assert found(broken, [], good, opened={Location(LocationLevel.SITE, "S"): NOW - MINUTE}, apart=MINUTE) == []
    assert found(broken, [], good, opened={Location(LocationLevel.SITE, "T"): NOW - MINUTE}, apart=MINUTE) == [
        "node S/n1"
    ]


NODE_THROTTLE = new_throttle(BlackHole(Location(LocationLevel.NODE, "S", node="n1"), 6, 7), RULES, NOW)


def after_probe(before: Throttle, *, failed: bool, matched: datetime) -> Throttle:
    """Return a throttle after one probe, which was matched at this time."""
    probe = AttemptGroup(
        EvidenceKey(A, "n1", Account("lhcb", "", "alice")), failed, 1, matched, timedelta(seconds=3), trial=True
    )
    changes = throttle_changes([before], {}, [probe], RULES, matched + MINUTE)
    after = changes[0].new if changes else before
    assert after is not None
    return after


@pytest.mark.parametrize("failed", [True, False])
def test_probe_counts_only_when_matched_after_the_throttle(*, failed: bool) -> None:
    assert after_probe(NODE_THROTTLE, failed=failed, matched=NOW) is NODE_THROTTLE
    after = after_probe(NODE_THROTTLE, failed=failed, matched=NOW + MINUTE)
    assert (after.ends, after.failures, after.proofs) == ((8, 7, 0) if failed else (8, 6, 1))
    assert after_probe(after, failed=failed, matched=NOW + MINUTE) is after


def test_pause_doubles_with_each_failed_probe_up_to_the_maximum() -> None:
    pauses_s, throttle = [NODE_THROTTLE.pause.total_seconds()], NODE_THROTTLE
    for _ in range(7):
        assert throttle.next_trial is not None
        throttle = after_probe(throttle, failed=True, matched=throttle.next_trial)
        pauses_s.append(throttle.pause.total_seconds())
    assert pauses_s == [100, 200, 400, 800, 1600, 3200, 3600, 3600]


def test_location_key_round_trips() -> None:
    for location in locations_of(QueueId("S", "ce", "with/slash"), "n1"):
        assert Location.from_key(location.key) == location


def test_suspects_are_locations_at_their_limit_with_the_failing_owners() -> None:
    groups = [*ended(A, "n1", failed=6), *ended(A, "n1", good=9, owner="bob"), *ended(A, "n2", failed=5, owner="carol")]
    assert suspected(groups) == {"node S/n1": {"alice"}}
    assert suspected([*groups, *ended(B, "n3", failed=7, owner="dave")]).keys() == {"node S/n1", "node S/n3", "site S"}


def test_failures_at_an_excluded_location_accuse_only_wider_ones() -> None:
    groups = [*ended(A, "n1", failed=20), *ended(A, "n2", failed=20)]
    node, queue = Location(LocationLevel.NODE, "S", node="n1"), Location(LocationLevel.QUEUE, *A)
    assert suspected(groups, closed=[node]).keys() == {"node S/n2", "queue S/ce/a", "site S"}
    assert suspected(groups, closed=[queue]).keys() == {"site S"}
    assert suspected(groups, opened=[queue]).keys() == {"node S/n1", "node S/n2", "site S"}


def suspected(
    groups: Iterable[AttemptGroup], closed: Collection[Location] = (), opened: Collection[Location] = ()
) -> dict[str, set[str]]:
    """Return the keys of the suspected locations and the owners whose jobs failed there."""
    counts = Evidence().with_ended(groups, {}, RULES.interval, NOW).counts({})
    locations = suspected_locations(counts, closed, opened, RULES)
    return {location.key: {account.owner for account in accounts} for location, accounts in locations.items()}


KEYS = [
    EvidenceKey(queue, node, Account("lhcb", "", owner))
    for queue in (A, B, OTHER_SITE_QUEUE)
    for node in "mn"
    for owner in "abc"
]


@given(
    bad=st.dictionaries(st.sampled_from(KEYS), st.integers(1, 20), max_size=6),
    good=st.dictionaries(st.sampled_from(KEYS), st.integers(1, 20), max_size=6),
    running_successes=st.dictionaries(st.sampled_from(KEYS), st.integers(1, 20)),
    closed=st.sets(st.sampled_from([location for key in KEYS for location in key.locations]), max_size=3),
)
def test_filter_of_running_attempts_does_not_change_findings(
    bad: dict[EvidenceKey, int],
    good: dict[EvidenceKey, int],
    running_successes: dict[EvidenceKey, int],
    closed: set[Location],
) -> None:
    groups = [AttemptGroup(key, True, number, NOW, MINUTE) for key, number in bad.items()]
    groups += [AttemptGroup(key, False, number, NOW, MINUTE) for key, number in good.items()]
    evidence = Evidence().with_ended(groups, {}, RULES.interval, NOW)
    wanted = RunningFilter.of_suspects(suspected_locations(evidence.counts({}), closed, (), RULES), ())
    running = [
        RunningAttempts(key, MINUTE, AttemptGroup(key, False, number, NOW, MINUTE))
        for key, number in running_successes.items()
    ]
    filtered = [attempts for attempts in running if is_wanted(attempts.key, wanted)]
    by_all, by_filtered = (
        find_black_holes(evidence.with_running(attempts, {}), closed, (), RULES) for attempts in (running, filtered)
    )
    assert by_filtered == by_all


def is_wanted(key: EvidenceKey, wanted: RunningFilter) -> bool:
    return key.queue.site in wanted.sites or key.account.owner in wanted.owners
