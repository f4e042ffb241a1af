"""Keeps the policy of a pilot: read at its start, and again when somebody on the node wants that."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

import structlog

from pilotage.condor_config import Surroundings
from pilotage.errors import InvalidInputError, PilotageError, Violation
from pilotage.job_description import Value
from pilotage_pilot.core.amounts import Amounts
from pilotage_pilot.core.events import PolicyRefused, PolicyReloaded
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.slot_layout import Layout, layout_change
from pilotage_pilot.policy.loading import Loaded, load_policy

log = structlog.get_logger()

_WRAPPER = "USER_JOB_WRAPPER"


@dataclass(frozen=True, slots=True)
class PolicySource:
    """Where a policy comes from, and the node that it is for; `allow_commands` = its text may run some."""

    path: Path
    node: Amounts
    gpu_ids: tuple[str, ...] = ()
    allow_commands: bool = False

    def load(self) -> tuple[Loaded, Path | None]:
        """Return the policy with the job wrapper that it names, None = none; see `load_policy` for what it raises."""
        around = Surroundings(allow_commands=self.allow_commands)
        loaded = load_policy(self.path, self.node, around, self.gpu_ids)
        return loaded, job_wrapper(loaded.policy, self.path)


class PolicyKeeper:
    """The policy in force; raises what `load_policy` does when there is none to begin with."""

    def __init__(self, source: PolicySource) -> None:
        self._source = source
        self._loaded, self.wrapper = source.load()
        self._fault: str | None = None

    @property
    def policy(self) -> Policy:
        """The policy in force."""
        return self._loaded.policy

    @property
    def layout(self) -> Layout:
        """The slots of the node; they stay as they are until the pilot starts anew."""
        return self._loaded.layout

    def attributes(self) -> dict[str, Value]:
        """Return what operators should know of the policy from afar."""
        said: dict[str, Value] = {"Policy": str(self._source.path)}
        return said | ({"PolicyFault": self._fault} if self._fault is not None else {})

    async def reload(self) -> PolicyReloaded | PolicyRefused:
        """Read the policy again; one that cannot be read changes nothing."""
        try:
            found, wrapper = await asyncio.to_thread(self._source.load)
        except PilotageError as error:
            self._fault = str(error)
            return PolicyRefused(self._fault)
        self._fault = layout_change(self.layout, found.layout)
        if self._fault is not None:
            log.warning("slots stay as they are", why=self._fault)
        self._loaded = Loaded(found.policy, self.layout)
        self.wrapper = wrapper
        return PolicyReloaded(found.policy)


def job_wrapper(policy: Policy, path: Path) -> Path | None:
    """Return the program that the policy in the file at `path` has jobs wrapped in, None = none.

    Raises
    ------
    InvalidInputError
        When it is no program that the pilot can run.
    """
    text = (policy.text(_WRAPPER) or "").strip()
    if not text:
        return None
    wrapper = Path(text)
    if not wrapper.is_absolute():
        raise _unfit(path, f"{text} is no absolute path")
    if not wrapper.is_file():
        raise _unfit(path, f"there is no file {text}")
    if not os.access(wrapper, os.R_OK | os.X_OK):
        raise _unfit(path, f"{text} may not be read and executed by the pilot")
    return wrapper


def _unfit(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(Violation(f"{path}: {_WRAPPER}", why))
