"""Which output files of a payload are collected."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pilotage.jobs.files import OutputLimits
from pilotage_pilot.supervise.monitor import PayloadRules
from support.pilot_ports import a_payload_runner
from support.processes import shell_job, until


async def test_output_outside_the_job_folder_is_not_collected(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path / "scratch") as bench:
        (tmp_path / "secret").write_text("secret")
        job = shell_job(
            f"ln -s {tmp_path}/secret a; ln -s {tmp_path} b; ln -s c2 c; echo fine > c2; mkfifo pipe;"
            f"rm stdout; ln -s {tmp_path}/secret stdout",
            output_files=("a", "b/secret", "c", "*pipe", "../../secret", "/etc/passwd", "absent"),
        )
        _, files, notes = await bench.run(job)
    assert {name: file.content for name, file in files.items()} == {"stderr": b"", "c": b"fine\n"}
    for name in ("a", "b/secret", "pipe", "../../secret", "/etc/passwd", "absent", "stdout"):
        assert f"output file {name}" in notes


async def test_collecting_output_blocks_no_other_job(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        jobs = (
            shell_job("touch a", output_files=("*",)),
            shell_job("touch a", 2, new_files_come_back=True),
            shell_job("true", 3),
        )
        for job in jobs:
            await bench.start(job)
            await bench.next_exit()
        release = threading.Event()
        with ThreadPoolExecutor(1) as threads:
            asyncio.get_running_loop().set_default_executor(threads)
            threads.submit(release.wait)
            stores = [asyncio.create_task(bench.store(job.key)) for job in jobs]
            await stores[2]
            stored_early = [task.done() for task in stores]
            release.set()
            found = [set(files) for files, _ in await asyncio.gather(*stores)]
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor())
    assert stored_early == [False, False, True]
    assert found == [{"stdout", "stderr", "a"}, {"stdout", "stderr", "a"}, {"stdout", "stderr"}]


async def test_large_files_are_uploaded_and_folders_collected_recursively(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job("mkdir -p d/e; head -c 300000 /dev/zero > d/big; echo x > d/e/small", output_files=("d",))
        _, files, _ = await bench.run(job)
        assert (files["d/big"].content, files["d/big"].size) == (None, 300_000)
        assert bench.link.files[files["d/big"].checksum] == b"\0" * 300_000
    assert files["d/e/small"].content == b"x\n"


async def test_growing_output_is_truncated_and_marked(tmp_path: Path) -> None:
    rules = PayloadRules(bounds=OutputLimits(10_000), watch_s=0.01)
    async with a_payload_runner(tmp_path, rules) as bench:
        job = shell_job("head -c 1000 /dev/zero | tr '\\0' a; yes", output_files=("stdout",))
        key = await bench.start(job)
        stream = bench.work_folder(key) / "stdout"
        sizes: list[int] = []

        def was_cut() -> bool:
            sizes.append(stream.stat().st_size)
            return len(sizes) > 2 and sizes[-1] < sizes[-2]

        await until(was_cut)
        bench.payload_runner.kill(key)
        await bench.next_exit()
        files, _ = await bench.store(key)
    output = files["stdout"]
    assert (output.size, output.truncated) == (10_000, True)
    assert (output.content or b"").startswith(b"a" * 1000), "the first part is output"


async def test_new_and_changed_files_are_collected_on_request(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        inputs = (bench.an_input("output", b"same"), bench.an_input("changed", b"old"))
        script = "echo out; echo new > made; echo more >> changed; mkdir d; echo x > d/below; ln -s made link"
        job = shell_job(script, input_files=inputs, new_files_come_back=True)
        _, files, notes = await bench.run(job)
        _, fewer, _ = await bench.run(shell_job(script, 2))
    assert {name: file.content for name, file in files.items()} == {
        "stdout": b"out\n",
        "stderr": b"",
        "made": b"new\n",
        "changed": b"oldmore\n",
    }
    assert (set(fewer), notes) == ({"stdout", "stderr"}, "")


async def test_file_names_that_are_not_text_are_skipped(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        script = r'touch good "$(printf "b\\377d")" "$(printf "a\\nb")"'
        _, files, notes = await bench.run(shell_job(script, stdout="/dev/null", new_files_come_back=True))
    assert set(files) == {"stderr", "good"}
    assert "b\\udcffd" in notes
    assert "line break" in notes


async def test_links_out_of_the_job_folder_are_not_followed(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path / "scratch") as bench:
        job = shell_job("ln -s / all; mkdir many; touch many/$(seq -s ' many/' 30)", output_files=("all/usr", "all/*"))
        _, files, notes = await bench.run(job)
    assert set(files) == {"stdout", "stderr"}
    assert "output file all/usr was not taken: it leads out of the job's folder" in notes


async def test_pattern_with_many_recursive_wildcards_is_rejected(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        deep = "/".join(["n"] * 60)
        job = shell_job(f"mkdir -p {deep}; touch {deep}/a", output_files=("**/" * 20 + "a", "**/n/**/a"))
        _, files, notes = await bench.run(job)
    assert set(files) == {"stdout", "stderr", f"{deep}/a"}
    assert "**/a was not taken: a pattern has ** no more than 2 times" in notes


async def test_too_deep_folders_are_reported_and_skipped(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        job = shell_job("touch a; mkdir -p out/$(printf 'd/%.0s' $(seq 1500))", output_files=("out", "a"))
        _, files, notes = await bench.run(job)
        bench.payload_runner.remove(job.key)
        await until(lambda: not list(tmp_path.glob("*/jobs/*")))
    assert set(files) == {"stdout", "stderr", "a"}
    assert "folders that lie too deep in one another were not looked into" in notes


async def test_circular_and_long_link_chains_are_reported(tmp_path: Path) -> None:
    async with a_payload_runner(tmp_path) as bench:
        chain = "i=0; while [ $i -lt 1500 ]; do ln -s l$((i + 1)) l$i; i=$((i + 1)); done; echo x > l1500"
        job = shell_job(
            f"rm stdout; ln -s stdout stdout; ln -s b a; ln -s a b; {chain}", output_files=("a", "l0", "l1500")
        )
        _, files, notes = await bench.run(job)
    assert set(files) == {"stderr", "l1500"}
    for name in ("stdout", "a", "l0"):
        assert f"output file {name} was not taken" in notes
