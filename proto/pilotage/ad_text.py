"""Ads as text in the ClassAd language's own syntax, one line each; writing needs no library.

Rules
-----
Values come out as they went in, in their order; what an ad cannot hold (a number that is not finite) is undefined.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from functools import lru_cache

from pilotage.classads import AdValue, Expression, quoted

_PLAIN_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)


def ad_text(attributes: Mapping[str, AdValue]) -> str:
    """Return the ad with these attributes."""
    return f"[{assignments(attributes)}]"


def assignments(attributes: Mapping[str, AdValue]) -> str:
    """Return what stands between the brackets of the ad with these attributes."""
    return "; ".join([f"{name_text(name)} = {value_text(value)}" for name, value in attributes.items()])


@lru_cache(4096)
def name_text(name: str) -> str:
    """Return a name as an ad says it."""
    return name if _PLAIN_NAME.fullmatch(name) else "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def value_text(value: AdValue) -> str:
    """Return a value as an ad says it."""
    match value:
        case bool():
            return "true" if value else "false"
        case int():
            return str(value)
        case float():
            return repr(value) if math.isfinite(value) else "undefined"
        case str():
            return quoted(value).replace("\n", "\\n").replace("\r", "\\r")
        case Expression(text):
            return f"({text}\n)" if "//" in text else " ".join(text.split("\n"))
        case tuple():
            return "{" + ", ".join(map(value_text, value)) + "}"
        case _:
            return ad_text(value)
