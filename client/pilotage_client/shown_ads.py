"""ClassAds as people and scripts read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pilotage.ad_text import name_text, value_text
from pilotage.classad_evaluation import Ad
from pilotage.classads import AdValue, Expression


def long_form(ad: str) -> str:
    """Return an ad as condor_q and condor_status print it with -long: a line an attribute, by name."""
    return "\n".join(f"{name_text(name)} = {value_text(value)}" for name, value in _sorted(ad))


def ad_as_json(ad: str) -> dict[str, Any]:
    """Return an ad's attributes by name; what is an expression as its text."""
    return {name: _plain(value) for name, value in _sorted(ad)}


def _sorted(ad: str) -> list[tuple[str, AdValue]]:
    return sorted(Ad.read(ad).plain().items(), key=lambda pair: pair[0].lower())


def _plain(value: AdValue) -> Any:
    match value:
        case Expression(text):
            return text
        case tuple():
            return [_plain(element) for element in value]
        case Mapping():
            return {name: _plain(each) for name, each in value.items()}
        case _:
            return value
