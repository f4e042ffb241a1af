"""Reads a server's submit policy: an HTCondor configuration file whose SUBMIT_EXPRS name the transforms."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from pilotage.classad_evaluation import compile_expression
from pilotage.classads import InvalidClassAdError, expression_from_old_syntax, quoted
from pilotage.condor_config import (
    Asked,
    Configuration,
    InvalidConfigurationError,
    Surroundings,
    read_configuration,
    read_text,
)
from pilotage.condor_text import definitions, reference_graph, undefined_macros
from pilotage.errors import Violation
from pilotage.faults import Faults
from pilotage.folding import fold
from pilotage_server.core.accounting import ACCOUNTING_GROUP
from pilotage_server.core.owned_attributes import STAMPED, is_reserved
from pilotage_server.core.submit_policy import SubmitPolicy, Transform

DOMAIN = "SUBMIT_SITE_DOMAIN"
"""The attribute that says where a job was submitted."""

_LISTS = ("SUBMIT_EXPRS", "SUBMIT_ATTRS")
_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_MAY_BE_SET = frozenset({ACCOUNTING_GROUP, *STAMPED})
"""Folded names that are the server's own, and that are set in just this way."""


def read_submit_policy(path: Path | None, domain: str | None) -> SubmitPolicy:
    """Return the transforms that the file at `path` names, and a constant SUBMIT_SITE_DOMAIN where it sets none.

    Raises
    ------
    InvalidConfigurationError
        When the file cannot be read, or an expression in it is none; the violations say where and why.
    ClassAdLibraryMissingError
        When HTCondor's Python library is not installed.
    """
    transforms = () if path is None else _transforms(path)
    if domain is None or fold(DOMAIN) in SubmitPolicy(transforms).names:
        return SubmitPolicy(transforms)
    return SubmitPolicy((Transform(DOMAIN, quoted(domain)), *transforms))


def _transforms(path: Path) -> tuple[Transform, ...]:
    found = read_configuration(path, Asked(_LISTS, _LISTS), Surroundings(subsystem="SUBMIT"))
    faults, transforms = Faults(), []
    for name in {fold(name): name for name in _listed(found)}.values():
        with faults.within(""):
            transforms.append(_transform(path, found, name))
    faults.raise_any(InvalidConfigurationError)
    return tuple(transforms)


def _listed(found: Configuration) -> Iterator[str]:
    for knob in _LISTS:
        yield from re.findall(r"[^\s,]+", found.get(knob) or "")


def _transform(path: Path, found: Configuration, name: str) -> Transform:
    text = found.get(name)
    if text is None:
        raise InvalidConfigurationError(Violation(_where(path, _LISTS), f"names {name}, and nothing defines it"))
    where = _where(path, (name,))
    if not _NAME.fullmatch(name):
        raise InvalidConfigurationError(Violation(where, f"{name} is not the name of an attribute"))
    if is_reserved(name) and fold(name) not in _MAY_BE_SET:
        why = f"{name} is what the job's own fields or its life say, and cannot be set"
        raise InvalidConfigurationError(Violation(where, why))
    try:
        expression = expression_from_old_syntax(text)
        compile_expression(expression, refuse_random=True)
    except InvalidClassAdError as error:
        raise InvalidConfigurationError(Violation(where, f"{name}: {_why(path, found, name, error)}")) from error
    return Transform(name, expression)


def _why(path: Path, found: Configuration, name: str, error: InvalidClassAdError) -> str:
    missing = undefined_macros(name, reference_graph(definitions(read_text(path))), found.names)
    return f"nothing defines {', '.join(missing)}" if missing else str(error)


def _where(path: Path, names: tuple[str, ...]) -> str:
    """Return the file and, where this very file defines one of the names, the line of the last definition."""
    lines = [each.line for each in definitions(read_text(path)) if fold(each.name) in map(fold, names)]
    return f"{path}, line {lines[-1]}" if lines else str(path)
