"""Sources of a job router's table, and tables that are faulty or unavailable."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from pilotage.errors import InvalidInputError, PilotageError, WorldError
from pilotage.resources.tree import QueueId
from pilotage_agents.router.core.table import QueueTarget, Targets, target_key
from pilotage_agents.router.table_file import RouteSource, TableSettings, read_targets
from support.router_scene import a_route
from support.virtual_clock import VirtualClock


def lyon_targets() -> Targets:
    return Targets({}, {target_key("batch A"): QueueTarget(QueueId("Lyon", "ce", "long"))})


@pytest.fixture
def clock() -> VirtualClock:
    return VirtualClock()


@pytest.fixture
def source(tmp_path: Path, clock: VirtualClock) -> Callable[..., RouteSource]:
    """Return a maker of sources that read the file `table` in the test's folder."""

    def make(command: str = "", refresh_s: float | None = None, **fields: object) -> RouteSource:
        settings = TableSettings(
            tmp_path / "table",
            ("/bin/sh", "-c", command) if command else (),
            timedelta(seconds=refresh_s) if refresh_s else None,
            **{"targets": lyon_targets, **fields},  # type: ignore[arg-type]
        )
        return RouteSource(settings, clock)

    return make


def names(table: object) -> list[str]:
    return [route.name for route in getattr(table, "routes", ())]


async def test_file_is_read_again_only_after_a_change(tmp_path: Path, source: Callable[..., RouteSource]) -> None:
    (tmp_path / "table").write_text(a_route("A"))
    table = source()
    assert names(await table.load_newer()) == ["A"]
    assert await table.load_newer() is None
    (tmp_path / "table").write_text(a_route("Other").replace("batch Other", "batch A"))
    assert names(await table.load_newer()) == ["Other"]


async def test_changed_targets_file_is_read_again(tmp_path: Path, source: Callable[..., RouteSource]) -> None:
    (tmp_path / "table").write_text(a_route("A"))
    targets = tmp_path / "targets.toml"
    targets.write_text('[grid_resources]\n"batch A" = { queue = "Lyon/ce/long" }\n')
    table = source(targets=lambda: read_targets(targets), targets_file=targets)
    first = await table.load_newer()
    assert first is not None
    targets.write_text('[grid_resources]\n"batch A" = { queue = "Lyon/ce/other" }\n')
    second = await table.load_newer()
    assert second is not None
    assert [str(loaded.routes[0].target) for loaded in (first, second)] == ["queue Lyon/ce/long", "queue Lyon/ce/other"]


async def test_command_runs_at_intervals(
    tmp_path: Path, source: Callable[..., RouteSource], clock: VirtualClock
) -> None:
    (tmp_path / "printed").write_text(a_route("A"))
    table = source(f"echo >> {tmp_path}/runs; cat {tmp_path}/printed", refresh_s=600)
    assert names(await table.load_newer()) == ["A"]
    (tmp_path / "printed").write_text(a_route("A", "false"))
    clock.advance(seconds=599)
    assert await table.load_newer() is None
    clock.advance(seconds=1)
    newer = await table.load_newer()
    assert newer is not None
    assert newer.routes[0].requirements == "false"
    assert len((tmp_path / "runs").read_text().splitlines()) == 2


async def test_unchanged_file_is_read_again_after_a_transient_fault(
    tmp_path: Path, source: Callable[..., RouteSource]
) -> None:
    faults: list[PilotageError] = []

    def targets() -> Targets:
        if faults:
            raise faults.pop()
        return lyon_targets()

    (tmp_path / "table").write_text(a_route("A"))
    table = source(targets=targets)
    assert names(await table.load_newer()) == ["A"]
    (tmp_path / "table").write_text(a_route("A", "false"))
    faults.append(WorldError("too many open files", transient=True))
    assert await table.load_newer() is None
    assert "too many open files" in table.fault
    newer = await table.load_newer()
    assert newer is not None
    assert (newer.routes[0].requirements, table.fault) == ("false", "")


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("echo 'no database' >&2; exit 1", "no database"),
        ("echo '[ name = \"B\"'", "[ is not closed"),
        ("sleep 60", "no answer within 5 s"),
    ],
)
async def test_failing_command_keeps_the_table_and_states_the_fault(
    tmp_path: Path, source: Callable[..., RouteSource], clock: VirtualClock, command: str, reason: str
) -> None:
    script = tmp_path / "script"
    script.write_text(f"cat <<'END'\n{a_route('A')}\nEND\n")
    table = source(f"exec sh {script}", refresh_s=60, timeout_s=5 if "sleep" in command else 30.0)
    assert names(await table.load_newer()) == ["A"]
    good = script.read_text()
    script.write_text(command)
    clock.advance(seconds=60)
    assert await table.load_newer() is None
    assert reason in table.fault
    script.write_text(good)
    clock.advance(seconds=60)
    assert await table.load_newer() is None
    assert table.fault == ""


async def test_fault_without_an_earlier_table_is_an_error(tmp_path: Path, source: Callable[..., RouteSource]) -> None:
    with pytest.raises(InvalidInputError):
        await source().load_newer()
    (tmp_path / "table").write_text("JOB_ROUTER_ROUTE_NAMES = A\nJOB_ROUTER_ROUTE_A @=end\nSET X 1 +\n@end\n")
    with pytest.raises(PilotageError, match="JOB_ROUTER_ROUTE_A"):
        await source().load_newer()
