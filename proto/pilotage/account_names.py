"""Names of accounts and groups as people write them: VO/GROUP/OWNER and VO/GROUP.

Rules
-----
A VO and an owner have no slash, a group may; the group may be empty, which means jobs without one.
"""

from __future__ import annotations

from pilotage.errors import InvalidInputError, Violation


def split_account(name: str) -> tuple[str, str, str]:
    """Return VO, group and owner of "VO/GROUP/OWNER"; raises InvalidInputError."""
    vo, _, rest = name.partition("/")
    group, slash, owner = rest.rpartition("/")
    if not (vo and slash and owner):
        raise InvalidInputError(Violation("", f"{name!r} names no account; write VO/GROUP/OWNER"))
    return vo, group, owner


def split_group(name: str) -> tuple[str, str]:
    """Return VO and group of "VO/GROUP"; raises InvalidInputError."""
    vo, slash, group = name.partition("/")
    if not (vo and slash):
        raise InvalidInputError(Violation("", f"{name!r} names no group; write VO/GROUP"))
    return vo, group
