"""Wake-ups through the broker: the probability that a pilot answers to new jobs."""

from __future__ import annotations

import pytest

from pilotage.mqtt.topics import Topics, read_probability, wake_up_message
from pilotage_server.core.matching.demand import answer_probability


def answer_probabilities(jobs: int, *pilots: int, elsewhere: int = 0) -> list[float]:
    """Return the probabilities that pilots with so many idle slots answer; `elsewhere` slots cannot take the jobs."""
    idle = {"S/ce/long": sum(pilots), "S/ce/other": elsewhere}
    message = wake_up_message(Topics(), "", jobs, answer_probability(jobs, idle, {"S/ce/long"}))
    return [read_probability(message, slots) for slots in pilots]


def no_answer_probability(probabilities: list[float]) -> float:
    probability_of_none = 1.0
    for probability in probabilities:
        probability_of_none *= 1.0 - probability
    return probability_of_none


@pytest.mark.parametrize("pilots", [(1,), (8,), (64,), (1,) * 1000, (8,) * 10, (1, 64, 3)])
def test_single_job_is_almost_always_answered(pilots: tuple[int, ...]) -> None:
    assert no_answer_probability(answer_probabilities(1, *pilots)) < 0.005


def test_few_of_many_pilots_answer_for_few_jobs() -> None:
    assert sum(answer_probabilities(10, *(1,) * 10_000)) == pytest.approx(19)


def test_all_pilots_answer_when_jobs_are_not_fewer_than_idle_slots() -> None:
    assert answer_probabilities(8, 4, 4) == [1.0, 1.0]


def test_pilot_without_idle_slot_may_answer() -> None:
    assert answer_probabilities(1, 0, 10)[0] == pytest.approx(0.55)


def test_all_pilots_answer_when_no_idle_slot_is_known() -> None:
    assert answer_probabilities(1, 0, elsewhere=7) == [1.0]
