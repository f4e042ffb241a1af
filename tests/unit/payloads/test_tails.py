"""The end of a growing file, piece by piece, and the bounded tail that a server keeps of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pilotage_pilot.supervise.tails import FIRST_BYTES, PIECE_BYTES, FileTail
from pilotage_server.core.attempts.tails import MAX_TAIL_BYTES, TailContent


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "stdout"


def _next(tail: FileTail) -> tuple[int, bytes]:
    offset, content = tail.read()
    tail.advance(len(content))
    return offset, content


def test_file_is_read_from_its_last_part_on(file: Path) -> None:
    file.write_bytes(b"a" * 100 + b"b" * FIRST_BYTES)
    tail = FileTail(file)
    assert _next(tail) == (100, b"b" * FIRST_BYTES)
    assert _next(tail) == (100 + FIRST_BYTES, b"")
    with file.open("ab") as growing:
        growing.write(b"more")
    assert tail.read() == tail.read() == (100 + FIRST_BYTES, b"more"), "a piece stays the next one until it is sent"


def test_fast_file_is_skipped_to_its_newest_part(file: Path) -> None:
    file.write_bytes(b"first")
    tail = FileTail(file)
    _next(tail)
    file.write_bytes(b"first" + b"a" * 10 + b"b" * PIECE_BYTES)
    assert _next(tail) == (15, b"b" * PIECE_BYTES)


def test_position_never_goes_back_when_file_is_cut(file: Path) -> None:
    file.write_bytes(b"0123456789")
    tail = FileTail(file)
    _next(tail)
    file.write_bytes(b"012")
    assert _next(tail) == (10, b"")
    file.write_bytes(b"012new")
    assert _next(tail) == (10, b"new")


def test_links_and_pipes_are_not_read(file: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    file.symlink_to(tmp_path / "secret")
    assert _next(FileTail(file)) == (0, b"")
    assert _next(FileTail(tmp_path / "gone")) == (0, b"")
    assert _next(FileTail(None)) == (0, b"")


@pytest.mark.parametrize(
    ("offset", "piece", "tail"),
    [
        (14, b"ef", TailContent(10, b"abcdef")),
        (10, b"abcd", TailContent(10, b"abcd")),
        (12, b"cdef", TailContent(10, b"abcdef")),
        (20, b"xy", TailContent(20, b"xy")),
        (14, b"", TailContent(10, b"abcd")),
    ],
)
def test_piece_joins_tail_at_its_position(offset: int, piece: bytes, tail: TailContent) -> None:
    assert TailContent(10, b"abcd").with_piece(offset, piece) == tail


def test_tail_is_bounded() -> None:
    tail = TailContent(0, b"a" * MAX_TAIL_BYTES).with_piece(MAX_TAIL_BYTES, b"bcd")
    assert (tail.start, len(tail.content), tail.content[-4:]) == (3, MAX_TAIL_BYTES, b"abcd")
