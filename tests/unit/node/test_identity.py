"""What kind of machine a node is, in HTCondor's words."""

from __future__ import annotations

import platform

import pytest

from pilotage_pilot.node.node import identity


@pytest.mark.parametrize(
    ("machine", "arch"),
    [("x86_64", "X86_64"), ("AMD64", "X86_64"), ("i686", "INTEL"), ("aarch64", "aarch64"), ("", None)],
)
def test_architectures_have_htcondors_names(monkeypatch: pytest.MonkeyPatch, machine: str, arch: str | None) -> None:
    monkeypatch.setattr(platform, "machine", lambda: machine)
    assert identity().get("Arch") == arch


def test_a_system_is_named_with_its_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    release = {"NAME": "AlmaLinux", "VERSION_ID": "9.4", "PRETTY_NAME": "AlmaLinux 9.4 (Seafoam Ocelot)"}
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    monkeypatch.setattr(platform, "freedesktop_os_release", lambda: release)
    said = identity()
    assert (said["OpSys"], said["OpSysAndVer"], said["OpSysName"]) == ("LINUX", "AlmaLinux9", "AlmaLinux")


def test_a_system_that_does_not_say_its_distribution_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> dict[str, str]:
        raise OSError

    monkeypatch.setattr(platform, "freedesktop_os_release", missing)
    assert not identity().keys() & {"OpSysName", "OpSysAndVer"}
