"""The settings of the notifier."""

from __future__ import annotations

from ipaddress import IPv4Network, IPv6Network
from typing import Annotated

from pydantic import Field, field_validator

from pilotage.notifications import mail_fault
from pilotage.settings import AnchoredPath
from pilotage_agents.runtime.settings import AgentSection, Interval

DeliveryTime = Annotated[float, Field(gt=0, le=60)]
"""A time in seconds that is well below the server's lease of a notification."""


class NotifierSettings(AgentSection):
    """The notifier: where requests may go, and the commands that send mail and other notifications.

    Commands are lists, the program first. They run as the notifier's user and without a shell.
    """

    interval_s: Interval = Field(1, description="The time between two cycles.")
    timeout_s: DeliveryTime = Field(10, description="The longest time of one request or command.")
    max_deliveries: int = Field(64, ge=1, le=1000, description="The largest number of deliveries at a time.")
    allowed_hosts: tuple[str, ...] = Field(
        (),
        description="Hosts, HOST or HOST:PORT, that requests reach by http and at private addresses too.",
    )
    denied_networks: tuple[IPv4Network | IPv6Network, ...] = Field(
        (),
        description="Networks that requests do not reach, beside the private ones, except allowed hosts: "
        "public addresses of the own institute.",
    )
    ca_file: AnchoredPath | None = Field(
        None, description="The authorities (PEM) that certificates of hosts are checked with; None = the system's."
    )
    mail_command: tuple[str, ...] = Field(
        (),
        description="Sends the mail on its standard input to the addresses in its header, such as sendmail -t -i; "
        "empty = no mail is sent.",
    )
    mail_from: str | None = Field(None, description="The sender of mails; None = the command's default.")
    command: tuple[str, ...] = Field(
        (), description="Gets notifications as JSON on its standard input; empty = there is no such recipient."
    )

    @field_validator("mail_from")
    @classmethod
    def _is_address(cls, address: str | None) -> str | None:
        if address is not None and (not address or mail_fault(address)):
            raise ValueError("is not a mail address such as pilotage@example.org")
        return address

    @field_validator("allowed_hosts")
    @classmethod
    def _folded(cls, hosts: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(host.lower() for host in hosts)
