"""A job router and jobs of which something fails that nobody has foreseen: all others go on as if it were not there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from structlog.testing import capture_logs

from pilotage_agents.router.core.model import CollectedFile
from support.router_scene import RouterScene, ScenePlace, target_of


@dataclass
class OddPlace(ScenePlace):
    """A place where looking for what one copy has left, that of job `odd`, fails as nobody has foreseen."""

    odd: int = 0

    async def collect(self, reference: str) -> tuple[CollectedFile, ...]:
        if self.odd and self.copies[reference].job_id == self.odd:
            raise RecursionError("a path without end")
        return await super().collect(reference)


def of_own(logs: list[Any]) -> set[str]:
    return {line["event"] for line in logs if line["log_level"] == "error"}


async def test_a_copy_whose_output_cannot_be_looked_for_waits_alone(tmp_path: Path) -> None:
    scene = RouterScene(tmp_path)
    place = OddPlace(tmp_path / "left", scene.place().begins, clock=scene.clock)
    scene.places.places[str(target_of("A"))] = place
    place.odd = scene.link.submit(1, WantJobRouter=True)[0]
    scene.link.submit(3, WantJobRouter=True)
    with capture_logs() as logs:
        await scene.rounds()
        place.finish()
        await scene.rounds(3)
    assert scene.link.states()["DONE"] == 3
    assert of_own(logs) == {"unexpected error in a request to a target"}
    place.odd = 0
    await scene.rounds(10)
    assert scene.link.states() == {"DONE": 4}
