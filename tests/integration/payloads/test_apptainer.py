"""Payloads by apptainer: its command lines, on a stand-in that records them, as there is no Debian package."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pilotage.jobs.files import JobFaultError
from pilotage.values.containers import RuntimeKind
from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.base import NodeFaultError, RegistryFaultError
from pilotage_pilot.supervise.containers import ContainerRules, ContainerRuntime, failure_of_runtime
from pilotage_pilot.supervise.folders import PilotFolder
from pilotage_pilot.supervise.image_cache import ImageCache, ImageSource
from pilotage_pilot.supervise.runtimes import find_containers
from support.pilot_bench import a_job
from support.pilot_ports import FakeServerLink, PayloadBench, a_confinement, a_local_payload_runner, a_prepare_job

STAND_IN = """#!/bin/sh
case $1 in
--version) echo "apptainer version 1.3.4-1.el9"; exit;;
pull)
    case $3 in *none*) echo "FATAL: While making image: MANIFEST_UNKNOWN" >&2; exit 255;; esac
    echo "$@" > "$2"; exit;;
build) echo "$@" > "$2"; exit;;
esac
for each; do echo "$each"; done > arguments
env > environment
echo "INFO: squashfuse not found" >&2
[ ! -e fails ] || { echo "FATAL:   could not open image: it is damaged" >&2; exit 255; }
exit 3
"""

PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OUTPUT = ("arguments", "environment")


@pytest.fixture
def program(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the stand-in, which the pilot finds."""
    program = scratch / "bin/apptainer"
    program.parent.mkdir()
    program.write_text(STAND_IN)
    for path in (program.parent, program):
        path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{PATH}")
    return program


@asynccontextmanager
async def a_bench(scratch: Path, level: Isolation = Isolation.NAMESPACE, **rules: Any) -> AsyncIterator[PayloadBench]:
    folder, link = PilotFolder(scratch / "pilots"), FakeServerLink()
    (scratch / "pilots").chmod(0o711)
    confinement = a_confinement(folder, level, scratch / "bin")
    found = ContainerRules(scratch / "images", **{"binds": (), **rules})
    containers, refused = find_containers(found, confinement, folder.jobs, PATH)
    assert refused == {}
    assert containers is not None
    assert (containers.runtime.kind, containers.runtime.version) == (RuntimeKind.APPTAINER, "1.3.4-1.el9")
    runner = a_local_payload_runner(folder, link, confinement=confinement, containers=containers)
    try:
        yield PayloadBench(runner, link, scratch / "pilots")
    finally:
        await runner.close()


def source_of(image: str) -> str:
    """Return from what the stand-in has made an image."""
    return Path(image).read_text().split()[-1]


async def recorded(bench: PayloadBench, **fields: Any) -> tuple[list[str], dict[str, str]]:
    """Run a job; returns the arguments and the environment that the stand-in got."""
    gpus = fields.pop("gpu_ids", ())
    job = a_job(**{"executable": "/bin/tool", "output_files": OUTPUT, **fields})
    order = a_prepare_job(job)
    bench.payload_runner.prepare(replace(order, slot=replace(order.slot, gpu_ids=gpus)))
    await bench.payload_runner.fetch(job.key)
    await bench.launch(job.key)
    end = await bench.next_exit()
    files, _ = await bench.store(job.key)
    assert end.exit_code == 3, files["stderr"].content
    texts = [(files[name].content or b"").decode().rstrip("\n").split("\n") for name in OUTPUT]
    return texts[0], dict(line.split("=", 1) for line in texts[1])


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("level", [Isolation.NAMESPACE, Isolation.UID, Isolation.NONE])
async def test_command_line_of_a_folder_of_the_node(scratch: Path, level: Isolation) -> None:
    options = {RuntimeKind.APPTAINER: ("--no-mount", "bind-paths")}
    async with a_bench(scratch, level, options=options) as bench:
        own = {"MINE": "a,b $x", "LD_PRELOAD": "no"}
        image = "/cvmfs/images/rocky:8"
        arguments, environment = await recorded(bench, image=image, arguments="-x 'a b'", environment=own)
        (root,) = bench.folder.glob("*/jobs/1.1")
        assert arguments == [
            *("exec", "--containall", "--userns", "--home", f"{root}/work", "--pwd", f"{root}/work"),
            *("--bind", f"{root}", "--bind", f"{root}/private-tmp:/tmp", "--bind", f"{root}/private-tmp:/var/tmp"),
            *("--no-mount", "bind-paths", "/cvmfs/images/rocky:8", "/bin/tool", "-x", "a b"),
        ]
        assert environment["APPTAINERENV_MINE"] == "a,b $x"
        assert environment["APPTAINERENV_TMPDIR"] == f"{root}/tmp"
        assert {"APPTAINERENV_PATH", "APPTAINERENV_HOME", "MINE", "LD_PRELOAD"}.isdisjoint(environment)


@pytest.mark.usefixtures("program")
async def test_gpus_binds_and_the_commands_of_images(scratch: Path) -> None:
    async with a_bench(scratch, binds=(Path("/usr"), Path("/no/such/folder"))) as bench:
        arguments, environment = await recorded(bench, image="/images/x", executable="", gpu_ids=("GPU-1",))
        assert arguments[0] == "run"
        assert arguments[-1] == "/images/x"
        assert {"--nv", "/usr"} <= {*arguments}
        assert "/no/such/folder" not in arguments
        assert environment["APPTAINERENV_CUDA_VISIBLE_DEVICES"] == "GPU-1"
        _, environment = await recorded(bench, job_id=2, image="/images/x", environment={"PATH": "/opt/bin"})
        assert environment["APPTAINERENV_PATH"] == "/opt/bin"
        assert environment["PATH"] == PATH


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("level", [Isolation.NAMESPACE, Isolation.UID])
async def test_image_of_a_registry_is_pulled_into_a_file(scratch: Path, level: Isolation) -> None:
    async with a_bench(scratch, level) as bench:
        arguments, _ = await recorded(bench, image="alpine:3.19")
        image, program = arguments[-2:]
        assert image.startswith(f"{scratch}/images/apptainer/images/")
        assert (source_of(image), program) == ("docker://alpine:3.19", "/bin/tool")
        with pytest.raises(JobFaultError, match=r"its image none:1 cannot be pulled: .*MANIFEST_UNKNOWN"):
            await bench.prepare(a_job(2, image="none:1"))


@pytest.mark.usefixtures("program")
async def test_files_of_the_job_are_images(scratch: Path) -> None:
    async with a_bench(scratch) as bench:
        sif = bench.an_input("my.sif", b"content")
        arguments, _ = await recorded(bench, image="./my.sif", input_files=(sif,))
        assert arguments[-2].endswith("/work/my.sif")
        archive = bench.an_input("my.tar", b"content")
        arguments, _ = await recorded(bench, job_id=2, image="./my.tar", input_files=(archive,))
        assert source_of(arguments[-2]).startswith("docker-archive:/")


@pytest.mark.usefixtures("program")
async def test_failure_of_the_runtime_is_no_exit_code_of_the_payload(scratch: Path) -> None:
    async with a_bench(scratch) as bench:
        await bench.start(a_job(image="/images/x", input_files=(bench.an_input("fails", b""),)))
        end = await bench.next_exit()
        assert (end.exit_code, end.signal) == (None, None)
        assert end.fault == "its container did not start: could not open image: it is damaged"


@pytest.mark.parametrize(
    ("code", "printed", "why"),
    [
        (255, "INFO:    a\nFATAL:   no image\n", "its container did not start: no image"),
        (255, "\x1b[31mFATAL:  \x1b[0m no image\n", "its container did not start: no image"),
        (1, "FATAL:   no image\n", ""),
        (255, "FATAL: of the payload\n", ""),
        (255, "FATAL:   no image\nof the payload\n", ""),
    ],
)
def test_failure_is_the_last_line_of_the_runtime(scratch: Path, code: int, printed: str, why: str) -> None:
    (scratch / "stderr").write_text(printed)
    assert failure_of_runtime(code, scratch / "stderr") == why


def test_failure_is_read_from_regular_files_only(scratch: Path) -> None:
    secret, link, pipe = scratch / "secret", scratch / "link", scratch / "pipe"
    secret.write_text("FATAL:   secret\n")
    link.symlink_to(secret)
    os.mkfifo(pipe)
    assert [failure_of_runtime(255, path) for path in (link, pipe)] == ["", ""]


def test_runtime_that_does_not_work_is_not_used(scratch: Path, program: Path) -> None:
    folder = PilotFolder(scratch / "pilots")
    confinement = a_confinement(folder)
    rules = ContainerRules(scratch / "images", (RuntimeKind.APPTAINER,))
    (scratch / "images").symlink_to("/etc")
    found, refused = find_containers(rules, confinement, folder.jobs, PATH)
    assert found is None
    assert "belongs to another user" in refused["apptainer"]
    program.write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    found, refused = find_containers(rules, confinement, folder.jobs, PATH)
    assert (found, refused) == (None, {"apptainer": f"{program} --version fails: broken"})
    confinement.close()


@pytest.mark.parametrize("facts", [None, b"", b"{", b"[]", b"{}", b"\xff"])
async def test_entry_of_the_cache_without_readable_facts_counts_as_absent(
    scratch: Path, program: Path, facts: bytes | None
) -> None:
    runtime = ContainerRuntime(RuntimeKind.APPTAINER, str(program), "1.3.4")
    sources = [ImageSource(name, name, name=name) for name in ("one", "two")]
    with closing(ImageCache(ContainerRules(scratch / "images"), runtime, PATH)) as cache:
        (await cache.get(sources[0])).release()
        (entry,) = (scratch / "images/apptainer/images").iterdir()
        for source in sources:
            damaged = entry.stat().st_ino
            (entry / "facts.json").unlink()
            if facts is not None:
                (entry / "facts.json").write_bytes(facts)
            image = await cache.get(source)
            assert source_of(image.path) == f"docker://{source.name}"
            image.release()
            assert not entry.exists() or entry.stat().st_ino != damaged


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("dial tcp: lookup ghcr.io on 10.0.0.1:53: no such host", RegistryFaultError),
        ("dial tcp 140.82.121.34:443: connect: network is unreachable", RegistryFaultError),
        ("read tcp 10.0.0.7:40162->140.82.121.34:443: read: connection reset by peer", RegistryFaultError),
        ('Get "https://ghcr.io/v2/": net/http: TLS handshake timeout', RegistryFaultError),
        ('Get "https://ghcr.io/v2/": EOF', RegistryFaultError),
        (
            "reading manifest 8 in docker.io/library/rocky: toomanyrequests: the rate limit is reached",
            RegistryFaultError,
        ),
        ("too many requests to registry", RegistryFaultError),
        ("received unexpected HTTP status: 503 Service Unavailable", RegistryFaultError),
        ("invalid status code from registry 502 (Bad Gateway)", RegistryFaultError),
        ("reading manifest 500 in ghcr.io/a/b: manifest unknown", JobFaultError),
        ("reading manifest 1 in docker.io/library/status: 404 (Not Found)", JobFaultError),
        ("Requesting bearer token: invalid status code from registry 403 (Forbidden)", JobFaultError),
        ("requested access to the resource is denied", JobFaultError),
        ("write /image.sif: no space left on device", NodeFaultError),
    ],
)
async def test_fault_of_a_pull_is_that_of_registry_job_or_node(
    scratch: Path, line: str, fault: type[Exception]
) -> None:
    program = scratch / "apptainer"
    program.write_text(f"#!/bin/sh\necho 'FATAL:   While making image from oci registry: {line}' >&2\nexit 255\n")
    program.chmod(0o755)
    runtime = ContainerRuntime(RuntimeKind.APPTAINER, str(program), "1.3.4")
    cache = ImageCache(ContainerRules(scratch / "images"), runtime, PATH)
    with closing(cache), pytest.raises(fault, match="its image x cannot be pulled: "):
        await cache.get(ImageSource("docker://x", "x", name="x"))
