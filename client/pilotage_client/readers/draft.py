"""The intermediate result of every reader (`Draft`), a job description as JSON, and the readers' errors."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from pilotage.errors import InvalidInputError, Violation
from pilotage.job_description import NO_POLICY, InputFile, JobDescription, Value
from pilotage.jobs.images import ImageKind, has_scheme, image_fault, image_kind, normal_image
from pilotage.notifications import NewSubscription, Occasion, RecipientKind
from pilotage.text import fold
from pilotage.values.dependencies import DependencyKind
from pilotage_client.dependencies import parents_of

USER_LOG = "UserLog"
"""HTCondor's attribute with the path of a job's user log on the submitter's machine."""

UNUSED_WARNING = "has no meaning here and is kept as an attribute"
"""The warning for an attribute that nothing uses."""

_SHOWN_CHARACTERS = 60
IGNORE_HINT = "jobs would run without these statements; --ignore-unsupported submits them so"
_MOST_FAULTS = 100


@dataclass(frozen=True, slots=True)
class UnsupportedStatement:
    """A statement from `line` that asks for something that is not done here, with the reason and a hint in `why`."""

    line: int
    name: str
    value: str
    why: str

    def __str__(self) -> str:
        """Return the statement in one line."""
        value = " ".join(self.value.split())
        return f"{self.name} = {value if len(value) <= _SHOWN_CHARACTERS else f'{value[:_SHOWN_CHARACTERS]}…'}"


@dataclass(slots=True)
class Draft:
    """Collects the fields, attributes and warnings of one job; nothing that was read is dropped silently.

    `faults` are invalid statements, by line and cause. `unsupported` statements are ignored if the user wishes so, and
    are named in the description; otherwise the file is refused.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    requirements: dict[str, Value] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    input_files: list[InputFile] = field(default_factory=list)
    output_files: list[str] = field(default_factory=list)
    attributes: dict[str, Value] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    unsupported: list[UnsupportedStatement] = field(default_factory=list)
    faults: list[tuple[int, str]] = field(default_factory=list)
    computed: dict[str, Callable[[], None]] = field(default_factory=dict)
    """Settles a field whose value is an expression over the job's own attributes, once these are known."""
    mail_addresses: tuple[str, ...] = ("",)
    """Where notifications of a submit file go; "" = to the owner's own address."""

    def put(self, **fields: Any) -> None:
        """Set fields of the description; a later value replaces an earlier one."""
        self.fields |= fields

    def put_policy(self, **expressions: str) -> None:
        """Set expressions of the job's policy; a later one replaces an earlier one."""
        self.put(policy=replace(self.fields.get("policy", NO_POLICY), **expressions))

    def keep(self, name: str, value: Value, warning: str | None = None) -> None:
        """Keep an attribute as spelled in the file; the name and `warning` together form the warning."""
        self.attributes[name] = value
        if warning is not None:
            self.warn(f"{name} {warning}")

    def warn(self, text: str) -> None:
        """Add a warning, unless it is present."""
        if text not in self.warnings:
            self.warnings.append(text)

    def refuse(self, line: int, name: str, value: str, why: str) -> None:
        """Note a statement that asks for something that is not done here."""
        self.unsupported.append(UnsupportedStatement(line, name, value, why))
        self.warn(f"{name} is ignored: {why}")

    @contextmanager
    def collecting_faults(self) -> Iterator[None]:
        """Collect the fault of one statement, so that the others are read too."""
        try:
            yield
        except StatementFaultError as fault:
            self.faults.append((fault.line, fault.cause))

    def put_image(self, text: str) -> str:
        """Set the container image; returns why the text is none, "" = it is one."""
        image = normal_image(text)
        # The path of a file is that on this machine until the file has its name in the job's folder.
        is_here = image_kind(image) is ImageKind.JOB_FILE and not has_scheme(image)
        if not is_here and (why := image_fault(image)):
            return why
        given = self.fields.get("image", image)
        if given != image:
            return f"names the image {image}, but another statement names {given}"
        self.put(image=image)
        return ""

    def read_image(self, line: int, name: str, text: str) -> None:
        """Set and keep the container image of a statement, unless it is empty; refuse a URL that no pilot can fetch."""
        self.keep(name, text)
        why = self.put_image(text) if text else ""
        if why and has_scheme(normal_image(text)):
            self.refuse(line, name, text, why)
        elif why:
            raise StatementFaultError(line, f"{name}: {why}")

    def require(self, name: str, value: Value) -> None:
        """Add a requirement; several values of one name become a list."""
        requirements = self.requirements if self.requirements is not None else {}
        present = next((known for known in requirements if fold(known) == fold(name)), name)
        if present in requirements:
            value = tuple(dict.fromkeys((*_as_list(requirements[present]), *_as_list(value))))
        self.requirements = requirements | {present: value}

    def description(self) -> JobDescription:
        """Return the description; the executable or an image must be set."""
        fields: dict[str, Any] = {
            "executable": "",
            "requirements": self.requirements,
            "environment": self.environment,
            "input_files": tuple(self.input_files),
            "output_files": tuple(self.output_files),
            "attributes": self.attributes,
            "warnings": tuple(self.warnings),
            "ignored": tuple(dict.fromkeys(map(str, self.unsupported))),
        }
        return JobDescription(**(fields | self.fields))


def _as_list(value: Value) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)


def as_json(description: JobDescription) -> dict[str, Any]:
    """Return the description under the keys of `pilotage convert`, on which scripts depend; an absent field is None.

    Sizes are in MiB, times in seconds. `site` and `platform` are always lists. `attributes` and `warnings` may be
    empty but are never None. The kinds of dependencies and `notify` are keys only if there are any.
    """
    cpu_time = description.cpu_time
    return {
        "executable": description.executable,
        "arguments": description.arguments or None,
        "requirements": None if description.requirements is None else _values(description.requirements.items()),
        "requirements_expression": description.requirements_expression,
        "site": _list(description.sites),
        "banned_sites": _list(description.banned_sites),
        "platform": _list(description.platforms),
        "cpu_time_s": None if cpu_time is None else _whole(cpu_time.total_seconds()),
        "request_cpus": description.request_cpus,
        "request_memory_mb": description.request_memory_mib,
        "request_disk_mb": description.request_disk_mib,
        "request_gpus": description.request_gpus,
        "input_files": _list(file.source or file.name for file in description.input_files),
        "output_files": _list(description.output_files),
        "stdout": description.stdout,
        "stderr": description.stderr,
        "environment": dict(description.environment) or None,
        "attributes": _values(description.attributes.items()),
        "count": description.count,
        "warnings": list(description.warnings),
        **{kind.value: list(names) for kind in DependencyKind if (names := parents_of(description, kind))},
        **({"notify": [_subscription(each) for each in description.notify]} if description.notify else {}),
    }


def _subscription(wanted: NewSubscription) -> dict[str, Any]:
    """Return a subscription under the keys of TOML, without its secret."""
    recipient = True if wanted.kind is RecipientKind.COMMAND else wanted.address
    return {wanted.kind.value: recipient, "on": [each.value for each in Occasion if each in wanted.occasions]}


def _list(names: Iterable[str]) -> list[str] | None:
    return list(names) or None


def _values(items: Iterable[tuple[str, Value]]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in items}


def _whole(number: float) -> int | float:
    return int(number) if number.is_integer() else number


class StatementFaultError(Exception):
    """A faulty statement that begins on `line`; used inside the readers, which do not know the file's name."""

    def __init__(self, line: int, cause: str) -> None:
        super().__init__(cause)
        self.line = line
        self.cause = cause


class ReadError(InvalidInputError):
    """A file does not describe jobs, or asks for something that is not done here; all faults are named at once.

    `line` and `cause` are those of the first fault. `line` is the first line of the statement at fault, counted from 1;
    None = the file as a whole. `more` are the other faults.
    """

    def __init__(self, file: str, line: int | None, cause: str, *more: tuple[int | None, str]) -> None:
        faults = ((line, cause), *more)
        super().__init__(*(Violation(file if at is None else f"{file}:{at}", why) for at, why in faults))
        self.file = file
        self.line = line
        self.cause = cause


class FileFaults:
    """The faults of one file, each once, until they are raised together."""

    def __init__(self, file: str, *, ignore_unsupported: bool) -> None:
        self._file = file
        self._ignore_unsupported = ignore_unsupported
        self._invalid: dict[tuple[int, str], None] = {}
        self._unsupported: dict[tuple[int, str], str] = {}

    def add(self, line: int, cause: str) -> None:
        """Add an invalid statement."""
        self._invalid[line, cause] = None

    def add_draft(self, draft: Draft) -> None:
        """Add the faults of one job."""
        for line, cause in draft.faults:
            self.add(line, cause)
        if not self._ignore_unsupported:
            for each in draft.unsupported:  # the jobs of one statement may differ in its value
                self._unsupported.setdefault((each.line, f"{each.name}: {each.why}"), f"{each}: {each.why}")

    @property
    def are_many(self) -> bool:
        """Whether no more faults are worth reading."""
        return len(self._invalid) + len(self._unsupported) >= _MOST_FAULTS

    def raise_any(self) -> None:
        """Raise ReadError with all faults in the order of their lines, if there are any."""
        faults: list[tuple[int | None, str]] = [
            *sorted([*self._invalid, *((line, text) for (line, _), text in self._unsupported.items())])
        ]
        if not faults:
            return
        if not self._invalid:
            faults.append((None, IGNORE_HINT))
        (line, cause), *more = faults
        raise ReadError(self._file, line, cause, *more)
