"""The files of a job at its submission: that they are there, their names in the job's folder, their checksums."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from glob import has_magic, iglob
from pathlib import Path, PurePosixPath

from pilotage.errors import InvalidJobError, Violation
from pilotage.folding import fold
from pilotage.job_description import InputFile, JobDescription
from pilotage.scalars import text_fault

_CHUNK_BYTES = 1024 * 1024
_REMEMBERED_SUMS = 10_000
_NULL_DEVICE = "/dev/null"
_INITIAL_DIR = frozenset({"initialdir", "initial_dir", "iwd"})
_TRANSFER_EXECUTABLE = frozenset({"transfer_executable", "transferexecutable"})
_YES = frozenset({"true", "t", "yes", "y", "1"})
_NO = frozenset({"false", "f", "no", "n", "0"})


def resolve_local_files(description: JobDescription, base_dir: Path, *, ships_programs: bool = False) -> JobDescription:
    """Return the description with every input file found: absolute source, size, checksum, name in the job's folder.

    Relative paths start at `base_dir`, the folder of the job's file; input files of a submit file at its initialdir
    there. Folders are walked, patterns are filled in. A relative executable that lies there travels too, unless the
    job says `transfer_executable = false`; an absolute one is a program of the worker node, unless it says true or
    `ships_programs` is set (as HTCondor does) and there is such a file here. So does a standard input. The files of
    the standard streams are kept inside the job's folder.

    Raises
    ------
    InvalidJobError
        With every file that is missing, cannot be read, has no name in the job's folder or takes another's.
    """
    folder = base_dir / str(_attribute(description, _INITIAL_DIR) or ".")
    travelling = [(file, folder) for file in description.input_files]
    travelling += [(file, base_dir) for file in _executables(description, base_dir, ships_programs)]
    travelling += [(file, folder) for file in _standard_inputs(description, folder)]
    collected = _Collected()
    for file, start in travelling:
        collected.add(file, start)
    program = PurePosixPath(description.executable)
    if not program.is_absolute() and len(program.parts) > 1 and _may_travel(description):
        collected.expect(program)
    if collected.faults:
        raise InvalidJobError(*collected.faults)
    return _placed(description, collected.files)


class _Collected:
    """The plain files found so far by their names in the job's folder, and what was wrong with others."""

    def __init__(self) -> None:
        self.files: dict[str, InputFile] = {}
        self.faults: list[Violation] = []

    def add(self, file: InputFile, folder: Path) -> None:
        """Add what an input file stands for; one with a checksum is known already."""
        try:
            for found in _plain_files(file, folder) if file.checksum is None else [file]:
                self._add_plain(found)
        except OSError as error:
            self._blame(f"{file.source or file.name}: {(error.strerror or 'cannot be read').lower()}")
        except ValueError:
            self._blame(f"{file.source or file.name!r} cannot be the name of a file")

    def expect(self, program: PurePosixPath) -> None:
        """Blame an executable with a relative path that nothing brings along."""
        if str(program) not in self.files and program.name not in self.files:
            self.faults.append(Violation("executable", f"{program}: no such file"))

    def _add_plain(self, file: InputFile) -> None:
        name = PurePosixPath(file.name)
        if name.is_absolute() or ".." in name.parts or not name.parts:
            self._blame(f"{file.name!r} is no name inside the job's folder")
            return
        if fault := text_fault(file.name):
            self._blame(f"the name {file.name!r} {fault}")
            return
        first = self.files.setdefault(str(name), replace(file, name=str(name)))
        if first.checksum != file.checksum:
            self._blame(f"{first.source} and {file.source} would both be {name}")

    def _blame(self, why: str) -> None:
        self.faults.append(Violation("input_files", why))


def _attribute(description: JobDescription, names: frozenset[str]) -> object:
    return next((value for name, value in description.attributes.items() if fold(name) in names), None)


def _may_travel(description: JobDescription) -> bool:
    return fold(str(_attribute(description, _TRANSFER_EXECUTABLE))) not in _NO


def _executables(description: JobDescription, base_dir: Path, ships_programs: bool) -> Iterator[InputFile]:
    """Yield the executable where it travels with the job and is not among its input files."""
    path = PurePosixPath(description.executable)
    is_asked_for = fold(str(_attribute(description, _TRANSFER_EXECUTABLE))) in _YES
    is_shipped = _may_travel(description) if ships_programs or not path.is_absolute() else is_asked_for
    if is_shipped and not _brings(description, path) and (base_dir / path).is_file():
        yield InputFile(path.name, source=description.executable, executable=True)


def _standard_inputs(description: JobDescription, folder: Path) -> Iterator[InputFile]:
    """Yield the file for the standard input where it lies here and is not among the input files."""
    if description.stdin is not None and description.stdin != _NULL_DEVICE:
        path = PurePosixPath(description.stdin)
        if not path.is_absolute() and not _brings(description, path) and (folder / path).is_file():
            yield InputFile(path.name, source=description.stdin)


def _brings(description: JobDescription, path: PurePosixPath) -> bool:
    return any(file.name == path.name for file in description.input_files)


def _plain_files(file: InputFile, folder: Path) -> Iterator[InputFile]:
    """Yield the plain files that an input file stands for: itself, what is in a folder, what fits a pattern."""
    source = file.source or file.name
    path = folder / source
    if not path.exists() and has_magic(source):
        matches = sorted(iglob(source, root_dir=folder))
        if not matches:
            raise FileNotFoundError(0, "nothing fits this pattern")
        for match in matches:
            yield from _plain_files(InputFile(PurePosixPath(match).name, source=match), folder)
    elif path.is_dir():
        for inner in sorted(each for each in path.rglob("*") if each.is_file()):
            name = PurePosixPath(file.name) / inner.relative_to(path).as_posix()
            yield _measured(InputFile(str(name)), inner)
    else:
        yield _measured(file, path)


def _measured(file: InputFile, path: Path) -> InputFile:
    state = path.stat()
    return replace(
        file,
        source=str(path.absolute()),
        checksum=_checksum(path.absolute(), state.st_size, state.st_mtime_ns),
        size=state.st_size,
        executable=file.executable or os.access(path, os.X_OK),
    )


@lru_cache(maxsize=_REMEMBERED_SUMS)
def _checksum(path: Path, size: int, _modified_ns: int) -> str:
    """Return the SHA-256 of a file; remembered while it does not change, as many jobs share their files."""
    checksum = hashlib.sha256()
    left = size
    with path.open("rb") as content:
        while chunk := content.read(min(_CHUNK_BYTES, left)):
            checksum.update(chunk)
            left -= len(chunk)
    if left:
        raise OSError(0, "becomes shorter while it is read")
    return checksum.hexdigest()


def _placed(description: JobDescription, files: dict[str, InputFile]) -> JobDescription:
    """Return the description with everything named as it is in the job's folder."""
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
    return replace(
        description,
        executable=executable,
        stdin=stdin,
        stdout=_inside(description.stdout),
        stderr=_inside(description.stderr),
        input_files=tuple(files.values()),
    )


def _is_program(file: InputFile, program: PurePosixPath) -> bool:
    """Say whether a file in the job's folder is the program, and not one of the same name on the worker node."""
    return not program.is_absolute() or file.source == str(program)


def _inside(name: str | None) -> str | None:
    """Return a stream's file in the job's folder: of a path that leads out of it only the last part stays."""
    if name is None or name == _NULL_DEVICE:
        return name
    path = PurePosixPath(name)
    return path.name if path.is_absolute() or ".." in path.parts else str(path)
