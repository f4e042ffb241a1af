"""Payloads in container images by podman: what they see and get, and that all orders and limits reach them."""

from __future__ import annotations

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotage.errors import WorldError
from pilotage.jobs.files import JobFaultError
from pilotage.values.attempts import AttemptKey
from pilotage.values.containers import RuntimeKind
from pilotage.values.isolation import Isolation
from pilotage_pilot.core.events import LimitPassed
from pilotage_pilot.core.model import GrantedJob
from pilotage_pilot.supervise.base import RegistryFaultError
from pilotage_pilot.supervise.containers import ContainerRules, ContainerRuntime, ReadyImage, gpu_files
from pilotage_pilot.supervise.folders import PilotFolder, disk_use_mib
from pilotage_pilot.supervise.image_cache import ImageCache, ImageSource, folders_of_programs, podman_in
from pilotage_pilot.supervise.isolation import AccountRules
from pilotage_pilot.supervise.runtimes import Containers, find_containers
from support.pilot_bench import a_job
from support.pilot_ports import (
    SITE,
    FakeServerLink,
    PayloadBench,
    a_confinement,
    a_local_payload_runner,
    a_prepare_job,
)
from support.podman import OPTIONS, Images, Registry, a_registry
from support.processes import line_written, processes_with, until

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
RULES = ContainerRules(Path(), (RuntimeKind.PODMAN,), OPTIONS, binds=())
PODMAN = ContainerRuntime(RuntimeKind.PODMAN, "/usr/bin/podman", "4", OPTIONS[RuntimeKind.PODMAN])


CacheMaker = Callable[..., ImageCache]


@asynccontextmanager
async def a_bench(
    scratch: Path,
    *visible: Path,
    hidden: tuple[Path, ...] = (),
    rules: ContainerRules = RULES,
    cache: Path | None = None,
    accounts: AccountRules = AccountRules(),  # noqa: B008 - it is frozen
) -> AsyncIterator[PayloadBench]:
    """Run payloads with namespaces; the cache of images is in the scratch, unless another one is given."""
    folder, link = PilotFolder(scratch), FakeServerLink()
    confinement = a_confinement(folder, Isolation.NAMESPACE, *visible, hidden=hidden, accounts=accounts)
    containers = Containers(replace(rules, cache=cache or scratch / "images"), PODMAN, confinement, PATH)
    runner = a_local_payload_runner(folder, link, confinement=confinement, containers=containers)
    try:
        yield PayloadBench(runner, link, scratch)
    finally:
        await runner.close()


def an_archive_job(bench: PayloadBench, images: Images, script: str = "", job_id: int = 1, **fields: Any) -> GrantedJob:
    """Return a job that brings its image, and runs this script in it if there is one."""
    archive = bench.an_input("tiny.tar", images.archive.read_bytes())
    program = {"executable": "sh", "arguments": f"-c '{script}'"} if script else {"executable": ""}
    files = (archive, *fields.pop("input_files", ()))
    return a_job(job_id, image="./tiny.tar", input_files=files, **{**program, **fields})


async def printed(bench: PayloadBench, job: GrantedJob) -> str:
    """Run a job; returns what it has printed."""
    end, files, _ = await bench.run(job)
    text = (files["stdout"].content or b"").decode()
    assert end.exit_code == 0, (text, files["stderr"].content)
    return text


@pytest.mark.usefixtures("podman")
async def test_a_working_podman_is_found_and_tried(scratch: Path) -> None:
    folder = PilotFolder(scratch)
    confinement = a_confinement(folder)
    containers, refused = find_containers(replace(RULES, cache=scratch / "images"), confinement, folder.jobs, PATH)
    confinement.close()
    assert refused == {}
    assert containers is not None
    containers.close()
    runtime = containers.runtime
    assert {"HasContainers": True, "ContainerRuntime": "podman", "HasDocker": True, "HasSIF": False}.items() <= (
        runtime.attributes().items()
    )
    assert runtime.version[0].isdigit()
    assert list(folder.jobs.iterdir()) == []
    assert processes_with(f"HOME={folder.jobs}") == set(), "none keeps podman's namespaces"
    folder.remove()


async def test_payload_sees_the_image_and_its_own_folder(scratch: Path, images: Images) -> None:
    secret = scratch / "secret"
    secret.write_text("secret")
    own = "cat /etc/os-release; pwd; cat input; echo result > output; echo x > $TMPDIR/x; echo x > /tmp/x"
    script = f"{own}; ls {scratch} /usr; cat {secret} /etc/private"
    async with a_bench(scratch, cache=images.cache) as bench:
        job = an_archive_job(bench, images, f"{script}; true", input_files=(bench.an_input("input", b"input\n"),))
        job = replace(job, description=replace(job.description, output_files=("output",)))
        _, files, _ = await bench.run(job)
        lines = (files["stdout"].content or b"").decode().split("\n")
        work = lines[1]
        assert lines[0] == "NAME=tiny"
        assert lines[2] == "input"
        assert work.startswith(str(scratch))
        assert work.endswith("/work")
        assert files["output"].content == b"result\n"
        assert "secret" not in lines
        # A pilot of root runs payloads as other users, to whom the image's modes apply.
        assert ("private" in lines) is (os.geteuid() != 0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only a pilot of root runs payloads as accounts")
async def test_payload_in_an_image_runs_as_the_account_of_its_owner(scratch: Path, images: Images) -> None:
    account = pwd.getpwnam("games")
    async with a_bench(scratch, cache=images.cache, accounts=AccountRules(("games",))) as bench:
        job = an_archive_job(bench, images, "grep -E ^[UG]id: /proc/self/status; echo $USER; echo x > $HOME/x")
        lines = (await printed(bench, job)).splitlines()
    ids = [[int(each) for each in line.split()[1:]] for line in lines[:2]]
    assert (ids, lines[2:]) == ([[account.pw_uid] * 4, [account.pw_gid] * 4], ["games"])


async def test_no_process_of_podman_is_left_of_a_pull(scratch: Path, images: Images) -> None:
    async with a_bench(scratch) as bench:
        await bench.prepare(an_archive_job(bench, images))
        assert processes_with(f"HOME={scratch}/images") == set()


async def test_environment_of_owner_wins_over_that_of_image(scratch: Path, images: Images) -> None:
    async with a_bench(scratch, cache=images.cache) as bench:
        text = await printed(bench, an_archive_job(bench, images, "env", environment={"MINE": "a b", "OWN": "$x"}))
        lines = text.split("\n")
        assert {"FROM_IMAGE=yes", "PATH=/bin", "LANG=of-image", "MINE=a b", "OWN=$x", "PILOTAGE_JOB_ID=1"} <= {*lines}
        own = {"FROM_IMAGE": "no", "PATH": "/bin:/usr/bin", "LANG": "C"}
        text = await printed(bench, an_archive_job(bench, images, "env", 2, environment=own))
        assert {"FROM_IMAGE=no", "PATH=/bin:/usr/bin", "LANG=C"} <= {*text.split("\n")}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "entry command\n"),
        ({"arguments": "a 'b c'"}, "entry a b c\n"),
        ({"executable": "echo", "arguments": "found on PATH"}, "found on PATH\n"),
        ({"executable": "/bin/echo", "arguments": "-n absolute"}, "absolute"),
    ],
)
async def test_program_is_that_of_the_image(scratch: Path, images: Images, fields: Any, text: str) -> None:
    async with a_bench(scratch, cache=images.cache) as bench:
        assert await printed(bench, an_archive_job(bench, images, **fields)) == text


async def test_transferred_program_runs_in_the_image(scratch: Path, images: Images) -> None:
    async with a_bench(scratch, cache=images.cache) as bench:
        program = bench.an_input("run.sh", b"#!/bin/sh\ncat /etc/os-release\nexit 7\n", executable=True)
        job = an_archive_job(bench, images, executable="run.sh", input_files=(program,))
        end, files, _ = await bench.run(job)
        assert (end.exit_code, files["stdout"].content) == (7, b"NAME=tiny\n")


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"executable": "python3"}, "the program python3 cannot be run in its image: .* not in it"),
        ({"executable": "/bin/none"}, "the program /bin/none cannot be run in its image"),
        ({"executable": "bin/none"}, "there is no program bin/none among its files"),
        ({"image": "./other.tar"}, "its image ./other.tar is not among its files"),
        ({"image": "/no/such/folder", "executable": "sh"}, "its image /no/such/folder cannot be used: No such file"),
        ({"image": "/no/such/file.tar"}, "its image /no/such/file.tar cannot be opened: No such file"),
        ({"image": "/proc", "executable": "sh"}, "its image /proc cannot be used: Invalid argument"),
        ({"image": "/x/y.sif"}, "podman cannot run its SIF image"),
    ],
)
async def test_fault_of_program_or_image_is_the_jobs(scratch: Path, images: Images, fields: Any, why: str) -> None:
    async with a_bench(scratch, cache=images.cache) as bench:
        job = an_archive_job(bench, images)
        description = replace(job.description, **fields)
        with pytest.raises(JobFaultError, match=why):
            await bench.start(replace(job, description=description))


async def test_damaged_archive_fails_its_job_with_podmans_words(scratch: Path, images: Images) -> None:
    async with a_bench(scratch) as bench:
        damaged = bench.an_input("tiny.tar", b"no archive")
        with pytest.raises(JobFaultError, match=r"its image tiny\.tar cannot be unpacked: "):
            await bench.prepare(a_job(executable="sh", image="./tiny.tar", input_files=(damaged,)))


def an_archive_of_two_images(images: Images, folder: Path) -> bytes:
    archive, environment = folder / "two.tar", {"PATH": PATH} | folders_of_programs(folder)

    def run(*command: str) -> str:
        return subprocess.run([*podman, *command], env=environment, check=True, capture_output=True, text=True).stdout

    with podman_in(folder, PODMAN, environment) as podman:
        run("load", "--input", str(images.archive))
        run("import", str(images.archive))
        run("save", "--multi-image-archive", "--output", str(archive), *run("images", "--quiet").split())
    return archive.read_bytes()


async def test_archive_of_two_images_fails_its_job(scratch: Path, images: Images) -> None:
    async with a_bench(scratch) as bench:
        archive = bench.an_input("two.tar", await asyncio.to_thread(an_archive_of_two_images, images, scratch))
        with pytest.raises(JobFaultError, match=r"its image two\.tar is an archive of 2 images, not of one"):
            await bench.prepare(a_job(image="two.tar", input_files=(archive,)))


async def test_archive_runs_under_no_other_files_checksum(scratch: Path, images: Images) -> None:
    async with a_bench(scratch) as bench:
        archive = bench.an_input("tiny.tar", images.archive.read_bytes())
        longer = bench.an_input("not-tiny.tar", b"no archive")
        await bench.prepare(a_job(1, executable="sh", image="./tiny.tar", input_files=(longer, archive)))
        with pytest.raises(JobFaultError, match=r"its image not-tiny\.tar cannot be unpacked"):
            await bench.prepare(a_job(2, executable="sh", image="not-tiny.tar", input_files=(longer,)))


async def test_folder_of_the_node_is_opened_with_the_rights_of_the_payload(scratch: Path, images: Images) -> None:
    async with a_bench(scratch, images.folder) as bench:
        script: dict[str, Any] = {"executable": "/bin/cat", "arguments": "/etc/os-release"}
        assert await printed(bench, a_job(image=str(images.folder), **script)) == "NAME=tiny\n"
        (scratch / "hidden" / "bin").mkdir(parents=True)
        for number, folder in enumerate([scratch / "hidden", bench.cache], 2):
            with pytest.raises(JobFaultError, match="cannot be used"):
                await bench.start(a_job(number, image=str(folder), **script))


async def test_folder_with_hidden_ones_is_no_image(scratch: Path, images: Images) -> None:
    software = scratch / "soft ware"
    shutil.copytree(images.folder, software, symlinks=True)
    (software / "hidden").mkdir()
    (software / "hidden/secret").write_text("secret")
    (scratch / "pilots").mkdir()
    async with a_bench(scratch / "pilots", software, hidden=(software / "hidden",)) as bench:
        script: dict[str, Any] = {"executable": "/bin/cat", "arguments": "/hidden/secret"}
        for number, image in enumerate((str(software), f"{scratch}/.", "/."), 1):
            with pytest.raises(JobFaultError, match=f"its image {image} cannot be used: Invalid argument"):
                await bench.start(a_job(number, image=image, **script))


async def test_image_shows_what_the_site_binds_and_is_not_changed(scratch: Path, images: Images) -> None:
    software = scratch / "software"
    software.mkdir()
    (software / "tool").write_text("tool\n")
    rules = replace(RULES, binds=(software, Path("/no/such/folder")))
    script = f"cat {software}/tool; echo x > {software}/new; echo x > /etc/new; ls /usr /home; true"
    async with a_bench(scratch, software, images.folder, rules=rules) as bench:
        job = a_job(executable="/bin/sh", arguments=f"-c '{script}'", image=str(images.folder))
        assert (await printed(bench, job)).startswith("tool\n")
    assert [path.name for path in software.iterdir()] == ["tool"]
    assert not (images.folder / "etc/new").exists()


async def test_job_wrapper_of_the_node_runs_in_the_image(scratch: Path, images: Images) -> None:
    wrapper = scratch / "wrapper"
    wrapper.write_text('#!/bin/sh\necho wrapped\nexec "$@"\n')
    wrapper.chmod(0o755)
    async with a_bench(scratch, cache=images.cache) as bench:
        bench.payload_runner.wrap(wrapper)
        assert await printed(bench, an_archive_job(bench, images, "cat /etc/os-release")) == "wrapped\nNAME=tiny\n"


async def test_job_with_gpus_gets_the_libraries_of_the_driver(
    scratch: Path, images: Images, monkeypatch: pytest.MonkeyPatch
) -> None:
    ldconfig = scratch / "ldconfig"
    libraries = ("\tlibc.so.6 (libc6) => /etc/fstab", "\tlibcuda.so.1 (libc6,x86-64) => /etc/passwd")
    ldconfig.write_text("#!/bin/sh\n" + "".join(f"echo '{each}'\n" for each in libraries))
    ldconfig.chmod(0o755)
    monkeypatch.setenv("PATH", f"{scratch}:{os.environ['PATH']}")
    gpu_files.cache_clear()
    async with a_bench(scratch, cache=images.cache) as bench:
        script = "ls /.pilotage/gpu; echo $LD_LIBRARY_PATH; echo $CUDA_VISIBLE_DEVICES"
        job = an_archive_job(bench, images, script)
        order = a_prepare_job(job)
        bench.payload_runner.prepare(replace(order, slot=replace(order.slot, gpu_ids=("GPU-1",))))
        await bench.payload_runner.fetch(job.key)
        await bench.launch(job.key)
        await bench.next_exit()
        files, _ = await bench.store(job.key)
        assert files["stdout"].content == b"libcuda.so.1\n/.pilotage/gpu\nGPU-1\n"
    gpu_files.cache_clear()


async def test_orders_reach_all_processes_in_an_image(scratch: Path, images: Images) -> None:
    script = "(sleep 600 &) ; (sleep 601 & echo ready > started; sleep 602)"
    async with a_bench(scratch, cache=images.cache) as bench:
        key = await bench.start(an_archive_job(bench, images, script))
        await until(line_written(bench.work_folder(key) / "started"))
        await until(lambda: len(sleeping(key)) == 3)
        bench.payload_runner.suspend(key)
        await until(lambda: all(state_of(pid) in "TDt" for pid in sleeping(key)))
        bench.payload_runner.resume(key)
        await until(lambda: all(state_of(pid) == "S" for pid in sleeping(key)))
        bench.payload_runner.kill(key)
        end = await bench.next_exit()
        assert (end.exit_code, end.signal) == (None, 9)
        assert processes_with(f"{SITE.marker}/{key}") == set()


def sleeping(key: AttemptKey) -> set[int]:
    """Return the sleep commands of a payload."""
    found = processes_with(f"{SITE.marker}/{key}")
    return {pid for pid in found if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\0")}


def state_of(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0]


async def test_memory_limit_counts_all_processes_in_an_image(scratch: Path, images: Images) -> None:
    script = 'x=$(head -c 80000000 /dev/zero | tr "\\000" x); sleep 600'
    async with a_bench(scratch, cache=images.cache) as bench:
        job = an_archive_job(bench, images, script)
        key = await bench.start(replace(job, amounts=replace(job.amounts, memory_mib=30)))
        assert "30 MiB" in (await bench.limit_passed()).reason
        bench.payload_runner.kill(key)
        while isinstance(await bench.next_event(), LimitPassed):
            pass  # it is reported until the payload has ended


# --- registries


@pytest.fixture
def registry(images: Images, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a registry that podman reaches without TLS."""
    with a_registry(images) as registry:
        conf = tmp_path / "registries.conf"
        conf.write_text(f'[[registry]]\nlocation = "{registry.address}"\ninsecure = true\n')
        monkeypatch.setenv("CONTAINERS_REGISTRIES_CONF", str(conf))
        yield registry


async def test_image_is_pulled_once_for_many_jobs(scratch: Path, registry: Registry) -> None:
    async with a_bench(scratch) as bench:
        jobs = [a_job(number, executable="", image=f"{registry.address}/tiny:1") for number in range(1, 4)]
        await asyncio.gather(*(bench.prepare(job) for job in jobs))
        for job in jobs:
            await bench.launch(job.key)
            assert (await bench.next_exit()).exit_code == 0
        assert len([path for path in registry.requests if "/blobs/" in path]) == 2


async def test_image_that_does_not_exist_fails_its_job(scratch: Path, registry: Registry) -> None:
    async with a_bench(scratch) as bench:
        with pytest.raises(JobFaultError, match=r"its image .*/none:1 cannot be pulled: .*manifest unknown"):
            await bench.prepare(a_job(executable="sh", image=f"{registry.address}/none:1"))


@pytest.mark.parametrize("image", ["{registry}/503/x:1", "127.0.0.1:1/x:1"])
async def test_failure_of_a_registry_is_no_fault_of_its_job(scratch: Path, registry: Registry, image: str) -> None:
    async with a_bench(scratch) as bench:
        with pytest.raises(RegistryFaultError, match=r"its image .*/x:1 cannot be pulled: "):
            await bench.prepare(a_job(executable="sh", image=image.format(registry=registry.address)))


async def test_hanging_pull_ends_at_its_timeout(scratch: Path, registry: Registry) -> None:
    async with a_bench(scratch, rules=replace(RULES, timeout_s=1.0)) as bench:
        with pytest.raises(JobFaultError, match=r"its image .*/hang/x:1 was not pulled within 1 s"):
            await bench.prepare(a_job(executable="sh", image=f"{registry.address}/hang/x:1"))


async def test_jobs_that_wait_for_one_pull_fail_together(scratch: Path, registry: Registry) -> None:
    async with a_bench(scratch, rules=replace(RULES, timeout_s=1.0)) as bench:
        jobs = [a_job(number, executable="sh", image=f"{registry.address}/hang/x:1") for number in range(1, 4)]
        ends = await asyncio.gather(*map(bench.prepare, jobs), return_exceptions=True)
        assert {str(end) for end in ends} == {f"its image {registry.address}/hang/x:1 was not pulled within 1 s"}


async def test_pull_goes_on_while_one_of_its_jobs_is_there(scratch: Path, registry: Registry) -> None:
    async with a_bench(scratch) as bench:
        jobs = [a_job(number, executable="", image=f"{registry.address}/tiny:1") for number in (1, 2)]
        gone, stays = [asyncio.create_task(bench.prepare(job)) for job in jobs]
        await until(lambda: bool(registry.requests))
        gone.cancel()
        await stays
        await bench.launch(jobs[1].key)
        assert (await bench.next_exit()).exit_code == 0


async def test_hanging_pull_delays_no_cached_image(scratch: Path, images: Images, registry: Registry) -> None:
    async with a_bench(scratch) as bench:
        assert await printed(bench, an_archive_job(bench, images, "cat /etc/os-release")) == "NAME=tiny\n"
        hanging = asyncio.create_task(bench.prepare(a_job(2, executable="sh", image=f"{registry.address}/hang/x:1")))
        await until(lambda: any("/hang/" in path for path in registry.requests))
        assert await printed(bench, an_archive_job(bench, images, "cat /etc/os-release", 3)) == "NAME=tiny\n"
        assert not hanging.done()
        hanging.cancel()


async def test_pull_ends_with_its_job(scratch: Path, registry: Registry) -> None:
    async with a_bench(scratch) as bench:
        hanging = asyncio.create_task(bench.prepare(a_job(executable="sh", image=f"{registry.address}/hang/x:1")))
        await until(lambda: any("/hang/" in path for path in registry.requests))
        hanging.cancel()
        with pytest.raises(asyncio.CancelledError):
            await hanging
        await bench.prepare(a_job(2, executable="", image=f"{registry.address}/tiny:1"))


# --- the cache


def sources(images: Images, *names: str) -> list[ImageSource]:
    """Return images of these names that have the same content."""
    return [ImageSource(name, name, archive=images.archive) for name in names]


@pytest.fixture
def cache(scratch: Path) -> Iterator[CacheMaker]:
    """Return a factory of caches with these rules in one folder, like those of several pilots."""
    made: list[ImageCache] = []

    def make(**rules: Any) -> ImageCache:
        made.append(ImageCache(replace(RULES, cache=scratch / "images", **rules), PODMAN, PATH))
        return made[-1]

    yield make
    for each in made:
        each.close()


def is_there(image: ReadyImage) -> bool:
    return Path(image.path).exists()


def entries(scratch: Path) -> int:
    return len([*(scratch / "images/podman/images").iterdir()])


async def test_least_recently_used_image_makes_room(scratch: Path, images: Images, cache: CacheMaker) -> None:
    one, two, three = sources(images, "one", "two", "three")
    first = cache()
    size_mib = disk_use_mib(Path((used := await first.get(one)).path))
    small = cache(cache_mib=2 * size_mib + 1)
    (await small.get(two)).release()
    (await small.get(three)).release()
    assert entries(scratch) == 2
    assert is_there(used), "a job uses it"
    used.release()
    (await small.get(two)).release()
    assert entries(scratch) == 2
    assert not is_there(used)


async def test_image_above_the_bound_of_the_cache_fails_its_job(images: Images, cache: CacheMaker) -> None:
    with pytest.raises(JobFaultError, match=r"takes \d MiB, and the cache of images has 1 MiB"):
        await cache(cache_mib=1).get(*sources(images, "large"))


async def test_pilots_of_a_node_share_images_and_pull_in_turn(
    scratch: Path, images: Images, registry: Registry, cache: CacheMaker
) -> None:
    name = f"{registry.address}/hang/x:1"
    pilots = cache(), cache()
    hanging = asyncio.create_task(pilots[0].get(ImageSource(name, name, name=name)))
    await until(lambda: any("/hang/" in path for path in registry.requests))
    waiting = asyncio.create_task(pilots[1].get(*sources(images, "one")))
    hanging.cancel()
    image = await waiting
    again = await pilots[0].get(*sources(images, "one"))
    assert again.path == image.path
    assert entries(scratch) == 1


async def test_old_image_is_pulled_again_unless_a_job_uses_it(registry: Registry, cache: CacheMaker) -> None:
    name = f"{registry.address}/tiny:1"
    source = ImageSource(name, name, name=name)

    def pulls() -> int:
        return registry.requests.count("/v2/tiny/manifests/1")

    used = await cache().get(source)
    before = pulls()
    old = cache(max_age_s=0.0)
    (await old.get(source)).release()
    assert pulls() == before
    used.release()
    (await old.get(source)).release()
    assert pulls() > before


async def test_old_image_is_used_if_it_cannot_be_pulled_again(
    registry: Registry, cache: CacheMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"{registry.address}/tiny:1"
    source = ImageSource(name, name, name=name)
    (await cache().get(source)).release()
    monkeypatch.delenv("CONTAINERS_REGISTRIES_CONF")  # podman refuses the registry without TLS
    old = await cache(max_age_s=0.0).get(source)
    assert is_there(old)
    old.release()
    with pytest.raises(JobFaultError, match="cannot be pulled"):
        await cache().get(ImageSource("other", name, name=name))


def test_cache_in_a_folder_of_another_user_is_refused(scratch: Path, cache: CacheMaker) -> None:
    (scratch / "images").symlink_to("/etc")
    with pytest.raises(WorldError, match="cannot be used"):
        cache()


@pytest.mark.skipif(os.geteuid() != 0, reason="root tries it as another user")
@pytest.mark.usefixtures("podman")
def test_containers_work_without_root(tmp_path: Path) -> None:
    """Run the main tests again in a user namespace with one id, in which nothing is root."""
    chosen = "sees_the_image or working_podman or rights_of_the_payload or no_process"
    command = ("unshare", "--user", "--map-user=1000", "--map-group=1000", "--", sys.executable, "-m", "pytest", "-q")
    options = ("-p", "no:xdist", "-p", "no:cacheprovider", f"--basetemp={tmp_path}/tests", "-k", chosen)
    done = subprocess.run([*command, *options, __file__], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout
