"""Regular expressions in ClassAds: their cost is bounded, and within the bound results are those of the library."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pilotage.classads.cost import cost_fault
from pilotage.classads.evaluation import Ad, NoValue, Result, compile_bounded, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError, classad_library, quoted
from pilotage.classads.limits import LONGEST_SUBJECT, MAX_PATTERNS, framed, unframed
from pilotage.classads.text import ad_text
from pilotage.job_description import JobPolicy
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.submission.validation import description_faults
from support.jobs import a_description

LONGEST = "a" * LONGEST_SUBJECT
COSTLY = "a*a*a*[bc]"


def evaluated(text: str, **attributes: AdValue) -> Result:
    return evaluate(compile_expression(text), Ad(attributes))


def refusal_of(text: str) -> str:
    with pytest.raises(InvalidClassAdError) as refused:
        compile_bounded(text)
    return str(refused.value)


def library_result(text: str, **attributes: str) -> Result:
    """Return the result of the library without bounds."""
    result = classad_library().ExprTree(text).eval(classad_library().ClassAd(attributes))
    return NoValue.ERROR if isinstance(result, classad_library().Value) else result


@pytest.mark.parametrize(
    "text",
    [
        f'regexp("{COSTLY}", Name)',
        f'regexp(strcat("a*a*", "{COSTLY}"), Name)',
        'regexp(Pattern /* of the site */ // "\n, Name, "i")',
        f'REGEXPS("{COSTLY}", Name, "b")',
        f'replace("{COSTLY}", Name, "b")',
        f'replaceAll("{COSTLY}", Name, "b")',
        f'stringListRegexpMember("{COSTLY}", Name)',
        f'stringList_RegexpMember("{COSTLY}", Name)',
        f"'regexpMember'(\"{COSTLY}\", {{ Name }})",
        f'evalInEachContext(regexp("{COSTLY}", Name), {{ [Name = "{LONGEST}"] }})',
        "MY.Start",
    ],
)
def test_costly_pattern_is_stopped_early(text: str) -> None:
    before = time.process_time()
    result = evaluated(text, Name=LONGEST, Pattern=COSTLY, Start=Expression(f'regexp("{COSTLY}", Name)'))
    # Functions over lists treat an element that cannot be searched as not matching.
    assert result in (NoValue.ERROR, Expression("{error}")) or (result is False and "Member" in text)
    assert time.process_time() - before < 5  # without the bound, the library takes minutes


def test_ad_bounds_its_patterns_and_shows_the_originals() -> None:
    text = f'[ Found = regexp("{COSTLY}", Name); Part = regexps(strcat("(", P, ")."), Name, "<\\\\1>"); P = "a"; ]'
    ad = Ad.read(text)
    ad.set("Name", LONGEST)
    assert ad.value("Found") is NoValue.ERROR
    ad.set("Name", "ab")
    assert ad.value("Part") == "<a>"
    ad.set("Start", Expression('regexp("^a", Name)'))
    shown = {name.lower(): value for name, value in ad.plain().items()}
    assert shown["found"] == Expression(f'regexp("{COSTLY}",Name)')
    assert shown["part"] == Expression('regexps(strcat("(",P,")."),Name,"<\\\\1>")')
    assert shown["start"] == Expression('(regexp("^a",Name))')
    assert "LIMIT" not in ad_text(ad.plain())


def test_too_long_subject_is_error_instead_of_false() -> None:
    assert evaluated('regexp("a", Name)', Name=LONGEST) is True
    assert evaluated('regexp("b", Name)', Name=LONGEST) is False
    assert evaluated('regexp("a", Name)', Name=LONGEST + "a") is NoValue.ERROR
    assert evaluated('replaceAll("b", Name, "c")', Name="a" * 1_000_000) is NoValue.ERROR


@pytest.mark.parametrize("pattern", [".*foo.*[xy]", ".*(foo|bar|baz).*", "(foo|bar).*[xy]$", "foo.*bar", "^[a-z]+y"])
def test_common_patterns_work_on_the_longest_subjects(pattern: str) -> None:
    padding = "quux fob " * (LONGEST_SUBJECT // 9 - 2)
    assert evaluated(f'regexp("{pattern}", Name)', Name=padding) is False
    assert evaluated(f'regexp("{pattern}", Name)', Name="foo bar x") is (pattern != "^[a-z]+y")


_ATOMS = st.sampled_from(
    ["a", "b", ".", "\n", "[ab]", "[^a]", "\\.", "\\b", "^", "$", "(a|b)", "(?:b|)", "(?=b)", "(?<=a)", "a|b", "(.*)"]
)
_PATTERNS = st.lists(st.tuples(_ATOMS, st.sampled_from(["", "", "*", "+", "?", "*?"])), min_size=1, max_size=5)
_BEGINNINGS = st.sampled_from(["", "", ".*", ".*?", ".+"])


@given(_BEGINNINGS, _PATTERNS, st.text("ab.\n", max_size=12), st.sampled_from(["", "i", "f", "fi"]))
def test_bound_does_not_change_matches(
    beginning: str, parts: list[tuple[str, str]], subject: str, options: str
) -> None:
    pattern = quoted(beginning + "".join(atom + times for atom, times in parts))
    for text in (
        f'regexp({pattern}, Name, "i")',
        f"regexp(strcat({pattern}), Name)",
        f'regexps({pattern}, Name, "<\\\\0>", "{options}")',
        f'replace({pattern}, Name, "<\\\\0>")',
    ):
        result = evaluated(text, Name=subject)
        assert result in (library_result(text, Name=subject), NoValue.ERROR)  # it may exceed the bound


@given(_BEGINNINGS, _PATTERNS, st.text("ab.\n", max_size=12))
def test_bound_does_not_change_repeated_replacements(
    beginning: str, parts: list[tuple[str, str]], subject: str
) -> None:
    pattern = quoted(f"(?:{beginning}{''.join(atom + times for atom, times in parts)})[ab]")
    for text in (f'replaceAll({pattern}, Name, "-")', f'regexps({pattern}, Name, "<\\\\0>", "g")'):
        result = evaluated(text, Name=subject)
        assert result in (library_result(text, Name=subject), NoValue.ERROR)  # it may exceed the bound


def test_common_replacements_work() -> None:
    assert evaluated('replaceAll(" +", Name, "_")', Name="abc  de " * 100) == "abc_de_" * 100
    assert evaluated(r'regexps("([a-z]+)\\d+", Name, "\\1")', Name="lhcb017") == "lhcb"


def _nested_search(pattern: str, subject: str) -> str:
    return f"regexp({pattern}, strcat({subject}))"


@given(st.recursive(st.sampled_from(["A", '"x"', '")"', "1"]), lambda inner: st.builds(_nested_search, inner, inner)))
def test_removing_bounds_restores_the_text(text: str) -> None:
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
        "||".join(['regexp("a", Name)'] * MAX_PATTERNS),
    ],
)
def test_users_may_use_literal_patterns(text: str) -> None:
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
        ("||".join(['regexp("a", Name)'] * (MAX_PATTERNS + 1)), "at most 10"),
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
def test_refuses_pattern_of_unbounded_cost(text: str, why: str) -> None:
    assert why in refusal_of(text)


def test_evaluated_string_cannot_hide_a_pattern() -> None:
    assert evaluated('eval("regexp(P, Name)")', P="a", Name="a") is True  # slot policies may
    assert "regexp takes a plain text only" in refusal_of('eval("regexp(P, Name)")')
    assert "eval takes a plain text only" in refusal_of('eval("regexp(\\"a\\", Name)")')


def test_refuses_policies_that_repeat_a_pattern_too_often() -> None:
    policy = JobPolicy(periodic_hold='regexp("a*b", Arguments)')
    too_often = a_description(requirements_expression="||".join(["PeriodicHold"] * 12), policy=policy)
    allowed = a_description(requirements_expression="||".join(["PeriodicHold"] * 9), policy=policy)
    assert [fault.where for fault in description_faults(too_often, JobLimits(), {})] == ["requirements_expression"]
    assert not description_faults(allowed, JobLimits(), {})


def test_site_policy_may_use_many_patterns() -> None:
    start = Expression("||".join(f'regexp("^a{number}", TARGET.Owner)' for number in range(60)))
    assert not cost_fault("Start", [{"start": start}.get]) is not None
    assert cost_fault("Start || Start", [{"start": start}.get]) is not None


@pytest.mark.parametrize("options", ["i", "m", "s", "x", "fi"])
def test_pattern_options_cost_nothing(options: str) -> None:
    name = "wn-b7-042.grid.example-university.org" * 20
    assert evaluated(f'!regexp(".*(test|drain).*", Name, "{options}")', Name=name) is True
    assert evaluated(r'regexps("B7-(0..)", Name, "\\1", "i")', Name=name) == "042"
    compile_bounded("||".join(f'regexp("bad{number}", Name, "{options}")' for number in range(10)))


def test_unparsed_expression_shows_no_bound() -> None:
    assert evaluated("unparse(Start)", Start=Expression('regexp("a", Name)')) == '(regexp("a",Name))'
