"""The launcher: a small process that starts payloads for its pilot, in namespaces of their own where it is so ordered.

Rules
-----
- The pilot sends one order at a time, with the streams of the payload, and gets the id of a new child of its own:
  the launcher clones with CLONE_PARENT, so that the pilot waits for it, limits and kills it like any other child.
- A payload with a container image gets that image as the root of its mounts: what it sees of the node is what it would
  see without the image, at the places that the order names, and nothing else.
- In namespaces the new child is the init process of the payload: it mounts what the payload may see, starts it, reaps
  its orphans, and writes the payload's wait status to a pipe. Its end is the end of every process in the namespace, and
  the kernel ends it with the pilot. Without namespaces the new child is the payload itself.
- The launcher starts from an empty environment, so that no copy of it has a secret of the pilot.

It runs with the options -I -S: so it imports nothing but the standard library. `spawn` has the pilot's side.
"""

from __future__ import annotations

import ctypes
import errno
import marshal
import os
import resource
import signal
import socket
import struct
from typing import Any, NoReturn

LENGTH = struct.Struct("=I")
"""Precedes an order, with its file descriptors: stdin, stdout, stderr, the pipe of errors, the pipe of the status."""
STARTED = struct.Struct("=ii")
"""The answer: the id of the new child or a negative error number, and the launcher's own peak memory in KiB."""
STATUS = struct.Struct("=i")
"""The wait status of the payload."""
ERROR = struct.Struct("=i")
"""An error number, before the step that failed, on the pipe of errors; nothing is written there after a start."""

EXECUTE = "execute"
"""The step in which the program of the payload is executed: its errors may be the job's fault."""
IMAGE = "image"
"""The step in which a folder is entered that the job names as its image: its errors are the job's fault."""
INVALID = "invalid"
"""The step of a program, argument or environment that no process can get."""

_DESCRIPTORS = 5
_FIRST_FREE = 64
"""The launcher never has a descriptor from this number on."""
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_PTRACE_DETACH = 17


# The kernel ---------------------------------------------------------------------------------------------------------

# Unlike CDLL it keeps Python's lock: a child that is made by clone has no other thread to give it back.
_LIBC = ctypes.PyDLL(None, use_errno=True)
_CLONE = {"x86_64": 56, "aarch64": 220, "ppc64le": 120, "riscv64": 220}
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442
_CLONE_PARENT, _CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID = (
    0x8000,
    0x20000,
    0x8000000,
    0x10000000,
    0x20000000,
)
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC, _MOVE_MOUNT_F_EMPTY_PATH = 1, 0o2000000, 4
_AT_FDCWD, _AT_RECURSIVE, _AT_EMPTY_PATH = -100, 0x8000, 0x1000
_ATTR_RDONLY = 1
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_BIND, _MS_SLAVE = 2, 4, 8, 4096, 1 << 19
_MNT_DETACH = 2


class _MountAttributes(ctypes.Structure):
    """Linux's struct mount_attr."""

    _fields_ = (
        ("set", ctypes.c_uint64),
        ("clear", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("user_namespace", ctypes.c_uint64),
    )


def _call(number: int, *arguments: Any, path: str = "") -> int:
    """Make a system call, about this path; raises OSError."""
    result = int(_LIBC.syscall(number, *(ctypes.c_long(each) if isinstance(each, int) else each for each in arguments)))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path or None)
    return result


def _clone(flags: int) -> int:
    """Fork with these flags; returns 0 in the child. Raises OSError."""
    number = _CLONE.get(os.uname().machine)
    if number is None:
        raise OSError(38, f"unknown machine {os.uname().machine}")
    return _call(number, flags | signal.SIGCHLD, 0, 0, 0, 0)


def _mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    result = _LIBC.mount(
        *(os.fsencode(each) for each in (source, target, kind)), ctypes.c_ulong(flags), options.encode()
    )
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), target)


def _copy_of(path: str) -> int:
    """Return a copy of the mounts at and below `path`, which is mounted nowhere yet."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    return _call(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), flags, path=path)


def _put(copy: int, target: str) -> None:
    """Mount such a copy at `target`."""
    _call(_MOVE_MOUNT, copy, b"", _AT_FDCWD, os.fsencode(target), _MOVE_MOUNT_F_EMPTY_PATH, path=target)
    os.close(copy)


def _make_read_only(descriptor: int, path: str, *, propagation: int = 0) -> None:
    attributes = _MountAttributes(_ATTR_RDONLY, 0, propagation, 0)
    flags = _AT_RECURSIVE | (0 if path else _AT_EMPTY_PATH)
    size = ctypes.sizeof(attributes)
    _call(_MOUNT_SETATTR, descriptor, os.fsencode(path), flags, ctypes.byref(attributes), size, path=path)


# What a payload sees ------------------------------------------------------------------------------------------------

_TEMPORARY = ("/tmp", "/var/tmp")  # noqa: S108 - the payload's own ones are mounted there


def isolate(mounts: dict[str, Any]) -> None:
    """Mount what the payload may see: nothing is writable but its own folders and the site's `writable` paths.

    `own` is the attempt's folder, `temporary` becomes /tmp and /var/tmp, `hidden` are files and folders that become
    empty, `visible` and `writable` are paths that stay below hidden ones. Raises OSError.
    """
    kept = {path: _copy_of(path) for path in [*mounts["visible"], *mounts["writable"], mounts["own"]]}
    for path in mounts["visible"]:
        _make_read_only(kept[path], "")
    temporary = [(_copy_of(mounts["temporary"]), path) for path in _TEMPORARY if os.path.isdir(path)]
    _make_read_only(_AT_FDCWD, "/", propagation=_MS_SLAVE)
    for copy, path in temporary:
        _put(copy, path)
    if os.path.isdir("/dev/shm"):  # noqa: S108 - the payload's own one
        _mount("tmpfs", "/dev/shm", "tmpfs", _MS_NOSUID | _MS_NODEV, f"mode=1777,{mounts['shared_memory']}")  # noqa: S108
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    # A folder comes before what is in it: the last word on a path is that on its nearest folder.
    for path in sorted({*mounts["hidden"], *kept}):
        if path in kept:
            _make_place(path, like=kept[path])
            _put(kept[path], path)
        else:
            _hide(path)


def _hide(path: str) -> None:
    """Cover a folder with an empty one, and a file with an empty one; a path that is not there is left so."""
    if os.path.isdir(path):
        _mount("tmpfs", path, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")
    elif os.path.exists(path):
        _mount("/dev/null", path, "", _MS_BIND)


def _make_place(path: str, *, like: int) -> None:
    """Create a mount point, if what is hidden or temporary has none.

    Folders on the way to it are in memory: the payload's temporary folder gets at most one empty folder by it.
    """
    missing = []
    while not os.path.exists(path):
        missing.append(path)
        path = os.path.dirname(path)
    for number, each in enumerate(reversed(missing), 1):
        if number == len(missing) and not os.path.isdir(f"/proc/self/fd/{like}"):
            os.close(os.open(each, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
            return
        os.mkdir(each, mode=0o755)
        if number == 1 and len(missing) > 1:
            _mount("tmpfs", each, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=755,size=1m")


def open_image(path: str, user: tuple[int, int, tuple[int, ...]] | None) -> int:
    """Return a descriptor of the folder of an image, opened with the rights of this user; raises OSError."""
    if user is not None:
        uid, gid, groups = user
        os.setgroups(groups)
        os.setresgid(-1, gid, -1)
        os.setresuid(-1, uid, -1)
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    finally:
        if user is not None:
            os.setresuid(-1, 0, -1)
            os.setresgid(-1, 0, -1)


def check_no_mounts_below(folder: int) -> None:
    """Raise OSError if this process has mounts in a folder: a layer of an overlay would show what they cover."""
    prefix = os.fsencode(os.readlink(f"/proc/self/fd/{folder}")).rstrip(b"/") + b"/"
    with open("/proc/self/mountinfo", "rb") as mounts:
        # Blanks and backslashes in names are octal escapes.
        places = [line.split(b" ")[4].decode("unicode_escape").encode("latin-1") for line in mounts]
    if any(place.startswith(prefix) and place != prefix for place in places):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))


_BASE = "/tmp"  # noqa: S108 - the payload's own one, which is mounted in the image again
_IMAGE_ROOM = "mode=755,size=64m"
"""What a payload changes of its image is in memory."""


def enter_image(image: int, places: dict[str, str]) -> None:
    """Make the folder `image` the root of this process, with these files and folders of the present root in it.

    `places` are paths of the present root by their paths in the image; those that do not exist are left out. The image
    is the lower layer of an overlay, so that it is not changed and needs no mount points. Raises OSError.
    """
    copies = {place: _copy_of(path) for place, path in places.items() if os.path.exists(path)}
    mask = os.umask(0o022)  # the payload passes the folders that are made here
    _mount("tmpfs", _BASE, "tmpfs", _MS_NOSUID | _MS_NODEV, _IMAGE_ROOM)
    upper, work, root = (f"{_BASE}/{name}" for name in ("upper", "work", "root"))
    for folder in (upper, work, root, f"{upper}/proc"):
        os.mkdir(folder)
    for place, copy in copies.items():
        # In the upper layer it wins over links of the image.
        if os.path.isdir(f"/proc/self/fd/{copy}"):
            os.makedirs(upper + place, exist_ok=True)
        else:
            os.makedirs(os.path.dirname(upper + place), exist_ok=True)
            os.close(os.open(upper + place, os.O_CREAT | os.O_WRONLY | os.O_CLOEXEC))
    os.umask(mask)
    layers = f"lowerdir=/proc/self/fd/{image},upperdir={upper},workdir={work}"
    _mount("overlay", root, "overlay", _MS_NOSUID | _MS_NODEV, layers + ("" if os.geteuid() == 0 else ",userxattr"))
    os.close(image)
    for place in sorted(copies):
        _put(copies[place], root + place)
    _mount("proc", f"{root}/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)
    os.chdir(root)
    _checked(_LIBC.pivot_root(b".", b"."), root)
    _checked(_LIBC.umount2(b".", _MNT_DETACH), root)
    os.chdir("/")


def _checked(result: int, path: str) -> None:
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), path)


def _map_ids(user: int, group: int) -> None:
    """Map these ids to themselves in the new user namespace of this process."""
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(text)


# The processes ------------------------------------------------------------------------------------------------------


class _StepError(Exception):
    """A step to the start of a payload has failed."""


def _step(name: str, error: OSError) -> _StepError:
    where = f" {error.filename}" if error.filename else ""
    return _StepError(error.errno or 0, f"{name}{where}")


def _run_child(order: dict[str, Any], descriptors: list[int], groups: list[int], ids: tuple[int, int]) -> NoReturn:
    """Be the new child of the pilot: init, or the payload itself."""
    *_, errors, status = descriptors
    try:
        os.setsid()
        if order["mounts"] is None:
            _enter(order, groups)
            _execute(order, descriptors)
        try:
            if ids[0]:
                _map_ids(*ids)
            _isolate(order)
        except OSError as error:
            raise _step("isolate", error) from None
        _enter(order, groups)
        # Both are undone by a change of the user.
        _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        _LIBC.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)  # so that the payload cannot look into it
        payload = _spawn(order, descriptors)
        os.closerange(0, status)
        os.closerange(status + 1, _FIRST_FREE)
        _reap(payload, status)
    except _StepError as error:
        number, name = error.args
        os.write(errors, ERROR.pack(number) + name.encode(errors="replace"))
    except BaseException as error:
        os.write(errors, ERROR.pack(0) + repr(error).encode(errors="replace"))
    finally:
        os._exit(1)


def _isolate(order: dict[str, Any]) -> None:
    """Mount what the payload may see, and its image; raises OSError."""
    mounts = order["mounts"]
    image = mounts["image"]
    # The pilot's own copy of an image is below a hidden folder. A folder that a job names is opened as the job sees it.
    opened = open_image(image["path"], None) if image is not None and image["is_own"] else None
    isolate(mounts)
    if opened is not None:
        enter_image(opened, image["places"])
    elif image is not None:
        try:
            opened = open_image(image["path"], order["user"])
            check_no_mounts_below(opened)
            enter_image(opened, image["places"])
        except OSError as error:
            # Not each folder can be an image, such as one with mounts in it.
            raise _StepError(error.errno or 0, f"{IMAGE} {image['path']}") from None


def _reap(payload: int, status: int) -> NoReturn:
    """Be the init process until the payload ends; the kernel then ends the rest of the namespace."""
    while True:
        pid, ended = os.wait()
        if os.WIFSTOPPED(ended):
            _stop_tracing(pid, os.WSTOPSIG(ended))
        elif pid == payload:
            os.write(status, STATUS.pack(ended))
            os._exit(0)


def _stop_tracing(pid: int, number: int) -> None:
    """Let a child go on that a signal has stopped, because it has made init its tracer (PTRACE_TRACEME).

    It gets the signal, but for the one that the kernel sends at an exec only to what is traced.
    """
    delivered = 0 if number == signal.SIGTRAP else number
    _LIBC.ptrace(_PTRACE_DETACH, ctypes.c_long(pid), None, ctypes.c_long(delivered))


def _open_groups(paths: list[str]) -> list[int]:
    """Open the files through which a process joins its control group."""
    opened = []
    for path in paths:
        try:
            opened.append(os.open(path, os.O_WRONLY | os.O_CLOEXEC))
        except OSError:
            continue
    return opened


def _enter(order: dict[str, Any], groups: list[int]) -> None:
    """Take the limits, the control group, the user and the folder of the payload; raises _StepError."""
    try:
        for name, value in order["limits"].items():
            _limit(getattr(resource, name), value)
        if order["nice"]:
            os.setpriority(os.PRIO_PROCESS, 0, _lower(order["nice"]))
        _join(groups)
        if order["user"] is not None:
            _change_user(*order["user"])
        _LIBC.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        os.chdir(order["folder"])
    except OSError as error:
        raise _step("enter", error) from None


def _limit(number: int, value: int) -> None:
    """Lower a limit of this process and its children; a lower one stays."""
    _, hard = resource.getrlimit(number)
    most = value if hard == resource.RLIM_INFINITY else min(value, hard)
    resource.setrlimit(number, (most, most))


_NICEST = 19


def _lower(nice: int) -> int:
    return min(_NICEST, os.getpriority(os.PRIO_PROCESS, 0) + nice)


def _join(groups: list[int]) -> None:
    for group in groups:
        try:
            os.write(group, b"0")
        except OSError:
            # The pilot adds it when it looks at the payload next.
            continue


def _change_user(user: int, group: int, groups: tuple[int, ...]) -> None:
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


_CHANGED_SIGNALS = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT)
"""The signals to which Python gives other handlers than the default ones."""


def _spawn(order: dict[str, Any], descriptors: list[int]) -> int:
    """Return the process of the payload, a child of this init process; raises _StepError.

    Unlike a fork it copies no memory: that saves a quarter of the time of a start.
    """
    actions = [(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(descriptors[:3])]
    try:
        program = order["program"]
        if order["mounts"]["image"] is not None:
            program = _found(program, order["environment"])
        payload = os.posix_spawn(
            program,
            order["arguments"],
            order["environment"],
            file_actions=actions,
            setsid=True,
            setsigmask=[],
            setsigdef=_CHANGED_SIGNALS,
        )
    except OSError as error:
        raise _StepError(error.errno or 0, EXECUTE) from None
    except ValueError as error:
        raise _StepError(0, f"{INVALID} {error}") from None
    _renice_session(str(payload), order["nice"])
    return payload


def _found(program: str, environment: dict[str, str]) -> str:
    """Return the path of a program in the image: a name without a slash is searched in the folders of PATH."""
    if "/" in program:
        return program
    paths = (f"{folder or '.'}/{program}" for folder in environment.get("PATH", "").split(":"))
    return next((path for path in paths if os.access(path, os.X_OK) and os.path.isfile(path)), program)


def _execute(order: dict[str, Any], descriptors: list[int]) -> NoReturn:
    """Become the payload; raises _StepError."""
    _renice_session("self", order["nice"])
    for number in _CHANGED_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for target, source in enumerate(descriptors[:3]):
        os.dup2(source, target)
    try:
        os.execve(order["program"], order["arguments"], order["environment"])  # noqa: S606 - no shell is wanted
    except OSError as error:
        raise _StepError(error.errno or 0, EXECUTE) from None
    except ValueError as error:
        raise _StepError(0, f"{INVALID} {error}") from None


def _renice_session(process: str, nice: int) -> None:
    """Lower the priority of a session: with autogroup scheduling only that counts."""
    if nice:
        try:
            with open(f"/proc/{process}/autogroup", "w") as file:
                file.write(str(os.getpriority(os.PRIO_PROCESS, 0)))
        except OSError:
            return


def _start(order: dict[str, Any], descriptors: list[int]) -> int:
    """Return the id of a new child of the pilot; raises OSError."""
    is_root = os.geteuid() == 0
    ids = (0, 0) if is_root else (os.geteuid(), os.getegid())
    flags = _CLONE_PARENT
    if order["mounts"] is not None:
        flags |= _CLONE_NEWNS | _CLONE_NEWPID | _CLONE_NEWIPC | (0 if is_root else _CLONE_NEWUSER)
    # Opened outside of the namespaces: in them no mount with a file that is open for writing becomes read-only.
    groups = _open_groups(order["groups"])
    try:
        child = _clone(flags)
        if not child:
            _run_child(order, descriptors, groups, ids)
    finally:
        for group in groups:
            os.close(group)
    return child


def main() -> None:
    """Start payloads until the pilot is gone."""
    # Signals to all processes of the pilot's group or batch slot are the pilot's to obey.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    pilot = socket.socket(fileno=os.dup(0))
    while True:
        head, descriptors, _, _ = socket.recv_fds(pilot, LENGTH.size, _DESCRIPTORS)
        if not head:
            return
        for descriptor in descriptors:
            os.set_inheritable(descriptor, False)
        (length,) = LENGTH.unpack(head)
        order = marshal.loads(pilot.recv(length, socket.MSG_WAITALL))  # noqa: S302 - its pilot is trusted
        try:
            child = _start(order, descriptors)
        except OSError as error:
            child = -(error.errno or 1)
        for descriptor in descriptors:
            os.close(descriptor)
        pilot.sendall(STARTED.pack(child, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


if __name__ == "__main__":
    main()
