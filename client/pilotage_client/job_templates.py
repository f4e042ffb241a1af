"""Job templates: what a site wants its kinds of jobs to say, put on top of what their owners wrote.

Rules
-----
A template never takes anything away: its requirements expression and its policies stand beside the job's own, its
attributes are set whatever the job says of them, which its owner is told. Templates are TOML files; a name without
a folder and an ending is looked for in the folders that are given, and then among those that are shipped.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.folding import fold
from pilotage.job_description import NO_POLICY, JobDescription, JobPolicy, Value
from pilotage_client.bounded_files import content_of
from pilotage_client.job_changes import with_policies
from pilotage_client.readers.draft import Draft
from pilotage_client.readers.read_error import ReadError
from pilotage_client.readers.toml import line_of
from pilotage_client.readers.toml_keys import KEYS, InvalidValueError

ENDING = ".toml"
_KEYS = ("requirements_expression", "attributes", "policy")
_JOINED = ("periodic_hold", "periodic_release", "periodic_remove")

SHIPPED: tuple[Path, ...] = (
    Path(__file__).parents[2] / "deploy" / "templates",
    Path(sys.prefix) / "share" / "pilotage" / "templates",
)
"""Folders of the shipped templates: of a checkout, of an installation."""


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """What is put on top of jobs; `about` says for people what jobs these are."""

    name: str
    about: str = ""
    requirements_expression: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    policy: JobPolicy = NO_POLICY


def find_template(name: str, folders: Sequence[Path] = ()) -> JobTemplate:
    """Return the template of this name, or of this path where it has a folder or the ending of one.

    Raises
    ------
    InvalidInputError
        There is none; the names that there are are told.
    ReadError
        Its file cannot be read, or is no template.
    """
    if "/" in name or name.endswith(ENDING):
        return read_template(Path(name))
    found = _templates((*folders, *SHIPPED))
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise InvalidInputError(Violation("template", f"there is no job template {name}; known are: {known}"))
    return read_template(found[name])


def _templates(folders: Iterable[Path]) -> dict[str, Path]:
    """Return the files by name; of two with the same name the one in the earlier folder."""
    files = [file for folder in folders if folder.is_dir() for file in sorted(folder.glob(f"*{ENDING}"))]
    return {file.stem: file for file in reversed(files)}


def read_template(path: Path) -> JobTemplate:
    """Return the template that a file holds; raises ReadError with the line at fault."""
    file = str(path)
    try:
        text = content_of(path).decode("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise ReadError(file, None, (error.strerror or "cannot be read").lower()) from error
    except (ValueError, RecursionError) as error:
        raise ReadError(file, None, f"is no TOML: {error}") from error
    draft = Draft()
    for key, value in document.items():
        try:
            _put(draft, key, value)
        except InvalidValueError as error:
            raise ReadError(file, line_of(text, 0, key), f"{key} {error}") from error
        except InvalidRequirementsError as error:
            raise ReadError(file, line_of(text, 0, key), f"{key}: {error}") from error
    return JobTemplate(path.stem, document.get("about", ""), attributes=draft.attributes, **draft.fields)


def _put(draft: Draft, key: str, value: Any) -> None:
    if key in _KEYS:
        KEYS[key](draft, value)
    elif key != "about":
        raise InvalidValueError(f"is no key of a job template; these are: about, {', '.join(_KEYS)}")
    elif not isinstance(value, str):
        raise InvalidValueError("must be a text")


def applied(template: JobTemplate, description: JobDescription) -> JobDescription:
    """Return the description with what the template adds."""
    expressions = [description.requirements_expression, template.requirements_expression]
    changed = replace(
        description,
        requirements_expression=_joined(expressions, "&&"),
        attributes=_without(description.attributes, template.attributes) | dict(template.attributes),
        warnings=(*description.warnings, *_overruled(template, description)),
    )
    return with_policies(changed, _united(description.policy, template.policy))


def _united(own: JobPolicy, added: JobPolicy) -> JobPolicy:
    """Return the policy that acts when either of them would; reasons and codes are the job's own, if it has any."""
    return JobPolicy(
        **{name: _joined([getattr(own, name), getattr(added, name)], "||") for name in _JOINED},
        periodic_hold_reason=own.periodic_hold_reason or added.periodic_hold_reason,
        periodic_hold_subcode=own.periodic_hold_subcode or added.periodic_hold_subcode,
    )


def _joined(expressions: Iterable[str | None], operator: str) -> str | None:
    given = [expression for expression in expressions if expression is not None and expression.strip()]
    if len(given) < 2:
        return given[0] if given else None
    # The line end keeps a comment at the end of one from hiding the bracket.
    return f" {operator} ".join(f"({text}\n)" if "//" in text else f"({text})" for text in given)


def _without(attributes: Mapping[str, Value], others: Mapping[str, Value]) -> dict[str, Value]:
    names = {fold(name) for name in others}
    return {name: value for name, value in attributes.items() if fold(name) not in names}


def _overruled(template: JobTemplate, description: JobDescription) -> Iterable[str]:
    """Yield what the job says otherwise than the template."""
    own = {fold(name): value for name, value in description.attributes.items()}
    for name, value in template.attributes.items():
        said = own.get(fold(name), value)
        if (type(said), said) != (type(value), value):
            yield f"{name} is as the job template {template.name} says, not as the job does"
