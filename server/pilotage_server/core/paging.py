"""Page tokens: the position where a listing continues, bound to the query that it belongs to.

Rules
-----
A token is opaque to callers and contains nothing secret. A token of another query is rejected.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence

from pilotage.errors import InvalidInputError, Violation

_DIGEST_BYTES = 8


def token_of(position: int, asked: Sequence[str]) -> str:
    """Return the token of the page after `position` of the query `asked`."""
    return base64.urlsafe_b64encode(_digest(asked) + str(position).encode()).decode().rstrip("=")


def position_of(token: str, asked: Sequence[str]) -> int:
    """Return the position in the token; raises InvalidInputError when it belongs to another query."""
    try:
        content = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        position = int(content[_DIGEST_BYTES:].decode("ascii"))
    except (ValueError, binascii.Error, UnicodeError):
        raise InvalidInputError(Violation("page_token", "is not a token of this server")) from None
    if content[:_DIGEST_BYTES] != _digest(asked) or position < 0:
        raise InvalidInputError(Violation("page_token", "belongs to a query with other filters"))
    return position


def _digest(asked: Sequence[str]) -> bytes:
    text = "\0".join(asked)
    return hashlib.sha256(text.encode()).digest()[:_DIGEST_BYTES]
