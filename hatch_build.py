"""What is made when a wheel is built: the protocol's stubs, and, where asked for, the server's hot modules compiled.

Rules
-----
The Python sources are the truth and are in every wheel. With `PILOTAGE_COMPILED=1` the modules that `pyproject.toml`
names are compiled by mypyc from a copy, and lie in the wheel beside their sources, where Python finds them first; the
wheel is then one for this machine's kind alone. Nothing compiled ever lies in the checkout: it would go stale there.
"""

from __future__ import annotations

import os
import runpy
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ASKED_BY = "PILOTAGE_COMPILED"
"""The environment's variable that asks for compiled modules, by 1."""

LEVEL = "PILOTAGE_COMPILED_LEVEL"
"""That which says how much the C compiler is to optimise: 0, which is soon done, to 3; the usual one is 2."""

_SOURCES = ("proto/pilotage", "server/pilotage_server")
_LIBRARY = "pilotage_server_hot"
"""mypyc puts all modules into one library, so that they call one another at once."""

# Foreign packages are `Any`, whether they are installed or not: what is compiled is the same everywhere.
_TYPES = """
[mypy]
explicit_package_bases = true
[mypy-aiomqtt.*,alembic.*,classad2.*,google.*,grpc.*,grpc_status.*,htcondor2.*,jwt.*,pydantic.*,sqlalchemy.*,sqlmodel.*,structlog.*,yaml.*]
follow_imports = skip
follow_imports_for_stubs = true
ignore_missing_imports = true
[mypy-pilotage.v1.*,pilotage_server.storage.tables.*]
ignore_errors = true
"""


class BuildHook(BuildHookInterface[Any]):
    """Hatch's hook: what is made is there before files are collected."""

    PLUGIN_NAME = "custom"

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return what a build needs beside the sources."""
        return ["mypy[mypyc]>=2.4"] if self._is_to_compile() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the stubs, and compile; `version` and `build_data` are Hatch's."""
        runpy.run_path(str(Path(self.root) / "proto" / "generate.py"))["generate"]()
        if version == "standard" and self._is_to_compile():
            self._scratch = tempfile.TemporaryDirectory(prefix="pilotage-compiled-")
            folder = Path(self._scratch.name)
            made = compiled(Path(self.root), folder, self.config["compiled"])
            build_data["force_include"] |= {str(folder / path): str(path) for path in made}
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what the wheel holds by now."""
        del version, build_data, artifact_path
        if self._scratch is not None:
            self._scratch.cleanup()

    def _is_to_compile(self) -> bool:
        return self.target_name == "wheel" and os.environ.get(ASKED_BY) == "1"


def compiled(root: Path, scratch: Path, modules: Sequence[str]) -> list[Path]:
    """Compile modules of the checkout at `root` in the folder `scratch`; returns the libraries, relative to it."""
    # Imported here: a wheel of plain Python is built without them.
    from mypyc.build import mypycify
    from setuptools import Distribution

    for source in map(Path, _SOURCES):
        shutil.copytree(root / source, scratch / source.name, ignore=shutil.ignore_patterns("__pycache__"))
    types = scratch / "types.ini"
    types.write_text(_TYPES)
    paths = [f"{module.replace('.', '/')}.py" for module in modules]
    with chdir(scratch):
        extensions = mypycify(
            [f"--config-file={types}", *paths],
            group_name=_LIBRARY,
            opt_level=os.environ.get(LEVEL, "2"),
            debug_level="0",
        )
        build = Distribution({"name": _LIBRARY, "ext_modules": extensions}).get_command_obj("build_ext")
        build.build_lib, build.build_temp = ".", "build/objects"
        build.ensure_finalized()
        build.run()
    return [library.relative_to(scratch) for library in scratch.rglob("*.so")]
