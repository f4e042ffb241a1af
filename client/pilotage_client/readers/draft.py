"""A job description in the making: what a reader has understood so far, and what it could only keep."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from pilotage.folding import fold
from pilotage.job_description import NO_POLICY, InputFile, JobDescription, Value

NO_MEANING = "has no meaning here and is kept as an attribute"
"""Why an attribute is kept that nobody asks about."""


@dataclass(slots=True)
class Draft:
    """Collects the fields, attributes and warnings of one job; nothing that was read is dropped silently."""

    fields: dict[str, Any] = field(default_factory=dict)
    requirements: dict[str, Value] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    input_files: list[InputFile] = field(default_factory=list)
    output_files: list[str] = field(default_factory=list)
    attributes: dict[str, Value] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    def put(self, **fields: Any) -> None:
        """Set fields of the description; a later value takes the place of an earlier one."""
        self.fields |= fields

    def put_policy(self, **expressions: str) -> None:
        """Set expressions of the job's policy; a later one takes the place of an earlier one."""
        self.put(policy=replace(self.fields.get("policy", NO_POLICY), **expressions))

    def keep(self, name: str, value: Value, warning: str | None = None) -> None:
        """Keep an attribute as its owner spelled it; `warning` ends the sentence that its name begins."""
        self.attributes[name] = value
        if warning is not None:
            self.warn(f"{name} {warning}")

    def warn(self, text: str) -> None:
        """Add a warning, once."""
        if text not in self.warnings:
            self.warnings.append(text)

    def require(self, name: str, value: Value) -> None:
        """Add a requirement to those that the job has; lists under one name are united."""
        requirements = self.requirements if self.requirements is not None else {}
        present = next((known for known in requirements if fold(known) == fold(name)), name)
        if present in requirements:
            value = tuple(dict.fromkeys((*_as_list(requirements[present]), *_as_list(value))))
        self.requirements = requirements | {present: value}

    def description(self) -> JobDescription:
        """Return the finished description; an executable must have been put."""
        return replace(
            JobDescription(executable=""),
            requirements=self.requirements,
            environment=self.environment,
            input_files=tuple(self.input_files),
            output_files=tuple(self.output_files),
            attributes=self.attributes,
            warnings=tuple(self.warnings),
            **self.fields,
        )


def _as_list(value: Value) -> tuple[Any, ...]:
    return value if isinstance(value, tuple) else (value,)
