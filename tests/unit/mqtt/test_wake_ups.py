"""Wake-ups through the broker: how many idle slots are called for new jobs, and which pilots answer."""

from __future__ import annotations

import pytest

from pilotage.mqtt.topics import Topics, read_probability, wake_up_message
from pilotage_server.core.matching.demand import answer_probability


def answers(jobs: int, *pilots: int, beside: int = 0) -> list[float]:
    """Return by which probability pilots with so many idle slots answer; `beside` are idle where jobs cannot go."""
    idle = {"S/ce/long": sum(pilots), "S/ce/other": beside}
    message = wake_up_message(Topics(), "", jobs, answer_probability(jobs, idle, {"S/ce/long"}))
    return [read_probability(message, slots) for slots in pilots]


def nobody(probabilities: list[float]) -> float:
    missed = 1.0
    for probability in probabilities:
        missed *= 1.0 - probability
    return missed


@pytest.mark.parametrize("pilots", [(1,), (8,), (64,), (1,) * 1000, (8,) * 10, (1, 64, 3)])
def test_hardly_ever_does_nobody_answer_for_a_single_job(pilots: tuple[int, ...]) -> None:
    assert nobody(answers(1, *pilots)) < 0.005


def test_few_of_many_answer_for_few_jobs() -> None:
    assert sum(answers(10, *(1,) * 10_000)) == pytest.approx(19)


def test_all_answer_when_there_are_more_jobs_than_idle_slots() -> None:
    assert answers(8, 4, 4) == [1.0, 1.0]


def test_who_has_no_idle_slot_may_answer_too() -> None:
    assert answers(1, 0, 10)[0] == pytest.approx(0.55)


def test_all_answer_where_nobody_is_known_to_be_idle() -> None:
    assert answers(1, 0, beside=7) == [1.0]
