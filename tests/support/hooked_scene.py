"""A job router in virtual time with hooks, each a shell script."""

from __future__ import annotations

from pathlib import Path

from pilotage_agents.router.hooks import HookKind, HookSettings
from support.router_scene import RouterScene, a_route

KEYWORD = "STAGING"


def hooked_scene(folder: Path, default: str = KEYWORD, timeout_s: float = 10.0, **scripts: str) -> RouterScene:
    """Return a scene with the hooks of a keyword; `$HERE` is a folder of theirs."""
    here = folder / "here"
    here.mkdir()
    commands = {HookKind(kind): ("/bin/sh", "-c", f"HERE={here}\n{text}") for kind, text in scripts.items()}
    settings = HookSettings({KEYWORD.lower(): commands}, default, timeout_s)
    return RouterScene(folder, a_route(set_Color='"blue"', FailureRateThreshold=0.0001), hooks=settings)


def written(folder: Path, name: str) -> str:
    """Return what a hook has written in its folder; "" = nothing."""
    path = folder / "here" / name
    return path.read_text() if path.exists() else ""
