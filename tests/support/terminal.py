"""A terminal of a given size, in which a test runs a command."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from pilotage.clock import boot_time_s

_TIMEOUT_S = 60.0
_CONTROL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class TerminalCommand:
    """A command that runs in a terminal."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int) -> None:
        self._process = process
        self._terminal = terminal
        self.printed = ""

    @property
    def text(self) -> str:
        """What was printed, without colours and movements of the cursor."""
        return _CONTROL.sub("", self.printed).replace("\r", "")

    def until(self, happened: Callable[[str], bool]) -> str:
        """Read until `happened` is true of the text; returns the text, fails at the end or after a timeout."""
        give_up_s = boot_time_s() + _TIMEOUT_S
        while not happened(self.text):
            assert self._read(), self.text
            assert boot_time_s() < give_up_s, self.text
        return self.text

    def interrupt(self) -> None:
        """Press Ctrl-C."""
        self._process.send_signal(signal.SIGINT)

    def press(self, keys: str) -> None:
        """Type these keys."""
        os.write(self._terminal, keys.encode())

    def end(self) -> int:
        """Read to the end; returns the exit code."""
        while self._read():
            pass
        return self._process.wait(_TIMEOUT_S)

    def _read(self) -> bool:
        """Read what comes next; returns whether there may be more."""
        ready, _, _ = select.select([self._terminal], [], [], _TIMEOUT_S)
        assert ready, f"nothing was printed after {self.text}"
        try:
            piece = os.read(self._terminal, 65_536)
        except OSError:  # the other end is closed
            return False
        self.printed += piece.decode(errors="replace")
        return bool(piece)


@contextmanager
def in_terminal(
    command: Sequence[str], environment: Mapping[str, str], width: int, height: int = 24
) -> Iterator[TerminalCommand]:
    """Run a command in a terminal of this size; it is killed at the end of the block."""
    terminal, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
    variables = {"TERM": "xterm-256color", "LANG": "C.UTF-8", **environment}
    with subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, env=variables) as process:
        os.close(inner)
        try:
            yield TerminalCommand(process, terminal)
        finally:
            process.kill()
            os.close(terminal)
