"""Recipients of notifications: which URLs, mail addresses and network addresses are taken."""

from __future__ import annotations

import ipaddress

import pytest

from pilotage.notifications import NewSubscription, RecipientKind, complete_mail, mail_fault, url_fault
from pilotage_agents.notifier.commands import mail_text
from pilotage_agents.notifier.errors import DeliveryError
from pilotage_agents.notifier.settings import NotifierSettings
from pilotage_agents.notifier.webhook import is_public


@pytest.mark.parametrize(
    "url",
    [
        "https://example.org/hook?x=1",
        "https://example.org:8443",
        "http://hooks.local/a",
        "https://[2001:db8::1]/",
        "HTTPS://EXAMPLE.ORG/",
    ],
)
def test_url_is_a_recipient(url: str) -> None:
    assert url_fault(url) == ""


@pytest.mark.parametrize(
    "url",
    [
        "",
        "example.org",
        "ftp://example.org/",
        "file:///etc/passwd",
        "https:///path",
        "https://example.org/ HTTP/1.1",
        "https://example.org/a\r\nX-Injected: 1",
        "https://example.org/\u00e4",
        "https://user:password@example.org/",
        "https://example.org/#part",
        "https://example.org:99999/",
        "https://example.org:0/",
        "https://[::1/",
        "https://example.org/" + "a" * 2000,
    ],
)
def test_text_is_no_recipient(url: str) -> None:
    assert url_fault(url)


@pytest.mark.parametrize("address", ["alice@example.org", "a.b+c@x-y.ch", "alice", ""])
def test_mail_address_is_a_recipient(address: str) -> None:
    assert mail_fault(address) == ""


@pytest.mark.parametrize(
    "address",
    [
        "-oQ/tmp@example.org",
        "a@b@c",
        "a b@example.org",
        "alice@",
        "@example.org",
        "a@example.org\nBcc: all@example.org",
        "a@-example.org",
        '"a b"@example.org',
        "a@" + "b." * 40 + "c",
        "|program",
    ],
)
def test_text_is_no_mail_address(address: str) -> None:
    assert mail_fault(address)


@pytest.mark.parametrize(
    ("address", "owner", "domain", "whole"),
    [
        ("", "alice", "example.org", "alice@example.org"),
        ("bob", "alice", "example.org", "bob@example.org"),
        ("bob@cern.ch", "alice", "example.org", "bob@cern.ch"),
        ("", "alice", "", ""),
        ("", "4711@iam", "example.org", ""),
        ("", "CN=Alice A", "example.org", ""),
    ],
)
def test_address_is_completed(address: str, owner: str, domain: str, whole: str) -> None:
    assert complete_mail(address, owner, domain) == whole


@pytest.mark.parametrize(
    ("wanted", "fault"),
    [
        (NewSubscription(RecipientKind.COMMAND, "rm -rf /"), "only the operator"),
        (NewSubscription(RecipientKind.MAIL, secret="x"), "only requests to a URL"),
        (NewSubscription(RecipientKind.COMMAND, occasions=frozenset()), "names no occasion"),
        (NewSubscription(RecipientKind.URL, "https://example.org", secret="x" * 201), "more than 200"),
    ],
)
def test_subscription_is_refused(wanted: NewSubscription, fault: str) -> None:
    assert fault in wanted.fault


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("93.184.216.34", True),
        ("2606:2800:220:1::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("172.16.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.0.0.0", False),
        ("224.0.0.1", False),
        ("255.255.255.255", False),
        ("::1", False),
        ("::", False),
        ("fe80::1", False),
        ("fec0::1", False),
        ("fd00::1", False),
        ("ff02::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:93.184.216.34", True),
        ("2002:7f00:1::", False),
        ("2001:0:7f00:1::", False),
        ("64:ff9b::7f00:1", False),
        ("64:ff9b:1::7f00:1", False),
    ],
)
def test_only_public_addresses_are_reached(address: str, public: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is public


@pytest.mark.parametrize("address", ["137.138.1.2", "::ffff:137.138.1.2", "2001:1458::7"])
def test_denied_networks_are_not_reached(address: str) -> None:
    settings = NotifierSettings.model_validate({"denied_networks": ["137.138.0.0/16", "2001:1458::/32"]})
    parsed = ipaddress.ip_address(address)
    assert is_public(parsed)
    assert not is_public(parsed, settings.denied_networks)
    assert is_public(ipaddress.ip_address("137.139.1.2"), settings.denied_networks)


def test_texts_of_users_are_in_the_body_of_a_mail_only() -> None:
    text = "Job 7 (é\nBcc: x) has failed"
    mail = mail_text("alice@example.org", "pilotage@example.org", "job 7 has failed", text, "1.a")
    head, _, body = mail.decode().partition("\n\n")
    assert "To: alice@example.org\nFrom: pilotage@example.org\nSubject: Pilotage: job 7 has failed\n" in head
    assert "\nMessage-ID: <1.a@example.org>\n" in head
    assert "Bcc" not in head
    assert body
    for address in ("", "alice", "-x@example.org"):
        with pytest.raises(DeliveryError):
            mail_text(address, None, "s", "t", "1.a")


@pytest.mark.parametrize(
    "given",
    [{"timeout_s": 61}, {"timeout_s": 0}, {"max_deliveries": 0}, {"mail_from": "nobody at all"}, {"shell": "x"}],
)
def test_settings_are_bounded(given: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(given))):
        NotifierSettings(**given)
