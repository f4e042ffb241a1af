"""Arguments and environments of jobs: HTCondor's old and new syntax, and POSIX quoting.

Source: condor_submit manual, commands `arguments` and `environment`. A value in double quotes is in the new syntax:
blanks separate words, single quotes keep a word together, a doubled quote is one. A job's attribute Environment is in
the new syntax without the double quotes, its attribute Env in the old one. Pilotage itself keeps arguments as one
string with POSIX quoting.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping

_PLAIN_WORD = re.compile(r"[^'\s]+")


def argument_words(text: str) -> list[str]:
    r"""Return the arguments one by one; raises ValueError with the fault in the text.

    The old syntax has no quotes except `\"`, which is a double quote.
    """
    inside = _new_syntax(text)
    if inside is not None:
        return list(_words(inside))
    if '"' in text.replace('\\"', ""):
        raise ValueError('a double quote that is not written \\" in the old syntax')
    return text.replace('\\"', '"').split()


def environment_settings(text: str) -> dict[str, str]:
    """Return the environment by name; raises ValueError with the fault in the text.

    In the old syntax settings are separated by semicolons.
    """
    inside = _new_syntax(text)
    return _parse_settings(_words(inside) if inside is not None else (each.strip() for each in text.split(";")))


def environment_in_attribute(text: str) -> dict[str, str]:
    """Return the variables of the attribute Environment, by name; raises ValueError with the fault in it."""
    return _parse_settings(_words(text))


def environment_attribute(environment: Mapping[str, str]) -> str:
    """Return the attribute Environment with these variables."""
    return " ".join(_word(f"{name}={value}") for name, value in environment.items())


def _word(text: str) -> str:
    return text if _PLAIN_WORD.fullmatch(text) else "'" + text.replace("'", "''") + "'"


def _parse_settings(settings: Iterable[str]) -> dict[str, str]:
    environment = {}
    for setting in settings:
        if setting:
            name, equals, value = setting.partition("=")
            if not equals or not name:
                raise ValueError(f"{setting!r} is not NAME=VALUE")
            environment[name] = value
    return environment


def _new_syntax(text: str) -> str | None:
    """Return the text between the double quotes, with doubled ones as one; None = the old syntax."""
    text = text.strip()
    if not text.startswith('"'):
        return None
    inside = text[1:-1]
    if len(text) < 2 or not text.endswith('"') or '"' in inside.replace('""', ""):
        raise ValueError("double quotes that do not pair; inside them write two for one")
    return inside.replace('""', '"')


def _words(text: str) -> Iterator[str]:
    """Yield the words of the new syntax."""
    word: list[str] = []
    is_word = is_quoted = False
    position = 0
    while position < len(text):
        character = text[position]
        position += 1
        if character == "'":
            if is_quoted and text[position : position + 1] == "'":
                word.append("'")
                position += 1
            else:
                is_quoted = not is_quoted
            is_word = True
        elif character.isspace() and not is_quoted:
            if is_word:
                yield "".join(word)
            word.clear()
            is_word = False
        else:
            word.append(character)
            is_word = True
    if is_quoted:
        raise ValueError("a single quote that is not closed")
    if is_word:
        yield "".join(word)


_NEEDS_QUOTES = frozenset(" \t\n'\"\\")


def split_arguments(arguments: str) -> list[str]:
    """Return the arguments one by one; raises ValueError when a quotation is not closed."""
    return shlex.split(arguments)


def quoting_fault(arguments: str) -> str:
    """Return why `split_arguments` fails; empty = it does not. Text without quotes is not parsed."""
    if "'" not in arguments and '"' not in arguments and "\\" not in arguments:
        return ""
    try:
        split_arguments(arguments)
    except ValueError as error:
        return str(error)
    return ""


def join_arguments(arguments: Iterable[str]) -> str:
    """Return one string for `split_arguments`; plain words, also `$1`, stay as they are."""
    return " ".join(_quoted(argument) for argument in arguments)


def _quoted(argument: str) -> str:
    if argument and _NEEDS_QUOTES.isdisjoint(argument):
        return argument
    return "'" + argument.replace("'", "'\"'\"'") + "'"
