"""Patterns in expressions: what users may look for, and that looking ends soon and finds what the library finds."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.evaluation import Ad, NoValue, Result, compile_bounded, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, classad_library, quoted
from pilotage.classads.limits import LONGEST_SUBJECT, MOST_PATTERNS, framed, unframed
from pilotage.classads.text import ad_text
from pilotage.job_description import JobPolicy
from pilotage_server.core.classads.evaluation import is_too_costly
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults
from support.jobs import a_description

AS = "a" * LONGEST_SUBJECT
HARD = "a*a*a*[bc]"


def found(text: str, **attributes: AdValue) -> Result:
    return evaluate(compile_expression(text), Ad(attributes))


def why_not(text: str) -> str:
    with pytest.raises(InvalidClassAdError) as refused:
        compile_bounded(text)
    return str(refused.value)


def without_frame(text: str, **attributes: str) -> Result:
    """Return what the library makes of it by itself."""
    result = classad_library().ExprTree(text).eval(classad_library().ClassAd(attributes))
    return NoValue.ERROR if isinstance(result, classad_library().Value) else result


@pytest.mark.parametrize(
    "text",
    [
        f'regexp("{HARD}", Name)',
        f'regexp(strcat("a*a*", "{HARD}"), Name)',
        'regexp(Pattern /* of the site */ // "\n, Name, "i")',
        f'REGEXPS("{HARD}", Name, "b")',
        f'replace("{HARD}", Name, "b")',
        f'replaceAll("{HARD}", Name, "b")',
        f'stringListRegexpMember("{HARD}", Name)',
        f'stringList_RegexpMember("{HARD}", Name)',
        f"'regexpMember'(\"{HARD}\", {{ Name }})",
        f'evalInEachContext(regexp("{HARD}", Name), {{ [Name = "{AS}"] }})',
        "MY.Start",
    ],
)
def test_looking_for_a_pattern_ends_soon_whoever_wrote_it(text: str) -> None:
    before = time.process_time()
    result = found(text, Name=AS, Pattern=HARD, Start=Expression(f'regexp("{HARD}", Name)'))
    # Functions that look through lists take what cannot be looked for as not found.
    assert result in (NoValue.ERROR, Expression("{error}")) or (result is False and "Member" in text)
    assert time.process_time() - before < 5  # by itself the library takes minutes


def test_an_ad_that_is_read_has_its_patterns_framed_and_shows_them_as_they_were() -> None:
    text = f'[ Found = regexp("{HARD}", Name); Part = regexps(strcat("(", P, ")."), Name, "<\\\\1>"); P = "a"; ]'
    ad = Ad.read(text)
    ad.set("Name", AS)
    assert ad.value("Found") is NoValue.ERROR
    ad.set("Name", "ab")
    assert ad.value("Part") == "<a>"
    ad.set("Start", Expression('regexp("^a", Name)'))
    plain = {name.lower(): value for name, value in ad.plain().items()}
    assert plain["found"] == Expression(f'regexp("{HARD}",Name)')
    assert plain["part"] == Expression('regexps(strcat("(",P,")."),Name,"<\\\\1>")')
    assert plain["start"] == Expression('(regexp("^a",Name))')
    assert "LIMIT" not in ad_text(ad.plain())


def test_a_text_that_is_too_long_is_an_error_and_never_a_no() -> None:
    assert found('regexp("a", Name)', Name=AS) is True
    assert found('regexp("b", Name)', Name=AS) is False
    assert found('regexp("a", Name)', Name=AS + "a") is NoValue.ERROR
    assert found('replaceAll("b", Name, "c")', Name="a" * 1_000_000) is NoValue.ERROR


@pytest.mark.parametrize("pattern", [".*foo.*[xy]", ".*(foo|bar|baz).*", "(foo|bar).*[xy]$", "foo.*bar", "^[a-z]+y"])
def test_what_people_look_for_is_found_in_texts_of_any_length_that_is_allowed(pattern: str) -> None:
    padding = "quux fob " * (LONGEST_SUBJECT // 9 - 2)
    assert found(f'regexp("{pattern}", Name)', Name=padding) is False
    assert found(f'regexp("{pattern}", Name)', Name="foo bar x") is (pattern != "^[a-z]+y")


_ATOMS = st.sampled_from(
    ["a", "b", ".", "\n", "[ab]", "[^a]", "\\.", "\\b", "^", "$", "(a|b)", "(?:b|)", "(?=b)", "(?<=a)", "a|b", "(.*)"]
)
_PATTERNS = st.lists(st.tuples(_ATOMS, st.sampled_from(["", "", "*", "+", "?", "*?"])), min_size=1, max_size=5)
_BEGINNINGS = st.sampled_from(["", "", ".*", ".*?", ".+"])


@given(_BEGINNINGS, _PATTERNS, st.text("ab.\n", max_size=12), st.sampled_from(["", "i", "f", "fi"]))
def test_a_frame_changes_nothing_of_what_is_found(
    beginning: str, parts: list[tuple[str, str]], subject: str, options: str
) -> None:
    pattern = quoted(beginning + "".join(atom + times for atom, times in parts))
    for text in (
        f'regexp({pattern}, Name, "i")',
        f"regexp(strcat({pattern}), Name)",
        f'regexps({pattern}, Name, "<\\\\0>", "{options}")',
        f'replace({pattern}, Name, "<\\\\0>")',
    ):
        assert found(text, Name=subject) in (without_frame(text, Name=subject), NoValue.ERROR)  # some are too hard


@given(_BEGINNINGS, _PATTERNS, st.text("ab.\n", max_size=12))
def test_a_frame_changes_nothing_of_what_is_replaced_again_and_again_where_something_is(
    beginning: str, parts: list[tuple[str, str]], subject: str
) -> None:
    pattern = quoted(f"(?:{beginning}{''.join(atom + times for atom, times in parts)})[ab]")
    for text in (f'replaceAll({pattern}, Name, "-")', f'regexps({pattern}, Name, "<\\\\0>", "g")'):
        assert found(text, Name=subject) in (without_frame(text, Name=subject), NoValue.ERROR)  # some are too hard


def test_what_people_replace_is_replaced() -> None:
    assert found('replaceAll(" +", Name, "_")', Name="abc  de " * 100) == "abc_de_" * 100
    assert found(r'regexps("([a-z]+)\\d+", Name, "\\1")', Name="lhcb017") == "lhcb"


def _searching(pattern: str, subject: str) -> str:
    return f"regexp({pattern}, strcat({subject}))"


@given(st.recursive(st.sampled_from(["A", '"x"', '")"', "1"]), lambda inner: st.builds(_searching, inner, inner)))
def test_a_text_without_its_frames_is_what_it_was(text: str) -> None:
    assert re.sub(r"\s", "", unframed(framed(text))) == re.sub(r"\s", "", text)
    assert (framed(text) == text) == ("regexp" not in text)


@pytest.mark.parametrize(
    "text",
    [
        '!regexp("cream.*", other.GlueCEUniqueID)',
        r'regexps("([^ ]*) .*\\1", GridResource, "\\1") == "x"',
        r'regexp("a\\.b\\(*", Name, "i") || regexp("\\\\X", Name)',
        'replace(" ", Name, "") == "a" && replaceAll("[ab]", Name, "") == ""',
        "regexp() || regexp + 1",
        "||".join(['regexp("a", Name)'] * MOST_PATTERNS),
    ],
)
def test_users_look_for_patterns_that_they_write_out(text: str) -> None:
    assert compile_bounded(text).text == text


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("regexp(Pattern, Name)", "regexp takes a plain text only"),
        ('regexp(strcat("a", "b"), Name)', "regexp takes a plain text only"),
        ('replaceAll(MY.A[0], Name, "")', "replaceall takes a plain text only"),
        ('regexp("a", Name, Options)', "options of regexp must be a plain text"),
        ('stringListRegexpMember("a", Names)', "lists of any length"),
        ('stringList_RegexpMember("a", Names)', "lists of any length"),
        ('regexpMember("a", Names)', "lists of any length"),
        ('eval("regexp(A, B)")', "regexp takes a plain text only"),
        ("||".join(['regexp("a", Name)'] * (MOST_PATTERNS + 1)), "at most 10"),
        ("||".join(['replaceAll("a", Name, "") == ""'] * 3), "at most 10"),
        ('regexp("(", Name)', "is not a valid pattern"),
        ('regexp("a)|b(?:", Name)', "is not a valid pattern"),
        ('regexp("#(\\n)|b(?:#)\\n", Name, "x")', "is not a valid pattern"),
        ('regexp("\\\\Qa", Name)', "is not a valid pattern"),
        ('regexp("\\\\X*", Name)', "has a \\X"),
        ('regexp("(?i)[^\\\\P{L}]*+[bc]", Name)', "a \\p"),
        ('regexp("\\134X*", Name)', "a character number"),
        ('regexp("(*LIMIT_MATCH=99999999)a", Name)', "has a verb (* or a recursion (?R)"),
        ('regexp("a(?R)?b", Name)', "has a verb (* or a recursion (?R)"),
    ],
)
def test_a_pattern_that_could_not_be_told_to_end_soon_is_refused_with_the_reason(text: str, why: str) -> None:
    assert why in why_not(text)


def test_a_text_that_is_evaluated_hides_no_pattern() -> None:
    assert found('eval("regexp(P, Name)")', P="a", Name="a") is True  # who runs a slot may
    assert "regexp takes a plain text only" in why_not('eval("regexp(P, Name)")')
    assert "eval takes a plain text only" in why_not('eval("regexp(\\"a\\", Name)")')


def test_policies_that_look_for_one_pattern_again_and_again_are_refused() -> None:
    policy = JobPolicy(periodic_hold='regexp("a*b", Arguments)')
    again = a_description(requirements_expression="||".join(["PeriodicHold"] * 12), policy=policy)
    once = a_description(requirements_expression="||".join(["PeriodicHold"] * 9), policy=policy)
    assert [fault.where for fault in description_faults(again, JobLimits(), {})] == ["requirements_expression"]
    assert not description_faults(once, JobLimits(), {})


def test_a_sites_policy_may_look_for_many_patterns() -> None:
    start = Expression("||".join(f'regexp("^a{number}", TARGET.Owner)' for number in range(60)))
    assert not is_too_costly("Start", [{"start": start}.get])
    assert is_too_costly("Start || Start", [{"start": start}.get])


@pytest.mark.parametrize("options", ["i", "m", "s", "x", "fi"])
def test_options_of_a_pattern_that_is_looked_for_once_cost_nothing(options: str) -> None:
    name = "wn-b7-042.grid.example-university.org" * 20
    assert found(f'!regexp(".*(test|drain).*", Name, "{options}")', Name=name) is True
    assert found(r'regexps("B7-(0..)", Name, "\\1", "i")', Name=name) == "042"
    compile_bounded("||".join(f'regexp("bad{number}", Name, "{options}")' for number in range(10)))


def test_an_expression_that_is_made_a_text_shows_no_frame() -> None:
    assert found("unparse(Start)", Start=Expression('regexp("a", Name)')) == '(regexp("a",Name))'
