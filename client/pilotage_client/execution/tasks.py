"""Functions that say what their calls need."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

_ATTRIBUTE = "pilotage_keys"

Function = TypeVar("Function", bound=Callable[..., Any])


def task(**keys: Any) -> Callable[[Function], Function]:
    """Give a function what its calls need in a `PilotageExecutor`: keys of `job`, such as `memory="2 GB"`.

    `inputs=["data.csv"]` are files of the present folder that the calls find in theirs.

    The function itself does not change: a plain call runs here.
    """

    def decorate(function: Function) -> Function:
        setattr(function, _ATTRIBUTE, keys)
        return function

    return decorate


def keys_of(function: Callable[..., Any]) -> Mapping[str, Any]:
    """Return what the calls of a function need, as `task` has set it."""
    keys: Mapping[str, Any] = getattr(function, _ATTRIBUTE, {})
    return keys
