"""A job of a submit file transfers its files as HTCondor does."""

from __future__ import annotations

from pathlib import Path

from support.commands import Command, environment_of, up_command


def test_submit_file_job_returns_new_and_changed_files(tmp_path: Path) -> None:
    program = tmp_path / "elsewhere" / "make.sh"
    program.parent.mkdir()
    program.write_text(
        "#!/bin/sh\necho hello; echo made > new.txt; echo more >> grows.txt; mkdir d; echo x > d/below\n"
    )
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    (jobs / "grows.txt").write_text("some\n")
    (jobs / "stays.txt").write_text("same\n")
    lines = [f"executable = {program}", "transfer_input_files = grows.txt, stays.txt", "output = out", "error = err"]
    (jobs / "job.sub").write_text("\n".join([*lines, "queue"]))
    with up_command(tmp_path / "data") as up:
        up.start()
        pilotage = Command(environment_of(tmp_path, PILOTAGE_DATA=str(up.data)))
        (answer,) = pilotage.json_objects("submit", jobs / "job.sub")
        pilotage("wait", *answer["jobs"], "--timeout", 60)
        pilotage("output", *answer["jobs"], "--to", tmp_path / "back")
    output = {path.name: path.read_text() for path in (tmp_path / "back").iterdir()}
    assert output == {"out": "hello\n", "err": "", "new.txt": "made\n", "grows.txt": "some\nmore\n"}
    assert answer["warnings"] == []
