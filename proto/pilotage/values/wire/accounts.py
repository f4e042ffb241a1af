"""Accounts ↔ wire."""

from __future__ import annotations

from pilotage.v1 import matcher_service_pb2
from pilotage.values.accounts import Account, OwnerId


def account_to_wire(account: Account) -> matcher_service_pb2.Account:
    """Return the message of an account."""
    return matcher_service_pb2.Account(vo=account.vo, group=account.group, owner=account.owner)


def account_from_wire(message: matcher_service_pb2.Account) -> Account:
    """Return the account of a message; its names are not checked."""
    return Account(message.vo, message.group, message.owner)


def owner_to_wire(owner: OwnerId) -> matcher_service_pb2.OwnerId:
    """Return the message of an owner."""
    return matcher_service_pb2.OwnerId(vo=owner.vo, owner=owner.name)


def owner_from_wire(message: matcher_service_pb2.OwnerId) -> OwnerId:
    """Return the owner of a message; its names are not checked."""
    return OwnerId(message.vo, message.owner)
