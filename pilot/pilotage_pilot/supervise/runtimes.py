"""The container runtime of a pilot: the one that works here, the images of its jobs, and their commands."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pilotage.errors import PilotageError
from pilotage.job_description import JobDescription
from pilotage.jobs.environment import DEFAULT_PATH
from pilotage.jobs.files import JobFaultError, inside, remove_tree
from pilotage.jobs.images import ImageKind, image_kind, is_archive, is_sif
from pilotage.values.isolation import Isolation
from pilotage_pilot.supervise.containers import (
    ContainerJob,
    ContainerRules,
    ContainerRuntime,
    ReadyImage,
    SiteView,
    entered,
    failure_of_runtime,
    places_in_image,
    run_by,
)
from pilotage_pilot.supervise.folders import Folders, folders_in
from pilotage_pilot.supervise.image_cache import ImageCache, ImageSource, folders_of_programs, podman_in
from pilotage_pilot.supervise.isolation import Confinement, run_trial
from pilotage_pilot.supervise.spawn import PayloadCommand

_VERSION = re.compile(r"\d+(?:\.\d+)+\S*")
_TRIAL_TIMEOUT_S = 60


class Containers:
    """Runs the jobs of one pilot in their images, by a runtime that works here; has to be closed.

    Raises WorldError if its cache of images cannot be used.
    """

    def __init__(self, rules: ContainerRules, runtime: ContainerRuntime, confinement: Confinement, path: str) -> None:
        self._site = SiteView(rules, path)
        self._confinement = confinement
        self.runtime = runtime
        self._cache = ImageCache(rules, runtime, path)

    def close(self) -> None:
        """End all pulls."""
        self._cache.close()

    async def prepare(self, description: JobDescription, work: Path) -> ReadyImage:
        """Return the image of a job whose files are in the folder `work`; raises JobFaultError or NodeFaultError."""
        image = description.image or ""
        if is_sif(image) and self.runtime.unpacks:
            raise JobFaultError(
                f"podman cannot run its SIF image {image}: require HasSIF, or name an image of a registry"
            )
        kind = image_kind(image)
        if kind is ImageKind.REGISTRY:
            return await self._cache.get(ImageSource(f"docker://{image}", image, name=image))
        if kind is ImageKind.JOB_FILE:
            path = inside(work, image)
            files = description.input_files
            checksum = next((file.checksum for file in files if inside(work, file.name) == path), None)
            if checksum is None:
                raise JobFaultError(f"its image {image} is not among its files")
            if is_archive(image):
                return await self._cache.get(ImageSource(f"archive:{checksum}", path.name, archive=path))
            return ReadyImage(str(path), is_own=False)
        if is_archive(image):
            # In a thread, as a file system of the node may hang.
            return await self._cache.get(await asyncio.to_thread(self._archive_of_node, Path(image)))
        return ReadyImage(image, is_own=False)

    def _archive_of_node(self, path: Path) -> ImageSource:
        try:
            facts = path.stat()
        except OSError as error:
            raise JobFaultError(f"its image {path} cannot be opened: {error.strerror}") from error
        if self._confinement.hides(path):
            raise JobFaultError(f"its image {path} is hidden from jobs on this node: make it an input file")
        key = f"archive:{path}:{facts.st_size}:{facts.st_mtime_ns}"
        return ImageSource(key, str(path), archive=path, user=self._confinement.reader)

    def command(
        self, command: PayloadCommand, job: ContainerJob, memory_mib: int
    ) -> tuple[PayloadCommand, dict[str, Any] | None]:
        """Return the command that runs a payload in its image, and what it sees of the node; raises JobFaultError."""
        needed = () if job.wrapper is None else (job.wrapper,)
        if not self.runtime.unpacks:
            is_needed = (Path(job.image.path),) if job.image.is_own else ()
            mounts = self._confinement.mounts(job.folders, memory_mib, (*needed, *is_needed))
            return run_by(self.runtime, command, job, self._site), mounts
        mounts = self._confinement.mounts(job.folders, memory_mib, needed)
        assert mounts is not None, "podman's images need namespaces"
        mounts["image"] = _entry(job, self._site.rules)
        return entered(command, job), mounts

    def failure(self, exit_code: int | None, stderr: Path | None) -> str:
        """Return why the runtime could not run a payload that has ended so, for people; "" = it ran."""
        return "" if self.runtime.unpacks else failure_of_runtime(exit_code, stderr)


def _entry(job: ContainerJob, rules: ContainerRules) -> dict[str, Any]:
    return {"path": job.image.path, "is_own": job.image.is_own, "places": places_in_image(job, rules)}


# Which one works ----------------------------------------------------------------------------------------------------


def find_containers(
    rules: ContainerRules, confinement: Confinement, jobs: Path, path: str
) -> tuple[Containers | None, dict[str, str]]:
    """Return the first runtime that works, None = none does, and why others do not; tries them in the folder `jobs`.

    `path` is the PATH of programs on the node.
    """
    refused: dict[str, str] = {}
    for kind in rules.runtimes:
        program = shutil.which(kind.value)
        if program is None:
            continue
        try:
            runtime = ContainerRuntime(kind, program, _version(program), rules.options.get(kind, ()))
            _try(runtime, confinement, folders_in(jobs / "trial"))
            return Containers(rules, runtime, confinement, path), refused
        except (OSError, PilotageError, subprocess.SubprocessError) as error:
            refused[kind.value] = str(error)
    return None, refused


class RuntimeFaultError(PilotageError):
    """A container runtime does not work here; the text says why."""


def _version(program: str) -> str:
    done = subprocess.run(
        [program, "--version"], capture_output=True, text=True, timeout=_TRIAL_TIMEOUT_S, check=False, env={}
    )
    found = _VERSION.search(done.stdout)
    if done.returncode != 0 or found is None:
        raise RuntimeFaultError(f"{program} --version fails: {(done.stderr or done.stdout).strip()[-200:]}")
    return found[0]


def _try(runtime: ContainerRuntime, confinement: Confinement, folders: Folders) -> None:
    """Run a payload as the runtime would; raises an error if it cannot."""
    if not runtime.unpacks:
        exit_code, _ = run_trial(confinement, folders, "unshare --user true")
        if exit_code != 0:
            raise RuntimeFaultError("payloads cannot make user namespaces")
        return
    if confinement.level is not Isolation.NAMESPACE:
        raise RuntimeFaultError(f"podman needs the isolation namespace, not {confinement.level}")
    _try_podman(runtime, confinement, folders)


def _try_podman(runtime: ContainerRuntime, confinement: Confinement, folders: Folders) -> None:
    """Make and unpack an image with nothing in it, and enter it; raises an error if that fails."""
    folder = folders.root.with_name("trial-image")
    image = ReadyImage(str(folder / "root"), is_own=True)
    try:
        Path(image.path).mkdir(parents=True)
        tarfile.open(folder / "tree.tar", "w").close()
        environment = {"PATH": DEFAULT_PATH} | folders_of_programs(folder)
        with podman_in(folder, runtime, environment) as podman:
            found = _output(environment, *podman, "import", "--quiet", str(folder / "tree.tar"))
            container = _output(environment, *podman, "create", "--network", "none", found.split()[-1], "unused")
            _output(environment, *podman, "export", "--output", str(folder / "again.tar"), container.strip())
        trial = ContainerJob(JobDescription(""), image, folders)
        run_trial(confinement, folders, "true", _entry(trial, ContainerRules(folder, binds=())))
    except JobFaultError:
        return  # it is entered, and has no shell
    finally:
        remove_tree(folder)
    raise RuntimeFaultError("an empty image has a shell, so payloads do not see it")


def _output(environment: Mapping[str, str], *command: str) -> str:
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=_TRIAL_TIMEOUT_S,
        check=False,
        env=environment,
    )
    if done.returncode != 0 or (not done.stdout.strip() and "export" not in command):
        raise RuntimeFaultError(f"{' '.join(command)}: {done.stderr.strip()[-300:]}")
    return done.stdout
