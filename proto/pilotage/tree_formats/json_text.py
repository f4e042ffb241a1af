"""Trees in JSON; a name that stands twice in one object is an error, where JSON lets the last one win."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from itertools import pairwise

from pilotage.errors import InvalidTreeError
from pilotage.tree_formats.syntax import as_section, place_of, syntax_error, too_deep, too_long_a_number

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]')


def read_json(text: str) -> Mapping[str, object]:
    """Return the plain data of a tree in JSON; raises InvalidTreeError for a syntax error."""
    repeated: list[str] = []

    def as_object(pairs: list[tuple[str, object]]) -> dict[str, object]:
        content = dict(pairs)
        if len(content) < len(pairs):
            repeated.append("")
        return content

    try:
        data = json.loads(text, object_pairs_hook=as_object)
    except json.JSONDecodeError as error:
        raise syntax_error(error.msg, error.lineno, error.colno) from error
    except RecursionError as error:
        raise too_deep() from error
    except ValueError as error:
        raise too_long_a_number(text) from error
    if repeated:
        raise _first_repetition(text)
    return as_section(data)


def _first_repetition(text: str) -> InvalidTreeError:
    """Return the error that points at the first name which stands twice; `text` is JSON and has one."""
    names: list[set[str]] = [set()]
    tokens = list(_TOKEN.finditer(text))
    for token, following in pairwise(tokens):
        if token[0] in "{[":
            names.append(set())
        elif token[0] in "}]":
            names.pop()
        elif token[0][0] == '"' and following[0] == ":":
            name = json.loads(token[0])
            if name in names[-1]:
                return syntax_error(f'"{name}" stands twice in one object', *place_of(text, token.start()))
            names[-1].add(name)
    raise AssertionError("the decoder found a repetition")
