"""The folders of copies at another server: what was asked of it, what it answered, and owners' tokens."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import datetime
from pathlib import Path

from google.protobuf.message import DecodeError

from pilotage.errors import WorldError
from pilotage.v1.job_service_pb2 import SubmitJobsRequest
from pilotage_agents.copies.private_files import (
    check_is_there,
    folder_of,
    make_folder,
    names_untouched,
    remove_folder,
    write_private,
)
from pilotage_agents.copies.remote_server import Caller

_TOKEN, _REQUEST, _JOB_ID, _CALLER, _OUTPUT = "token", "request", "job-id", "in-the-name-of", "output"


class ServerCopyFolders:
    """Keeps one folder per copy below `root`, for the agent's eyes alone; `origin` tells this router's from others'."""

    def __init__(self, root: Path, origin: str) -> None:
        self._root = root
        self._origin = origin

    def called(self, name: str) -> str:
        """Return what a copy is called, here and there."""
        return f"{name}-{self._origin}"

    def path_of(self, name: str) -> Path:
        """Return the folder of a copy; raises WorldError for a name that cannot be one of a folder."""
        return folder_of(self._root, self.called(name))

    def check(self) -> None:
        """Raise WorldError unless what the folders lie in is here."""
        check_is_there(self._root)

    def make(self, name: str) -> Path:
        """Make the folder of a copy anew."""
        check_is_there(self._root)
        return make_folder(self._root, self.called(name))

    def remove(self, name: str) -> None:
        """Remove the folder of a copy, if it is there."""
        remove_folder(self.path_of(name))

    def strays(self, known: Collection[str], before: datetime) -> dict[str, int | None]:
        """Return the other copies whose folders nobody has touched since a time, with the ids of their jobs."""
        names = names_untouched(self._root, self._origin, before)
        return {name: self.job_id(name) for name in names if name not in known}

    def token_path(self, name: str) -> Path:
        """Return where the token of a copy's owner lies."""
        return self.path_of(name) / _TOKEN

    def has_token(self, name: str) -> bool:
        """Return whether a copy goes in the name of its job's owner."""
        return self.token_path(name).exists()

    def has_request(self, name: str) -> bool:
        """Return whether the server may have been asked for a copy."""
        return (self.path_of(name) / _REQUEST).exists()

    def request(self, name: str) -> SubmitJobsRequest:
        """Return what the server is asked; raises OSError, or WorldError for what cannot be read."""
        try:
            return SubmitJobsRequest.FromString((self.path_of(name) / _REQUEST).read_bytes())
        except DecodeError as error:
            raise WorldError(f"{self.path_of(name) / _REQUEST}: cannot be read: {error}", transient=False) from error

    def keep_request(self, name: str, request: SubmitJobsRequest) -> None:
        """Keep what the server is to be asked."""
        write_private(self.path_of(name) / _REQUEST, request.SerializeToString())

    def job_id(self, name: str) -> int | None:
        """Return the id of a copy's job there, None = it is not kept."""
        try:
            kept = (self.path_of(name) / _JOB_ID).read_text()
        except FileNotFoundError:
            return None
        return int(kept) if kept.isdecimal() else None

    def keep_job_id(self, name: str, job_id: int) -> None:
        """Keep the id of a copy's job there."""
        write_private(self.path_of(name) / _JOB_ID, str(job_id).encode())

    def caller(self, name: str) -> tuple[str, str] | None:
        """Return the owner and the VO in whose name a copy went, None = it is not kept."""
        try:
            owner, vo = json.loads((self.path_of(name) / _CALLER).read_text())
        except (OSError, ValueError, TypeError):
            return None
        return str(owner), str(vo)

    def keep_caller(self, name: str, caller: Caller) -> None:
        """Keep in whose name a copy went."""
        write_private(self.path_of(name) / _CALLER, json.dumps((caller.owner, caller.vo)).encode())

    def output(self, name: str) -> Path:
        """Make the folder that takes what a copy has left; returns it."""
        check_is_there(self._root)
        folder = self.path_of(name) / _OUTPUT
        folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.mkdir(mode=0o700, exist_ok=True)
        return folder
