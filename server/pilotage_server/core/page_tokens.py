"""Page tokens: where a listing goes on, bound to the question that it belongs to.

Rules
-----
A token is opaque to callers and holds nothing secret. One that was made for another question is refused rather
than giving a page of neither.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from pilotage.errors import InvalidInputError, Violation

_DIGEST_BYTES = 8


def token_of(position: int, asked: Sequence[str]) -> str:
    """Return the token of the page after `position` of what was asked."""
    return base64.urlsafe_b64encode(_digest(asked) + str(position).encode()).decode().rstrip("=")


def position_of(token: str, asked: Sequence[str]) -> int:
    """Return the position that the token holds; raises InvalidInputError when it is not of this question."""
    try:
        content = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        position = int(content[_DIGEST_BYTES:].decode("ascii"))
    except (ValueError, binascii.Error, UnicodeError):
        raise InvalidInputError(Violation("page_token", "is not a token of this server")) from None
    if content[:_DIGEST_BYTES] != _digest(asked) or position < 0:
        raise InvalidInputError(Violation("page_token", "belongs to a question with other filters"))
    return position


def _digest(asked: Sequence[str]) -> bytes:
    text = "\0".join(asked)
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
