"""Opens the store of files that the settings name by its URL: `file:///folder` or `s3://bucket/prefix`."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.programs import install_advice
from pilotage_server.settings import MIB, ServerSettings
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.blobs.folder import FolderStore

_S3 = "s3"
"""The scheme of an object store, and the extra with the packages that it needs."""

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*")


def open_store(settings: ServerSettings) -> FileStore:
    """Return the store of files.

    Raises
    ------
    InvalidInputError
        The URL names no store.
    WorldError
        The store cannot be used, or the packages for it are not installed.
    """
    most = settings.max_file_mib * MIB
    folder = local_folder(settings.files_url)
    if folder is not None:
        return FolderStore(folder, most)
    parts = urlsplit(settings.files_url)
    try:
        from pilotage_server.storage.blobs.s3 import S3Access, S3Store
    except ModuleNotFoundError as error:
        why = f"files cannot be stored in {settings.files_url}: {install_advice(_S3, [str(error.name)])}"
        raise WorldError(why, transient=False) from error
    secret = settings.s3_secret_key
    access = S3Access(
        settings.s3_endpoint,
        settings.s3_region,
        settings.s3_access_key,
        None if secret is None else secret.get_secret_value(),
    )
    return S3Store(parts.netloc, parts.path.strip("/"), most, access)


def local_folder(url: str) -> Path | None:
    """Return the folder of a store; None = it is an object store.

    Raises InvalidInputError if the URL names no store.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and parts.path:
        return Path(unquote(parts.path))
    prefix = parts.path.strip("/")
    names_bucket = _BUCKET.fullmatch(parts.netloc) and (not prefix or _PREFIX.fullmatch(prefix))
    if parts.scheme == _S3 and names_bucket and not (parts.query or parts.fragment):
        return None
    why = f"{url!r} is no store for files; use file:///some/folder or s3://bucket/prefix"
    raise InvalidInputError(Violation("files", why))
