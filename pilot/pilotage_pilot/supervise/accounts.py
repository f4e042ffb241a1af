"""The local accounts that the payloads of a pilot of root run as, one for each owner: of a pool, or named by a command.

Rules
-----
- An owner keeps an account of the pool as long as attempts of it have folders here. Other pilots of the node do not use
  the account meanwhile. What a killed pilot has left keeps its accounts from other owners, until a pilot removes it.
- A payload runs as its account or not at all: without one, its job is put back.
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pwd
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, Self

from pilotage.processes import file_text, kill_group, memory_file
from pilotage.values.accounts import Account, OwnerId
from pilotage_pilot.supervise.base import AccountFaultError
from pilotage_pilot.supervise.folders import has_attempt_of
from pilotage_pilot.supervise.proc import has_processes


@dataclass(frozen=True, slots=True)
class PayloadUser:
    """The user of a payload, with its group and further groups; `is_shared` = other payloads may run as it, too."""

    uid: int
    gid: int
    groups: tuple[int, ...]
    name: str
    is_shared: bool

    @classmethod
    def of_number(cls, number: int) -> Self:
        """Return a user that has no account."""
        return cls(number, number, (), str(number), is_shared=False)

    @classmethod
    def of_account(cls, name: str) -> Self:
        """Return the user of a local account; raises AccountFaultError."""
        try:
            entry = pwd.getpwnam(name)
        except (KeyError, ValueError) as error:
            raise AccountFaultError(f"there is no account {name!r:.100} on this node") from error
        if entry.pw_uid == 0:
            raise AccountFaultError(f"the account {name} is root")
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        return cls(entry.pw_uid, entry.pw_gid, tuple(groups), entry.pw_name, is_shared=True)


USER_LOCKS = Path("/run/pilotage-payload-users")
"""The byte at the number of a user is locked while a pilot uses it: several pilots of root share a node."""


class UserLocks:
    """The locks of users on this node, which have to be closed. Raises OSError."""

    def __init__(self, path: Path = USER_LOCKS) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        self._held: set[int] = set()

    def acquire(self, user: int) -> bool:
        """Lock a user; returns whether it was free."""
        if user in self._held:
            return False
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, user)
        except OSError:
            return False
        self._held.add(user)
        return True

    def release(self, user: int) -> None:
        """Unlock a user."""
        self._held.discard(user)
        fcntl.lockf(self._file, fcntl.LOCK_UN, 1, user)

    def close(self) -> None:
        """Unlock all users."""
        os.close(self._file)


class PayloadAccounts(Protocol):
    """Gives each owner's attempts an account."""

    async def acquire(self, owner: Account) -> PayloadUser:
        """Return the account of an attempt, which has to be released; raises AccountFaultError."""

    def release(self, owner: Account) -> None:
        """Give back the account of an attempt when its processes and its folder are gone."""


class AccountPool:
    """Leases the accounts `names` to owners, in turn, so that one is used again as late as possible.

    `scratch` has the folders of the node's pilots. Raises AccountFaultError for an account that the node does not have.
    """

    def __init__(self, names: Sequence[str], locks: UserLocks, scratch: Path) -> None:
        self._free = [PayloadUser.of_account(name) for name in names]
        self._locks = locks
        self._scratch = scratch
        self._leased: dict[OwnerId, PayloadUser] = {}
        self._attempts: Counter[OwnerId] = Counter()

    async def acquire(self, owner: Account) -> PayloadUser:
        """Return the account of an owner, or lease one; see PayloadAccounts."""
        user = self._leased.get(owner.owner_id)
        if user is None:
            user = next((each for each in self._free if self._is_locked(each.uid)), None)
            if user is None:
                why = "other owners have them, or a killed pilot has left files or processes of them"
                raise AccountFaultError(f"no account of payload_accounts is free on this node: {why}")
            self._free.remove(user)
            self._leased[owner.owner_id] = user
        self._attempts[owner.owner_id] += 1
        return user

    def _is_locked(self, user: int) -> bool:
        """Lock a user; returns whether it was free."""
        if not self._locks.acquire(user):
            return False
        # A killed pilot has no locks; its payloads may live for a moment, and their files for longer.
        if has_processes(user) or has_attempt_of(user, self._scratch):
            self._locks.release(user)
            return False
        return True

    def release(self, owner: Account) -> None:
        """Count an attempt less; the last one ends the lease. See PayloadAccounts."""
        self._attempts[owner.owner_id] -= 1
        if not self._attempts[owner.owner_id]:
            del self._attempts[owner.owner_id]
            user = self._leased.pop(owner.owner_id)
            self._locks.release(user.uid)
            self._free.append(user)


class AccountCommand:
    """Asks an operator's command for the account of each attempt."""

    def __init__(self, command: Sequence[str], timeout_s: float, environment: dict[str, str]) -> None:
        self._command = command
        self._timeout_s = timeout_s
        self._environment = environment

    async def acquire(self, owner: Account) -> PayloadUser:
        """Return the account that the command prints; see PayloadAccounts."""
        groups = [owner.group] if owner.group else []
        asked = json.dumps({"owner": owner.owner, "vo": owner.vo, "groups": groups})
        name = (await self._answer(f"{asked}\n".encode())).strip()
        if not name:
            raise AccountFaultError(f"account_command prints no account for {owner.owner}")
        try:
            # In a thread, as a directory service may hang.
            return await asyncio.to_thread(PayloadUser.of_account, name)
        except AccountFaultError as error:
            raise AccountFaultError(f"account_command: {error}") from error

    def release(self, owner: Account) -> None:
        """Do nothing: accounts of a command are not leased. See PayloadAccounts."""

    async def _answer(self, asked: bytes) -> str:
        with memory_file() as stdin, memory_file() as stdout, memory_file() as stderr:
            stdin.write(asked)
            stdin.seek(0)
            try:
                process = await asyncio.create_subprocess_exec(
                    *self._command,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    env=self._environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise AccountFaultError(f"account_command: {self._command[0]}: {error.strerror}") from error
            try:
                async with asyncio.timeout(self._timeout_s):
                    exit_code = await process.wait()
            except TimeoutError as error:
                raise AccountFaultError(f"account_command did not end within {self._timeout_s:g} s") from error
            finally:
                await kill_group(process)
            if exit_code:
                why = " ".join(file_text(stderr).split())[-_MAX_OUTPUT_SHOWN:]
                raise AccountFaultError(f"account_command: exit code {exit_code}: {why}")
            return file_text(stdout)


_MAX_OUTPUT_SHOWN = 200
