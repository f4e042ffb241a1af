"""The public keys of an outside issuer: read over HTTPS in the background, and kept in a file.

Rules
-----
- A call never waits for the issuer. A token with an unknown key makes the next reading due, which happens at most once
  in `unknown_key_every_s`.
- The keys are in a file, so that a server verifies while the issuer is away, after a restart too. They are dropped
  when they could not be read for `keys_kept_s`.
- The metadata are kept too, but not in the file: what they name is of use only while the issuer answers.
- A key is used with one algorithm. Keys that are no signature keys of an accepted algorithm are left out.

Sources: OpenID Connect Discovery 1.0, sections 3 and 4; RFC 7517 (JSON Web Key); RFC 7518, section 3.3 (RSA keys).
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import jwt
import structlog

from pilotage.clock import BootClock, Clock
from pilotage.errors import PilotageError, UnauthenticatedError, WorldError
from pilotage_server.rpc.framework.issuer_answers import IssuerReader
from pilotage_server.rpc.framework.key_files import write_private
from pilotage_server.rpc.framework.tokens import VerificationKey
from pilotage_server.settings import IssuerSetting

log = structlog.get_logger()

MAX_KEYS = 100
"""More keys of an issuer are refused."""

_METADATA = "/.well-known/openid-configuration"
_LEAST_RSA_BITS = 2048
_BY_CURVE = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512", "Ed25519": "EdDSA"}

Jwk = Mapping[str, Any]


class IssuerKeys:
    """The present keys of one issuer. `find` may be called in any thread, `refresh_if_due` in one at a time."""

    def __init__(self, issuer: IssuerSetting, file: Path, clock: Clock, boot_clock: BootClock) -> None:
        self._issuer = issuer
        self._file = file
        self._clock = clock
        self._boot_clock = boot_clock
        self.metadata: Mapping[str, Any] = {}
        """What the issuer says of itself, such as its addresses; {} = it was not read since the start."""
        self._keys: Mapping[str | None, VerificationKey] = {}
        self._texts: Mapping[str | None, Jwk] = {}
        self._read: datetime | None = None
        self._tried_s = self._read_s = self._due_s = float("-inf")
        self._is_wanted = False
        self._load()

    def find(self, kid: str | None) -> VerificationKey:
        """Return the key of this id.

        Raises
        ------
        UnauthenticatedError
            The issuer has no such key.
        WorldError
            The keys are about to be read again, because this one is not known yet.
        """
        found = self._keys.get(kid)
        if found is not None:
            return found
        age_s = self._boot_clock() - self._read_s
        if age_s < self._issuer.unknown_key_every_s:
            seen = f"its keys were read {age_s:.0f} s ago"
            raise UnauthenticatedError(f"the token's key {kid!r} is none of the issuer {self._issuer.url}: {seen}")
        self._is_wanted = True
        raise WorldError(
            f"the token's key {kid!r} is not known yet: the keys of {self._issuer.url} are being read", transient=True
        )

    def refresh_if_due(self) -> None:
        """Read the keys if it is time; a failure is logged, and the present keys stay while they may be used."""
        now_s = self._boot_clock()
        may_try = now_s - self._tried_s >= self._issuer.unknown_key_every_s
        if may_try and (self._is_wanted or now_s >= self._due_s):
            self._tried_s = now_s
            self._refresh(now_s)
        kept = timedelta(seconds=self._issuer.keys_kept_s)
        if self._read is not None and self._clock() - self._read > kept:
            log.error("keys of an issuer are too old", issuer=self._issuer.url, read=self._read.isoformat())
            self._keys, self._texts, self._read = {}, {}, None

    def _refresh(self, now_s: float) -> None:
        try:
            metadata, jwks = _read(self._issuer, self._boot_clock)
            self._use(jwks)
        except PilotageError as error:
            log.warning("keys of an issuer are not read", issuer=self._issuer.url, why=str(error))
            return  # the next try follows after the least interval
        self.metadata = metadata
        self._read, self._read_s, self._is_wanted = self._clock(), now_s, False
        self._due_s = now_s + self._issuer.keys_every_s
        self._store()

    def _use(self, jwks: Sequence[Jwk]) -> None:
        """Replace the keys. A key that stays keeps its object, so that its tokens stay cached."""
        texts = {jwk.get("kid"): jwk for jwk in jwks}
        keys: dict[str | None, VerificationKey] = {}
        for kid, jwk in texts.items():
            known = self._keys.get(kid) if self._texts.get(kid) == jwk else None
            key = known or _verification_key(jwk, self._issuer.algorithms)
            if key is not None:
                keys[kid] = key
        if not keys:
            accepted = ", ".join(self._issuer.algorithms)
            raise WorldError(f"none of its {len(jwks)} keys is a signature key for {accepted}", transient=True)
        if keys.keys() != self._keys.keys():
            log.info("keys of an issuer changed", issuer=self._issuer.url, keys=sorted(map(str, keys)))
        self._keys, self._texts = keys, texts

    def _load(self) -> None:
        """Use the keys in the file; a file that cannot be used is ignored, as the keys are read anyway."""
        try:
            stored = json.loads(self._file.read_bytes())
            if stored["issuer"] == self._issuer.url:
                read = datetime.fromisoformat(stored["read"])
                self._use(_jwks_of({"keys": stored["keys"]}))
                self._read = read
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, PilotageError) as error:
            log.warning("file of an issuer's keys is not used", path=str(self._file), why=str(error))

    def _store(self) -> None:
        assert self._read is not None, "keys that are stored were read"
        stored = {"issuer": self._issuer.url, "read": self._read.isoformat(), "keys": list(self._texts.values())}
        try:
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            draft = self._file.with_name(f".{self._file.name}.{secrets.token_hex(4)}")
            write_private(draft, json.dumps(stored).encode())
            draft.replace(self._file)
        except OSError as error:
            log.warning("keys of an issuer are not stored", path=str(self._file), why=str(error))


def _verification_key(jwk: Jwk, accepted: Sequence[str]) -> VerificationKey | None:
    """Return a public signature key with its algorithm; None = it is none, or not of an accepted algorithm."""
    algorithm = _algorithm_of(jwk, accepted)
    if algorithm not in accepted or jwk.get("use", "sig") != "sig" or "d" in jwk:
        return None
    try:
        key = jwt.PyJWK(dict(jwk), algorithm).key
    except (jwt.PyJWTError, ValueError, TypeError, KeyError):
        return None
    if jwk["kty"] == "RSA" and key.key_size < _LEAST_RSA_BITS:
        return None
    return VerificationKey(key, algorithm)


def _algorithm_of(jwk: Jwk, accepted: Sequence[str]) -> str:
    """Return the one algorithm of a key, "" = none. An RSA key that names none has the first accepted one for RSA."""
    named = jwk.get("alg")
    match jwk.get("kty"):
        case "RSA":
            for_rsa = [each for each in accepted if each.startswith(("RS", "PS"))]
            fitting = [each for each in for_rsa if named in (None, each)]
            return fitting[0] if fitting else ""
        case "EC" | "OKP":
            by_curve = _BY_CURVE.get(str(jwk.get("crv")), "")
            return by_curve if named in (None, by_curve) else ""
        case _:
            return ""


def _read(issuer: IssuerSetting, boot_clock: BootClock) -> tuple[Mapping[str, Any], Sequence[Jwk]]:
    """Return the metadata and the keys that the issuer publishes now; raises WorldError."""
    reader = IssuerReader(issuer, boot_clock)
    metadata = reader.get(issuer.url.rstrip("/") + _METADATA)
    if metadata.get("issuer") != issuer.url:
        raise WorldError(f"its metadata are those of another issuer, {metadata.get('issuer')!r}", transient=True)
    return metadata, _jwks_of(reader.get(str(metadata.get("jwks_uri"))))


def _jwks_of(answer: Mapping[str, Any]) -> tuple[Jwk, ...]:
    found = answer.get("keys")
    if not isinstance(found, list) or not all(isinstance(jwk, dict) for jwk in found):
        raise WorldError("its key set is not an object with a list of keys", transient=True)
    if len(found) > MAX_KEYS:
        raise WorldError(f"its key set has {len(found)} keys, more than {MAX_KEYS}", transient=True)
    return tuple(jwk for jwk in found if isinstance(jwk.get("kid"), str | None))
