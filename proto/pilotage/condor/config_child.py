"""The child process that reads one configuration with HTCondor's parser: an error in a text ends the process.

`pilotage.condor.config` starts it with a request on its standard input. It answers on the last line of its standard
output, both in JSON; the parser's messages go to the standard error. A system call filter blocks commands that a text
runs, so that no macro, condition or included file can start one.
"""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import sys
from collections.abc import Callable, Iterable
from typing import Any

CANNOT_BLOCK = "commands cannot be barred on this platform"
NO_LIBRARY = "the Python package htcondor is missing"

_SCRATCH_KNOB = "PILOTAGE_ASKED"
_UNEXPANDED_PARAM = "_Z16param_unexpandedPKc"  # param_unexpanded(char const *), which the package has no name for
_REFERENCE = re.compile(r"(?:\$\w*\(|\bdefined\s+)(?P<name>[A-Za-z_][\w.]*)", re.IGNORECASE)
_EXECUTIONS = {"x86_64": (59, 322), "aarch64": (221, 281), "ppc64le": (11, 362)}
"""The numbers of execve and execveat."""

_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _FILTER = 22, 38, 2
_LOAD_NUMBER, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000 | 13  # 13: permission denied


class _Step(ctypes.Structure):
    _fields_ = (("code", ctypes.c_ushort), ("yes", ctypes.c_ubyte), ("no", ctypes.c_ubyte), ("what", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.POINTER(_Step)))


def main() -> None:
    """Read the requested knobs and print them."""
    request = json.load(sys.stdin)
    os.environ["CONDOR_CONFIG"] = os.devnull  # the import reads it
    try:
        import htcondor2
    except ImportError:
        sys.exit(NO_LIBRARY)
    htcondor2.set_subsystem(request["subsystem"])
    if not request["allow_commands"]:
        _block_commands()
    os.environ["CONDOR_CONFIG"] = request["root"]
    htcondor2.reload_config()
    sys.stdout.write("\n" + json.dumps(_found(htcondor2.param, request)) + "\n")


def _block_commands() -> None:
    numbers = _EXECUTIONS.get(platform.machine())
    if numbers is None or not sys.platform.startswith("linux"):
        sys.exit(CANNOT_BLOCK)
    steps = (
        _Step(_LOAD_NUMBER, 0, 0, 0),
        _Step(_JUMP_IF_EQUAL, 1, 0, numbers[0]),
        _Step(_JUMP_IF_EQUAL, 0, 1, numbers[1]),
        _Step(_RETURN, 0, 0, _REFUSE),
        _Step(_RETURN, 0, 0, _ALLOW),
    )
    program = _Program(len(steps), (_Step * len(steps))(*steps))
    libc = ctypes.CDLL(None)
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_PR_SET_SECCOMP, _FILTER, ctypes.byref(program)):
        sys.exit(CANNOT_BLOCK)


def _found(param: Any, request: dict[str, Any]) -> dict[str, Any]:
    names = {name.lower(): name for name in param}
    wanted = {name.lower() for name in request["names"]}
    for knob in request["lists"]:
        wanted |= {member.lower() for member in re.split(r"[\s,]+", _expanded(param, knob)) if member}
    if request["variants"]:
        variant = re.compile(f"(?:{request['variants']})(?P<knob>.+)", re.IGNORECASE)
        wanted |= {name for name in names if (found := variant.fullmatch(name)) and found["knob"] in wanted}
    unexpanded = _unexpanded_reader()
    programs = _programs(request["programs"], names.values(), unexpanded)
    wanted |= {found["name"].lower() for text in programs.values() for found in _REFERENCE.finditer(text)}
    values = {name: _expanded(param, name) for name in sorted(wanted & names.keys())}
    values = {name: value for name, value in values.items() if value}
    emptied = [name for name in request["defined"] if not _expanded(param, name) and unexpanded(name)]
    return {"names": sorted(names), "values": values, "programs": programs, "emptied": emptied}


def _programs(pattern: str, names: Iterable[str], unexpanded: Callable[[str], str]) -> dict[str, str]:
    """Return the unexpanded texts of the knobs that match `pattern`; expansion would lose their own macros."""
    is_one = re.compile(pattern, re.IGNORECASE)
    return {name: unexpanded(name) for name in names if pattern and is_one.fullmatch(name)}


def _unexpanded_reader() -> Callable[[str], str]:
    """Return a function that returns the text of a knob with its macros, "" = none."""
    from htcondor2 import htcondor2_impl

    read = getattr(ctypes.CDLL(htcondor2_impl.__file__), _UNEXPANDED_PARAM, None)
    if read is None:
        sys.exit("this release of the Python package htcondor does not show texts with their macros")
    read.argtypes, read.restype = [ctypes.c_char_p], ctypes.c_char_p
    return lambda name: (read(name.encode()) or b"").decode(errors="replace")


def _expanded(param: Any, name: str) -> str:
    """Return the knob's text, read through a scratch knob: a direct read loses integers that are expressions."""
    param[_SCRATCH_KNOB] = f"$({name})"
    return str(param.get(_SCRATCH_KNOB, "")).strip()


if __name__ == "__main__":
    main()
