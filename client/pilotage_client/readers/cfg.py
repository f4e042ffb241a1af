"""Reads job descriptions in DIRAC's configuration format (CFG): options, and a section Requirements.

The attributes are those of JDL, and so are their handlers. An option has no type of its own: a list of files or
variables is split at its commas, and values of requirements and of unknown attributes are typed as in a resource tree.
Every other value is the text as written, so that commas in arguments stay.
"""

from __future__ import annotations

import re

from pilotage.classads.library import Expression, InvalidClassAdError, check_expression
from pilotage.job_description import JobDescription
from pilotage.resources.formats.cfg import CfgSection, elements_in, parse_cfg, typed_value
from pilotage.resources.formats.plain import TextSyntaxError
from pilotage.text import fold
from pilotage_client.readers import jdl_handlers as handlers
from pilotage_client.readers.draft import StatementFaultError
from pilotage_client.readers.jdl import JDL_ATTRIBUTES, jobs_of_attributes
from pilotage_client.readers.jdl_text import EXPRESSIONS, Attribute, JdlSection, JdlValue, as_text

_SECTION = re.compile(r"^[ \t]*Requirements\s*\{", re.MULTILINE | re.IGNORECASE)
_LISTS = (handlers.environment, handlers.input_files, handlers.output_files, handlers.alien_output)
_PARAMETERS = "parameters"


def is_cfg(text: str) -> bool:
    """Whether the text has a section Requirements as CFG writes it."""
    return _SECTION.search(text) is not None


def read_cfg(text: str, file: str, *, ignore_unsupported: bool = False) -> list[JobDescription]:
    """Return the jobs that a CFG text describes, in the order of their parameters.

    Raises
    ------
    ReadError
        With the line of each faulty option or section; `file` is the name of the text in the error.
    """
    return jobs_of_attributes(lambda: _read_attributes(text), file, ignore_unsupported=ignore_unsupported)


def _read_attributes(text: str) -> tuple[list[Attribute], list[StatementFaultError]]:
    """Return the valid options and sections with their values, and the faults of the others."""
    try:
        top = parse_cfg(text)
    except TextSyntaxError as error:
        raise StatementFaultError(error.line, error.why) from error
    attributes, faults = list[Attribute](), list[StatementFaultError]()
    for name, option in top.options.items():
        try:
            attributes.append(Attribute(name, _value(name, option, top.lines[name]), top.lines[name]))
        except StatementFaultError as fault:
            faults.append(fault)
    for name, section in top.sections.items():
        if JDL_ATTRIBUTES.get(name) is None:
            why = f"the section {name} is not known; a job has options, and a section Requirements"
            faults.append(StatementFaultError(section.line, why))
        else:
            try:
                attributes.append(Attribute(name, _section(section), section.line))
            except StatementFaultError as fault:
                faults.append(fault)
    return sorted(attributes, key=lambda each: each.line), faults


def _value(name: str, text: str, line: int) -> JdlValue:
    """Return the value of an option of the job."""
    if fold(name) in EXPRESSIONS:
        try:
            check_expression(text)
        except InvalidClassAdError as error:
            raise StatementFaultError(line, f"{name}: {error}") from error
        return Expression(text)
    if text.startswith('"') and text.endswith('";'):
        _refuse_jdl(name, text, line)
    known = JDL_ATTRIBUTES.get(name)
    has_parameters = fold(name).partition(".")[0] == _PARAMETERS and "," in text
    if has_parameters or (known is not None and known.handler in _LISTS):
        _refuse_jdl(name, text, line)
        return tuple(elements_in(text))
    value = _typed(text)
    return value if known is None or as_text(value) == text else text


def _section(section: CfgSection) -> JdlSection:
    """Return a section, such as Requirements, with its options as typed values."""
    attributes: list[Attribute] = []
    for name, text in section.options.items():
        _refuse_jdl(name, text, section.lines[name])
        attributes.append(Attribute(name, _typed(text), section.lines[name]))
    attributes += (Attribute(name, _section(inner), inner.line) for name, inner in section.sections.items())
    return JdlSection(tuple(attributes), "; ".join(f"{each.name} = {as_text(each.value)}" for each in attributes))


def _typed(text: str) -> JdlValue:
    value = typed_value(text)
    return tuple(value) if isinstance(value, list) else value


def _refuse_jdl(name: str, text: str, line: int) -> None:
    """Raise StatementFaultError for a value as JDL writes it: braces and semicolon would be part of the value."""
    if text.startswith("{"):
        raise StatementFaultError(line, f"{name}: a list has no braces in CFG; write a, b")
    if text.endswith(";"):
        raise StatementFaultError(line, f"{name}: an option has no semicolon in CFG; a file of JDL is named .jdl")
