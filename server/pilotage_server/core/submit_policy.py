"""Submit transforms: attributes that the server derives for a job when it is submitted, by its operator's rules.

Rules
-----
A transform is a ClassAd expression over the job's ad at submission, in which the results of the others can be seen
as well. What comes out is the server's: no owner can give his job such an attribute. An expression without a value
gives none, with a warning; the job is taken all the same. What the owner wishes to be charged to stands in that ad
as AcctGroup and AcctGroupUser, and is a wish only: what counts is what the transforms make of it.
Source: HTCondor manual, SUBMIT_EXPRS, whose expressions are put into the job's ad as they stand.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from pilotage.classad_evaluation import Ad, NoValue
from pilotage.classad_references import References, references
from pilotage.classads import AdValue, Expression
from pilotage.folding import fold, folded_set
from pilotage.job_description import Scalar
from pilotage.scalars import scalar_fault
from pilotage_server.core.accounting import ACCOUNTING_GROUP
from pilotage_server.core.owned_attributes import STAMPED

WISHES = folded_set(("AcctGroup", "AcctGroupUser"))
"""Folded names of the attributes in which owners say whom they wish to be charged."""

LONGEST_RESULT = 1000
"""Characters of a text that a transform may make."""

LONGEST_ACCOUNT = 200
"""Characters of an AccountingGroup: databases do not take keys of any length."""


@dataclass(frozen=True, slots=True)
class Transform:
    """One attribute and its expression, in the ClassAd language's own syntax."""

    name: str
    expression: str


@dataclass(frozen=True, slots=True)
class Derived:
    """What the transforms make of one job, and what its owner should know."""

    attributes: Mapping[str, Scalar]
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SubmitPolicy:
    """The transforms of a server, in the order in which they were written."""

    transforms: tuple[Transform, ...] = ()

    @property
    def names(self) -> frozenset[str]:
        """Folded names of what the transforms set."""
        return folded_set(transform.name for transform in self.transforms)

    @property
    def owned(self) -> frozenset[str]:
        """Folded names that are set in descriptions by the server alone, by these transforms or others."""
        return self.names | STAMPED | {ACCOUNTING_GROUP}

    @property
    def reads(self) -> References:
        """What the expressions refer to."""
        return reduce(References.__or__, (references(each.expression) for each in self.transforms), References())

    def facts(self, ad: Mapping[str, AdValue]) -> dict[str, AdValue]:
        """Return what the transforms can see of a job's ad: jobs alike in it are derived alike."""
        reads = self.reads
        return {name: value for name, value in ad.items() if reads.is_dynamic or fold(name) in reads.in_my}

    def derived(self, facts: Mapping[str, AdValue]) -> Derived:
        """Return what the transforms make of a job with these facts."""
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
        return Derived(attributes, tuple(warnings))


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
