"""Ads as HTCondor's tools print them: -long, -json, -jsonl, -xml, -autoformat and -format.

Source: HTCondor's manual (condor_q, output options) and the ClassAd library's XML.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from pilotage.classads.evaluation import Ad, CompiledExpression, NoValue, Result, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression, quoted
from pilotage.classads.references import references
from pilotage.classads.text import ad_lines, value_text
from pilotage.errors import Faults, InvalidInputError, Violation
from pilotage.text import fold
from pilotage_client.condor.arguments import REST, CondorArguments, CondorOption, done, refused

FORMAT_OPTIONS: tuple[CondorOption, ...] = (
    *done("long:1 xml:3 json:4 jsonl:5"),
    *done("attributes:2", 1),
    *done("autoformat:5 af", REST),
    *done("format:1", 2),
    *refused("print-format:2 pr", "write -autoformat or -format", 1),
)
"""The options of output that condor_q, condor_history and condor_status have in common."""

_EXPRESSIONS = frozenset(
    map(
        fold,
        ("Requirements", "Rank", "PeriodicHold", "PeriodicRelease", "PeriodicRemove", "OnExitHold", "OnExitRemove"),
    )
)
"""Attributes whose values may refer to any other one."""

_JOB_ID = ("ClusterId", "ProcId")
_CONVERSION = re.compile(r"%(?P<flags>[-+ #0]*\d*(?:\.\d+)?)(?:l|h)*(?P<kind>[diouxXeEfFgGcsvVrT%])")
_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", '\\"': '"', "\\\\": "\\"}
_ESCAPE = re.compile(r'\\[ntr"\\]')


@dataclass(frozen=True, slots=True)
class AdColumn:
    """One attribute or expression of -autoformat or -format; `form` "" = of -autoformat."""

    text: str
    expression: CompiledExpression
    form: str = ""


@dataclass(frozen=True, slots=True)
class AdFormat:
    """How ads are printed: `kind` is "" (a table), long, json, jsonl, xml, autoformat or format.

    `attributes` = the attributes that are needed, none = all. `qualifiers` are those of -autoformat.
    """

    kind: str
    attributes: tuple[str, ...] = ()
    columns: tuple[AdColumn, ...] = ()
    qualifiers: str = ""


def read_format(arguments: CondorArguments) -> AdFormat:
    """Return the format that the options ask for; raises InvalidInputError."""
    given = [each for each in arguments.options if each.name in _KINDS]
    kinds = {_KINDS[each.name] for each in given}
    if len(kinds) > 1:
        raise InvalidInputError(Violation("", f"-{' and -'.join(sorted(kinds))} cannot be combined"))
    named = tuple(name for text in arguments.values("attributes") for name in text.replace(",", " ").split())
    if not kinds:
        return AdFormat("long" if named else "", named)
    (kind,) = kinds
    if kind not in ("autoformat", "format"):
        return AdFormat(kind, named)
    if kind == "autoformat":
        texts = [text for option in given for text in option.values]
        return autoformat(texts, "".join(each.qualifiers for each in given), "-autoformat")
    faults, columns = Faults(), []
    for option in given:
        form, text = option.values
        with faults.within(f"-{option.name} {text}"):
            columns.append(AdColumn(text, compile_expression(text), _unescaped(form)))
    faults.raise_any()
    return AdFormat(kind, _needed(columns), tuple(columns))


def autoformat(texts: Iterable[str], qualifiers: str, option: str) -> AdFormat:
    """Return the format that prints the values of attributes and expressions; raises InvalidInputError."""
    faults, columns = Faults(), []
    for text in texts:
        with faults.within(f"{option} {text}"):
            columns.append(AdColumn(text, compile_expression(text)))
    if unknown := set(qualifiers) - set(",tngjlhVr"):
        faults.add(option, f"has no qualifier {min(unknown)}; known are , t n g j l h V r")
    faults.raise_any()
    return AdFormat("autoformat", _needed(columns), tuple(columns), qualifiers)


_KINDS = {
    **{name: name for name in ("long", "xml", "json", "jsonl", "autoformat", "format")},
    "af": "autoformat",
}


def _needed(columns: Iterable[AdColumn]) -> tuple[str, ...]:
    """Return the attributes that expressions read; none = perhaps all."""
    names: set[str] = set()
    for column in columns:
        refers = references(column.text)
        if refers.is_dynamic or not _EXPRESSIONS.isdisjoint(refers.in_my):
            return ()
        names |= refers.in_my | refers.target
    return (*_JOB_ID, *sorted(names))


def _unescaped(form: str) -> str:
    return _ESCAPE.sub(lambda found: _ESCAPES[found[0]], form)


def print_ads(ads: Iterable[str], form: AdFormat, write: Callable[[str], object]) -> None:
    """Write the ads, texts in new ClassAd syntax, in a format that is not a table."""
    match form.kind:
        case "long":
            for ad in ads:
                write(f"{_sorted_lines(ad)}\n")
        case "jsonl":
            for ad in ads:
                write(json.dumps(_json_ad(ad)) + "\n")
        case "json":
            _write_list(ads, write)
        case "xml":
            write('<?xml version="1.0"?>\n<!DOCTYPE classads SYSTEM "classads.dtd">\n<classads>\n')
            for ad in ads:
                write("".join(_xml_ad(ad)))
            write("</classads>\n")
        case "autoformat":
            _write_values(ads, form, write)
        case _:
            for ad in ads:
                write(_formatted(Ad.read(ad), form.columns))


def _sorted_lines(ad: str) -> str:
    return "".join(sorted(ad_lines(ad).splitlines(keepends=True), key=str.lower))


def _write_list(ads: Iterable[str], write: Callable[[str], object]) -> None:
    write("[\n")
    for number, ad in enumerate(ads):
        write((",\n" if number else "") + json.dumps(_json_ad(ad), indent=2) + "\n")
    write("]\n")


def _json_ad(ad: str) -> dict[str, Any]:
    plain = Ad.read(ad).plain()
    return {name: _json_value(plain[name]) for name in sorted(plain, key=str.lower)}


def _json_value(value: AdValue) -> Any:
    match value:
        case Expression("undefined"):
            return None
        case Expression(text):
            return f"/Expr({text})/"
        case tuple():
            return [_json_value(each) for each in value]
        case Mapping():
            return {name: _json_value(each) for name, each in value.items()}
        case _:
            return value


def _xml_ad(ad: str) -> Iterator[str]:
    yield "<c>\n"
    for name, value in sorted(Ad.read(ad).plain().items(), key=lambda pair: pair[0].lower()):
        yield f'    <a n="{escape(name)}">{_xml_value(value)}</a>\n'
    yield "</c>\n"


def _xml_value(value: AdValue) -> str:
    match value:
        case bool():
            return f'<b v="{"t" if value else "f"}"/>'
        case int():
            return f"<i>{value}</i>"
        case float():
            return f"<r>{value!r}</r>"
        case str():
            return f"<s>{escape(value, quote=False)}</s>"
        case Expression(text):
            return f"<e>{escape(text, quote=False)}</e>"
        case tuple():
            return f"<l>{''.join(map(_xml_value, value))}</l>"
        case _:
            inner = "".join(f'<a n="{escape(name)}">{_xml_value(each)}</a>' for name, each in value.items())
            return f"<c>{inner}</c>"


def _write_values(ads: Iterable[str], form: AdFormat, write: Callable[[str], object]) -> None:
    """Write -autoformat: a line an ad, or what its qualifiers ask for."""
    qualifiers = set(form.qualifiers)
    before_ad = "\n" if "g" in qualifiers else ""
    behind = "," if "," in qualifiers else ""
    between = "\n" if "n" in qualifiers else "\t" if "t" in qualifiers else " "
    rows: Iterable[list[str]] = ([*_cells(Ad.read(ad), form.columns, qualifiers)] for ad in ads)
    if "h" in qualifiers:
        names = [*(["ID"] if "j" in qualifiers else []), *(column.text for column in form.columns)]
        rows = _aligned([names, *rows])
    for row in rows:
        write(f"{before_ad}{f'{behind}{between}'.join(row)}\n")


def _aligned(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [[*(cell.ljust(width) for cell, width in zip(row[:-1], widths, strict=False)), row[-1]] for row in rows]


def _cells(ad: Ad, columns: Sequence[AdColumn], qualifiers: set[str]) -> Iterator[str]:
    if "j" in qualifiers:
        yield ".".join(_shown(ad.value(name)) for name in _JOB_ID)
    for column in columns:
        if "r" in qualifiers:
            raw = ad.get(fold(column.text))
            text = "undefined" if raw is None else value_text(raw)
        else:
            text = _shown(evaluate(column.expression, ad), is_quoted="V" in qualifiers)
        yield f"{column.text} = {text}" if "l" in qualifiers else text


def _shown(value: Result, *, is_quoted: bool = False) -> str:
    match value:
        case NoValue():
            return value.value
        case bool():
            return str(value).lower()
        case str():
            return quoted(value) if is_quoted else value
        case Expression(text):
            return text
        case _:
            return str(value)


def _formatted(ad: Ad, columns: Iterable[AdColumn]) -> str:
    """Return -format: a text without a value is left out as a whole."""
    found = ""
    for column in columns:
        value = evaluate(column.expression, ad)
        kinds = [each["kind"] for each in _CONVERSION.finditer(column.form) if each["kind"] != "%"]
        if isinstance(value, NoValue) and not set(kinds) & set("vVr"):
            continue
        raw = ad.get(fold(column.text))
        found += _CONVERSION.sub(lambda each: _converted(each, value, raw), column.form)  # noqa: B023
    return found


def _converted(found: re.Match[str], value: Result, raw: AdValue | None) -> str:
    flags, kind = found["flags"], found["kind"]
    if kind == "%":
        return "%"
    if kind == "r":
        return f"%{flags}s" % ("undefined" if raw is None else value_text(raw))
    if kind in "svVT":
        return f"%{flags}s" % _shown(value, is_quoted=kind == "V")
    number = value if isinstance(value, int | float) else _number(value)
    if number is None:
        return ""
    return f"%{flags}{kind}" % (number if kind in "eEfFgG" else int(number))


def _number(value: Result) -> float | None:
    try:
        return float(value) if isinstance(value, str) else None
    except ValueError:
        return None
