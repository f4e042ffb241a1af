"""Resolves the files of a job at submission: existence, checksums, and names in the job's folder.

`os.path` looks for them: for a name that is too long, or in a folder that cannot be read, `Path` would raise.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from glob import has_magic, iglob
from pathlib import Path, PurePosixPath
from typing import Any

from pilotage.errors import Faults, InvalidJobError, Violation
from pilotage.job_description import InputFile, JobDescription
from pilotage.jobs.images import ImageKind, image_kind
from pilotage.text import fold, text_fault
from pilotage_client.readers.draft import USER_LOG

_CHUNK_BYTES = 1024 * 1024
_CACHED_CHECKSUMS = 10_000
_NULL_DEVICE = "/dev/null"
_USER_LOG = fold(USER_LOG)
_INITIAL_DIR = frozenset({"initialdir", "initial_dir", "iwd"})
_TRANSFER_EXECUTABLE = frozenset({"transfer_executable", "transferexecutable"})
_TRANSFER_CONTAINER = frozenset({"transfer_container", "transfercontainer"})
_YES = frozenset({"true", "t", "yes", "y", "1"})
_NO = frozenset({"false", "f", "no", "n", "0"})


def resolve_local_files(description: JobDescription, base_dir: Path, *, ships_programs: bool = False) -> JobDescription:
    """Return the description with every input file resolved: absolute source, size, checksum, name in the job's folder.

    - Paths are relative to `base_dir`, the folder of the job's file; those of a submit file's input files to its
      initialdir. Folders are walked and patterns are expanded.
    - A relative executable that exists here becomes an input file, unless `transfer_executable = false`. An absolute
      one is a program of the worker node, unless `transfer_executable = true` or `ships_programs` (as in HTCondor)
      and the file exists here.
      With an image an absolute one is a program of the image, unless `transfer_executable = true`.
    - An image with a relative path becomes an input file. An absolute one is a path of the worker node; with
      `ships_programs` it becomes an input file if it exists here, unless it is in /cvmfs or
      `transfer_container = false`.
    - A standard input that exists here becomes an input file.
    - The files of the standard streams stay inside the job's folder.
    - The user log stays here; its folder must exist.

    Raises
    ------
    InvalidJobError
        With every file that is missing or unreadable, or whose name in the job's folder is invalid or taken; and with
        a user log in a folder that is missing.
    """
    return FileResolver(base_dir, ships_programs=ships_programs).resolve(description)


def resolve_input_paths(descriptions: Sequence[JobDescription], base_dir: Path) -> list[JobDescription]:
    """Return the descriptions with their files resolved, if they have input files that are not: paths, or sources.

    Raises
    ------
    InvalidJobError
        As `resolve_local_files`, with the faults of all descriptions.
    """
    faults, resolver, resolved = Faults(), FileResolver(base_dir), list[JobDescription]()
    for index, description in enumerate(descriptions):
        given: Sequence[Any] = description.input_files
        if any(isinstance(file, str | Path) or _is_unresolved(file) for file in given):
            files = (InputFile(Path(file).name, str(file)) if isinstance(file, str | Path) else file for file in given)
            with faults.within(f"descriptions[{index}]"):
                description = resolver.resolve(replace(description, input_files=tuple(files)))
        resolved.append(description)
    faults.raise_any(InvalidJobError)
    return resolved


def _is_unresolved(file: object) -> bool:
    return isinstance(file, InputFile) and file.checksum is None


class FileResolver:
    """Resolves the files of many jobs as `resolve_local_files`; jobs with the same files are resolved once."""

    def __init__(self, base_dir: Path, *, ships_programs: bool = False) -> None:
        self._base_dir = base_dir
        self._ships_programs = ships_programs
        self._found: dict[tuple[object, ...], tuple[list[Violation], dict[str, Any]]] = {}
        self._logs: dict[tuple[str, str, str], tuple[str, list[Violation]]] = {}

    def resolve(self, description: JobDescription) -> JobDescription:
        """Return the description with its files resolved; raises InvalidJobError."""
        return replace(description, **self.resolved_fields(description))

    def resolved_fields(self, description: JobDescription) -> dict[str, Any]:
        """Return the fields that change when the files of a description are resolved; raises InvalidJobError."""
        own = {fold(name): (name, value) for name, value in description.attributes.items()}
        initial_dir, *transfers = (
            next((str(value) for folded, (_, value) in own.items() if folded in names), "")
            for names in (_INITIAL_DIR, _TRANSFER_EXECUTABLE, _TRANSFER_CONTAINER)
        )
        key = (
            *(description.executable, description.image, description.stdin, description.input_files, initial_dir),
            *transfers,
        )
        if key not in self._found:
            self._found[key] = self._resolved(description, self._base_dir / initial_dir)
        faults, fields = self._found[key]
        log_faults: list[Violation] = []
        if _USER_LOG in own:
            name, log = own[_USER_LOG]
            path, log_faults = self._user_log(name, initial_dir, str(log))
            fields = fields | {"attributes": {**description.attributes, name: path}}
        if faults or log_faults:
            raise InvalidJobError(*faults, *log_faults)
        return fields | {"stdout": _inside(description.stdout), "stderr": _inside(description.stderr)}

    def _user_log(self, name: str, initial_dir: str, log: str) -> tuple[str, list[Violation]]:
        """Return the path of a user log, now absolute, and its faults; `name` is that of its attribute."""
        key = (name, initial_dir, log)
        if key not in self._logs:
            path = str((self._base_dir / initial_dir).absolute() / log)
            self._logs[key] = path, list(_user_log_faults(name, path))
        return self._logs[key]

    def _resolved(self, description: JobDescription, folder: Path) -> tuple[list[Violation], dict[str, Any]]:
        """Return the faults of the files, and the fields of the description that name them."""
        travelling = [(file, folder) for file in description.input_files]
        travelling += [
            (file, self._base_dir) for file in _executables(description, self._base_dir, self._ships_programs)
        ]
        travelling += [(file, folder) for file in _standard_inputs(description, folder)]
        image = _image_file(description, folder, self._ships_programs)
        collected = _FileCollector()
        for file, start in travelling:
            collected.add(file, start)
        fields: dict[str, Any] = {}
        if image is not None:
            collected.add(image, folder, "image")
            fields["image"] = f"./{image.name}"
        program = PurePosixPath(description.executable)
        if not program.is_absolute() and "/" in description.executable and _ships_executable(description):
            collected.require_program(description.executable)
        return collected.faults, fields | _sandbox_names(description, collected.files)


def _user_log_faults(name: str, path: str) -> Iterator[Violation]:
    if not os.path.isdir(Path(path).parent):
        yield Violation(name, f"{path}: there is no folder {Path(path).parent}; make it first")
    elif os.path.isdir(path):
        yield Violation(name, f"{path} is a folder, not a file")


class _FileCollector:
    """The resolved files by their names in the job's folder, and the faults of others."""

    def __init__(self) -> None:
        self.files: dict[str, InputFile] = {}
        self.faults: list[Violation] = []

    def add(self, file: InputFile, folder: Path, field: str = "input_files") -> None:
        """Add the plain files of an input file; one with a checksum is resolved already. Faults name `field`."""
        try:
            for found in _plain_files(file, folder) if file.checksum is None else [file]:
                self._add_plain(found)
        except OSError as error:
            self._add_fault(f"{file.source or file.name}: {(error.strerror or 'cannot be read').lower()}", field)
        except ValueError:
            self._add_fault(f"{file.source or file.name!r} cannot be the name of a file", field)

    def require_program(self, executable: str) -> None:
        """Add a fault if an executable with a relative path is not among the input files."""
        program = PurePosixPath(executable)
        if str(program) not in self.files and program.name not in self.files:
            self.faults.append(Violation("executable", f"{executable}: no such file"))

    def _add_plain(self, file: InputFile) -> None:
        name = PurePosixPath(file.name)
        if name.is_absolute() or ".." in name.parts or not name.parts:
            self._add_fault(f"{file.name!r} is no name inside the job's folder")
            return
        if fault := text_fault(file.name):
            self._add_fault(f"the name {file.name!r} {fault}")
            return
        first = self.files.setdefault(str(name), replace(file, name=str(name)))
        if first.checksum != file.checksum:
            self._add_fault(f"{first.source} and {file.source} would both be {name}")

    def _add_fault(self, why: str, field: str = "input_files") -> None:
        self.faults.append(Violation(field, why))


def _attribute(description: JobDescription, names: frozenset[str]) -> object:
    return next((value for name, value in description.attributes.items() if fold(name) in names), None)


def _ships_executable(description: JobDescription) -> bool:
    return fold(str(_attribute(description, _TRANSFER_EXECUTABLE))) not in _NO


def _executables(description: JobDescription, base_dir: Path, ships_programs: bool) -> Iterator[InputFile]:
    """Yield the executable if it is shipped with the job and is not among its input files."""
    path = PurePosixPath(description.executable)
    is_asked_for = fold(str(_attribute(description, _TRANSFER_EXECUTABLE))) in _YES
    is_usual = not path.is_absolute() or (ships_programs and description.image is None)
    is_shipped = _ships_executable(description) if is_usual else is_asked_for
    if is_shipped and path.name and not _has_input_file(description, path) and os.path.isfile(base_dir / path):
        yield InputFile(path.name, source=description.executable, executable=True)


def _image_file(description: JobDescription, folder: Path, ships: bool) -> InputFile | None:
    """Return the file of the image if it is shipped with the job; None = it is not."""
    image = description.image
    if image is None or (kind := image_kind(image)) is ImageKind.REGISTRY:
        return None
    if kind is ImageKind.NODE_PATH:
        is_kept = image.startswith("/cvmfs/") or fold(str(_attribute(description, _TRANSFER_CONTAINER))) in _NO
        if is_kept or not ships or not os.path.isfile(image):
            return None
    return InputFile(PurePosixPath(image).name, source=image)


def _standard_inputs(description: JobDescription, folder: Path) -> Iterator[InputFile]:
    """Yield the file of the standard input if it exists here and is not among the input files."""
    if description.stdin is not None and description.stdin != _NULL_DEVICE:
        path = PurePosixPath(description.stdin)
        if not path.is_absolute() and not _has_input_file(description, path) and os.path.isfile(folder / path):
            yield InputFile(path.name, source=description.stdin)


def _has_input_file(description: JobDescription, path: PurePosixPath) -> bool:
    return any(file.name == path.name for file in description.input_files)


def _plain_files(file: InputFile, folder: Path) -> Iterator[InputFile]:
    """Yield the plain files of an input file: itself, the files in a folder, or the matches of a pattern."""
    source = file.source or file.name
    path = folder / source
    if not path.exists() and has_magic(source):
        matches = sorted(iglob(source, root_dir=folder))
        if not matches:
            raise FileNotFoundError(0, "nothing matches this pattern")
        for match in matches:
            yield from _plain_files(InputFile(PurePosixPath(match).name, source=match), folder)
    elif path.is_dir():
        for inner in sorted(each for each in path.rglob("*") if each.is_file()):
            name = PurePosixPath(file.name) / inner.relative_to(path).as_posix()
            yield _with_checksum(InputFile(str(name)), inner)
    else:
        yield _with_checksum(file, path)


def _with_checksum(file: InputFile, path: Path) -> InputFile:
    state = path.stat()
    return replace(
        file,
        source=str(path.absolute()),
        checksum=_checksum(path.absolute(), state.st_size, state.st_mtime_ns),
        size=state.st_size,
        executable=file.executable or os.access(path, os.X_OK),
    )


@lru_cache(maxsize=_CACHED_CHECKSUMS)
def _checksum(path: Path, size: int, _modified_ns: int) -> str:
    """Return the SHA-256 of a file; cached until the file changes, as many jobs share files."""
    checksum = hashlib.sha256()
    left = size
    with path.open("rb") as content:
        while chunk := content.read(min(_CHUNK_BYTES, left)):
            checksum.update(chunk)
            left -= len(chunk)
    if left:
        raise OSError(0, "becomes shorter while it is read")
    return checksum.hexdigest()


def _sandbox_names(description: JobDescription, files: dict[str, InputFile]) -> dict[str, Any]:
    """Return the fields of the description with the names that its files have in the job's folder."""
    program = PurePosixPath(description.executable)
    shipped = files.get(program.name)
    executable = description.executable
    if shipped is not None and str(program) not in files and _is_program(shipped, program):
        executable = program.name
    if not program.is_absolute():
        for name in {str(program), program.name} & files.keys():
            files[name] = replace(files[name], executable=True)
    stdin = description.stdin
    if stdin is not None and stdin not in files and PurePosixPath(stdin).name in files:
        stdin = PurePosixPath(stdin).name
    return {"executable": executable, "stdin": stdin, "input_files": tuple(files.values())}


def _is_program(file: InputFile, program: PurePosixPath) -> bool:
    """Return whether a file in the job's folder is the program, and not one of the same name on the worker node."""
    return not program.is_absolute() or file.source == str(program)


def _inside(name: str | None) -> str | None:
    """Return the name of a stream's file in the job's folder; of a path outside of it only the last part is kept."""
    if name is None or name == _NULL_DEVICE or ("/" not in name and name != ".."):
        return name
    if name.startswith("/") or ".." in name.split("/"):
        return PurePosixPath(name).name
    return posixpath.normpath(name)
