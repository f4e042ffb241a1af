"""Letter case carries no meaning: names and texts are compared in the folded form made here.

Rules
-----
Folded text is for comparing and hashing only; what people typed is kept for showing. Unicode promises that
the case folding of an assigned character never changes, so folded text may be hashed and stored.
"""

from __future__ import annotations

from collections.abc import Iterable


def fold(text: str) -> str:
    """Return `text` as it is compared; two texts that differ in letter case alone fold to the same."""
    return text.casefold()


def folded_set(texts: Iterable[str]) -> frozenset[str]:
    """Return the distinct folded forms of `texts`."""
    return frozenset(fold(text) for text in texts)
