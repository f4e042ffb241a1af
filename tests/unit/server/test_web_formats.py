"""How pages of the web page write the sentences of the server."""

from __future__ import annotations

from pilotage_server.web.formats import counted_text, hours_text, prose_text


def test_sentence_keeps_times_short_marks_commands_and_escapes_the_rest() -> None:
    text = "It is closed from 2026-11-28T17:14:30+00:00 until 2026-11-28T23:14:30.5Z: see `pilotage <site>` & <b>"
    closed = "It is closed from 2026-11-28 17:14:30 until 2026-11-28 23:14:30"
    assert prose_text(text) == f"{closed}: see <code>pilotage &lt;site&gt;</code> &amp; &lt;b&gt;"


def test_single_quote_of_code_and_other_time_zones_stay() -> None:
    text = "at 2026-11-28T17:14:30+01:00 by `"
    assert prose_text(text) == text


def test_nouns_follow_their_numbers() -> None:
    assert [counted_text(number, "job") for number in (0, 1, 1200)] == ["0 jobs", "1 job", "1,200 jobs"]


def test_few_hours_have_digits_after_the_point() -> None:
    assert [hours_text(seconds) for seconds in (0, 9, 150, 5400, 36_000, 9e6)] == [
        "0",
        "0",
        "0.04",
        "1.50",
        "10",
        "2,500",
    ]
