"""The server's signing keys: a set of private files, of which every key verifies and the newest due one signs.

Rules
-----
- The set is the file `tokens.pem` (the setting `signing_key`) and the files `tokens.TIME.pem` beside it. TIME is the
  time in UTC from which that key signs, so that a copied file keeps it. `tokens.pem` signs until a later key is due.
- A key id is derived from the public key, so that copies of a key on several servers have the same id.
- A new key verifies from its creation and signs later. All servers have read it by then.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from glob import escape as glob_escape
from hashlib import sha256
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from pilotage.errors import NotFoundError, WorldError

_TIME = "%Y%m%dT%H%M%SZ"
_NAMED_TIME = re.compile(r"\.(\d{8}T\d{6}Z)$", re.ASCII)
_ALWAYS = datetime.min.replace(tzinfo=UTC)


def key_id(key: Ed25519PublicKey) -> str:
    """Return the id of a key: the first 16 hexadecimal digits of the digest of its public part."""
    return sha256(key.public_bytes_raw()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A key of the set and its id; it signs from `signs_from` until a later key is due.

    `path` = its file, None = it has none.
    """

    private: Ed25519PrivateKey = field(compare=False, repr=False)
    kid: str
    signs_from: datetime = _ALWAYS
    path: Path | None = None


def signing_key(private: Ed25519PrivateKey, signs_from: datetime = _ALWAYS, path: Path | None = None) -> SigningKey:
    """Return a key with its id."""
    return SigningKey(private, key_id(private.public_key()), signs_from, path)


def key_times(keys: Iterable[SigningKey]) -> dict[str, datetime]:
    """Return the ids of keys with the times from which they sign."""
    return {key.kid: key.signs_from for key in keys}


class KeySet:
    """The present keys. `replace` changes all of them at once, in any thread."""

    def __init__(self, keys: Iterable[SigningKey]) -> None:
        self._keys: tuple[SigningKey, ...] = ()
        self.replace(keys)

    def replace(self, keys: Iterable[SigningKey]) -> bool:
        """Set the keys; return whether they have changed. A set without a key is an error of the caller."""
        ordered = sorted(keys, key=lambda key: (key.signs_from, key.kid))
        assert ordered, "a key set has a key"
        known = {key.kid: key for key in self._keys}  # a key that stays keeps its object, which caches compare
        kept = tuple(known[key.kid] if known.get(key.kid) == key else key for key in ordered)
        if kept == self._keys:
            return False
        self._keys = kept
        return True

    def signing(self, now: datetime) -> SigningKey:
        """Return the key that signs: the latest one that is due, else the earliest."""
        due = [key for key in self._keys if key.signs_from <= now]
        return due[-1] if due else self._keys[0]

    def all(self) -> tuple[SigningKey, ...]:
        """Return the keys, the earliest first."""
        return self._keys


@dataclass(frozen=True, slots=True)
class KeyFiles:
    """The files of a key set; `first` is the path of the key of the first start."""

    first: Path

    def load(self) -> tuple[SigningKey, ...]:
        """Return the keys; () = there are none.

        Raises WorldError if a file cannot be read, holds no Ed25519 key, or is readable by others.
        """
        with _translated(self.first):
            beside = self.first.parent.glob(f"{glob_escape(self.first.stem)}.*{glob_escape(self.first.suffix)}")
            later = [path for path in beside if _NAMED_TIME.search(path.stem)]
            paths = [*([self.first] if self.first.exists() else []), *sorted(later)]
        return tuple({key.kid: key for key in map(self._load, paths)}.values())

    def load_or_make(self) -> tuple[SigningKey, ...]:
        """Return the keys; the first call creates one. Raises as `load`, and if no key can be created."""
        keys = self.load()
        if not keys:
            with _translated(self.first):
                _make_key(self.first)
            keys = self.load()
        return keys

    def add(self, signs_from: datetime) -> SigningKey:
        """Create a key that signs from this time. Raises as `load`."""
        path = self.first.with_name(f"{self.first.stem}.{signs_from:{_TIME}}{self.first.suffix}")
        with _translated(path):
            _make_key(path)
        return self._load(path)

    def remove(self, kid: str) -> SigningKey:
        """Remove a key and return it; raises NotFoundError for an unknown one."""
        found = next((key for key in self.load() if key.kid == kid), None)
        if found is None or found.path is None:
            raise NotFoundError("signing key", kid)
        with _translated(found.path):
            found.path.unlink()
        return found

    def _load(self, path: Path) -> SigningKey:
        with _translated(path):
            private = _read_key(path)
        return signing_key(private, _signs_from(path), path)


def _signs_from(path: Path) -> datetime:
    written = _NAMED_TIME.search(path.stem)
    if written is None:
        return _ALWAYS
    try:
        return datetime.strptime(written[1], _TIME).replace(tzinfo=UTC)
    except ValueError as error:
        raise WorldError(f"the signing key {path} has no valid time in its name", transient=False) from error


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn an OSError of the block into a WorldError that names the key's file."""
    try:
        yield
    except OSError as error:
        raise WorldError(f"the signing key {path} cannot be used: {error.strerror}", transient=False) from error


def _make_key(path: Path) -> None:
    pem = Ed25519PrivateKey.generate().private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    write_private(draft, pem)
    try:
        os.link(draft, path)  # unlike a rename, this never replaces the key of a process that was faster
    except FileExistsError:
        pass
    finally:
        draft.unlink()


def write_private(path: Path, content: bytes) -> None:
    """Write a new file that only its owner may read, and sync it to disk."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _read_key(path: Path) -> Ed25519PrivateKey:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & 0o077:
        message = f"the signing key {path} is open to others (mode {mode:o}); chmod 600, or remove it to get a new one"
        raise WorldError(message, transient=False)
    try:
        key = load_pem_private_key(path.read_bytes(), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise WorldError(f"{path} holds no private key in PEM form: {error}", transient=False) from error
    if not isinstance(key, Ed25519PrivateKey):
        raise WorldError(f"{path} holds a key of another type than Ed25519", transient=False)
    return key
