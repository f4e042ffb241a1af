"""The licences of what is installed beside Pilotage: which are accepted, and why.

A licence is read from a distribution's metadata: `License-Expression` (PEP 639), else `License`, else its classifiers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import Distribution
from typing import NamedTuple

ACCEPTED = frozenset({"0BSD", "Apache-2.0", "BSD-2-Clause", "BSD-3-Clause", "ISC", "MIT", "MIT-0", "PSF-2.0"})
"""SPDX identifiers of licences that ask for notices only, as Apache-2.0 does."""

SPDX = {
    "3-Clause BSD License": "BSD-3-Clause",
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD-3-Clause",
    "MIT License": "MIT",
}
"""SPDX identifiers of the names in older metadata."""

_LIBRARY = "is a library of its own, unmodified and replaceable by its user; Pilotage's wheel contains nothing of it"


class LicenceException(NamedTuple):
    """A licence that a package may have although it is not accepted in general."""

    licence: str
    reason: str


EXCEPTIONS: Mapping[str, LicenceException] = {
    "psycopg": LicenceException("LGPL-3.0-only", _LIBRARY),
    "psycopg-binary": LicenceException("LGPL-3.0-only", _LIBRARY),
    "python-dateutil": LicenceException("Dual License", "is under Apache-2.0 or BSD-3-Clause, as its user chooses"),
}
"""By package name."""


class LicenceLine(NamedTuple):
    """A line of the licence list; `fault` = why the licence is not accepted, "" = it is."""

    name: str
    version: str
    licence: str
    fault: str = ""
    reason: str = ""


def normalized(name: str) -> str:
    """Return a distribution's name as indexes and lock files write it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def licence_lines(distributions: Iterable[Distribution]) -> list[LicenceLine]:
    """Return the licence list of distributions, in the order of their names."""
    return sorted(_line(each) for each in distributions)


def _line(distribution: Distribution) -> LicenceLine:
    name, licence = normalized(distribution.name), licence_of(distribution)
    if is_accepted(licence):
        return LicenceLine(name, distribution.version, licence)
    if name in EXCEPTIONS and EXCEPTIONS[name].licence == licence:
        return LicenceLine(name, distribution.version, licence, reason=EXCEPTIONS[name].reason)
    fault = f"{licence or 'no licence'} is not accepted: see ACCEPTED and EXCEPTIONS in deploy/release/licences.py"
    return LicenceLine(name, distribution.version, licence, fault)


def licence_of(distribution: Distribution) -> str:
    """Return the licence as an SPDX expression, or as the metadata have it; "" = they name none."""
    metadata = distribution.metadata
    for key in ("License-Expression", "License"):
        text: str = (metadata.get_all(key) or [""])[0].strip()
        if text and "\n" not in text:  # some have the licence's whole text there
            return SPDX.get(text, text)
    return " OR ".join(sorted(SPDX.get(name, name) for name in _classified(metadata.get_all("Classifier") or ())))


def _classified(classifiers: Iterable[str]) -> Iterator[str]:
    for classifier in classifiers:
        kind, *_, name = classifier.split(" :: ")
        if kind == "License":
            yield name


def is_accepted(licence: str) -> bool:
    """Return whether one alternative of an SPDX expression has only accepted licences; brackets are not read."""
    return any(ACCEPTED.issuperset(re.split(r" AND ", each)) for each in licence.split(" OR "))
