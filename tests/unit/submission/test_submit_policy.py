"""Submit policies: configuration files read as transforms, and the effect of transforms on jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage.condor.config import InvalidConfigurationError
from pilotage.job_description import JobDescription, Value
from pilotage.values.accounts import Account
from pilotage_server.core.submission.optimizers import SubmitCandidate
from pilotage_server.core.submission.submit_policy import SubmitPolicy
from pilotage_server.operations.jobs.submission import SubmitTransformer
from pilotage_server.settings import read_submit_policy
from support.virtual_clock import START

PRODUCER = Account("atlas", "users", "prdatl28")


def a_policy(folder: Path, text: str, domain: str | None = None) -> SubmitPolicy:
    """Return the policy of a file with this text."""
    file = folder / "submit.conf"
    file.write_text(text)
    return read_submit_policy(file, domain)


def transformed(policy: SubmitPolicy, owner: Account = PRODUCER, **fields: object) -> SubmitCandidate:
    """Return a job of the owner after the transforms of the policy."""
    description = JobDescription("/bin/true", **fields)  # type: ignore[arg-type]
    transformer = SubmitTransformer(policy, owner, START)
    return transformer.transform(
        SubmitCandidate(owner.vo, transformer.without_account_request(description)), description
    )


def attributes(policy: SubmitPolicy, owner: Account = PRODUCER, **fields: object) -> dict[str, Value]:
    return dict(transformed(policy, owner, **fields).description.attributes)


@pytest.mark.parametrize(
    ("owner", "cpus", "group"),
    [
        (PRODUCER, 8, "group_ATLAS.prdatl_mcore.prdatl28"),
        (PRODUCER, 1, "group_ATLAS.prdatl_score.prdatl28"),
        (PRODUCER, None, "group_ATLAS.prdatl_score.prdatl28"),
        (Account("alice", "", "alisgm007"), 1, "group_ALICE.alisgm_score.alisgm007"),
        (Account("ops", "", "sgmops11"), 1, "group_HIGHPRIO.sgmops_score.sgmops11"),
        (Account("lhcb", "", "pillhcb3"), 2, "group_NONEFOUND.pillhcb_mcore.pillhcb3"),
    ],
)
def test_group_policy_of_liverpool_uses_owner_vo_and_cpus(
    shared_data: Path, owner: Account, cpus: int | None, group: str
) -> None:
    policy = read_submit_policy(shared_data / "policies" / "fallow_groups.conf", None)
    assert attributes(policy, owner, request_cpus=cpus)["AccountingGroup"] == group


def test_policy_of_bologna_sets_domain(shared_data: Path) -> None:
    policy = read_submit_policy(shared_data / "policies" / "bologna_1_9.conf", "elsewhere.org")
    assert attributes(policy) == {"SUBMIT_SITE_DOMAIN": "bo.infn.it"}


def test_domain_works_without_file() -> None:
    assert attributes(read_submit_policy(None, 'a "quoted" domain')) == {"SUBMIT_SITE_DOMAIN": 'a "quoted" domain'}


def test_policy_attributes_of_owner_are_dropped() -> None:
    given = {"accountingGroup": "group_RICH.me", "SUBMIT_SITE_DOMAIN": "bo.infn.it", "Mine": 1}
    assert attributes(SubmitPolicy(), attributes=given) == {"Mine": 1}


def test_transform_replaces_attribute_of_owner(tmp_path: Path) -> None:
    policy = a_policy(tmp_path, "SUBMIT_EXPRS = Kind\nKind = ifThenElse(RequestCpus > 1, undefined, 1)\n")
    assert attributes(policy, attributes={"kind": "forged"}) == {"Kind": 1}
    assert attributes(policy, attributes={"kind": "forged"}, request_cpus=8) == {}


def test_transforms_see_job_attributes_and_each_other(tmp_path: Path) -> None:
    policy = a_policy(tmp_path, 'SUBMIT_ATTRS = B A\nA = strcat(MY.Project, "!")\nB = strcat(A, Owner)\n')
    assert attributes(policy, attributes={"Project": "x"}) == {"Project": "x", "A": "x!", "B": "x!prdatl28"}


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ("NoSuchThing + 1", "evaluates to undefined"),
        ('1 + "a"', "evaluates to error"),
        ("{1, 2}", "evaluates to no single value"),
        ("Kind", "evaluates to error"),
        ('strcat("' + "x" * 600 + '", "' + "y" * 600 + '")', "makes a text of 1200 characters"),
    ],
)
def test_expression_without_value_sets_nothing_with_warning(tmp_path: Path, expression: str, why: str) -> None:
    candidate = transformed(a_policy(tmp_path, f"SUBMIT_EXPRS = Kind\nKind = {expression}\n"))
    assert candidate.description.attributes == {}
    (warning,) = candidate.warnings
    assert warning.startswith("the server's submit policy gives the job no Kind: its expression")
    assert why in warning


@pytest.mark.parametrize(("expression", "why"), [("3", "makes no text"), ("Requested", "at most 200 are allowed")])
def test_invalid_accounting_group_charges_owner_with_warning(tmp_path: Path, expression: str, why: str) -> None:
    policy = a_policy(tmp_path, f"SUBMIT_EXPRS = AccountingGroup\nAccountingGroup = {expression}\n")
    candidate = transformed(policy, attributes={"Requested": "g" * 201})
    assert "AccountingGroup" not in candidate.description.attributes
    (warning,) = candidate.warnings
    assert why in warning


PRODUCERS_CHOOSE_GROUP = """
SUBMIT_EXPRS = AccountingGroup
AccountingGroup = ifThenElse(regexp("^prd", Owner), strcat(AcctGroup, ".", Owner), undefined)
"""


def test_requested_group_is_used_only_if_policy_allows(tmp_path: Path) -> None:
    policy = a_policy(tmp_path, PRODUCERS_CHOOSE_GROUP)
    requested = {"AcctGroup": "group_PROD"}
    assert attributes(policy, attributes=requested) == {"AccountingGroup": "group_PROD.prdatl28"}
    assert attributes(policy, Account("atlas", "users", "bob"), attributes=requested) == {}


def test_cache_of_transforms_distinguishes_types(tmp_path: Path) -> None:
    policy = a_policy(tmp_path, "SUBMIT_EXPRS = Twice\nTwice = Number * 2\n")
    transformer = SubmitTransformer(policy, PRODUCER, START)
    results: list[Value | None] = []
    for number in (1, True, 1.0, "1", 1):
        description = JobDescription("/bin/true", attributes={"Number": number, "Other": len(results)})
        results.append(
            transformer.transform(SubmitCandidate("atlas", description), description).description.attributes.get(
                "Twice"
            )
        )
    assert [(type(value), value) for value in results] == [
        (int, 2),
        (int, 2),
        (float, 2.0),
        (type(None), None),
        (int, 2),
    ]


@pytest.mark.parametrize(
    ("text", "where", "why"),
    [
        ("SUBMIT_EXPRS = A\n\nA = (1\n", "line 3", "A: ( is not closed"),
        ("SUBMIT_EXPRS = A\n", "line 1", "names A, and nothing defines it"),
        ("SUBMIT_EXPRS = A\nA = strcat($(MISSING))\nthis is no line\n", "line 3", "does not understand"),
        ("SUBMIT_EXPRS = A\nA = strcat($(MISSING), 1)\n", "line 2", "nothing defines missing"),
        ('SUBMIT_EXPRS = Owner\nOwner = "root"\n', "line 2", "cannot be set"),
        ("SUBMIT_EXPRS = RequestCpus\nRequestCpus = 100\n", "line 2", "cannot be set"),
        ("SUBMIT_EXPRS = A\nA = random()\n", "line 2", "random functions are not allowed"),
        ("A = $(B)\nB = $(A)\nSUBMIT_EXPRS = $(A)\n", "line", "in a circle"),
    ],
)
def test_error_names_line_of_invalid_file(tmp_path: Path, text: str, where: str, why: str) -> None:
    with pytest.raises(InvalidConfigurationError) as rejected:
        a_policy(tmp_path, text)
    assert f"submit.conf, {where}" in str(rejected.value)
    assert why in str(rejected.value)


def test_rejects_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match=r"absent\.conf: cannot be read"):
        read_submit_policy(tmp_path / "absent.conf", None)
