"""Validation of a job description by itself, without regard to queues.

Every fault is reported with its field; nothing is corrected. Limits come from `JobLimits`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from datetime import timedelta

from pilotage.classads.cost import STEPS_OF_USERS_PATTERN, cost_fault
from pilotage.classads.evaluation import compile_bounded
from pilotage.classads.library import Expression, InvalidClassAdError
from pilotage.condor.quoting import quoting_fault
from pilotage.errors import Violation
from pilotage.job_description import InputFile, JobDescription, render_text
from pilotage.jobs.file_names import fault_of_name, is_checksum
from pilotage.jobs.images import image_fault
from pilotage.text import fold
from pilotage_server.core.jobs.attributes import description_attributes, universe_fault
from pilotage_server.core.jobs.descriptions import Overrides
from pilotage_server.core.jobs.files import JobLimits
from pilotage_server.core.races.races import invalid_flags

_NULL_DEVICE = "/dev/null"
_LARGEST_COUNT = 2**31 - 1
_LARGEST_SIZE_MIB = 2**53
_LONGEST_TIME = timedelta(days=36_500)
_LONGEST_RETRY_DELAY = timedelta(days=7)
_LEAST_MEMORY_FACTOR = 1.1
"""A smaller one would repeat a job hundreds of times until it has enough memory."""
_LARGEST_MEMORY_FACTOR = 100
_MOST_EXIT_CODES = 256
_LONGEST_NAME = 1000
_UNIVERSE = frozenset({"universe", "jobuniverse"})
_JOBS_COMPARED = 10
"""Names of input files are compared in the first jobs of an array, at most this many."""
_NO_CLUSTER = 2**63 - 1
"""A cluster id that no job has; the real one is unknown at submission."""


def description_faults(
    description: JobDescription, limits: JobLimits, stored: Mapping[str, int]
) -> tuple[Violation, ...]:
    """Return all faults of the description; `stored` maps the owner's uploaded checksums to sizes."""
    found: list[Violation] = []
    for check in _CHECKS:
        found += check(description, limits)
    found += _input_faults(description.input_files, stored)
    if not found:
        found += _clash_faults(description)
    return tuple(found)


def are_valid_overrides(overrides: Sequence[Overrides], limits: JobLimits) -> bool:
    """Whether the overrides of a group are valid; its model is checked by `description_faults`."""
    streams = {name for each in overrides for name in (each.stdout, each.stderr)}
    return all(_fits(each, limits) for each in overrides) and not any(map(_fault_of_stream, streams))


def _fits(overrides: Overrides, limits: JobLimits) -> bool:
    arguments, name = overrides.arguments, overrides.name
    fits = len(arguments) <= limits.max_text and len(name) <= _LONGEST_NAME
    return fits and not ("\0" in arguments or "\0" in name or quoting_fault(arguments))


def _fault_of_stream(name: str | None) -> str:
    """Return what is wrong with the name of a standard stream's file."""
    return "" if name is None or name == _NULL_DEVICE else fault_of_name(name)


def _texts(description: JobDescription, limits: JobLimits) -> Iterator[Violation]:
    texts = {
        "executable": description.executable,
        "arguments": description.arguments,
        "name": description.name,
        **{f"environment.{name}": value for name, value in description.environment.items()},
    }
    for where, value in texts.items():
        if "\0" in value:
            yield Violation(where, "has a zero character")
        if len(value) > (_LONGEST_NAME if where == "name" else limits.max_text):
            yield Violation(where, f"is too long ({len(value)} characters)")


def _executable(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    executable = description.executable
    if not executable.strip():
        if description.image is None:
            yield Violation("executable", "a job needs an executable")
    elif not executable.startswith("/") and "\0" not in executable and (why := fault_of_name(executable)):
        yield Violation("executable", why)


def _image(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    if description.image is not None and (why := image_fault(render_text(description.image, _NO_CLUSTER, 0))):
        yield Violation("image", why)


def _arguments(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    if fault := quoting_fault(description.arguments):
        yield Violation("arguments", f"cannot be taken apart: {fault}")


def _environment(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    for name in description.environment:
        if not name or "=" in name or "\0" in name:
            yield Violation(f"environment.{name}", "is no name of an environment variable")


def _folder_names(description: JobDescription, limits: JobLimits) -> Iterator[Violation]:
    for where in ("stdin", "stdout", "stderr"):
        if why := _fault_of_stream(getattr(description, where)):
            yield Violation(where, why)
    for index, pattern in enumerate(description.output_files):
        # A closing slash is allowed: an output may be a folder.
        if why := fault_of_name(pattern.rstrip("/") or pattern):
            yield Violation(f"output_files[{index}]", why)
    for where in ("input_files", "output_files"):
        if len(getattr(description, where)) > limits.max_files:
            yield Violation(where, f"are more than {limits.max_files}")


def _sizes(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    bounds = {
        "request_cpus": (1, _LARGEST_COUNT),
        "request_gpus": (0, _LARGEST_COUNT),
        "request_memory_mib": (0, _LARGEST_SIZE_MIB),
        "request_disk_mib": (0, _LARGEST_SIZE_MIB),
        "priority": (-_LARGEST_COUNT, _LARGEST_COUNT),
        "max_starts": (1, _LARGEST_COUNT),
        "retries": (0, _LARGEST_COUNT),
        "success_exit_code": (-_LARGEST_COUNT, _LARGEST_COUNT),
    }
    for where, (least, most) in bounds.items():
        amount = getattr(description, where)
        if amount is not None and not least <= amount <= most:
            yield Violation(where, f"{amount} is not between {least} and {most}")


def _times(description: JobDescription, limits: JobLimits) -> Iterator[Violation]:
    bounds = {
        "cpu_time": (timedelta(0), _LONGEST_TIME),
        "wall_time": (timedelta(seconds=1), _LONGEST_TIME),
        "lease": (limits.shortest_lease, limits.longest_lease),
        "retry_delay": (timedelta(0), _LONGEST_RETRY_DELAY),
    }
    for where, (least, most) in bounds.items():
        time = getattr(description, where)
        if time is not None and not least <= time <= most:
            between = f"{least.total_seconds():.0f} and {most.total_seconds():.0f} seconds"
            yield Violation(f"{where}_s", f"{time.total_seconds():g} is not between {between}")


def _retries(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    """Yield what is wrong with the retries; settings that would have no effect are faults, too."""
    factor, codes = description.retry_memory, description.retry_exit_codes
    if description.retries is None:
        given = {
            "retry_until": description.retry_until is not None,
            "retry_exit_codes": bool(codes),
            "retry_delay_s": description.retry_delay is not None and description.policy.on_exit_remove is None,
        }
        for where in (name for name, is_given in given.items() if is_given):
            yield Violation(where, "has no effect without retries: set retries to their greatest number")
    if (description.retries or factor is not None) and description.max_starts == 1:
        yield Violation("max_starts", "1 permits no retry: leave out max_starts, or the retries")
    if len(codes) > _MOST_EXIT_CODES:
        yield Violation("retry_exit_codes", f"are more than {_MOST_EXIT_CODES}")
    elif (success := description.success_exit_code or 0) in codes:
        yield Violation("retry_exit_codes", f"has {success}, the exit code that means success")
    if factor is not None and not _LEAST_MEMORY_FACTOR <= factor <= _LARGEST_MEMORY_FACTOR:
        between = f"{_LEAST_MEMORY_FACTOR} and {_LARGEST_MEMORY_FACTOR}"
        yield Violation("retry_memory", f"{factor:g} is not between {between}")
    if factor is not None and not description.request_memory_mib:
        yield Violation("retry_memory", "needs request_memory: without it, the job has no memory limit")


def _count(description: JobDescription, limits: JobLimits) -> Iterator[Violation]:
    count = description.count
    if count is not None and not 1 <= count <= limits.max_jobs_per_call:
        yield Violation("count", f"{count} is not between 1 and {limits.max_jobs_per_call}")


def _expressions(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    texts = {
        "requirements_expression": description.requirements_expression,
        "rank": description.rank,
        "retry_until": description.retry_until,
        **{f"policy.{field.name}": getattr(description.policy, field.name) for field in fields(description.policy)},
    }
    given: dict[str, str] = {where: text for where, text in texts.items() if text is not None and text.strip()}
    if not given:
        return
    ad = {fold(name): value for name, value in description_attributes(description).items()}
    ad["requirements"] = Expression(given.get("requirements_expression", ""))
    ad["rank"] = Expression(given.get("rank", ""))
    for where, text in given.items():
        try:
            compile_bounded(text)
        except InvalidClassAdError as error:
            yield Violation(where, str(error))
        else:
            fault = cost_fault(text, [ad.get], steps_of_pattern=STEPS_OF_USERS_PATTERN)
            if fault is not None:
                yield Violation(where, f"takes too long to evaluate: {fault}")


def _attributes(description: JobDescription, limits: JobLimits) -> Iterator[Violation]:
    for name, value in description.attributes.items():
        where = f"attributes.{name}"
        if not name or not name.isprintable() or len(name) > _LONGEST_NAME:
            yield Violation(where, "is no name of an attribute")
        if isinstance(value, str) and len(value) > limits.max_text:
            yield Violation(where, f"is too long ({len(value)} characters)")
        elif isinstance(value, str) and fold(name) in _UNIVERSE and (why := universe_fault(value)):
            yield Violation(where, why)
    for name in invalid_flags(description):
        yield Violation(f"attributes.{name}", f"{description.attributes[name]!r} is neither true nor false")


def _places(description: JobDescription, _limits: JobLimits) -> Iterator[Violation]:
    for where in ("sites", "banned_sites", "platforms"):
        for index, name in enumerate(getattr(description, where)):
            if not name.strip():
                yield Violation(f"{where}[{index}]", "is empty")
    asked = {fold(site) for site in description.sites} - {"any"}
    if asked and asked <= {fold(site) for site in description.banned_sites}:
        yield Violation("sites", "every site that the job asks for is also one of its banned sites")


Check = Callable[[JobDescription, JobLimits], Iterator[Violation]]

_CHECKS: tuple[Check, ...] = (
    _texts,
    _executable,
    _image,
    _arguments,
    _environment,
    _folder_names,
    _sizes,
    _times,
    _count,
    _retries,
    _expressions,
    _attributes,
    _places,
)


def _input_faults(files: tuple[InputFile, ...], stored: Mapping[str, int]) -> Iterator[Violation]:
    names = Counter(file.name for file in files)
    for index, file in enumerate(files):
        where = f"input_files[{index}]"
        if why := fault_of_name(file.name):
            yield Violation(f"{where}.name", why)
        if names[file.name] > 1:
            yield Violation(f"{where}.name", f"{file.name} is there {names[file.name]} times")
        if why := _fault_of_content(file.checksum, stored):
            yield Violation(f"{where}.checksum", why)


def _clash_faults(description: JobDescription) -> Iterator[Violation]:
    """Yield input files whose names become equal in one of the first jobs of an array.

    Clashes in later jobs, or with the unknown number of `$(Cluster)`, are found by the pilot.
    """
    if not any("$(" in file.name for file in description.input_files):
        return
    clashing = set[str]()
    for process in range(min(description.count or 1, _JOBS_COMPARED)):
        seen: dict[str, str] = {}
        for index, file in enumerate(description.input_files):
            other = seen.setdefault(render_text(file.name, _NO_CLUSTER, process), file.name)
            if other != file.name and file.name not in clashing:
                clashing.add(file.name)
                why = f"{file.name} and {other} are one name in the job of $(Process) {process}"
                yield Violation(f"input_files[{index}].name", why)


def _fault_of_content(checksum: str | None, stored: Mapping[str, int]) -> str:
    if checksum is None:
        return "is missing: upload the file and give its SHA-256"
    if not is_checksum(checksum):
        return f"{checksum!r} is no SHA-256 in 64 lower-case hex digits"
    return "" if checksum in stored else "is of a file that the owner has not uploaded"
