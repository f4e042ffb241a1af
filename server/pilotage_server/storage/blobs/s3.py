"""Contents of files by checksum, stored as objects of an S3-compatible store: PREFIX/ab/abcdef….

Rules
-----
- A content is one PUT or one multipart upload to its final key, which appears when it is complete. Its checksum is
  verified before that; each request carries the SHA-256 of its part, which the store verifies.
- A part of an upload waits in a temporary file, so that memory does not grow with the number of uploads.
- The time of a content is that of its last PUT. An upload writes an existing content again, which renews it.
- Clocks of the store and of the database may differ by minutes, as retention counts hours.
"""

from __future__ import annotations

import hashlib
import tempfile
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import botocore.session
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, SSLError

from pilotage.clock import BootClock, boot_time_s
from pilotage.errors import NotFoundError, WorldError
from pilotage.jobs.file_names import is_checksum
from pilotage_server.storage.blobs.base import PIECE_BYTES, ContentCheck, check_size, store_whole

PART_BYTES = 16 * 1024 * 1024
"""Larger contents are sent in parts of this size; S3 takes 5 MiB and more."""

MAX_PARTS = 10_000
"""The limit of S3; the parts of a content that is larger than 160 GB are larger."""

CONNECT_S, ANSWER_S, ATTEMPTS = 5, 20, 3
"""Bounds of a request: to connect, silence before an answer, and attempts with back-off in between."""

CONNECTIONS = 64
"""Connections that are kept; each thread of the server uses one at most."""

PUT_AGAIN_AFTER_S = 300.0
"""A small content is put again by this server only after this time: most jobs write the same empty output."""

AGE_MARGIN = timedelta(minutes=10)
"""Contents are removed when they are older than demanded by this time: their last PUT may not have been sent."""

_REMEMBERED_PUTS = 10_000
_ID = "store-id"
_WRITE_CHECK = "write-check"

_REASONS = {
    "NoSuchBucket": "there is no such bucket; correct `files`, or create it",
    "InvalidAccessKeyId": "the store does not know the access key; correct s3_access_key",
    "SignatureDoesNotMatch": "the secret key does not belong to the access key; correct s3_secret_key",
    "AccessDenied": "the access key may not do that; it needs to list, read, write and delete objects of the bucket",
    "PermanentRedirect": "the bucket is in another region; correct s3_region",
    "AuthorizationHeaderMalformed": "the store expects another region; correct s3_region",
    "RequestTimeTooSkewed": "the clocks of this machine and of the store differ; correct the one that is wrong",
}


@dataclass(frozen=True, slots=True)
class S3Access:
    """How to reach the store; None = as the environment of AWS says (AWS_* variables, ~/.aws, roles of the machine)."""

    endpoint: str | None = None
    region: str | None = None
    access_key: str | None = None
    secret_key: str | None = None


class S3Store:
    """A bucket, or the part of it below a prefix. Several servers may share it.

    Raises WorldError if the bucket cannot be listed and written now.
    """

    def __init__(
        self, bucket: str, prefix: str, max_file_bytes: int, access: S3Access, boot_clock: BootClock = boot_time_s
    ) -> None:
        self.bucket = bucket
        self._prefix = f"{prefix}/" if prefix else ""
        self._url = f"s3://{bucket}/{prefix}".rstrip("/")
        self._max_file_bytes = max_file_bytes
        self._boot_clock = boot_clock
        self._changed = threading.Condition()
        self._writing: Counter[str] = Counter()
        self._removing: set[str] = set()
        self._put_at_s: OrderedDict[str, float] = OrderedDict()
        with self.translated_errors():
            self.client = _client(access)
        self.check()
        with self.translated_errors():  # leaves nothing behind
            key = self._prefix + _WRITE_CHECK
            begun = self.client.create_multipart_upload(Bucket=bucket, Key=key)
            self.client.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=begun["UploadId"])

    def check(self) -> None:
        """Raise WorldError if the bucket cannot be listed."""
        with self.translated_errors():
            self.client.list_objects_v2(Bucket=self.bucket, Prefix=self._prefix, MaxKeys=1)

    def id(self) -> str | None:
        """Return the id of the store; None = it has none yet."""
        with self.translated_errors():
            try:
                found = self.client.get_object(Bucket=self.bucket, Key=self._prefix + _ID)
            except ClientError as error:
                if _code(error) == "NoSuchKey":
                    return None
                raise
            with closing(found["Body"]) as body:
                return str(body.read().decode("ascii")).strip() or None

    def set_id(self, id_: str) -> str:
        """Give the store an id if it has none; return the id that it has."""
        with self.translated_errors():
            try:
                self.client.put_object(
                    Bucket=self.bucket, Key=self._prefix + _ID, Body=f"{id_}\n".encode(), IfNoneMatch="*"
                )
            except ClientError as error:  # another server was faster
                if _code(error) not in {"PreconditionFailed", "ConditionalRequestConflict"}:
                    raise
        return self.id() or id_

    def begin(self, checksum: str, size: int) -> S3Upload:
        """Start to take a content in; raises InvalidInputError where it is too large or no checksum."""
        check = ContentCheck(checksum, size)
        self.check_size(size)
        with self.translated_errors():
            return S3Upload(self, checksum, check, max(PART_BYTES, -(-size // MAX_PARTS)))

    def check_size(self, size: int) -> None:
        """Raise InvalidInputError for a content of a size that is not taken."""
        check_size(size, self._max_file_bytes)

    def put(self, content: bytes) -> str:
        """Keep a small content and return its checksum."""
        checksum = hashlib.sha256(content).hexdigest()
        now_s = self._boot_clock()
        with self._changed:
            put_at_s = self._put_at_s.get(checksum)
        if put_at_s is None or now_s - put_at_s >= PUT_AGAIN_AFTER_S:
            store_whole(self, checksum, len(content), iter([content]))
            with self._changed:
                self._put_at_s[checksum] = now_s
                self._put_at_s.move_to_end(checksum)
                if len(self._put_at_s) > _REMEMBERED_PUTS:
                    self._put_at_s.popitem(last=False)
        return checksum

    def has(self, checksum: str) -> bool:
        """Return whether the content is there."""
        return self._put_time(checksum) is not None

    def read(self, checksum: str, offset: int = 0) -> Iterator[bytes]:
        """Return the content from a byte on in pieces; raises NotFoundError where it is not there."""
        part = {"Range": f"bytes={offset}-"} if offset else {}
        with self.translated_errors():
            try:
                found = self.client.get_object(Bucket=self.bucket, Key=self.key_of(checksum), **part)
            except ClientError as error:
                if _code(error) == "NoSuchKey":
                    raise NotFoundError("content", checksum) from None
                if _code(error) == "InvalidRange":  # it ends before
                    return iter(())
                raise

        def pieces() -> Iterator[bytes]:
            with closing(found["Body"]) as body, self.translated_errors():
                while piece := body.read(PIECE_BYTES):  # raises where the connection ends before the content
                    yield piece

        return pieces()

    def list(self, prefix: str, before: datetime) -> Iterator[str]:
        """Yield the checksums that begin with two hex digits and have not been put since `before`."""
        pages = self.client.get_paginator("list_objects_v2")
        with self.translated_errors():
            for page in pages.paginate(Bucket=self.bucket, Prefix=f"{self._prefix}{prefix}/"):
                for each in page.get("Contents", ()):
                    name = each["Key"].rpartition("/")[2]
                    if is_checksum(name) and each["LastModified"] < before - AGE_MARGIN:
                        yield name

    def remove(self, checksum: str, before: datetime) -> bool:
        """Remove a content unless it was put again since `before`; return whether it is gone.

        Only a PUT by another server between the two requests of this method goes unnoticed.
        """
        with self._changed:
            if self._writing[checksum]:
                return False
            self._removing.add(checksum)
            self._put_at_s.pop(checksum, None)
        try:
            put_at = self._put_time(checksum)
            if put_at is None:
                return True
            if put_at >= before - AGE_MARGIN:
                return False
            with self.translated_errors():
                self.client.delete_object(Bucket=self.bucket, Key=self.key_of(checksum))
            return True
        finally:
            with self._changed:
                self._removing.discard(checksum)
                self._changed.notify_all()

    def sweep_unfinished(self, before: datetime) -> int:
        """Abort multipart uploads that were begun earlier and never ended; return how many."""
        removed = 0
        pages = self.client.get_paginator("list_multipart_uploads")
        with self.translated_errors():
            for page in pages.paginate(Bucket=self.bucket, Prefix=self._prefix):
                for each in page.get("Uploads", ()):
                    if each["Initiated"] < before:
                        self.client.abort_multipart_upload(
                            Bucket=self.bucket, Key=each["Key"], UploadId=each["UploadId"]
                        )
                        removed += 1
        return removed

    def key_of(self, checksum: str) -> str:
        """Return the key of a content; raises NotFoundError for a text that is no checksum."""
        if not is_checksum(checksum):
            raise NotFoundError("content", checksum)
        return f"{self._prefix}{checksum[:2]}/{checksum}"

    @contextmanager
    def writing(self, checksum: str) -> Iterator[None]:
        """Keep this server from removing a content that is being written; waits for a removal that goes on."""
        with self._changed:
            self._changed.wait_for(lambda: checksum not in self._removing)
            self._writing[checksum] += 1
        try:
            yield
        finally:
            with self._changed:
                self._writing -= Counter([checksum])

    @contextmanager
    def translated_errors(self) -> Iterator[None]:
        """Turn an unreachable store, wrong credentials, a full disk and the like into one clear WorldError."""
        try:
            yield
        except (BotoCoreError, ClientError, OSError) as error:
            raise WorldError(f"files cannot be stored in {self._url}: {_reason(error)}", transient=True) from error

    def _put_time(self, checksum: str) -> datetime | None:
        """Return when a content was last put; None = it is not there."""
        with self.translated_errors():
            try:
                found: datetime = self.client.head_object(Bucket=self.bucket, Key=self.key_of(checksum))["LastModified"]
            except ClientError as error:
                if _code(error) == "404":
                    return None
                raise
        return found


class S3Upload:
    """An upload to the object store; one that is smaller than a part is a single PUT."""

    def __init__(self, store: S3Store, checksum: str, check: ContentCheck, part_bytes: int) -> None:
        self._store = store
        self._checksum = checksum
        self._check = check
        self._part_bytes = part_bytes
        self._target = {"Bucket": store.bucket, "Key": store.key_of(checksum)}
        self._upload: dict[str, str] = {}
        self._tags: list[str] = []
        self._lock = threading.Lock()  # a cancelled call aborts while a thread may still send a part
        self._part = tempfile.TemporaryFile()  # noqa: SIM115 - `abort` closes it

    def append(self, piece: bytes) -> None:
        """Take the next piece; raises InvalidInputError when there is more than was announced."""
        self._check.take(piece)
        with self._lock, self._store.translated_errors():
            while piece:
                room = self._part_bytes - self._part.tell()
                if not room:  # the last part is sent with `finish`
                    self._send_part()
                    continue
                self._part.write(piece[:room])
                piece = piece[room:]

    def finish(self) -> None:
        """Put the content in its place for good; raises InvalidInputError on a wrong checksum."""
        self._check.finish()
        with self._lock, self._store.writing(self._checksum), self._store.translated_errors():
            if self._tags:
                self._send_part()
                parts = [{"ETag": tag, "PartNumber": number} for number, tag in enumerate(self._tags, 1)]
                self._store.client.complete_multipart_upload(
                    **self._target, **self._upload, MultipartUpload={"Parts": parts}
                )
                self._upload = {}
            else:
                self._part.seek(0)
                self._store.client.put_object(**self._target, Body=self._part)

    def abort(self) -> None:
        """Forget what has come; harmless after `finish`. What cannot be aborted now, `sweep_unfinished` removes."""
        with self._lock, suppress(WorldError), self._store.translated_errors():
            self._part.close()
            if self._upload:
                self._store.client.abort_multipart_upload(**self._target, **self._upload)
                self._upload = {}

    def _send_part(self) -> None:
        client = self._store.client
        if not self._upload:
            self._upload = {"UploadId": client.create_multipart_upload(**self._target)["UploadId"]}
        self._part.seek(0)
        sent = client.upload_part(**self._target, **self._upload, PartNumber=len(self._tags) + 1, Body=self._part)
        self._tags.append(sent["ETag"])
        self._part.seek(0)
        self._part.truncate()


def _client(access: S3Access) -> Any:
    """Return a client; several threads may use it."""
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=ANSWER_S,
        retries={"mode": "standard", "total_max_attempts": ATTEMPTS},
        max_pool_connections=CONNECTIONS,
        # The checksums in trailers that AWS has added are unknown to other stores; the signed SHA-256 is known to all.
        request_checksum_calculation="when_required",
        response_checksum_validation="when_required",
        s3={"payload_signing_enabled": True, **({"addressing_style": "path"} if access.endpoint else {})},
    )
    return botocore.session.get_session().create_client(
        "s3",
        endpoint_url=access.endpoint,
        region_name=access.region,
        aws_access_key_id=access.access_key,
        aws_secret_access_key=access.secret_key,
        config=config,
    )


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _reason(error: Exception) -> str:
    if isinstance(error, ClientError):
        message = error.response.get("Error", {}).get("Message")  # Ceph has none
        return _REASONS.get(_code(error), ": ".join(filter(None, (_code(error), message))))
    if isinstance(error, NoCredentialsError):
        return "there are no credentials; set s3_access_key and s3_secret_key, or AWS_ACCESS_KEY_ID and the like"
    if isinstance(error, BotoCoreError) and not isinstance(error, SSLError) and "endpoint_url" in error.kwargs:
        called = urlsplit(error.kwargs["endpoint_url"])
        return f"{called.scheme}://{called.netloc} does not answer; correct s3_endpoint, or wait until it is back"
    return str(error)
