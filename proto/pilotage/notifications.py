"""What users are notified of, and where: the values of subscriptions, and the check of their recipients.

Users choose occasions and a recipient: a URL, a mail address, or the operator's command. Users name no command.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import urlsplit


class Occasion(StrEnum):
    """Something of which a subscription notifies; the values are those of options and job files."""

    END = "end"
    FAILURE = "failure"
    HOLD = "hold"


class RecipientKind(StrEnum):
    """How notifications are delivered."""

    URL = "url"
    MAIL = "mail"
    COMMAND = "command"


ALL_OCCASIONS = frozenset(Occasion)
LONGEST_ADDRESS = 2000
LONGEST_SECRET = 200

DELIVERY_LEASE = timedelta(minutes=2)
"""How long the notifier may take for one try of a delivery, its report included."""

_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_DOMAIN = re.compile(rf"{_LABEL}(?:\.{_LABEL}){{0,20}}", re.ASCII)
_LOCAL_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._+=-]{0,63}", re.ASCII)
_VISIBLE = re.compile(r"[!-~]+", re.ASCII)


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A wanted subscription. `secret` signs the requests to a URL, "" = they are not signed.

    A mail address may lack its domain, or be "" for the owner's own: the server's mail domain completes it.
    """

    kind: RecipientKind
    address: str = ""
    occasions: frozenset[Occasion] = ALL_OCCASIONS
    secret: str = ""

    @property
    def fault(self) -> str:
        """Why it cannot be, for people; "" = it is valid."""
        if not self.occasions:
            return "names no occasion: end, failure or hold"
        if self.secret and self.kind is not RecipientKind.URL:
            return "has a secret, which only requests to a URL use"
        if len(self.secret) > LONGEST_SECRET:
            return f"has a secret of more than {LONGEST_SECRET} characters"
        match self.kind:
            case RecipientKind.URL:
                return url_fault(self.address)
            case RecipientKind.MAIL:
                return mail_fault(self.address)
            case RecipientKind.COMMAND:
                return "names a command, which only the operator may choose" if self.address else ""

    @property
    def host(self) -> str:
        """The host to which requests go, in lower case; "" = the recipient is no URL."""
        return urlsplit(self.address).hostname or "" if self.kind is RecipientKind.URL else ""


def url_fault(url: str) -> str:
    """Return why notifications cannot be sent to the URL; "" = they can."""
    if len(url) > LONGEST_ADDRESS:
        return f"has a URL of more than {LONGEST_ADDRESS} characters"
    try:
        parts = urlsplit(url)
        is_complete = bool(parts.hostname and parts.port != 0)
    except ValueError:
        return f"{url} is not a URL"
    if not _VISIBLE.fullmatch(url) or parts.scheme not in ("https", "http") or not is_complete:
        return f"{url!r} is not a URL such as https://example.org/hook"
    if parts.username is not None or parts.fragment:
        return "has a URL with a password or a fragment; put a secret into its path, or use a signature"
    return ""


def mail_fault(address: str) -> str:
    """Return why the text is no mail address; "" = it is one, or one without a domain, or empty."""
    local, at, domain = address.rpartition("@") if "@" in address else (address, "", "")
    is_valid = not address or (_LOCAL_PART.fullmatch(local) and (not at or _DOMAIN.fullmatch(domain)))
    return "" if is_valid else f"{address!r} is not a mail address such as alice@example.org"


def complete_mail(address: str, owner: str, domain: str) -> str:
    """Return the whole mail address, "" = it has none: `address`, else `owner`, with `domain` if it has no other.

    The owner of an outside issuer, such as 4711@iam, is no mail address.
    """
    if "@" in address:
        return address
    whole = f"{address or owner}@{domain}"
    return "" if not domain or mail_fault(whole) else whole
