"""Container runtimes: what a site says of them, and how a payload runs in its image by one.

Rules
-----
- apptainer and singularity run the payload themselves, in the payload's own namespaces and as its user. So limits,
  suspension and kills reach all of their processes like any others.
- podman only fetches and unpacks images; the launcher makes the folder the root of the payload. `podman run` would need
  ids for each payload's user, and its processes would have control groups of their own.
- The image and all that follows it come from a stranger: an image is an absolute path or has a scheme in front, and no
  option follows it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType

from pilotage.condor.quoting import split_arguments
from pilotage.job_description import JobDescription, Value
from pilotage.jobs.environment import MARKER
from pilotage.jobs.exit_codes import PayloadExit
from pilotage.jobs.files import JobFaultError, inside, open_regular
from pilotage.values.containers import HAS_CONTAINERS, RuntimeKind
from pilotage_pilot.supervise.folders import Folders
from pilotage_pilot.supervise.spawn import PayloadCommand


@dataclass(frozen=True, slots=True)
class ContainerRules:
    """What the site says: the runtimes to try in order, further options of each, and paths that images show.

    `options` of apptainer and singularity follow `exec`, those of podman precede its commands. The cache of images is
    in `cache` and has at most `cache_mib`; a pull ends after `timeout_s`, and is repeated for a use after `max_age_s`.
    """

    cache: Path
    runtimes: tuple[RuntimeKind, ...] = tuple(RuntimeKind)
    options: Mapping[RuntimeKind, tuple[str, ...]] = field(default_factory=dict)
    binds: tuple[Path, ...] = (Path("/cvmfs"),)
    cache_mib: int = 20 << 10
    timeout_s: float = 900.0
    max_age_s: float = 86_400.0


@dataclass(frozen=True, slots=True)
class ContainerRuntime:
    """A runtime that works on this node: its program and version."""

    kind: RuntimeKind
    program: str
    version: str
    options: tuple[str, ...] = ()

    @property
    def unpacks(self) -> bool:
        """Whether it only unpacks images, which the launcher then enters."""
        return self.kind is RuntimeKind.PODMAN

    def attributes(self) -> dict[str, Value]:
        """Return what the ads of the node's slots say of it, beside ours also by HTCondor's names."""
        return {
            HAS_CONTAINERS: True,
            "ContainerRuntime": self.kind.value,
            "ContainerRuntimeVersion": self.version,
            "HasContainer": True,
            "HasDockerURL": True,
            "HasSandboxImage": True,
            "HasSIF": not self.unpacks,
            "HasSingularity": not self.unpacks,
            "HasDocker": self.unpacks,
        }


NO_CONTAINERS: Mapping[str, Value] = MappingProxyType({HAS_CONTAINERS: False})
"""The attributes of a node without a runtime."""


# The payload in its image -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadyImage:
    """An image that can be used now: a folder or a file at `path`.

    `is_own` = the pilot has brought it; else the job names a path of the node, which is opened with the job's rights.
    `environment` and `command` are those that the image states. `lock` is the descriptor that keeps it in the cache.
    """

    path: str
    is_own: bool
    environment: Mapping[str, str] = field(default_factory=dict)
    entry_point: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    lock: int | None = None

    def release(self) -> None:
        """Let the cache remove it."""
        if self.lock is not None:
            os.close(self.lock)


@dataclass(frozen=True, slots=True)
class ContainerJob:
    """A job with an image: its folders, and the names of the machine's variables that images may state otherwise.

    `wrapper` is the node's job wrapper, None = there is none.
    """

    description: JobDescription
    image: ReadyImage
    folders: Folders
    passed: tuple[str, ...] = ()
    has_gpus: bool = False
    wrapper: Path | None = None


@dataclass(frozen=True, slots=True)
class SiteView:
    """What the site says for a runtime: its rules, and the PATH of programs on the node."""

    rules: ContainerRules
    path: str


_LIBRARIES = "/.pilotage/gpu"
_SHOWN = ("/dev", "/sys", "/etc/resolv.conf", "/etc/hosts")
_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - the payload's own ones


def places_in_image(job: ContainerJob, rules: ContainerRules) -> dict[str, str]:
    """Return what an image shows of the node, each path by its place in the image."""
    shown = (*_SHOWN, *_TEMPORARY, str(job.folders.root), *map(str, rules.binds))
    wrapper = () if job.wrapper is None else (str(job.wrapper),)
    return {path: path for path in (*shown, *wrapper)} | (gpu_files() if job.has_gpus else {})


_GPU_LIBRARY = re.compile(r"^\s*(lib(?:cuda|nvcuvid|nvidia-[\w-]+)\.so[.\d]*) \(.*\) => (\S+)$", re.MULTILINE)
_GPU_MONITOR = "/usr/bin/nvidia-smi"


@lru_cache(maxsize=1)
def gpu_files() -> dict[str, str]:
    """Return the files of the node's GPU driver that images need, each by its place in an image."""
    try:
        done = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return {}
    # Of several machines' libraries under one name, the first is that of this machine.
    found = {f"{_LIBRARIES}/{name}": path for name, path in reversed(_GPU_LIBRARY.findall(done.stdout))}
    return found | {_GPU_MONITOR: _GPU_MONITOR}


def entered(command: PayloadCommand, job: ContainerJob) -> PayloadCommand:
    """Return the command of a payload whose root the launcher makes of the image; raises JobFaultError."""
    program = _program(job)
    if program:
        words = (program, *_arguments(job.description))
    else:
        words = (*job.image.entry_point, *(_arguments(job.description) or job.image.command))
    if not words:
        raise JobFaultError("it names no program, and its image has no command")
    environment = _with_that_of_image(command.environment, job)
    if job.wrapper is not None:
        words = (str(job.wrapper), *words)
    return replace(command, program=words[0], arguments=words, environment=environment, in_image=True)


def _with_that_of_image(environment: Mapping[str, str], job: ContainerJob) -> dict[str, str]:
    """Return the environment with the image's: the owner's values win, and the image's are before the machine's."""
    own = job.description.environment
    of_image = {name: text for name, text in job.image.environment.items() if name not in own}
    machine = {name: text for name, text in of_image.items() if name in ("PATH", *job.passed)}
    found = {**of_image, **environment, **machine}
    if job.has_gpus:
        found["LD_LIBRARY_PATH"] = ":".join(filter(None, (found.get("LD_LIBRARY_PATH"), _LIBRARIES)))
    return found


_RUNTIME_VARIABLES = ("HOME", "TMPDIR", "USER", "LOGNAME", "PATH", MARKER, "CUDA_VISIBLE_DEVICES")
"""The variables of the runtime itself; of a job's own ones none reaches it, as some change what it does."""


def run_by(runtime: ContainerRuntime, command: PayloadCommand, job: ContainerJob, site: SiteView) -> PayloadCommand:
    """Return the command by which apptainer or singularity runs a payload; raises JobFaultError."""
    program, folders = _program(job), job.folders
    temporary = [f"{folders.private_temporary}:{path}" for path in _TEMPORARY]
    binds = [str(folders.root), *temporary, *(str(path) for path in site.rules.binds if path.exists())]
    words = [
        *(() if job.wrapper is None else (str(job.wrapper),)),
        runtime.program,
        "exec" if program else "run",
        "--containall",
        # Without it an installation with setuid refuses to run, since payloads gain no privileges.
        "--userns",
        *("--home", str(folders.work), "--pwd", str(folders.work)),
        *(word for bind in binds for word in ("--bind", bind)),
        *(("--nv",) if job.has_gpus else ()),
        *runtime.options,
        job.image.path,
        *((program,) if program else ()),
        *_arguments(job.description),
    ]
    own = job.description.environment
    passed = {name: text for name, text in command.environment.items() if name != "HOME"}
    if "PATH" not in own:
        passed.pop("PATH", None)
    prefix = f"{runtime.kind.value.upper()}ENV_"
    environment = {name: command.environment[name] for name in _RUNTIME_VARIABLES if name in command.environment}
    environment |= {"PATH": site.path} | {prefix + name: text for name, text in passed.items()}
    return replace(command, program=words[0], arguments=tuple(words), environment=environment)


def _program(job: ContainerJob) -> str:
    """Return the program as the image has it, or a file of the job; "" = the image's own command."""
    name = job.description.executable.strip()
    if not name or name.startswith("/"):
        return name
    here = inside(job.folders.work, name.removeprefix("./"))
    if here.is_file():
        here.chmod(here.stat().st_mode | 0o700)
        return str(here)
    if "/" in name:
        raise JobFaultError(f"there is no program {name} among its files")
    return name


def _arguments(description: JobDescription) -> tuple[str, ...]:
    try:
        return tuple(split_arguments(description.arguments)) if description.arguments else ()
    except ValueError as error:
        raise JobFaultError(f"its arguments cannot be taken apart: {error}") from error


# The form of its last line, with or without colour. A payload may print a line like it, but hardly with these blanks.
_FATAL = re.compile(rb"^(?:\x1b\[\d+m)?FATAL:  (?:\x1b\[0m)? (.+)\s*\Z", re.MULTILINE)
_TAIL_BYTES = 4096


def failure_of_runtime(exit_code: int | None, stderr: Path | None) -> str:
    """Return why apptainer or singularity could not run the payload, from its last line; "" = it ran."""
    if exit_code != PayloadExit.RUNTIME_FAILED or stderr is None:
        return ""
    try:
        with open_regular(stderr) as file:  # the payload may have put anything there
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            found = _FATAL.search(file.read())
    except OSError:
        return ""
    return f"its container did not start: {found[1].decode(errors='replace').strip()}" if found else ""
