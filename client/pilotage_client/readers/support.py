"""The tables of attributes: each known attribute of a language is done, harmless to ignore, or refused.

Rules
-----
- Done: it has an effect. Its handler may refuse values that it cannot do.
- Harmless: nothing happens, and the job runs the same program at the same places equally often.
- Refused: it asks for something that is not done, so a job without it would be another job. A file with one is not
  submitted, unless its owner lets it be ignored.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

Handler = TypeVar("Handler")


class Support(StrEnum):
    """What is done with an attribute."""

    DONE = "done"
    HARMLESS = "harmless"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True)
class KnownAttribute(Generic[Handler]):
    """One attribute; `names` are all its spellings, the usual one first.

    `note` says what it becomes, why it may be ignored, or why it is refused and what to do.
    """

    names: tuple[str, ...]
    support: Support
    note: str
    handler: Handler


class AttributeTable(Generic[Handler]):
    """The known attributes of a language, found by the `key` of their names."""

    def __init__(self, attributes: Iterable[KnownAttribute[Handler]], key: Callable[[str], str]) -> None:
        self._attributes = tuple(attributes)
        self._key = key
        self._by_key: Mapping[str, KnownAttribute[Handler]] = {
            key(name): attribute for attribute in self._attributes for name in attribute.names
        }

    def __iter__(self) -> Iterator[KnownAttribute[Handler]]:
        return iter(self._attributes)

    def get(self, name: str) -> KnownAttribute[Handler] | None:
        """Return the attribute of a name; None = it is not known."""
        return self._by_key.get(self._key(name))

    def similar(self, name: str) -> str | None:
        """Return the known name that an unknown one resembles most; None = none is similar."""
        names = {self._key(each): each for attribute in self._attributes for each in attribute.names}
        nearest = difflib.get_close_matches(self._key(name), names, n=1, cutoff=0.8)
        return names[nearest[0]] if nearest else None


TRUE_WORDS = frozenset({"true", "t", "yes", "y", "1"})
FALSE_WORDS = frozenset({"false", "f", "no", "n", "0"})
"""The words for truth values in submit files and JDL, folded."""
