"""Loader of the settings of all programs: sources, precedence, and location of errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import SettingsConfigDict

from pilotage.errors import InvalidInputError
from pilotage.settings import AnchoredPath, ProgramSettings, Section, load_section, load_settings


class Limits(Section):
    """A section."""

    cores: int = Field(default=1, ge=1)
    memory_mib: int = 1


class Target(Section):
    """A section with a path."""

    folder: AnchoredPath
    elsewhere: Path = Path("plain")


class ExampleSettings(ProgramSettings):
    """A program's settings."""

    model_config = SettingsConfigDict(env_prefix="EXAMPLE_")

    name: str = "none"
    token: SecretStr | None = None
    lease_s: float = Field(default=1, ge=1)
    limits: Limits = Limits()
    log: AnchoredPath | None = None
    targets: dict[str, Target] = Field(default_factory=dict)
    more: tuple[Target, ...] = Field(default=(), max_length=2)


def a_file(folder: Path, text: str, name: str = "example.toml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def faults(file: Path | None, **options: object) -> list[str]:
    """Return the reasons for which the settings are rejected."""
    with pytest.raises(InvalidInputError) as error:
        load_settings(ExampleSettings, file, options)
    return [str(violation) for violation in error.value.violations]


def test_sources_override_each_other_key_by_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path, 'name = "file"\nlease_s = 2\n[limits]\ncores = 2\nmemory_mib = 2\n')
    monkeypatch.setenv("EXAMPLE_LEASE_S", "3")
    monkeypatch.setenv("EXAMPLE_LIMITS", '{"cores": 3}')

    settings = load_settings(ExampleSettings, file, {"lease_s": "4"})

    assert (settings.name, settings.lease_s) == ("file", 4)
    assert settings.limits == Limits(cores=3, memory_mib=2)


@pytest.mark.parametrize("name", ["example.json", "example"])
def test_text_with_leading_brace_is_json(tmp_path: Path, name: str) -> None:
    file = a_file(tmp_path, json.dumps({"limits": {"cores": 7}}), name)

    assert load_settings(ExampleSettings, file, {}).limits.cores == 7


def test_only_anchored_paths_start_from_folder_of_file(tmp_path: Path) -> None:
    text = (
        'log = "a.log"\n[targets.x]\nfolder = "x"\nelsewhere = "y"\n[[more]]\nfolder = "/z"\n[[more]]\nfolder = "z"\n'
    )
    file = a_file(tmp_path, text)

    settings = load_settings(ExampleSettings, file, {})

    assert settings.log == tmp_path / "a.log"
    assert settings.targets == {"x": Target(folder=tmp_path / "x", elsewhere=Path("y"))}
    assert [target.folder for target in settings.more] == [Path("/z"), tmp_path / "z"]
    assert load_settings(ExampleSettings, file, {"log": "b.log"}).log == Path("b.log")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("lesae_s = 1", "lesae_s: is no setting; did you mean lease_s?"),
        ("limits = { core = 1 }", "limits.core: is no setting; did you mean cores?"),
        ("limits = { disk = 1 }", "limits.disk: is no setting"),
        ("targets = { x = { folder = 'f', dir = 'g' } }", "targets.x.dir: is no setting"),
        ("lease_s = 0", "lease_s: input should be greater than or equal to 1"),
        ("targets = { x = {} }", "targets.x.folder: field required"),
    ],
)
def test_fault_in_file_names_file_and_key(tmp_path: Path, text: str, fault: str) -> None:
    file = a_file(tmp_path, text)

    assert faults(file) == [f"{file}: {fault}"]


def test_faults_of_all_sources_are_reported_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path, "name = 5\nlease_s = 5\nmore = 'x'\n[limits]\nmemory_mib = 'x'")
    monkeypatch.setenv("EXAMPLE_LIMITS", '{"cores": 0}')
    monkeypatch.setenv("EXAMPLE_TARGETS", "x")
    monkeypatch.setenv("EXAMPLE_LOGS", "x")

    found = faults(file, lease_s=0)

    places = [fault.rpartition(": ")[0] for fault in found]
    assert set(places) == {
        f"{file}: name",
        "lease_s",
        "EXAMPLE_LIMITS.cores",
        f"{file}: limits.memory_mib",
        "EXAMPLE_TARGETS",
        f"{file}: more",
        "EXAMPLE_LOGS",
    }


def test_unknown_variable_with_prefix_is_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EXAMPLE_LESAE_S", "1")
    monkeypatch.setenv("OTHER_LESAE_S", "1")

    assert faults(None) == ["EXAMPLE_LESAE_S: is no setting; did you mean EXAMPLE_LEASE_S?"]


@pytest.mark.parametrize(("name", "what"), [("limits", "table"), ("more", "list")])
def test_lists_and_tables_in_variables_must_be_json(name: str, what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"EXAMPLE_{name.upper()}", "cores=1")

    (fault,) = faults(None)

    assert fault == f"EXAMPLE_{name.upper()}: is not a {what}, written as JSON"


@pytest.mark.parametrize("content", [b"name = ", b"{", b"\xff"])
def test_unparsable_file_is_named(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "example.toml"
    file.write_bytes(content)

    (fault,) = faults(file)

    assert fault.startswith(f"{file}: ")


def test_missing_file_is_named(tmp_path: Path) -> None:
    assert faults(tmp_path / "no.toml") == [f"{tmp_path}/no.toml: cannot be read: No such file or directory"]


def test_error_contains_no_secrets(tmp_path: Path) -> None:
    file = a_file(tmp_path, 'token = ["hush"]')

    with pytest.raises(InvalidInputError) as error:
        load_settings(ExampleSettings, file, {})

    assert "hush" not in str(error.value)
    assert not isinstance(error.value.__context__ or error.value.__cause__, ValidationError)


def test_loads_section_from_separate_file(tmp_path: Path) -> None:
    file = a_file(tmp_path, 'folder = "x"')
    assert load_section(Target, file).folder == tmp_path / "x"
    with pytest.raises(InvalidInputError, match=f"{file}: fodler: is no setting; did you mean folder"):
        load_section(Target, a_file(tmp_path, 'fodler = "x"'))
