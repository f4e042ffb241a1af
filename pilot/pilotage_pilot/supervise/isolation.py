"""The isolation of payloads: which level works on this node, what payloads see there, and the users that they run as.

A level is tried by really starting a payload in it. So a node needs no description of its kernel or container.
"""

from __future__ import annotations

import contextlib
import os
import pwd
import random
import select
import signal
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pilotage.errors import PilotageError
from pilotage.jobs.environment import DEFAULT_PATH
from pilotage.jobs.files import remove_tree
from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.accounts import (
    AccountCommand,
    AccountPool,
    PayloadAccounts,
    PayloadUser,
    UserLocks,
)
from pilotage_pilot.supervise.base import AccountFaultError
from pilotage_pilot.supervise.folders import Folders, folders_in, make_folders
from pilotage_pilot.supervise.spawn import Launcher, PayloadCommand, start_fault, without_secrets

PRIVATE = (Path("/tmp"), Path("/var/tmp"), Path("/dev/shm"))  # noqa: S108 - a payload has its own ones
"""In its namespaces a payload has its own folders at these places."""


class IsolationError(PilotageError):
    """A level of isolation does not work here; the text says why."""


@dataclass(frozen=True, slots=True)
class PayloadPaths:
    """What payloads in namespaces see: `hidden` files and folders, and what stays `visible` or `writable` below them.

    The nearest folder of a path decides. Everything else is read-only, except for the payload's own folders.
    """

    hidden: tuple[Path, ...] = ()
    visible: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()

    @classmethod
    def of(cls, hidden: Iterable[Path], visible: Iterable[Path], writable: Iterable[Path]) -> PayloadPaths:
        """Return these paths without links; without visible and writable ones that do not exist."""
        kept = [tuple(path for path in map(_real, paths) if path.exists()) for paths in (visible, writable)]
        covered = {real for path in hidden for real in _hidden(path)}
        return cls(tuple(covered - {Path("/"), *PRIVATE}), *kept)

    def hides(self, path: Path) -> bool:
        """Whether payloads in namespaces do not see this path of the node: the nearest of its folders decides."""
        real = str(_real(path))
        shown, covered = (
            {each for each in paths if _contains(str(each), real)}
            for paths in ((*self.visible, *self.writable), (*self.hidden, *PRIVATE))
        )
        nearest = max(shown | covered, key=lambda each: len(each.parts), default=None)
        return nearest is not None and nearest not in shown

    def mounts(self, folders: Folders, memory_mib: int, needed: Iterable[Path]) -> dict[str, Any]:
        """Return the order to the launcher for an attempt; `memory_mib` bounds /dev/shm, 0 = half of the node's.

        What is `needed`, such as the job wrapper, is visible in any case.
        """
        visible = (*self.visible, *(path for path in needed if self.hides(path) and path.exists()))
        return {
            "own": str(folders.root),
            "temporary": str(folders.private_temporary),
            "hidden": [str(path) for path in self.hidden],
            "visible": [str(path) for path in visible],
            "writable": [str(path) for path in self.writable],
            "shared_memory": f"size={memory_mib}m" if memory_mib else "size=50%",
            "image": None,
        }


def _contains(folder: str, path: str) -> bool:
    """Whether a real path is that of a folder or below it; much cheaper than `is_relative_to`."""
    return path == folder or path.startswith(f"{folder.rstrip('/')}/")


def _real(path: Path) -> Path:
    return Path(os.path.realpath(os.path.expanduser(path)))


def _hidden(path: Path) -> set[Path]:
    """Return the real paths of a hidden one; ~ is also the home of the account, as batch systems set another HOME."""
    found = {_real(path)}
    if path.parts[:1] == ("~",):
        with contextlib.suppress(KeyError):  # a container may have no account of this user
            found.add(_real(Path(pwd.getpwuid(os.getuid()).pw_dir, *path.parts[1:])))
    return found


class PayloadUsers:
    """The numbers of users, from `first` to `last`, of which each payload gets one that no other payload has.

    They are given in turn, so that a number is used again as late as possible.
    """

    def __init__(self, first: int, last: int, locks: UserLocks) -> None:
        self.locks = locks
        self._first = first
        self._count = last - first + 1
        self._next = random.randrange(self._count)  # noqa: S311 - it only spreads the pilots of a node

    def acquire(self) -> int:
        """Return a user for one payload; raises OSError if all are in use."""
        for _ in range(self._count):
            user = self._first + self._next
            self._next = (self._next + 1) % self._count
            if self.locks.acquire(user):
                return user
        raise OSError(f"all {self._count} users of payload_uids are in use")

    def release(self, user: int) -> None:
        """Give a user back when no process of its payload is alive."""
        self.locks.release(user)


_NOBODY = 65534
"""Linux's overflow uid: like the users of payloads it owns no files."""


@dataclass(frozen=True, slots=True)
class Confinement:
    """How the payloads of one pilot are isolated, and the launcher that starts them so; has to be closed.

    `users` None = payloads run as the pilot's user. `accounts` None = payloads run as `users`, one each; else these are
    only for trials.
    """

    launcher: Launcher
    level: Isolation
    paths: PayloadPaths = PayloadPaths()
    users: PayloadUsers | None = None
    accounts: PayloadAccounts | None = None

    def new_user(self) -> PayloadUser | None:
        """Return the user of a new payload, None = the pilot's; raises OSError if all are in use."""
        return PayloadUser.of_number(self.users.acquire()) if self.users is not None else None

    @property
    def reader(self) -> int | None:
        """The user with whose rights the pilot reads files that jobs name; None = the pilot's, as payloads."""
        return _NOBODY if self.users is not None else None

    def release(self, user: PayloadUser | None) -> None:
        """Give back the user of a payload that has ended; an account is given back elsewhere."""
        if self.users is not None and user is not None and not user.is_shared:
            self.users.release(user.uid)

    def mounts(self, folders: Folders, memory_mib: int = 0, needed: Iterable[Path] = ()) -> dict[str, Any] | None:
        """Return what a payload sees, as `PayloadPaths.mounts`; None = what the pilot sees."""
        return self.paths.mounts(folders, memory_mib, needed) if self.level is Isolation.NAMESPACE else None

    def hides(self, path: Path) -> bool:
        """Whether payloads do not see this path of the node, which is not in the attempt's own folder."""
        return self.level is Isolation.NAMESPACE and self.paths.hides(path)

    def close(self) -> None:
        """End the launcher."""
        self.launcher.close()
        if self.users is not None:
            self.users.locks.close()


@dataclass(frozen=True, slots=True)
class AccountRules:
    """The accounts that payloads run as: a pool of them, or a command that names them; both empty = none."""

    pool: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    timeout_s: float = 30.0

    def __bool__(self) -> bool:
        """Whether payloads run as accounts."""
        return bool(self.pool or self.command)

    def accounts(self, locks: UserLocks, scratch: Path) -> PayloadAccounts | None:
        """Return the source of accounts, None = there is none; raises AccountFaultError."""
        if self.pool:
            return AccountPool(self.pool, locks, scratch)
        return AccountCommand(self.command, self.timeout_s, without_secrets(os.environ)) if self.command else None


@dataclass(frozen=True, slots=True)
class IsolationRules:
    """What the site demands: the `required` level, None = the strongest that works; paths, and numbers of users.

    A pilot of root runs payloads as `accounts`, if there are any, and then as no other user.
    """

    required: Isolation | None = None
    paths: PayloadPaths = PayloadPaths()
    first_user: int = 1_900_000_000
    last_user: int = 1_901_048_575
    accounts: AccountRules = AccountRules()

    @property
    def levels(self) -> tuple[Isolation, ...]:
        """The levels to try, the strongest first."""
        if self.required is not None:
            return (self.required,)
        return _OF_ACCOUNTS if self.accounts and os.geteuid() == 0 else tuple(Isolation)


_OF_ACCOUNTS = (Isolation.NAMESPACE, Isolation.UID)
"""The levels in which a pilot of root runs payloads as other users."""


def confine(rules: IsolationRules, launcher: Launcher, jobs: Path) -> tuple[Confinement, dict[str, str]]:
    """Return the strongest confinement that works, and why stronger levels do not.

    They are tried in `jobs`, the folder of this name of a pilot. Raises IsolationError if the required level does not
    work, or the node lacks an account.
    """
    refused: dict[str, str] = {}
    for level in rules.levels:
        users = None
        try:
            users = _users(level, rules)
            accounts = None if users is None else rules.accounts.accounts(users.locks, jobs.parents[1])
            confinement = Confinement(launcher, level, rules.paths, users, accounts)
            _try(confinement, folders_in(jobs / "trial"))
        except (OSError, PilotageError) as error:
            if users is not None:
                users.locks.close()
            if isinstance(error, AccountFaultError):
                raise IsolationError(f"payload_accounts: {error}") from error
            refused[level.value] = str(error)
            continue
        return confinement, refused
    wanted = " or ".join(level.value for level in rules.levels)
    raise IsolationError(
        f"isolation = {wanted} does not work on this node: {'; '.join(refused.values())}. "
        "Change the node (docs/how-to/isolation.md says what each level needs), or set a weaker level"
    )


_PROTECTED_LINKS = Path("/proc/sys/fs/protected_hardlinks")


def _users(level: Isolation, rules: IsolationRules) -> PayloadUsers | None:
    """Return the users of payloads in a level, None = only the pilot's."""
    if level is Isolation.UID and _PROTECTED_LINKS.read_text().strip() == "0":
        # A payload could link a file of root into its folder, whose contents the pilot collects as output.
        raise IsolationError("fs.protected_hardlinks is 0")
    if os.geteuid() == 0 and level in _OF_ACCOUNTS:
        return PayloadUsers(rules.first_user, rules.last_user, UserLocks())
    if os.geteuid() == 0 and rules.accounts:
        raise IsolationError("payload_accounts and account_command need the level namespace or uid")
    if level is Isolation.UID:
        raise IsolationError("only a pilot of root can run payloads as other users")
    return None


_TRIAL = 'echo "$USER" > file && echo > "$TMPDIR/file"'
_TRIAL_TIMEOUT_S = 60.0


def _try(confinement: Confinement, folders: Folders) -> None:
    """Run a payload that writes to its folders; raises OSError or a PilotageError if it cannot."""
    exit_code, has_written = run_trial(confinement, folders, _TRIAL)
    if exit_code != 0 or not has_written:
        raise IsolationError(f"a payload cannot write to its folders (exit code {exit_code})")


def run_trial(
    confinement: Confinement, folders: Folders, script: str, image: Mapping[str, Any] | None = None
) -> tuple[int, bool]:
    """Run a script as a payload, in an image if one is given; returns its exit code, and whether it wrote $TMPDIR/file.

    Raises OSError or a PilotageError if it cannot be started.
    """
    user = confinement.new_user()
    try:
        make_folders(folders)
        environment = {"PATH": DEFAULT_PATH, "TMPDIR": str(folders.temporary)}
        command = PayloadCommand("/bin/sh", ("sh", "-c", script), folders.work, environment, None, None, None)
        mounts = confinement.mounts(folders)
        if mounts is not None:
            mounts["image"] = image
        command = replace(command, user=user, mounts=mounts, in_image=image is not None)
        process = confinement.launcher.start(command)
        _kill_if_late(process.pid)
        try:
            exit_code, _ = process.wait()
        except OSError as error:
            raise start_fault(command, error) or error from error
        return exit_code, (folders.temporary / "file").exists()
    finally:
        confinement.release(user)
        remove_tree(folders.root)


def _kill_if_late(pid: int) -> None:
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(_TRIAL_TIMEOUT_S * 1000):
            signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    finally:
        os.close(descriptor)
