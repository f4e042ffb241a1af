"""Submit transforms: attributes that the server computes for each submitted job (HTCondor manual, SUBMIT_EXPRS).

Rules
-----
- A transform is a ClassAd expression over the job's ad at submission. It can read the results of the others.
- The results belong to the server; owners cannot set these attributes.
- An expression without a value sets nothing and yields a warning; the job is accepted.
- AcctGroup and AcctGroupUser in that ad are the account that the owner requests. Only the result of the transforms
  counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pilotage.classads.evaluation import Ad, NoValue
from pilotage.classads.library import AdValue, Expression
from pilotage.classads.references import References, references
from pilotage.job_description import Scalar
from pilotage.text import fold, folded_set, scalar_fault
from pilotage_server.core.identity import ACCOUNTING_GROUP
from pilotage_server.core.jobs.attributes import TRANSFORMED_NAMES

ACCOUNT_REQUEST_NAMES = folded_set(("AcctGroup", "AcctGroupUser"))
"""Folded names of the attributes in which owners request an account."""

LONGEST_RESULT = 1000
"""Characters of a text that a transform may return."""

LONGEST_ACCOUNT = 200
"""Characters of an AccountingGroup, which is a key in the database."""


@dataclass(frozen=True, slots=True)
class SubmitTransform:
    """An attribute and its ClassAd expression."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class TransformResult:
    """The attributes that the transforms set in one job, and warnings for its owner."""

    attributes: Mapping[str, Scalar]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubmitPolicy:
    """The transforms of a server, in order."""

    transforms: tuple[SubmitTransform, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Folded names of the attributes that the transforms set."""
        return folded_set(transform.name for transform in self.transforms)

    @property
    def owned_names(self) -> frozenset[str]:
        """Folded names that only the server sets in descriptions."""
        return self.names | TRANSFORMED_NAMES | {ACCOUNTING_GROUP}

    @property
    def input_references(self) -> References:
        """References of all expressions."""
        return reduce(References.__or__, (references(each.expression) for each in self.transforms), References())

    def inputs(self, ad: Mapping[str, AdValue]) -> dict[str, AdValue]:
        """Return the attributes of a job's ad that the transforms read; jobs with equal inputs get equal results."""
        reads = self.input_references
        return {name: value for name, value in ad.items() if reads.is_dynamic or fold(name) in reads.in_my}

    def apply(self, facts: Mapping[str, AdValue]) -> TransformResult:
        """Return the results of the transforms for these inputs."""
        ad = Ad(facts)
        for transform in self.transforms:
            ad.set(transform.name, Expression(transform.expression))
        attributes: dict[str, Scalar] = {}
        warnings: list[str] = []
        for transform in self.transforms:
            result = ad.value(transform.name)
            if isinstance(result, NoValue | Expression):
                why = result.value if isinstance(result, NoValue) else "no single value"
                warnings.append(_nothing(transform.name, f"evaluates to {why}"))
            elif fault := _fault(transform.name, result):
                warnings.append(_nothing(transform.name, fault))
            else:
                attributes[transform.name] = result
        return TransformResult(attributes, tuple(warnings))


NO_SUBMIT_POLICY = SubmitPolicy()


def _nothing(name: str, why: str) -> str:
    return f"the server's submit policy gives the job no {name}: its expression {why}"


def _fault(name: str, result: Scalar) -> str:
    is_account = fold(name) == ACCOUNTING_GROUP
    if not isinstance(result, str):
        return "makes no text" if is_account else scalar_fault(result)
    longest = LONGEST_ACCOUNT if is_account else LONGEST_RESULT
    if len(result) > longest:
        return f"makes a text of {len(result)} characters, at most {longest} are allowed"
    return scalar_fault(result)
