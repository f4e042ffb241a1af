"""Subscriptions of a submission: one for each cluster, and those of all jobs."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidInputError
from pilotage.job_description import JobDescription
from pilotage.notifications import NewSubscription, RecipientKind
from pilotage.values.notifications import SubmittedSubscription
from pilotage_client.notifications import resolve_subscriptions

MAIL, HOOK = NewSubscription(RecipientKind.MAIL), NewSubscription(RecipientKind.URL, "https://example.org")


def job(*notify: NewSubscription, continues: bool = False) -> JobDescription:
    return JobDescription("run", notify=notify, continues_cluster=continues)


def test_descriptions_of_a_cluster_share_their_subscription() -> None:
    jobs = [job(MAIL), job(MAIL, continues=True), job(), job(MAIL, HOOK), job(HOOK, continues=True), job(HOOK)]
    described, found = resolve_subscriptions(jobs, [HOOK])
    assert found == [
        SubmittedSubscription(0, 5, HOOK),
        SubmittedSubscription(0, 1, MAIL),
        SubmittedSubscription(3, 3, MAIL),
        SubmittedSubscription(3, 3, HOOK),
        SubmittedSubscription(4, 4, HOOK),
        SubmittedSubscription(5, 5, HOOK),
    ]
    assert not any(each.notify for each in described)


def test_every_invalid_subscription_is_named() -> None:
    bad = NewSubscription(RecipientKind.URL, "nowhere")
    with pytest.raises(InvalidInputError) as error:
        resolve_subscriptions([job(bad), job(MAIL), job(bad)], [bad])
    assert [fault.where for fault in error.value.violations] == [
        "descriptions[0].notify",
        "descriptions[2].notify",
        "notify",
    ]
