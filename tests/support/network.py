"""Hosts of a test's own: network namespaces around a router that can cut, refuse, slow and redirect what passes.

The namespaces have no names. Open files and processes keep them, so nothing is left once a test has ended, in whatever
way. Only `ip` and `tc` are used; the kernel's netem, which few minimal kernels have, is not needed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest

from support.debian import find_or_install

_NEW_NETWORK = 0x40000000  # CLONE_NEWNET of sched.h
_THIS_THREADS_NETWORK = "/proc/thread-self/ns/net"
_SLOW = ("tbf", "rate", "64kbit", "burst", "3000", "limit", "12000")
"""A full queue delays by 1.5 s; what does not fit is lost."""

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Host:
    """A host of the network; `namespace` is an open file of this process."""

    name: str
    number: int
    namespace: int

    @property
    def address(self) -> str:
        """The address at which others reach it."""
        return f"10.9.{self.number}.1"

    @property
    def direct_address(self) -> str:
        """A second address, which redirections leave alone."""
        return f"10.9.{self.number}.2"

    @property
    def path(self) -> str:
        """The file of the namespace, for other processes."""
        return f"/proc/{os.getpid()}/fd/{self.namespace}"

    @property
    def _gateway(self) -> str:
        return f"10.9.{self.number}.254"

    @property
    def _link(self) -> str:
        """The name of the router's interface to it."""
        return f"host{self.number}"


class Network:
    """Hosts around one router; the faults are context managers, which heal on exit."""

    def __init__(self) -> None:
        self._ip = find_or_install(lambda: shutil.which("ip"), "iproute2")
        self._tc = find_or_install(lambda: shutil.which("tc"), "iproute2")
        self._files = ExitStack()
        self._priorities = count(100)
        self.hosts: list[Host] = []
        try:
            self._home = self._open(_THIS_THREADS_NETWORK)
            self._router = Host("router", 0, self._new_namespace())
            with self.inside(self._router):  # whose settings this thread now sees
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
        except OSError as error:
            self._files.close()
            message = f"this test needs network namespaces, which only root may create: {error}"
            if os.environ.get("CI") == "true":
                pytest.fail(message, pytrace=False)
            pytest.skip(message)
        except BaseException:
            self._files.close()
            raise

    def close(self) -> None:
        """Leave the namespaces; the kernel removes each with its last process."""
        self._files.close()

    def add_host(self, name: str) -> Host:
        """Return a new host, which reaches all others."""
        host = Host(name, len(self.hosts) + 1, self._new_namespace())
        with self.inside(self._router):
            self._run(self._ip, "link", "add", host._link, "type", "veth", "peer", "name", "eth0", "netns", host.path)
            self._run(self._ip, "address", "add", f"{host._gateway}/24", "dev", host._link)
            self._run(self._ip, "link", "set", host._link, "up")
        with self.inside(host):
            self._run(self._ip, "link", "set", "lo", "up")
            for address in (host.address, host.direct_address):
                self._run(self._ip, "address", "add", f"{address}/24", "dev", "eth0")
            self._run(self._ip, "link", "set", "eth0", "up")
            self._run(self._ip, "route", "add", "default", "via", host._gateway)
        self.hosts.append(host)
        return host

    def impersonate(self, impostor: Host, hosts: list[Host]) -> None:
        """Let a host accept what `redirected` sends to it instead of these hosts."""
        with self.inside(impostor):
            for host in hosts:
                self._run(self._ip, "address", "add", f"{host.address}/32", "dev", "lo")
        with self.inside(self._router):
            self._run(
                self._ip, "route", "add", "default", "via", impostor.address, "table", str(1000 + impostor.number)
            )

    @contextmanager
    def inside(self, host: Host) -> Iterator[None]:
        """Let this thread, and processes that it starts, be on a host until the end of the block."""
        self._enter(host.namespace)
        try:
            yield
        finally:
            self._enter(self._home)

    # Faults -----------------------------------------------------------------------------------------------------

    @contextmanager
    def cut(self, source: Host, target: Host) -> Iterator[None]:
        """Lose all packets from one host to another, but not those back."""
        with self._rule(source.address, target.address, "blackhole"):
            yield

    @contextmanager
    def refused(self, source: Host, target: Host) -> Iterator[None]:
        """Answer all packets from one host to another with an error, as a firewall does."""
        with self._rule(source.address, target.address, "prohibit"):
            yield

    @contextmanager
    def isolated(self, host: Host) -> Iterator[None]:
        """Cut a host off from all others."""
        subnet = f"10.9.{host.number}.0/24"
        with self._rule(subnet, "all", "blackhole"), self._rule("all", subnet, "blackhole"):
            yield

    @contextmanager
    def slow(self, host: Host) -> Iterator[None]:
        """Delay and lose packets to a host: its link has the speed of a modem."""
        with self.inside(self._router):
            self._run(self._tc, "qdisc", "add", "dev", host._link, "root", *_SLOW)
        try:
            yield
        finally:
            with self.inside(self._router):
                self._run(self._tc, "qdisc", "del", "dev", host._link, "root")

    @contextmanager
    def redirected(self, source: Host, target: Host, impostor: Host) -> Iterator[None]:
        """Send what one host sends to another to a third one, which resets open connections."""
        with self._rule(source.address, target.address, "lookup", str(1000 + impostor.number)):
            yield

    @contextmanager
    def _rule(self, source: str, target: str, *action: str) -> Iterator[None]:
        priority = ("priority", str(next(self._priorities)))
        with self.inside(self._router):
            self._run(self._ip, "rule", "add", "from", source, "to", target, *priority, *action)
        try:
            yield
        finally:
            with self.inside(self._router):
                self._run(self._ip, "rule", "del", *priority)

    # Namespaces -------------------------------------------------------------------------------------------------

    def _new_namespace(self) -> int:
        """Make a namespace; a thread does it, since it moves there itself."""
        made: list[int | OSError] = []

        def make() -> None:
            try:
                _check(_libc.unshare(_NEW_NETWORK))
                made.append(os.open(_THIS_THREADS_NETWORK, os.O_RDONLY | os.O_CLOEXEC))
            except OSError as error:
                made.append(error)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        (namespace,) = made
        if isinstance(namespace, OSError):
            raise namespace
        self._files.callback(os.close, namespace)
        return namespace

    def _open(self, path: str) -> int:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self._files.callback(os.close, file)
        return file

    def _enter(self, namespace: int) -> None:
        _check(_libc.setns(namespace, _NEW_NETWORK))

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(f"{' '.join((program, *arguments))}: {done.stderr.strip()}")


def _check(result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
