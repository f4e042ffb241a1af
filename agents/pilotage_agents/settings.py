"""The settings of the agents."""

from __future__ import annotations

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import SettingsConfigDict

from pilotage.errors import InvalidInputError
from pilotage.rpc.channel import split_address
from pilotage.settings import AnchoredPath, ProgramSettings
from pilotage.telemetry import LogLevel
from pilotage_agents.drain_controller.settings import DrainControllerSettings
from pilotage_agents.notifier.settings import NotifierSettings
from pilotage_agents.pool_cleanup import PoolCleanupSettings
from pilotage_agents.racer.settings import RacerSettings
from pilotage_agents.router.settings import JobRouterSettings
from pilotage_agents.runtime.settings import AgentSection
from pilotage_agents.site_director.settings import SiteDirectorSettings, TaskQueueDirectorSettings


class AgentSettings(ProgramSettings):
    """The file: the server, the agents' tokens, and one section per agent.

    Of the replicas of an agent one leads; when it dies, another leads after `turn_s`.
    """

    model_config = SettingsConfigDict(env_prefix="PILOTAGE_AGENTS_")

    server: str = Field(description='The server, "host:port", or several with commas.')
    token_file: AnchoredPath | None = Field(
        None,
        description="A file with the token of those agents whose sections name none; it is read again for every call.",
    )
    token: SecretStr | None = Field(None, description="The token itself.")
    ca_file: AnchoredPath | None = Field(
        None, description="A file with the trusted certificate authorities (PEM); None = the system's."
    )
    turn_s: float = Field(30, ge=1, le=3600, description="How long a replica leads without renewal.")
    metrics_listen: str | None = Field(
        None,
        description="Where to serve /metrics, /healthz and /readyz, HOST:PORT; port 0 = any free one; None = nowhere.",
    )
    log_level: LogLevel = Field(LogLevel.INFO, description="The lowest level that is logged.")
    log_json: bool = Field(True, description="Whether each log line is a JSON object, else text for people.")
    site_director: SiteDirectorSettings | None = Field(
        None, description="The section of the site director; None = it does not run."
    )
    task_queue_director: TaskQueueDirectorSettings | None = Field(
        None, description="The section of the task-queue director; None = it does not run."
    )
    pool_cleanup: PoolCleanupSettings | None = Field(
        None, description="The section of the pool cleanup; None = it does not run."
    )
    drain_controller: DrainControllerSettings | None = Field(
        None, description="The section of the drain controller; None = it does not run."
    )
    racer: RacerSettings | None = Field(None, description="The section of the racer; None = it does not run.")
    notifier: NotifierSettings | None = Field(None, description="The section of the notifier; None = it does not run.")
    job_router: JobRouterSettings | None = Field(
        None, description="The section of the job router; None = it does not run."
    )

    @field_validator("metrics_listen")
    @classmethod
    def _check_address(cls, address: str | None) -> str | None:
        try:
            if address is not None:
                split_address(address)
        except InvalidInputError as error:
            raise ValueError(error.violations[0].why) from error
        return address

    @model_validator(mode="after")
    def _has_a_token(self) -> AgentSettings:
        if self.token is not None and self.token_file is not None:
            raise ValueError("needs either a token_file or a token")
        has_own = [each.token_file is not None for each in self.sections()]
        if self.token is None and self.token_file is None and not (has_own and all(has_own)):
            raise ValueError("needs either a token_file or a token, or a token_file in each section")
        return self

    def sections(self) -> tuple[AgentSection, ...]:
        """Return the sections of the agents that run."""
        agents = (
            self.site_director,
            self.task_queue_director,
            self.pool_cleanup,
            self.drain_controller,
            self.racer,
            self.notifier,
            self.job_router,
        )
        return tuple(each for each in agents if each is not None)
