"""Amounts: sizes in MiB, times in seconds, whole numbers."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.errors import InvalidRequirementsError
from pilotage.units import (
    LARGEST_COUNT,
    NotAnAmount,
    amount_of,
    parse_duration,
    parse_size,
    parse_size_mib,
    parse_time,
    parse_whole_number,
)


@pytest.mark.parametrize(
    ("text", "mib"),
    [
        (4000, 4000),
        (4000.0, 4000),
        ("4000", 4000),
        ("4000 MB", 4000),
        ("4000mb", 4000),
        ("4G", 4096),
        ("4 GiB", 4096),
        ("1.5GB", 1536),
        ("0.1 GB", 102.4),
        ("512 KB", 0.5),
        ("1TB", 1024 * 1024),
        ("1048576 B", 1),
        (" 2 t ", 2 * 1024 * 1024),
    ],
)
def test_size_is_in_mib_with_binary_units(text: object, mib: float) -> None:
    assert parse_size(text) == mib


def test_whole_size_is_an_int() -> None:
    assert [type(parse_size(text)) for text in (4000, 4000.0, "4000 MB", "4000.0")] == [int] * 4


@pytest.mark.parametrize(
    ("text", "seconds"), [(90, 90), ("90 s", 90), ("5 min", 300), ("2 h", 7200), ("1 d", 86400), ("0.5h", 1800)]
)
def test_time_is_in_seconds(text: object, seconds: float) -> None:
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["", "MB", "4 parsecs", "4 h", "4000 MB more", "0x10", "1e9999999", True, None, "²"])
def test_invalid_size_is_rejected_with_its_text(text: object) -> None:
    with pytest.raises(InvalidRequirementsError) as error:
        parse_size(text, "request_memory")
    (violation,) = error.value.violations
    assert violation.where == "request_memory"
    assert repr(text) in violation.why


@pytest.mark.parametrize("text", [-1, "-1 MB", float("nan"), float("inf"), "1e900", 2**63])
def test_size_out_of_bounds_is_rejected(text: object) -> None:
    with pytest.raises(InvalidRequirementsError):
        parse_size(text)


def test_duration_is_bounded() -> None:
    assert parse_duration("2 d") == timedelta(days=2)
    with pytest.raises(InvalidRequirementsError, match="more than 10000000000 s"):
        parse_duration(1e300)


@pytest.mark.parametrize(("text", "number"), [(8, 8), (8.0, 8), ("8", 8), (" -3 ", -3), (LARGEST_COUNT, LARGEST_COUNT)])
def test_whole_number_may_be_text(text: object, number: int) -> None:
    assert parse_whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("many", "not a whole number"),
        (1.5, "not a whole number"),
        (True, "not a whole number"),
        ("9" * 5000, "not a whole number"),
        (-1, "less than 0"),
        (2**31, "more than 2147483647"),
    ],
)
def test_invalid_whole_number_is_rejected(text: object, why: str) -> None:
    with pytest.raises(InvalidRequirementsError, match=f"^cpus: .* is {why}"):
        parse_whole_number(text, "cpus", least=0)


def test_size_in_whole_mib_is_rounded_up() -> None:
    assert parse_size_mib("1 KB") == 1
    assert parse_size_mib("2 GB") == 2048


def test_plain_number_has_unit_of_parameter() -> None:
    assert amount_of(2, "GB") == 2048
    assert amount_of("2", "GB") == 2048
    assert amount_of("2 MB", "GB") == 2
    assert amount_of(2, "min") == 120


def test_text_with_unit_is_no_amount_without_declared_unit() -> None:
    assert amount_of("64GB") == NotAnAmount("not a plain number")
    assert amount_of("100%", "MiB") == NotAnAmount("not a number")


@given(st.integers(min_value=0, max_value=2**53))
def test_number_float_and_text_are_equal_amounts(number: int) -> None:
    assert amount_of(number) == amount_of(float(number)) == amount_of(str(number)) == number


HUGE = st.integers(300, 5000).map(lambda digits: 10**digits + 1)


@given(st.text() | st.floats() | st.integers() | HUGE | st.booleans() | st.none(), st.sampled_from((None, "B", "TB")))
def test_amount_of_never_raises(value: object, unit: str | None) -> None:
    assert isinstance(amount_of(value, unit), int | float | NotAnAmount)
