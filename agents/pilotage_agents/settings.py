"""The settings of the agents, read once from a TOML file, the environment and the command line."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, SecretStr, model_validator

from pilotage.errors import InvalidInputError, Violation
from pilotage.settings import AnchoredPath, ProgramSettings, load_settings
from pilotage.telemetry import LogLevel
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from pilotage_agents.pool_cleanup import PoolCleanupSettings
from pilotage_agents.racer.settings import RacerSettings
from pilotage_agents.router.settings import JobRouterSettings
from pilotage_agents.site_director.settings import SiteDirectorSettings


class AgentSettings(ProgramSettings):
    """The file: the server, the agents' token, and one section per agent.

    `server` is "host:port" or several, separated by commas. `token_file` holds a token of role agent and is read again
    for every call; `token` is the token itself. `ca_file` (PEM) None = the system's authorities. Of the replicas of an
    agent one leads; when it dies, another leads after `turn_s`.
    """

    server: str
    token_file: AnchoredPath | None = None
    token: SecretStr | None = None
    ca_file: AnchoredPath | None = None
    turn_s: float = Field(default=30, ge=1, le=3600)
    log_level: LogLevel = LogLevel.INFO
    log_json: bool = True
    site_director: SiteDirectorSettings | None = None
    pool_cleanup: PoolCleanupSettings | None = None
    drain_controller: DrainControllerSettings | None = None
    racer: RacerSettings | None = None
    job_router: JobRouterSettings | None = None

    @model_validator(mode="after")
    def _has_a_token(self) -> AgentSettings:
        if (self.token is None) == (self.token_file is None):
            raise ValueError("needs either a token_file or a token")
        return self


def read_settings(
    path: Path | None,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    environment: Mapping[str, str] = os.environ,
) -> AgentSettings:
    """Return the settings in a TOML file; relative paths in it start from its folder.

    `overrides` come from the command line, by section. Without a file PILOTAGE_SERVER and PILOTAGE_TOKEN give server
    and token.

    Raises
    ------
    InvalidInputError
        With every fault and its place, also when the file cannot be read.
    """
    options: dict[str, Any] = dict(overrides or {})
    if path is None:
        names = {"server": "PILOTAGE_SERVER", "token": "PILOTAGE_TOKEN"}
        missing = [variable for variable in names.values() if not environment.get(variable)]
        if missing:
            raise InvalidInputError(Violation("--config", f"name a configuration, or set {' and '.join(missing)}"))
        options |= {name: environment[variable].strip() for name, variable in names.items()}
    return load_settings(AgentSettings, path, options)
