"""The order of versions: "9.10" is newer than "9.9", "2.0rc1" older than "2.0", and "1.0" the same as "1"."""

from __future__ import annotations

import re
from functools import lru_cache

from pilotage.folding import fold

_REMEMBERED = 4096
_PIECE = re.compile(r"\d+|[^\W\d_]+")
_BEFORE_RELEASE = frozenset({"a", "alpha", "b", "beta", "dev", "pre", "preview", "rc"})

Piece = tuple[int, int, str]
_END: Piece = (0, 0, "")


@lru_cache(_REMEMBERED)
def version_key(text: str) -> tuple[Piece, ...]:
    """Return what versions are sorted by; equal versions have equal keys.

    A version is its numbers and words in turn, whatever stands between them; numbers compare as numbers.
    A word that names a pre-release sorts before nothing, any other word after nothing and before a number.
    Zeros at the end, also before a pre-release word, and a leading "v" before a number say nothing.
    """
    pieces: list[Piece] = []
    for word in _PIECE.findall(_without_leading_v(fold(text))):
        piece = _piece(word)
        if piece[0] < 0:
            _drop_zeros(pieces)
        pieces.append(piece)
    _drop_zeros(pieces)
    return (*pieces, _END)


def version_text(text: str) -> str:
    """Return the one spelling that all versions equal to `text` have."""
    return ".".join(word or f"{number:x}" for _, number, word in version_key(text)[:-1]) or "0"


def _without_leading_v(text: str) -> str:
    stripped = text.strip()
    return stripped[1:] if re.match(r"v\d", stripped) else stripped


def _piece(word: str) -> Piece:
    if word.isdecimal():
        # Read in base 16 decimal digits keep their order, and there may be more of them than Python reads in base 10.
        return (0, int(word, 16), "")
    return (-1 if word in _BEFORE_RELEASE else 0, 0, word)


def _drop_zeros(pieces: list[Piece]) -> None:
    while pieces and pieces[-1] == _END:
        pieces.pop()
