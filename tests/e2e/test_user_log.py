"""A user log is written while jobs run, survives the kill of its writer, and is read by HTCondor's own library."""

from __future__ import annotations

import re
from pathlib import Path

from pilotage_client.user_log.events import IMAGE_SIZE
from support.commands import Command, environment_of, up_command
from support.user_logs import read_events


def test_killed_follower_is_resumed_without_doubled_events(tmp_path: Path) -> None:
    gate, log, jobs = tmp_path / "gate", tmp_path / "logs" / "job.log", tmp_path / "job.sub"
    log.parent.mkdir()
    script = f"while ! [ -e {gate} ]; do sleep 0.1; done; exit 3"
    lines = ["executable = /bin/sh", f"arguments = \"-c '{script}'\"", "transfer_executable = false"]
    jobs.write_text("\n".join([*lines, "initialdir = logs", "log = job.log", "queue 2\n"]))
    with up_command(tmp_path / "data") as up:
        up.start()
        pilotage = Command(environment_of(tmp_path, PILOTAGE_DATA=str(up.data)))
        with pilotage.start("submit", "--follow", jobs) as follower:
            up.until(lambda: log.exists() and "Job executing" in log.read_text())
            follower.kill()
            printed, _ = follower.communicate()
        with log.open("a") as part:
            part.write("005 (001.001.000) 20")
        gate.touch()
        submitted = re.search(r"submitted: (.*)", printed)
        assert submitted is not None
        resumed = pilotage.run("userlog", *submitted[1].split())
    assert (resumed.returncode, resumed.stdout) == (1, ""), resumed.stderr
    assert resumed.stderr.count("FAILED: exit code 3") == 2
    events = read_events(log)
    assert len({event["cluster"] for event in events}) == 1
    for process in (0, 1):
        own = [event for event in events if event["process"] == process and event["number"] != IMAGE_SIZE]
        assert [event["number"] for event in own] == [0, 1, 5]
        assert own[1]["SlotName"].startswith("slot1")
        assert (own[2]["TerminatedNormally"], own[2]["ReturnValue"]) == (True, 3)
        assert [event["timestamp"] for event in own] == sorted(event["timestamp"] for event in own)
