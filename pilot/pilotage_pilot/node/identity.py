"""What kind of machine this is, under the names and in the words that HTCondor's ads have for it."""

from __future__ import annotations

import platform
from collections.abc import Mapping

from pilotage.classads import AdValue

_ARCHITECTURES = {"x86_64": "X86_64", "amd64": "X86_64"} | {f"i{number}86": "INTEL" for number in range(3, 7)}
_SYSTEMS = {"darwin": "macOS"}


def identity() -> Mapping[str, AdValue]:
    """Return architecture and system, as far as they are known."""
    machine, system = platform.machine(), platform.system()
    said = {
        "Arch": _ARCHITECTURES.get(machine.lower(), machine),
        "OpSys": _SYSTEMS.get(system.lower(), system.upper()),
        **_distribution(),
    }
    return {name: value for name, value in said.items() if value}


def _distribution() -> dict[str, str]:
    try:
        release = platform.freedesktop_os_release()
    except OSError:
        return {}
    name, version = release.get("NAME", "").split(" ")[0], release.get("VERSION_ID", "").split(".")[0]
    return {"OpSysName": name, "OpSysAndVer": f"{name}{version}", "OpSysLongName": release.get("PRETTY_NAME", "")}
