"""Changes of job descriptions: `pilotage edit` sets one field, a job template adds a site's attributes.

Rules
-----
- A template removes nothing: its requirements expression and policies are joined with the job's own. Its attributes
  override the job's, with a warning.
- Templates are TOML files. A name without a folder and suffix is searched in the given folders, then among the
  shipped templates.
- A reader may have kept an attribute as written besides the field that it set (`Priority = 3`). A change of the field
  updates the kept attribute too, so that the description stays consistent.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from pilotage.classads.tokens import bracketed
from pilotage.errors import InvalidInputError, InvalidRequirementsError, Violation
from pilotage.job_description import NO_POLICY, JobDescription, JobPolicy, Value
from pilotage.resources.parameters import SHIPPED
from pilotage.text import did_you_mean, fold
from pilotage.units import parse_duration, parse_size_mib, parse_whole_number
from pilotage_client.files import content_of
from pilotage_client.readers.draft import Draft, ReadError
from pilotage_client.readers.requirements import read_require_options
from pilotage_client.readers.toml import KEYS, InvalidValueError, factor_of, line_of
from pilotage_client.shipped import Shipped

_TEXTS = (
    *("executable", "image", "arguments", "name", "stdin", "stdout", "stderr"),
    *("requirements_expression", "rank", "retry_until"),
)
_LISTS = ("sites", "banned_sites", "platforms", "output_files")
_COUNTS = ("request_cpus", "request_gpus", "retries")
_SIZES = {"request_memory": "request_memory_mib", "request_disk": "request_disk_mib"}
_POLICIES = tuple(field.name for field in dataclasses.fields(JobPolicy))
_TIMES = ("cpu_time", "wall_time", "lease")

_RETRYING: Mapping[str, tuple[str, Callable[[str, str], Any]]] = {
    "success_exit_code": ("success_exit_code", parse_whole_number),
    "retry_exit_codes": (
        "retry_exit_codes",
        lambda text, name: tuple(parse_whole_number(code, name) for code in text.split(",")),
    ),
    "retry_delay_s": ("retry_delay", parse_duration),
    "retry_memory": ("retry_memory", lambda text, _: factor_of(text)),
}
"""The fields of other changes that concern retries, and their readers."""

_ATTRIBUTE_NAMES: Mapping[str, frozenset[str]] = {
    "name": frozenset({"jobname", "batchname", "jobbatchname"}),
    "stdin": frozenset({"stdinput", "input"}),
    "stdout": frozenset({"stdoutput"}),
    "stderr": frozenset({"stderror"}),
    "output_files": frozenset({"output", "outputarchive", "outputsandbox", "transferoutput", "transferoutputfiles"}),
    "requirements_expression": frozenset({"requirements", "requirementsexpression"}),
    "rank": frozenset({"rank"}),
    "image": frozenset({"containerimage", "dockerimage", "image", "singularityimage"}),
    "sites": frozenset({"site", "sites"}),
    "banned_sites": frozenset({"bannedsite", "bannedsites"}),
    "platforms": frozenset({"platform"}),
    "wall_time": frozenset({"ttl", "allowedexecuteduration"}),
    "lease": frozenset({"jobleaseduration"}),
    "priority": frozenset({"priority", "prio"}),
    "retries": frozenset({"maxretries"}),
    "retry_until": frozenset({"retryuntil"}),
    "success_exit_code": frozenset({"successexitcode"}),
    **{name: frozenset({name.replace("_", "")}) for name in _POLICIES},
    "request_cpus": frozenset({"requestcpus"}),
    "request_gpus": frozenset({"requestgpus"}),
    "request_memory_mib": frozenset({"requestmemory"}),
    "request_disk_mib": frozenset({"requestdisk"}),
}
"""The names under which readers keep the source of a field, without case and underscores."""


def with_change(description: JobDescription, change: str) -> JobDescription:
    """Return the description with one NAME=VALUE applied; raises InvalidInputError for a bad name or value."""
    name, equals, text = change.partition("=")
    name, text = name.strip(), text.strip()
    if not equals:
        raise InvalidInputError(Violation(change, "is not a change; write NAME=VALUE"))
    if name.startswith("requirements."):
        return _with_requirement(description, name.removeprefix("requirements."), text)
    if name.startswith("environment."):
        variable = name.removeprefix("environment.")
        return dataclasses.replace(description, environment={**description.environment, variable: text})
    if name in _POLICIES:
        return with_policy(description, dataclasses.replace(description.policy, **{name: text or None}))
    field, value = _field(name, text)
    return dataclasses.replace(_with_attributes_updated(description, field, value), **{field: value})


def with_policy(description: JobDescription, policy: JobPolicy) -> JobDescription:
    """Return the description with this policy."""
    for name in _POLICIES:
        if getattr(policy, name) != getattr(description.policy, name):
            description = _with_attributes_updated(description, name, getattr(policy, name))
    return dataclasses.replace(description, policy=policy)


def _field(name: str, text: str) -> tuple[str, Any]:
    if name in _TEXTS:
        return name, text if text or name in {"executable", "arguments", "name"} else None
    if name in _LISTS:
        return name, tuple(item.strip() for item in text.split(",") if item.strip())
    if name == "priority":
        return name, parse_whole_number(text or 0, name)
    if name in _COUNTS:
        return name, parse_whole_number(text, name, least=0) if text else None
    if name in _SIZES:
        return _SIZES[name], parse_size_mib(text, name) if text else None
    if name in _TIMES:
        return name, parse_duration(text, name) if text else None
    if name in _RETRYING:
        return _retrying(name, text)
    known = (
        *_TEXTS,
        *_LISTS,
        *_COUNTS,
        *_SIZES,
        *_TIMES,
        *_RETRYING,
        *_POLICIES,
        "priority",
        "requirements.NAME",
        "environment.NAME",
    )
    why = f"cannot be changed{did_you_mean(name, known) or '.'} These can: {', '.join(known)}"
    raise InvalidInputError(Violation(name, why))


def _retrying(name: str, text: str) -> tuple[str, Any]:
    field, read = _RETRYING[name]
    if not text:
        return field, getattr(_PLAIN, field)
    try:
        return field, read(text, name)
    except InvalidValueError as error:
        raise InvalidInputError(Violation(name, str(error))) from error


_PLAIN = JobDescription(executable="")


def _with_requirement(description: JobDescription, name: str, text: str) -> JobDescription:
    section = dict(description.requirements or {})
    for present in [known for known in section if fold(known) == fold(name)]:
        del section[present]
    if text:
        section.update(read_require_options([f"{name}={text}"], SHIPPED))
    return dataclasses.replace(description, requirements=section or None)


def _with_attributes_updated(description: JobDescription, field: str, value: Any) -> JobDescription:
    """Return the description with the kept attributes of a field set to `value`, or removed if it is empty."""
    names = _ATTRIBUTE_NAMES.get(field, frozenset())
    namesakes = [name for name in description.attributes if fold(name).replace("_", "") in names]
    if not namesakes:
        return description
    others = {name: each for name, each in description.attributes.items() if name not in namesakes}
    shown = _as_attribute(field, value)
    attributes = others if shown is None else others | dict.fromkeys(namesakes, shown)
    # A warning and an ignored statement begin with the name of the attribute, and concerned the old value.
    warnings, ignored = (
        tuple(text for text in texts if text.partition(" ")[0] not in namesakes)
        for texts in (description.warnings, description.ignored)
    )
    return dataclasses.replace(description, attributes=attributes, warnings=warnings, ignored=ignored)


def _as_attribute(field: str, value: Any) -> Value | None:
    """Return a field's value as an attribute: times in seconds, sizes with their unit; None = remove it."""
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        return int(seconds) if seconds.is_integer() else seconds
    if value in (None, "", ()):
        return None
    return f"{value} MB" if field in _SIZES.values() else value


ENDING = ".toml"
_KEYS = ("requirements_expression", "attributes", "policy")
_JOINED = ("periodic_hold", "periodic_release", "periodic_remove", "on_exit_hold")
_OWN_FIRST = tuple(name for name in _POLICIES if name not in _JOINED)


@dataclass(frozen=True, slots=True)
class JobTemplate:
    """The additions of a template to jobs; `about` is its description for people."""

    name: str
    about: str = ""
    requirements_expression: str | None = None
    attributes: Mapping[str, Value] = field(default_factory=dict)
    policy: JobPolicy = NO_POLICY


def find_template(name: str, folders: Sequence[Path] = ()) -> JobTemplate:
    """Return the template of this name, or at this path if it has a folder or a suffix.

    Raises
    ------
    InvalidInputError
        The name is unknown; the error lists the known names.
    ReadError
        The file cannot be read or is not a template.
    """
    if "/" in name or name.endswith(ENDING):
        return read_template(Path(name))
    searched = [*folders, Shipped.TEMPLATES.folder]
    files = [file for folder in searched if folder.is_dir() for file in sorted(folder.glob(f"*{ENDING}"))]
    found = {file.stem: file for file in reversed(files)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none"
        raise InvalidInputError(Violation("template", f"unknown job template {name}; known are: {known}"))
    return read_template(found[name])


def read_template(path: Path) -> JobTemplate:
    """Read a template; raises ReadError with the faulty line."""
    file = str(path)
    try:
        text = content_of(path).decode("utf-8")
        document = tomllib.loads(text)
    except OSError as error:
        raise ReadError(file, None, (error.strerror or "cannot be read").lower()) from error
    except (ValueError, RecursionError) as error:
        raise ReadError(file, None, f"is not TOML: {error}") from error
    draft = Draft()
    for key, value in document.items():
        try:
            if key in _KEYS:
                KEYS[key](draft, value)
            elif key != "about":
                raise InvalidValueError(f"is not a key of a job template; these are: about, {', '.join(_KEYS)}")
            elif not isinstance(value, str):
                raise InvalidValueError("must be a text")
        except InvalidValueError as error:
            raise ReadError(file, line_of(text, 0, key), f"{key} {error}") from error
        except InvalidRequirementsError as error:
            raise ReadError(file, line_of(text, 0, key), f"{key}: {error}") from error
    return JobTemplate(path.stem, document.get("about", ""), attributes=draft.attributes, **draft.fields)


def apply_template(template: JobTemplate, description: JobDescription) -> JobDescription:
    """Return the description with the additions of the template."""
    expressions = [description.requirements_expression, template.requirements_expression]
    names = {fold(name) for name in template.attributes}
    changed = replace(
        description,
        requirements_expression=_joined(expressions, "&&"),
        attributes={name: value for name, value in description.attributes.items() if fold(name) not in names}
        | dict(template.attributes),
        warnings=(*description.warnings, *_override_warnings(template, description)),
        ignored=tuple(text for text in description.ignored if fold(text.partition(" ")[0]) not in names),
    )
    return with_policy(changed, _combined_policy(description.policy, template.policy))


def _combined_policy(job: JobPolicy, added: JobPolicy) -> JobPolicy:
    """Return the policy that acts if either would; the job's own reasons, codes and on_exit_remove take precedence."""
    return JobPolicy(
        **{name: _joined([getattr(job, name), getattr(added, name)], "||") for name in _JOINED},
        **{name: getattr(job, name) or getattr(added, name) for name in _OWN_FIRST},
    )


def _joined(expressions: Iterable[str | None], operator: str) -> str | None:
    given = [expression for expression in expressions if expression is not None and expression.strip()]
    if len(given) < 2:
        return given[0] if given else None
    return f" {operator} ".join(map(bracketed, given))


def _override_warnings(template: JobTemplate, description: JobDescription) -> Iterable[str]:
    """Yield a warning for each attribute whose value the template replaces."""
    own = {fold(name): value for name, value in description.attributes.items()}
    for name, value in template.attributes.items():
        replaced = own.get(fold(name), value)
        if (type(replaced), replaced) != (type(value), value):
            yield f"{name} is set by the job template {template.name}, not by the job"
