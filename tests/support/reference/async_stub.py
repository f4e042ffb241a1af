"""The types of `AsyncClient` and its handles, from the signatures of `Client`, `Job` and `JobSet`."""

from __future__ import annotations

import ast
import builtins
import inspect
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from pilotage_client.api import Client
from pilotage_client.job_sets import Job, JobSet

FILE = "../../client/pilotage_client/async_client.pyi"
"""The file, from the folder of the pages."""

_ITERATORS = "Iterator[", "AsyncIterator["
_HANDLES = {"Job": "AsyncJob", "JobSet": "AsyncJobSet"}
_OWN_METHODS = {"located", "close", "report_upload"}

_CLIENT = """
class AsyncClient:
    server: str
    public: str
    def __init__(self, client: Client) -> None: ...
    @classmethod
    def located(cls, options: ServerOptions | None = ...) -> Self: ...
    async def __aenter__(self) -> Self: ...
    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
"""
_JOB = """
class AsyncJob:
    id: int
"""
_JOB_SET = """
class AsyncJobSet(Sequence[AsyncJob]):
    job_ids: tuple[int, ...]
    warnings: tuple[str, ...]
    workflow: int
    @overload
    def __getitem__(self, index: int) -> AsyncJob: ...
    @overload
    def __getitem__(self, index: slice) -> AsyncJobSet: ...
    def __len__(self) -> int: ...
"""


def stub() -> str:
    """Return the stub file, formatted."""
    classes = {_JOB: Job, _JOB_SET: JobSet, _CLIENT: Client}
    body = "\n".join(text + "".join(_methods(kind)) for text, kind in classes.items())
    text = f"# Written by `make reference`.\n{_imports(body)}\n{body}"
    return _ruff("format", "-", text=_ruff("check", "--select", "I", "--fix", "-", text=text))


def _methods(kind: type) -> Iterator[str]:
    """Yield the public methods of a class and of its bases as those of its asynchronous counterpart."""
    for base in kind.__mro__:
        if not base.__module__.startswith("pilotage_client."):
            continue
        overloaded: set[str] = set()
        for node in _class_node(base).body:
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("_") or node.name in _OWN_METHODS:
                continue
            decorators = {ast.unparse(each) for each in node.decorator_list}
            if "overload" in decorators:
                overloaded.add(node.name)
            elif node.name in overloaded:
                continue  # the implementation
            yield _method(node, decorators)


def _method(node: ast.FunctionDef, decorators: Iterable[str]) -> str:
    arguments = node.args
    arguments.defaults = [ast.Constant(...) for _ in arguments.defaults]
    arguments.kw_defaults = [default and ast.Constant(...) for default in arguments.kw_defaults]
    assert node.returns is not None
    returned = ast.unparse(node.returns)
    returned = _HANDLES.get(returned, returned)
    start = "async def"
    if "property" in decorators:
        start, returned = "def", f"Awaitable[{returned}]"
    elif returned.startswith(_ITERATORS[0]):
        start, returned = "def", returned.replace(*_ITERATORS)
    lines = [*(f"@{each}" for each in decorators), f"{start} {node.name}({ast.unparse(arguments)}) -> {returned}: ..."]
    return "".join(f"    {line}\n" for line in lines)


def _class_node(kind: type) -> ast.ClassDef:
    tree = _module_tree(kind.__module__)
    return next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == kind.__name__)


def _module_tree(name: str) -> ast.Module:
    return ast.parse(inspect.getsource(import_module(name)))


def _imports(body: str) -> str:
    """Return an import of each name that the classes use."""
    tree = ast.parse(body)
    own = {node.name for node in tree.body if isinstance(node, ast.ClassDef)}
    loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    used, known = loaded - own - set(dir(builtins)), _known_imports()
    return "\n".join(f"from {known[name]} import {name}" for name in sorted(used))


def _known_imports() -> dict[str, str]:
    """Return the modules of the names that the sources of the signatures import or define."""
    known = dict.fromkeys(("AsyncIterator", "Awaitable"), "collections.abc")
    for module in dict.fromkeys(base.__module__ for kind in (Client, Job) for base in kind.__mro__[:-1]):
        for node in ast.walk(_module_tree(module)):
            match node:
                case ast.ImportFrom(module=str(source)):
                    known |= {each.name: source for each in node.names}
                case (
                    ast.ClassDef(name=name)
                    | ast.AnnAssign(target=ast.Name(id=name), annotation=ast.Name(id="TypeAlias"))
                ):
                    known[name] = module
                case _:
                    pass
    return known


def _ruff(*arguments: str, text: str) -> str:
    command: list[Any] = [sys.executable, "-m", "ruff", "--quiet", *arguments, "--stdin-filename", "async_client.pyi"]
    return subprocess.run(
        command, input=text, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    ).stdout
