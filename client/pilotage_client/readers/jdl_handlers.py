"""Handlers of JDL attributes: each puts the value of one attribute into the draft of a job."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Any

from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import InvalidClassAdError
from pilotage.condor.quoting import join_arguments, split_arguments
from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import InputFile, Value
from pilotage.resources.requirements import keyword_fault
from pilotage.text import fold
from pilotage_client.readers.draft import UNUSED_WARNING, Draft, StatementFaultError
from pilotage_client.readers.jdl_text import (
    Attribute,
    JdlSection,
    as_attribute,
    as_text,
    expression_of,
    flattened,
    is_empty,
    scalar_of,
    text_of,
    texts_of,
    whole_number_of,
)

JdlHandler = Callable[[Draft, Attribute], None]
"""Puts an attribute into a draft; raises StatementFaultError for an invalid value."""

_REMOTE = re.compile(r"(?!file:)[A-Za-z][\w+.-]+:")
_PROCESSOR_TAG = re.compile(r"(\d{1,9})Processors", re.IGNORECASE | re.ASCII)
_UNEXPANDED = re.compile(r"\$\{?[A-Za-z_]")
_ALIEN_PLACE = re.compile(r"@[\w:,=]*$")


def keep_unknown(similar: str | None) -> JdlHandler:
    """Return a handler that keeps an attribute that nothing uses; `similar` is the attribute that may be meant."""
    return keep_with_warning(UNUSED_WARNING if similar is None else f"{UNUSED_WARNING}; did you mean {similar}?")


def keep_silently(draft: Draft, attribute: Attribute) -> None:
    """Keep an attribute that the server or pilots read by name, or that describes what happens anyway."""
    draft.keep(attribute.name, as_attribute(attribute.value))


def refuse(why: str, *unless: str) -> JdlHandler:
    """Return a handler that refuses an attribute, unless it is empty or all its values are in `unless`."""

    def put(draft: Draft, attribute: Attribute) -> None:
        draft.keep(attribute.name, as_attribute(attribute.value))
        values = [fold(as_text(each)).strip() for each in flattened(attribute.value)]
        if any(value not in ("", "undefined", *unless) for value in values):
            draft.refuse(attribute.line, attribute.name, as_text(attribute.value), why)

    return put


def keep_with_warning(warning: str) -> JdlHandler:
    """Return a handler that keeps an attribute, with `warning` unless it is empty."""

    def keep(draft: Draft, attribute: Attribute) -> None:
        draft.keep(attribute.name, as_attribute(attribute.value), None if is_empty(attribute.value) else warning)

    return keep


def refuse_values(why: str, *values: str) -> JdlHandler:
    """Return a handler that keeps an attribute, and refuses these folded values."""

    def put(draft: Draft, attribute: Attribute) -> None:
        draft.keep(attribute.name, as_attribute(attribute.value))
        if any(fold(as_text(each)) in values for each in flattened(attribute.value)):
            draft.refuse(attribute.line, attribute.name, as_text(attribute.value), why)

    return put


def also_keep(handler: JdlHandler) -> JdlHandler:
    """Return a handler that also keeps the attribute as written, since `convert` has no key for the field."""

    def put(draft: Draft, attribute: Attribute) -> None:
        handler(draft, attribute)
        draft.keep(attribute.name, as_attribute(attribute.value))

    return put


def text(field: str) -> JdlHandler:
    """Return a handler of a text that sets `field` of the description."""

    def put(draft: Draft, attribute: Attribute) -> None:
        text = text_of(attribute)
        if text:
            draft.put(**{field: text})
        else:
            keep_silently(draft, attribute)

    return put


def executable(draft: Draft, attribute: Attribute) -> None:
    """Set the executable, which must not be empty."""
    executable = text_of(attribute).strip()
    if not executable:
        raise StatementFaultError(attribute.line, f"{attribute.name} is empty")
    draft.put(executable=executable)


def image(draft: Draft, attribute: Attribute) -> None:
    """Set the container image: a name in a registry, or a file or folder."""
    draft.read_image(attribute.line, attribute.name, text_of(attribute))


def arguments(draft: Draft, attribute: Attribute) -> None:
    """Set the arguments: a text with POSIX quoting, or a list."""
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
    """Set the environment, a list of NAME=VALUE."""
    for setting in texts_of(attribute):
        name, equals, value = setting.partition("=")
        if not equals or not name.strip():
            raise StatementFaultError(attribute.line, f"{attribute.name}: {setting!r} is not NAME=VALUE")
        draft.environment[name.strip()] = value
        if _UNEXPANDED.search(value):
            why = "no $NAME in a value is expanded; set the variable in the job's script"
            draft.refuse(attribute.line, attribute.name, setting, why)


def input_files(draft: Draft, attribute: Attribute) -> None:
    """Add input files; names of files on storage elements are refused."""
    paths = [path for path in texts_of(attribute) if path.strip()]
    remote = tuple(path for path in paths if _REMOTE.match(path))
    for path in paths:
        if path not in remote:
            source = path.removeprefix("file://")
            draft.input_files.append(InputFile(PurePosixPath(source).name or ".", source=source))
    if remote:
        draft.keep(attribute.name, remote)
        why = "no files of storage elements are fetched; name a local file, or fetch it in the job"
        draft.refuse(attribute.line, attribute.name, ", ".join(remote), why)


def output_files(draft: Draft, attribute: Attribute) -> None:
    """Add output files."""
    names = texts_of(attribute)
    draft.output_files.extend(name for name in names if name.strip() and name not in draft.output_files)
    if any(not name.strip() for name in names):
        draft.warn(f"{attribute.name} has an empty name, which is left out")


def alien_output(draft: Draft, attribute: Attribute) -> None:
    """Read AliEn's `archive:pattern,pattern@place`: the patterns are output files; archives and places are refused."""
    for entry in texts_of(attribute):
        names = _ALIEN_PLACE.sub("", entry).rpartition(":")[2]
        patterns = [name.strip() for name in names.split(",") if name.strip()]
        draft.output_files.extend(name for name in patterns if name not in draft.output_files)
    draft.keep(attribute.name, as_attribute(attribute.value))
    if any(":" in entry or "@" in entry for entry in texts_of(attribute)):
        why = "output files are returned one by one, without archives and storage elements; name the patterns alone"
        draft.refuse(attribute.line, attribute.name, as_text(attribute.value), why)


def requirements(draft: Draft, attribute: Attribute) -> None:
    """Set a Requirements section, or a requirements expression."""
    if not isinstance(attribute.value, JdlSection):
        requirements_expression(draft, attribute)
        return
    draft.requirements = draft.requirements or {}
    asked: dict[str, Attribute] = {}
    for statement in attribute.value.attributes:
        if fold(statement.name) in asked:
            draft.warn(f"{statement.name} is required twice: line {statement.line} counts")
        asked[fold(statement.name)] = statement
    for statement in asked.values():
        with draft.collecting_faults():
            draft.require(statement.name, _asked_value(statement))


def _asked_value(requirement: Attribute) -> Value:
    if why := keyword_fault(requirement.name):
        raise StatementFaultError(requirement.line, f"{requirement.name} {why}")
    elements = flattened(requirement.value)
    if not elements:
        raise StatementFaultError(requirement.line, f"{requirement.name} asks for an empty list")
    scalars = tuple(scalar_of(requirement, each) for each in elements)
    return scalars if isinstance(requirement.value, tuple) else scalars[0]


def requirements_expression(draft: Draft, attribute: Attribute) -> None:
    """Set the requirements expression over a slot's attributes."""
    expression = expression_of(attribute)
    # gLite's broker demands Requirements, so its users write `true`, which requires nothing.
    if fold(expression) == "true":
        draft.keep(attribute.name, value=True)
    else:
        draft.put(requirements_expression=expression)


def rank(draft: Draft, attribute: Attribute) -> None:
    """Set the expression that orders slots."""
    draft.put(rank=expression_of(attribute))


def policy(field: str) -> JdlHandler:
    """Return a handler of an expression that sets `field` of the job's policy."""

    def put(draft: Draft, attribute: Attribute) -> None:
        expression = expression_of(attribute)
        try:
            compile_bounded(expression)
        except InvalidClassAdError as error:
            raise StatementFaultError(attribute.line, f"{attribute.name}: {error}") from error
        draft.put_policy(**{field: expression})

    return put


def name_list(field: str) -> JdlHandler:
    """Return a handler of a list of sites or platforms, which DIRAC also writes as one text with commas."""

    def put(draft: Draft, attribute: Attribute) -> None:
        parts = [part.strip() for text in texts_of(attribute) for part in text.split(",")]
        names = tuple(part for part in parts if part)
        if names:
            draft.put(**{field: names})
        else:
            keep_silently(draft, attribute)

    return put


NO_WHOLE_NODE = "a job gets the cores that it requests; write NumberOfProcessors = N with the cores of such a node"


def tags(draft: Draft, attribute: Attribute) -> None:
    """Require tags, a list or one text with commas.

    Those that DIRAC derives from a number of processors set request_cpus instead; its tag for whole nodes is refused.
    """
    tags = [tag.strip() for text in texts_of(attribute) for tag in text.split(",") if tag.strip()]
    if any(fold(tag) == "wholenode" for tag in tags):
        draft.refuse(attribute.line, attribute.name, as_text(attribute.value), NO_WHOLE_NODE)
    counts = [int(found[1]) for tag in tags if (found := _PROCESSOR_TAG.fullmatch(tag))]
    if counts:
        draft.fields.setdefault("request_cpus", max(counts))
        derived = [tag for tag in tags if _PROCESSOR_TAG.fullmatch(tag) or fold(tag) == "multiprocessor"]
        draft.keep(attribute.name, tuple(tags), f"{', '.join(derived)} are read as the number of processors")
        tags = [tag for tag in tags if tag not in derived]
    if tags:
        draft.require("Tags", tuple(tags))


def count(field: str, *, is_default: bool = False) -> JdlHandler:
    """Return a handler of a whole number; `is_default` = another attribute overrides it."""

    def put(draft: Draft, attribute: Attribute) -> None:
        number = whole_number_of(attribute, least=0)
        if is_default:
            draft.fields.setdefault(field, number)
        else:
            draft.put(**{field: number})

    return put


def retry_count(draft: Draft, attribute: Attribute) -> None:
    """Set how often the payload may start: gLite's RetryCount counts the runs after one that the grid has lost."""
    draft.fields.setdefault("max_starts", max(0, whole_number_of(attribute)) + 1)
    draft.keep(attribute.name, as_attribute(attribute.value))


def priority(draft: Draft, attribute: Attribute) -> None:
    """Set the priority among the owner's jobs."""
    draft.put(priority=whole_number_of(attribute))


def measured(field: str, measure: Callable[[object, str], Any], *, is_largest: bool = False) -> JdlHandler:
    """Return a handler of a size or time, which AliEn writes as a text or as a list of one text.

    `is_largest` = the largest of the amounts that several attributes give counts.
    """

    def put(draft: Draft, attribute: Attribute) -> None:
        elements = flattened(attribute.value)
        amount = elements[0] if len(elements) == 1 else as_text(attribute.value)
        try:
            measured = measure(amount, attribute.name)
        except InvalidRequirementsError as error:
            raise StatementFaultError(attribute.line, str(error)) from error
        present = draft.fields.get(field)
        draft.put(**{field: max(present, measured) if is_largest and present is not None else measured})

    return put
