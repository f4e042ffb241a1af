"""Hatch's build hook: generates the protocol's stubs and, on request, compiles the server's hot modules.

Every wheel contains the Python sources. With `PILOTAGE_COMPILED=1` mypyc compiles a copy of the modules named in
`pyproject.toml`; the libraries are placed in the wheel beside their sources, where Python finds them first. The wheel
is then specific to this kind of machine. Compiled files never lie in the checkout, where they would become stale.
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
"""The environment variable that requests compiled modules with the value 1."""

LEVEL = "PILOTAGE_COMPILED_LEVEL"
"""The environment variable with the C compiler's optimisation level, 0 (fast to build) to 3; the default is 2."""

_SOURCES = ("proto/pilotage", "server/pilotage_server")
_LIBRARY = "pilotage_server_hot"
"""mypyc builds one library of all modules, so that they call one another directly."""

# Foreign packages are `Any`, installed or not, so that the compiled code is the same everywhere.
_TYPES = """
[mypy]
explicit_package_bases = true
[mypy-aiomqtt.*,alembic.*,classad2.*,google.*,grpc.*,grpc_status.*,htcondor2.*,jwt.*,pydantic.*,sqlalchemy.*,sqlmodel.*,structlog.*,yaml.*]
follow_imports = skip
follow_imports_for_stubs = true
ignore_missing_imports = true
[mypy-pilotage.v1.*,pilotage_server.storage.database.tables.*,pilotage_server.storage.database.operator_tables.*]
ignore_errors = true
"""


class BuildHook(BuildHookInterface[Any]):
    """Generates files before Hatch collects those of the wheel."""

    PLUGIN_NAME = "custom"

    _scratch: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return the build's dependencies beside the sources."""
        return ["mypy[mypyc]>=2.4"] if self._is_to_compile() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Generate the stubs and compile; Hatch passes `version` and `build_data`."""
        runpy.run_path(str(Path(self.root) / "proto" / "generate.py"))["generate"]()
        if version == "standard" and self._is_to_compile():
            self._scratch = tempfile.TemporaryDirectory(prefix="pilotage-compiled-")
            folder = Path(self._scratch.name)
            made = compiled(Path(self.root), folder, self.config["compiled"])
            build_data["force_include"] |= {str(folder / path): str(path) for path in made}
            build_data["pure_python"] = False
            build_data["infer_tag"] = True

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove temporary files, which the wheel contains by now."""
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
