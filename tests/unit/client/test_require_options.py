"""Requirements as command-line options."""

from __future__ import annotations

import pytest

from pilotage.errors import InvalidRequirementsError
from pilotage.job_description import Value
from pilotage.resources.parameters import SHIPPED, ParameterDeclaration, ParameterType
from pilotage.resources.requirements import read_requirements
from pilotage_client.readers.requirements import read_require_options


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("Memory=4000", 4000),
        ("Memory=4000.5", 4000.5),
        ("Memory=4 GB", 4096),
        ("Memory=1.5G", 1536),
        ("Scratch=10 GB", 10240),
        ("SoftwareTag=a,b", ("a", "b")),
        ("SoftwareTag=a", "a"),
        ("SoftwareTag=a,", ("a",)),
        ('CPUModel="Intel Xeon, old"', "Intel Xeon, old"),
        ("Model='8',9", ("8", 9)),
        ("HasGPU=true", True),
        ("HasGPU=False", False),
        ('HasGPU="true"', "true"),
        ("Model=3", 3),
        ("Model=9 kings", "9 kings"),
        ("Model=1_000", "1_000"),
        ("MaxWallTime=5m", 300),
        ("MaxWallTime=2 h", 7200),
        ("MaxWallTime=4 GB", "4 GB"),
        ("Memory=true", True),
        ("Tags=7,gpu", ("7", "gpu")),
        ("Empty=", ""),
    ],
)
def test_option_value_gets_its_type(option: str, value: Value) -> None:
    name = option.partition("=")[0]
    assert read_require_options([option], SHIPPED) == {name: value}


def test_huge_number_stays_text_until_it_is_compared() -> None:
    digits = "9" * 5000
    assert read_require_options([f"Memory={digits}"], SHIPPED) == {"Memory": digits}
    with pytest.raises(InvalidRequirementsError, match="is not a number, and Memory is a capacity"):
        read_requirements({"Memory": digits}, "cms")


def test_version_stays_text() -> None:
    declarations = SHIPPED.extended([ParameterDeclaration("GLibC", ParameterType.VERSION)])
    assert read_require_options(["glibc=2.10"], declarations) == {"glibc": "2.10"}


@pytest.mark.parametrize("option", ["Memory", "=4", 'CPUModel="open', 'CPUModel="a"b', " = "])
def test_rejects_invalid_option(option: str) -> None:
    with pytest.raises(InvalidRequirementsError) as refusal:
        read_require_options([option], SHIPPED)
    assert refusal.value.violations[0].where


def test_rejects_repeated_name_of_any_letter_case() -> None:
    with pytest.raises(InvalidRequirementsError, match="twice"):
        read_require_options(["Memory=1", "memory=2"], SHIPPED)
