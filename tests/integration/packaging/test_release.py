"""The parts of the release check that need no network: lock file, licences, content of the wheel."""

from __future__ import annotations

import re
import tomllib
import zipfile
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from licences import EXCEPTIONS, licence_lines, licence_of, normalized
from release_check import LOCK, ROOT, ReleaseError, check_wheel

_PIN = re.compile(r"^([a-z0-9-]+)==(\S+)((?:[^\n]*\\\n)(?:    --hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", re.MULTILINE)


def pins() -> dict[str, str]:
    """Return the version of each locked package."""
    return {name: version for name, version, _ in _PIN.findall(LOCK.read_text())}


def deployed() -> list[Requirement]:
    """Return the requirements of everything that is deployed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (everything,) = (Requirement(each) for each in extras["all"])
    texts = [*project["dependencies"], *(each for extra in sorted(everything.extras) for each in extras[extra])]
    return [Requirement(text) for text in texts]


def installed(name: str, folder: Path, *fields: str) -> Distribution:
    """Return a distribution with these fields in its metadata."""
    info = folder / f"{name}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("\n".join(["Metadata-Version: 2.4", f"Name: {name}", "Version: 1.0", *fields, ""]))
    return Distribution.at(info)


def test_lock_pins_every_requirement_with_hashes() -> None:
    found = pins()
    assert len(deployed()) > 15
    for requirement in deployed():
        version = found.get(normalized(requirement.name))
        assert version is not None, f"{requirement} is not in {LOCK.name}: run make lock"
        assert requirement.specifier.contains(version), f"{LOCK.name} has {version} for {requirement}: run make lock"


def test_every_line_of_the_lock_is_a_pin_with_hashes() -> None:
    rest = _PIN.sub("", LOCK.read_text())
    assert [line for line in rest.splitlines() if not re.match(r"\s*#", line)] == []
    assert "://" not in rest


def test_all_extras_that_are_deployed_are_in_all() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (everything,) = (Requirement(each) for each in extras["all"])
    assert everything.extras == extras.keys() - {"all", "dev", "docs", "release", "parsl", "snakemake"}


def test_licences_of_locked_packages_are_accepted() -> None:
    """Other releases than the locked ones may describe themselves in another way."""
    found = []
    for name, version in pins().items():
        try:
            each = distribution(name)
        except PackageNotFoundError:
            continue  # a package for other systems
        found += [each] if each.version == version else []
    assert [line for line in licence_lines(found) if line.fault] == []


@pytest.mark.parametrize(
    ("fields", "licence", "is_accepted"),
    [
        (("License-Expression: MIT",), "MIT", True),
        (("License-Expression: EPL-2.0 OR BSD-3-Clause",), "EPL-2.0 OR BSD-3-Clause", True),
        (("License-Expression: MIT AND Apache-2.0",), "MIT AND Apache-2.0", True),
        (("License-Expression: MIT AND GPL-3.0-only",), "MIT AND GPL-3.0-only", False),
        (("License: 3-Clause BSD License",), "BSD-3-Clause", True),
        (("License: GPLv3",), "GPLv3", False),
        (("Classifier: License :: OSI Approved :: BSD License",), "BSD-3-Clause", True),
        (("Classifier: Programming Language :: Python",), "", False),
        ((), "", False),
    ],
)
def test_licence_is_read_and_judged(fields: tuple[str, ...], licence: str, is_accepted: bool, tmp_path: Path) -> None:
    package = installed("somebody", tmp_path, *fields)
    (line,) = licence_lines([package])
    assert (licence_of(package), line.fault == "") == (licence, is_accepted)


def test_exception_is_for_one_package_and_one_licence(tmp_path: Path) -> None:
    excepted, (licence, reason) = next(iter(EXCEPTIONS.items()))
    for folder, name, text in (("a", excepted, licence), ("b", excepted, "AGPL-3.0-only"), ("c", "other", licence)):
        (tmp_path / folder).mkdir()
        (line,) = licence_lines([installed(name, tmp_path / folder, f"License-Expression: {text}")])
        assert (line.fault == "") == (folder == "a")
        assert line.reason == (reason if folder == "a" else "")


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tests/test_jobs.py", ""),
        ("conftest.py", ""),
        ("pilotage/main.cpython-311.pyc", ""),
        ("pilotage/paths.py", f"HERE = {str(ROOT)!r}"),
    ],
)
def test_file_of_something_else_in_the_wheel_is_refused(name: str, content: str, tmp_path: Path) -> None:
    wheel = tmp_path / "pilotage-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("pilotage/__init__.py", "")
        archive.writestr("pilotage-0.1.0.dist-info/METADATA", "")
    check_wheel(wheel)
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr(name, content)
    with pytest.raises(ReleaseError, match=re.escape(name)):
        check_wheel(wheel)
