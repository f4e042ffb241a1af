"""Generates the Python stubs of the protocol, and its description with all comments.

At build time (hatch_build.py) or by hand: python proto/generate.py.
"""

from __future__ import annotations

import importlib.resources
import shutil
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

HERE = Path(__file__).resolve().parent

DESCRIPTION = "pilotage/v1/protocol.binpb"
"""A FileDescriptorSet with the comments, of which the HTTP gateway makes its OpenAPI document."""


def generate(root: Path = HERE) -> None:
    """Write the stubs of every .proto below `root` beside it, and `DESCRIPTION`.

    Raises RuntimeError when protoc rejects one. Unchanged files are left alone; others are replaced atomically, as
    another process may be importing them.
    """
    with tempfile.TemporaryDirectory(dir=root, prefix=".stubs-") as scratch:
        _generate_into(Path(scratch), root)
        for made in (*Path(scratch).rglob("*_pb2*"), Path(scratch) / DESCRIPTION):
            stub = root / made.relative_to(scratch)
            if not stub.is_file() or stub.read_bytes() != made.read_bytes():
                made.replace(stub)


def _generate_into(folder: Path, root: Path) -> None:
    sources = sorted(str(path.relative_to(root)) for path in root.glob("pilotage/**/*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"-I{root}",
        f"-I{well_known}",
        f"--python_out={folder}",
        f"--grpc_python_out={folder}",
        f"--mypy_out=quiet:{folder}",
        f"--mypy_grpc_out=quiet:{folder}",
        f"--descriptor_set_out={folder / DESCRIPTION}",
        "--include_source_info",
        *(f"--plugin={name}={_plugin(name)}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")),
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise RuntimeError(f"protoc could not compile the protocol below {root}; its message stands above")


def _plugin(name: str) -> str:
    """Return the path of a protoc plugin: on PATH in an isolated build, else beside this interpreter."""
    return shutil.which(name) or str(Path(sys.executable).parent / name)


if __name__ == "__main__":
    generate()
