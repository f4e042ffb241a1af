"""Parts of slots' ads that stay the same for long, by the hash of their text, as they are offered.

Rules
-----
A part is what its text says: equal texts are one part, whichever slots it is of. Texts of parts are kept while they
are in use or were lately, so that a server that has lost one can be told it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from pilotage.ad_text import ad_text
from pilotage.classads import AdValue

_KEPT = 1024
"""Parts: more than a node with a slot per core has, so that the present ones are among the latest."""


@dataclass(frozen=True, slots=True)
class AdOffer:
    """An ad to be offered: the keys of its parts, where the later wins, and what wins over them all."""

    part_keys: tuple[str, ...]
    changes: str


class AdParts:
    """The latest parts, by key."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}

    def key(self, attributes: Mapping[str, AdValue]) -> str:
        """Return the key of the part with these attributes."""
        text = ad_text(attributes)
        key = hashlib.sha256(text.encode()).hexdigest()
        self.use(key, text)
        return key

    def use(self, key: str, text: str | None = None) -> None:
        """Keep a part for long, from now; `text` None = as it was."""
        said = self._texts.pop(key, text)
        assert said is not None, f"no part {key}"
        self._texts[key] = said
        if len(self._texts) > _KEPT:
            del self._texts[next(iter(self._texts))]

    def text(self, key: str) -> str | None:
        """Return the text of a part, None = it was not in use for long."""
        return self._texts.get(key)
