"""What a JDL attribute can mean for a job: a text of it, a list of files, a size, a place, a requirement."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from pilotage.arguments import join_arguments, split_arguments
from pilotage.classad_evaluation import bounded
from pilotage.classads import InvalidClassAdError
from pilotage.errors import InvalidRequirementsError
from pilotage.folding import fold
from pilotage.job_description import InputFile, Value
from pilotage_client.readers.draft import NO_MEANING, Draft
from pilotage_client.readers.jdl_values import (
    Attribute,
    Section,
    as_attribute,
    as_text,
    expression_of,
    flattened,
    says_nothing,
    scalar_of,
    text_of,
    texts_of,
    whole_number_of,
)
from pilotage_client.readers.read_error import StatementFaultError

Meaning = Callable[[Draft, Attribute], None]
"""Puts what an attribute says into a draft; raises StatementFaultError where it says nothing that can be."""

_REMOTE = re.compile(r"(?!file:)[A-Za-z][\w+.-]+:")
_PROCESSOR_TAG = re.compile(r"(\d{1,9})Processors", re.IGNORECASE | re.ASCII)
_UNEXPANDED = re.compile(r"\$\{?[A-Za-z_]")
_ALIEN_PLACE = re.compile(r"@[\w:,=]*$")


def keep(draft: Draft, attribute: Attribute) -> None:
    """Keep an attribute that means nothing here, and warn unless it is empty."""
    warning = None if says_nothing(attribute.value) else NO_MEANING
    draft.keep(attribute.name, as_attribute(attribute.value), warning)


def keep_quietly(draft: Draft, attribute: Attribute) -> None:
    """Keep an attribute that server and pilots look at by its name."""
    draft.keep(attribute.name, as_attribute(attribute.value))


def kept_because(warning: str) -> Meaning:
    """Return the meaning of an attribute that is kept, with `warning` unless it is empty."""

    def keep(draft: Draft, attribute: Attribute) -> None:
        draft.keep(attribute.name, as_attribute(attribute.value), None if says_nothing(attribute.value) else warning)

    return keep


def kept_quietly_if(*ordinary: str) -> Meaning:
    """Return the meaning of an attribute that says how jobs are here anyway, if it has an `ordinary` value."""

    def keep(draft: Draft, attribute: Attribute) -> None:
        is_ordinary = all(fold(as_text(each)) in ordinary for each in flattened(attribute.value))
        draft.keep(attribute.name, as_attribute(attribute.value), None if is_ordinary else NO_MEANING)

    return keep


def kept_too(meaning: Meaning) -> Meaning:
    """Return a meaning whose attribute is kept as it was written, too: `convert` has no key for what it sets."""

    def put(draft: Draft, attribute: Attribute) -> None:
        meaning(draft, attribute)
        draft.keep(attribute.name, as_attribute(attribute.value))

    return put


def text(field: str) -> Meaning:
    """Return the meaning of a text that is `field` of the description."""

    def put(draft: Draft, attribute: Attribute) -> None:
        text = text_of(attribute)
        if text:
            draft.put(**{field: text})
        else:
            keep(draft, attribute)

    return put


def executable(draft: Draft, attribute: Attribute) -> None:
    """Put the executable, which must not be empty."""
    executable = text_of(attribute).strip()
    if not executable:
        raise StatementFaultError(attribute.line, f"{attribute.name} is empty")
    draft.put(executable=executable)


def arguments(draft: Draft, attribute: Attribute) -> None:
    """Put the arguments: a text with POSIX quoting, or a list of them."""
    if isinstance(attribute.value, tuple):
        draft.put(arguments=join_arguments(texts_of(attribute)))
        return
    arguments = text_of(attribute)
    try:
        split_arguments(arguments)
    except ValueError as error:
        raise StatementFaultError(attribute.line, f"{attribute.name}: {str(error).lower()}") from error
    draft.put(arguments=arguments)


def environment(draft: Draft, attribute: Attribute) -> None:
    """Put the environment, a list of NAME=VALUE."""
    for setting in texts_of(attribute):
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise StatementFaultError(attribute.line, f"{attribute.name}: {setting!r} is not NAME=VALUE")
        draft.environment[name.strip()] = value
        if _UNEXPANDED.search(value):
            draft.warn(f"{attribute.name}: {name.strip()} is set to the text {value!r}; no $NAME in it is expanded")


def input_files(draft: Draft, attribute: Attribute) -> None:
    """Put the files that travel with the job; those of storage elements are kept by name only."""
    paths = [path for path in texts_of(attribute) if path.strip()]
    remote = tuple(path for path in paths if _REMOTE.match(path))
    for path in paths:
        if path not in remote:
            source = path.removeprefix("file://")
            draft.input_files.append(InputFile(PurePosixPath(source).name or ".", source=source))
    if remote:
        draft.keep(attribute.name, remote, f"names files that are not fetched: {', '.join(remote)}")


def output_files(draft: Draft, attribute: Attribute) -> None:
    """Put the files that come back."""
    names = texts_of(attribute)
    draft.output_files.extend(name for name in names if name.strip() and name not in draft.output_files)
    if any(not name.strip() for name in names):
        draft.warn(f"{attribute.name} has an empty name, which is left out")


def alien_output(draft: Draft, attribute: Attribute) -> None:
    """Read AliEn's `archive:pattern,pattern@place`: the patterns are output files, the rest is only kept."""
    for entry in texts_of(attribute):
        names = _ALIEN_PLACE.sub("", entry).rpartition(":")[2]
        wanted = [name.strip() for name in names.split(",") if name.strip()]
        draft.output_files.extend(name for name in wanted if name not in draft.output_files)
    draft.keep(attribute.name, as_attribute(attribute.value), "is read as output files, without archives and places")


def requirements(draft: Draft, attribute: Attribute) -> None:
    """Put a Requirements section, or the expression that stands in its place."""
    if not isinstance(attribute.value, Section):
        requirements_expression(draft, attribute)
        return
    draft.requirements = draft.requirements or {}
    asked: dict[str, Attribute] = {}
    for statement in attribute.value.attributes:
        if fold(statement.name) in asked:
            draft.warn(f"{statement.name} is required twice: line {statement.line} counts")
        asked[fold(statement.name)] = statement
    for statement in asked.values():
        draft.require(statement.name, _asked_value(statement))


def _asked_value(requirement: Attribute) -> Value:
    elements = flattened(requirement.value)
    if not elements:
        raise StatementFaultError(requirement.line, f"{requirement.name} asks for an empty list")
    scalars = tuple(scalar_of(requirement, each) for each in elements)
    return scalars if isinstance(requirement.value, tuple) else scalars[0]


def requirements_expression(draft: Draft, attribute: Attribute) -> None:
    """Put the expression over a slot's attributes."""
    expression = expression_of(attribute)
    # gLite's users write `Requirements = true` because its broker insists on one; it asks for nothing.
    if fold(expression) == "true":
        draft.keep(attribute.name, value=True)
    else:
        draft.put(requirements_expression=expression)


def rank(draft: Draft, attribute: Attribute) -> None:
    """Put the expression that orders slots."""
    draft.put(rank=expression_of(attribute))


def policy(field: str) -> Meaning:
    """Return the meaning of an expression that is `field` of the job's policy."""

    def put(draft: Draft, attribute: Attribute) -> None:
        expression = expression_of(attribute)
        try:
            bounded(expression)
        except InvalidClassAdError as error:
            raise StatementFaultError(attribute.line, f"{attribute.name}: {error}") from error
        draft.put_policy(**{field: expression})

    return put


def places(field: str) -> Meaning:
    """Return the meaning of a list of sites or platforms, which DIRAC also writes as one text with commas."""

    def put(draft: Draft, attribute: Attribute) -> None:
        parts = [part.strip() for text in texts_of(attribute) for part in text.split(",")]
        names = tuple(part for part in parts if part)
        if names:
            draft.put(**{field: names})
        else:
            keep(draft, attribute)

    return put


def tags(draft: Draft, attribute: Attribute) -> None:
    """Require the tags, but those that DIRAC itself makes of a number of processors: request_cpus says that."""
    tags = [tag for tag in texts_of(attribute) if tag.strip()]
    counts = [int(found[1]) for tag in tags if (found := _PROCESSOR_TAG.fullmatch(tag))]
    if counts:
        draft.fields.setdefault("request_cpus", max(counts))
        derived = [tag for tag in tags if _PROCESSOR_TAG.fullmatch(tag) or fold(tag) == "multiprocessor"]
        draft.keep(attribute.name, tuple(tags), f"{', '.join(derived)} are read as the number of processors")
        tags = [tag for tag in tags if tag not in derived]
    if tags:
        draft.require("Tags", tuple(tags))


def whole_node(draft: Draft, attribute: Attribute) -> None:
    """Require a whole node, as DIRAC does: by a tag."""
    if fold(text_of(attribute)) in ("true", "yes", "y", "1"):
        draft.require("Tags", ("WholeNode",))
    else:
        draft.keep(attribute.name, as_attribute(attribute.value))


def count(field: str, *, is_default: bool = False) -> Meaning:
    """Return the meaning of a number of things; a default gives way to what another attribute says."""

    def put(draft: Draft, attribute: Attribute) -> None:
        number = whole_number_of(attribute, least=0)
        if is_default:
            draft.fields.setdefault(field, number)
        else:
            draft.put(**{field: number})

    return put


def priority(draft: Draft, attribute: Attribute) -> None:
    """Put the priority among the owner's jobs."""
    draft.put(priority=whole_number_of(attribute))


def measured(field: str, measure: Callable[[object, str], Any]) -> Meaning:
    """Return the meaning of a size or a time, which AliEn writes as text or as a list of one text."""

    def put(draft: Draft, attribute: Attribute) -> None:
        elements = flattened(attribute.value)
        amount = elements[0] if len(elements) == 1 else as_text(attribute.value)
        try:
            draft.put(**{field: measure(amount, attribute.name)})
        except InvalidRequirementsError as error:
            raise StatementFaultError(attribute.line, str(error)) from error

    return put
