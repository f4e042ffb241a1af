"""Tutorials as tests: every command of a page runs in the order of the page, and prints what the page shows.

A page has two kinds of code blocks with a caption:

- `console`, with the name of a terminal as its caption: commands after `$ `, each with the output below it;
- any other language, with the name of a file as its caption: its content, which is saved on every machine.

In an output `…` stands for any text of a line, and a line with nothing else for any number of lines. Times, durations
and IP addresses may differ, and so may the width of white space. Commands with a `…` or an address, and addresses in
files, are copied from an earlier output, as the reader does.

A command has to end with exit code 0, or N with `# exit code N` behind it, before anything else happens. Only the last
one of a terminal may go on until the end of the page, if its output ends with a line `…`; Ctrl-C then ends it.
"""

from __future__ import annotations

import os
import re
import selectors
import signal
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from pilotage import clock
from support.machines import Machine

TIMEOUT_S = 60.0
_BLOCK = re.compile(r"^```\{code-block\} (\w+)\n:caption: ([^\n]+)\n\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DIRECTIVE = re.compile(r"^```\{(?:toctree|diagram)\}.*?^```$", re.MULTILINE | re.DOTALL)
_TOKENS = re.compile(
    r"(?P<any>…)|(?P<space>[ \t]+)|(?P<address>\d+\.\d+\.\d+\.\d+)|(?P<time>\d\d-\d\d \d\d:\d\d:\d\d|\d+\.\d s\b)"
)
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+:\d+")
_MARK = "the command ended with"


class ShownCommand(NamedTuple):
    """A command of a page with its terminal, the output that the page shows, and the exit code."""

    terminal: str
    text: str
    output: str
    exit_code: int


class ShownFile(NamedTuple):
    """A file of a page."""

    name: str
    content: str


def steps_of(page: str) -> Iterator[ShownCommand | ShownFile]:
    """Yield the steps of a page; raises ValueError for a code block that is none."""
    rest = _DIRECTIVE.sub("", _BLOCK.sub("", page))
    if stray := re.search(r"^(```|    ).*", rest, re.MULTILINE):
        raise ValueError(f"a code block without a caption: {stray[0]}")
    for language, caption, content in _BLOCK.findall(page):
        if language == "console":
            yield from _commands(caption, content)
        else:
            yield ShownFile(caption, content)


def _commands(terminal: str, content: str) -> Iterator[ShownCommand]:
    first, *commands = re.split(r"^\$ ", content, flags=re.MULTILINE)
    if first.strip():
        raise ValueError(f"output before the first command: {first.strip()}")
    for command in commands:
        text, _, output = command.partition("\n")
        while text.endswith("\\"):
            more, _, output = output.partition("\n")
            text = f"{text[:-1].rstrip()} {more.strip()}"
        code = re.search(r"# exit code (\d+)$", text)
        yield ShownCommand(terminal, text, output.strip("\n"), int(code[1]) if code else 0)


def pattern_of(shown: str, gap: str = r".*") -> str:
    """Return the regular expression for a text of a page; `gap` stands for `…`."""
    lines = [_pattern_of_line(line, gap) for line in shown.splitlines()]
    return "".join(r"(?:.*\n)*?" if line is None else f"{line}[ \t]*\n" for line in lines)


def _pattern_of_line(line: str, gap: str) -> str | None:
    if line.strip() == "…":
        return None
    parts, end = [], 0
    for token in _TOKENS.finditer(line):
        parts.append(re.escape(line[end : token.start()]))
        parts.append(
            {"any": gap, "space": r"[ \t]+", "address": r"\d+\.\d+\.\d+\.\d+", "time": r"[-\d: .s]+"}[
                token.lastgroup or ""
            ]
        )
        end = token.end()
    return "".join([*parts, re.escape(line[end:])])


class Terminal:
    """A shell on a machine, whose commands run one after the other."""

    def __init__(self, machine: Machine, environment: Mapping[str, str]) -> None:
        self._shell = machine.start(
            *("bash", "--noprofile", "--norc"),
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._printed = ""
        self._goes_on: ShownCommand | None = None

    def run(self, command: ShownCommand, text: str) -> str:
        """Run a command to its end; returns its output, which has to be the one that the page shows."""
        self._enter(text)
        printed, code = self._until_ended(command)
        assert code == command.exit_code, f"{text}\nended with {code}:\n{printed}"
        assert re.fullmatch(pattern_of(command.output), printed), f"{text}\nprinted:\n{printed}\nnot:\n{command.output}"
        return printed

    def begin(self, command: ShownCommand, text: str) -> str:
        """Start a command, and return its output once that begins as the page shows."""
        self._enter(text)
        self._goes_on = command
        wanted = re.compile(pattern_of(command.output))
        self._until(lambda: wanted.match(self._printed) is not None, command)
        return self._printed

    def close(self) -> None:
        """Press Ctrl-C, which has to end a command that goes on with exit code 0."""
        assert self._shell.stdin is not None
        if self._goes_on is not None:
            os.killpg(self._shell.pid, signal.SIGINT)
            _, code = self._until_ended(self._goes_on)
            assert code == 0, self._printed
        self._shell.stdin.close()

    def kill(self) -> None:
        """Kill the shell and all that runs in it."""
        with self._shell:  # closes the pipes
            if self._shell.poll() is None:
                os.killpg(self._shell.pid, signal.SIGKILL)

    def _enter(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(f"trap : INT; {{ {text}\n}} </dev/null; printf '{_MARK} %s\\n' $?\n".encode())
        self._shell.stdin.flush()

    def _until_ended(self, command: ShownCommand) -> tuple[str, int]:
        ended = re.compile(rf"{_MARK} (\d+)\n")
        self._until(lambda: ended.search(self._printed) is not None, command)
        printed, code, self._printed = ended.split(self._printed, maxsplit=1)
        return printed, int(code)

    def _until(self, happened: Callable[[], bool], command: ShownCommand) -> None:
        assert self._shell.stdout is not None
        give_up_s = clock.boot_time_s() + TIMEOUT_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._shell.stdout, selectors.EVENT_READ)
            while not happened():
                waited = selector.select(max(0.0, give_up_s - clock.boot_time_s()))
                more = os.read(self._shell.stdout.fileno(), 65536) if waited else b""
                if not more and not happened():
                    why = "did not end, or not print this" if not waited else "ended before it printed this"
                    raise AssertionError(f"{command.text} {why}:\n{command.output}\nbut:\n{self._printed}")
                self._printed += more.decode()


def run_tutorial(page: Path, machines: Mapping[str, Machine], **environment: str) -> None:
    """Run a page on machines, which are given by the names of the terminals; raises AssertionError where it differs."""
    steps = list(steps_of(page.read_text()))
    last = {step.terminal: step for step in steps if isinstance(step, ShownCommand)}
    terminals: dict[str, Terminal] = {}
    printed: list[str] = []
    with ExitStack() as stack:
        for step in steps:
            if isinstance(step, ShownFile):
                content = _ADDRESS.sub(lambda found: completed(found[0], printed), step.content)
                for machine in machines.values():
                    (machine.home / step.name).write_text(content)
                continue
            if step.terminal not in terminals:
                terminals[step.terminal] = Terminal(machines[step.terminal], environment)
                stack.callback(terminals[step.terminal].kill)
            terminal, text = terminals[step.terminal], completed(step.text, printed)
            goes_on = last[step.terminal] is step and step.output.endswith("\n…")
            printed.append(terminal.begin(step, text) if goes_on else terminal.run(step, text))
        for name in reversed(terminals):
            terminals[name].close()


def completed(text: str, printed: Iterable[str]) -> str:
    """Return a command with what it is copied from, the last output that has it, in the place of `…` and addresses."""
    if "…" not in text and not re.search(r"\d+\.\d+\.\d+\.\d+", text):
        return text
    found = [match[0] for output in printed for match in re.finditer(pattern_of(text, r"\S+").rstrip("\n"), output)]
    assert found, f"no output has the command {text}"
    return found[-1]
