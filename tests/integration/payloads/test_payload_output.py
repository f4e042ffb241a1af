"""What is taken of what a payload leaves, and what is not."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pilotage.jobs.files import OutputLimits
from pilotage_pilot.supervise.payload_runner import PayloadRules
from support.pilot_edges import a_workshop
from support.processes import shell, until


async def test_output_that_leads_out_of_the_folder_is_not_taken(tmp_path: Path) -> None:
    async with a_workshop(tmp_path / "scratch") as bench:
        (tmp_path / "secret").write_text("secret")
        job = shell(
            f"ln -s {tmp_path}/secret a; ln -s {tmp_path} b; ln -s c2 c; echo fine > c2; mkfifo pipe;"
            f"rm stdout; ln -s {tmp_path}/secret stdout",
            output_files=("a", "b/secret", "c", "*pipe", "../../secret", "/etc/passwd", "absent"),
        )
        _, files, notes = await bench.run(job)
    assert {name: file.content for name, file in files.items()} == {"stderr": b"", "c": b"fine\n"}
    for name in ("a", "b/secret", "pipe", "../../secret", "/etc/passwd", "absent", "stdout"):
        assert f"output file {name}" in notes


async def test_output_is_looked_for_while_all_else_goes_on(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        jobs = (shell("touch a", output_files=("*",)), shell("touch a", 2, new_files_come_back=True), shell("true", 3))
        for job in jobs:
            await bench.start(job)
            await bench.ends()
        may_go_on = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            threads.submit(may_go_on.wait)
            stored = [asyncio.create_task(bench.store(job.key)) for job in jobs]
            await stored[2]
            are_stored = [task.done() for task in stored]
            may_go_on.set()
            found = [set(files) for files, _ in await asyncio.gather(*stored)]
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    assert are_stored == [False, False, True]
    assert found == [{"stdout", "stderr", "a"}, {"stdout", "stderr", "a"}, {"stdout", "stderr"}]


async def test_large_output_is_brought_to_the_server_and_a_folder_with_all_that_is_in_it(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell("mkdir -p d/e; head -c 300000 /dev/zero > d/big; echo x > d/e/small", output_files=("d",))
        _, files, _ = await bench.run(job)
        assert (files["d/big"].content, files["d/big"].size) == (None, 300_000)
        assert bench.link.files[files["d/big"].checksum] == b"\0" * 300_000
    assert files["d/e/small"].content == b"x\n"


async def test_output_is_bounded_while_the_payload_writes_and_marked_as_cut(tmp_path: Path) -> None:
    handling = PayloadRules(bounds=OutputLimits(10_000), watch_s=0.01)
    async with a_workshop(tmp_path, handling) as bench:
        job = shell("head -c 1000 /dev/zero | tr '\\0' a; yes", output_files=("stdout",))
        key = await bench.start(job)
        stream = bench.work_of(key) / "stdout"
        sizes: list[int] = []

        def was_cut() -> bool:
            sizes.append(stream.stat().st_size)
            return len(sizes) > 2 and sizes[-1] < sizes[-2]

        await until(was_cut)
        bench.workshop.kill(key)
        await bench.ends()
        files, _ = await bench.store(key)
    kept = files["stdout"]
    assert (kept.size, kept.truncated) == (10_000, True)
    assert (kept.content or b"").startswith(b"a" * 1000), "the first part is kept"


async def test_new_and_changed_files_of_the_top_folder_come_back_where_the_job_wants_that(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        inputs = (bench.an_input("kept", b"same"), bench.an_input("changed", b"old"))
        script = "echo out; echo new > made; echo more >> changed; mkdir d; echo x > d/below; ln -s made link"
        job = shell(script, input_files=inputs, new_files_come_back=True)
        _, files, notes = await bench.run(job)
        _, fewer, _ = await bench.run(shell(script, 2))
    assert {name: file.content for name, file in files.items()} == {
        "stdout": b"out\n",
        "stderr": b"",
        "made": b"new\n",
        "changed": b"oldmore\n",
    }
    assert (set(fewer), notes) == ({"stdout", "stderr"}, "")


async def test_a_file_whose_name_cannot_be_told_is_not_taken(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        script = r'touch good "$(printf "b\\377d")" "$(printf "a\\nb")"'
        _, files, notes = await bench.run(shell(script, stdout="/dev/null", new_files_come_back=True))
    assert set(files) == {"stderr", "good"}
    assert "b\\udcffd" in notes
    assert "line break" in notes


async def test_output_that_leads_out_is_not_even_looked_into(tmp_path: Path) -> None:
    async with a_workshop(tmp_path / "scratch") as bench:
        job = shell("ln -s / all; mkdir many; touch many/$(seq -s ' many/' 30)", output_files=("all/usr", "all/*"))
        _, files, notes = await bench.run(job)
    assert set(files) == {"stdout", "stderr"}
    assert "output file all/usr was not taken: it leads out of the job's folder" in notes


async def test_a_pattern_that_would_look_through_a_deep_folder_for_ever_is_not_followed(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        deep = "/".join(["n"] * 60)
        job = shell(f"mkdir -p {deep}; touch {deep}/a", output_files=("**/" * 20 + "a", "**/n/**/a"))
        _, files, notes = await bench.run(job)
    assert set(files) == {"stdout", "stderr", f"{deep}/a"}
    assert "**/a was not taken: a pattern has ** no more than 2 times" in notes


async def test_what_lies_too_deep_to_be_found_is_told_and_harms_nobody(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        job = shell("touch a; mkdir -p out/$(printf 'd/%.0s' $(seq 1500))", output_files=("out", "a"))
        _, files, notes = await bench.run(job)
        bench.workshop.remove(job.key)
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))
    assert set(files) == {"stdout", "stderr", "a"}
    assert "folders that lie too deep in one another were not looked into" in notes


async def test_links_that_lead_round_in_a_circle_or_ever_on_are_told_of_and_harm_nobody(tmp_path: Path) -> None:
    async with a_workshop(tmp_path) as bench:
        chain = "i=0; while [ $i -lt 1500 ]; do ln -s l$((i + 1)) l$i; i=$((i + 1)); done; echo x > l1500"
        job = shell(f"rm stdout; ln -s stdout stdout; ln -s b a; ln -s a b; {chain}", output_files=("a", "l0", "l1500"))
        _, files, notes = await bench.run(job)
    assert set(files) == {"stderr", "l1500"}
    for name in ("stdout", "a", "l0"):
        assert f"output file {name} was not taken" in notes
