"""Every setting of every program is described."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pydantic import BaseModel

from pilotage.settings import ProgramSettings, Section
from pilotage_agents.settings import AgentSettings
from pilotage_pilot.settings import PilotSettings
from pilotage_server.settings import ServerSettings

PROGRAMS: tuple[type[ProgramSettings], ...] = (ServerSettings, PilotSettings, AgentSettings)


def product_sections(model: type[BaseModel]) -> Iterator[type[BaseModel]]:
    for section in model.__subclasses__():
        if section.__module__.startswith("pilotage"):
            yield section
            yield from product_sections(section)


@pytest.mark.parametrize(
    "model",
    [*PROGRAMS, *product_sections(Section)],
    ids=lambda model: model.__name__,
)
def test_each_setting_has_a_description(model: type[BaseModel]) -> None:
    assert not [name for name, field in model.model_fields.items() if not field.description]
