"""Trees in TOML."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping

from pilotage.errors import InvalidTreeError, Violation
from pilotage.tree_formats.syntax import place_of, syntax_error, too_deep, too_long_a_number

_PLACE = re.compile(r" \(at (?:line (?P<line>\d+), column (?P<column>\d+)|end of document)\)$")


def read_toml(text: str) -> Mapping[str, object]:
    """Return the plain data of a tree in TOML; raises InvalidTreeError for a syntax error."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _with_place(str(error), text) from error
    except RecursionError as error:
        raise too_deep() from error
    except ValueError as error:
        raise too_long_a_number(text) from error


def _with_place(message: str, text: str) -> InvalidTreeError:
    # The parser tells the place in words alone.
    place = _PLACE.search(message)
    if place is None:
        return InvalidTreeError(Violation("", message))
    why = message[: place.start()]
    if place["line"] is None:
        return syntax_error(why, *place_of(text, len(text)))
    return syntax_error(why, int(place["line"]), int(place["column"]))
