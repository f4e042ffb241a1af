"""User logs on the disk: resumed after a kill, shared by writers, never overwritten."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from pilotage.errors import WorldError
from pilotage_client.user_log.events import UserLogEvent
from pilotage_client.user_log.file import UserLogFile


def event(number: int, process: int, second: int, text: str = "") -> UserLogEvent:
    return UserLogEvent(number, 12, process, f"2026-11-26 12:00:{second:02d}", f"An event.\n\t{text}\n...\n")


EVENTS = [event(0, 0, 1), event(0, 1, 1), event(1, 0, 2), event(1, 1, 2), event(5, 1, 3), event(5, 0, 3)]


def whole_text(events: list[UserLogEvent]) -> str:
    return "".join(map(str, events))


def test_log_cut_at_any_byte_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "log"
    text = whole_text(EVENTS[:3]).encode()
    for length in range(len(text) + 1):
        path.write_bytes(text[:length])
        UserLogFile(path).append(EVENTS[:3])
        assert path.read_bytes() == text


def test_writers_of_the_same_events_write_each_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    first, second = UserLogFile(path), UserLogFile(path)
    first.append(EVENTS[:2])
    second.append(EVENTS[:3])
    first.append(EVENTS[2:4])
    second.append(EVENTS[3:])
    first.append(EVENTS[4:])
    assert path.read_text() == whole_text(EVENTS)


APPENDS = """
import sys
from pathlib import Path
from pilotage_client.user_log.events import UserLogEvent
from pilotage_client.user_log.file import UserLogFile
log = UserLogFile(Path(sys.argv[1]))
sys.stdin.read()
for process in range(100):
    log.append([UserLogEvent(0, 12, process, "2026-11-26 12:00:00", "An event.\\n...\\n")])
"""


def test_processes_that_write_at_once_write_each_event_once(tmp_path: Path) -> None:
    path = tmp_path / "log"
    command = [sys.executable, "-c", APPENDS, str(path)]
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    with ExitStack() as stack:
        writers = [
            stack.enter_context(subprocess.Popen(command, env=environment, stdin=subprocess.PIPE)) for _ in range(3)
        ]
        for writer in writers:
            assert writer.stdin is not None
            writer.stdin.close()
    assert [writer.returncode for writer in writers] == [0, 0, 0]
    headers = [line for line in path.read_text().splitlines() if line.endswith("An event.")]
    assert headers == [f"000 (012.{process:03d}.000) 2026-11-26 12:00:00 An event." for process in range(100)]


def test_equal_events_within_a_second_are_all_written(tmp_path: Path) -> None:
    log = UserLogFile(tmp_path / "log")
    twice = [event(1, 0, 5), event(4, 0, 5), event(1, 0, 5)]
    log.append(twice)
    log.append([event(1, 0, 5)])
    UserLogFile(log.path).append([*twice, event(1, 0, 5), event(1, 0, 5)])
    assert log.path.read_text() == whole_text([*twice, event(1, 0, 5), event(1, 0, 5)])


def test_abort_and_termination_are_the_same_end(tmp_path: Path) -> None:
    log = UserLogFile(tmp_path / "log")
    log.append([event(5, 0, 5)])
    UserLogFile(log.path).append([event(9, 0, 5)])
    assert log.path.read_text() == str(event(5, 0, 5))


def test_events_of_other_clusters_stay(tmp_path: Path) -> None:
    path = tmp_path / "log"
    others = "000 (011.000.000) 11/26 12:00:01 Job submitted from host: <h>\n...\n"
    path.write_text(others)
    UserLogFile(path).append(EVENTS)
    assert path.read_text() == others + whole_text(EVENTS)


def test_log_that_is_begun_again_gets_the_next_events(tmp_path: Path) -> None:
    log = UserLogFile(tmp_path / "log")
    log.append(EVENTS[:4])
    log.path.write_text("")
    log.append(EVENTS[4:])
    assert log.path.read_text() == whole_text(EVENTS[4:])


@pytest.mark.parametrize("text", ["results\n", "<?xml version", "x" * 100, "0001"])
def test_other_files_are_refused_and_unchanged(text: str, tmp_path: Path) -> None:
    path = tmp_path / "results"
    path.write_text(text)
    with pytest.raises(WorldError, match="no user log"):
        UserLogFile(path).append(EVENTS)
    assert path.read_text() == text


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(WorldError, match=r"logs/a: no such file or directory"):
        UserLogFile(tmp_path / "logs" / "a").append(EVENTS)


def test_disk_fault_leaves_the_log_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = UserLogFile(tmp_path / "log")
    log.append(EVENTS[:1])

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(WorldError, match="no space left"):
            log.append(EVENTS)
    assert log.path.read_text() == str(EVENTS[0])
    UserLogFile(log.path).append(EVENTS)
    assert log.path.read_text() == whole_text(EVENTS)
