"""A connection to a server: one channel, a stub for each service, and the choice of server, authority and token.

They come from the options, else from the environment, else from the current context, else from the data folder of
`pilotage up`.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from pilotage.errors import InvalidInputError, Violation
from pilotage.rpc.channel import UNARY_TIMEOUT_S, Endpoint, open_channel
from pilotage_client.contexts import Context, load_contexts

if TYPE_CHECKING:
    from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub
    from pilotage.v1.audit_service_pb2_grpc import AuditServiceStub
    from pilotage.v1.diagnosis_service_pb2_grpc import DiagnosisServiceStub
    from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub
    from pilotage.v1.job_service_pb2_grpc import JobServiceStub
    from pilotage.v1.node_service_pb2_grpc import NodeServiceStub
    from pilotage.v1.notification_service_pb2_grpc import NotificationServiceStub
    from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub
    from pilotage.v1.pool_service_pb2_grpc import PoolServiceStub
    from pilotage.v1.race_service_pb2_grpc import RaceServiceStub
    from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub
    from pilotage.v1.route_service_pb2_grpc import RouteServiceStub
    from pilotage.v1.share_service_pb2_grpc import ShareServiceStub

DEFAULT_DATA = Path("~/.local/share/pilotage")
UP_FILE = "up.json"

_TOKEN_KEYS = {"user": "token_file", "operator": "operator_token_file", "admin": "admin_token_file"}


@dataclass(frozen=True, slots=True)
class ServerAddress:
    """A server's addresses ("host:port", several with commas) and the caller's token.

    `root_ca` = the trusted authorities of its certificate (PEM), None = the system's. `public` is the address at which
    other machines reach a server of this machine, "" = they do not, or it is `server`.
    """

    server: str
    token: str
    root_ca: bytes | None = None
    public: str = ""


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The options that select server, authority and token; None = not given.

    `role` (user, operator or admin) selects a token of `pilotage up`. `context` names a joined server.
    """

    server: str | None = None
    token_file: Path | None = None
    data: Path | None = None
    role: str = "user"
    ca_file: Path | None = None
    context: str | None = None


def data_folder(folder: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Return the data folder: `folder`, else PILOTAGE_DATA, else the default in the home folder."""
    return (folder or Path(environment.get("PILOTAGE_DATA") or DEFAULT_DATA)).expanduser()


def resolve_server(options: ServerOptions, environment: Mapping[str, str] = os.environ) -> ServerAddress:
    """Return the server and token to use; raises InvalidInputError if one is not set."""
    context = _chosen_context(options, environment)
    if context is not None:
        name, chosen = context
        if options.context is not None:
            environment = {}  # `--context` selects the server, the authority and the token of that context
        authority = _root_ca(options, environment) or chosen.authority.encode() or None
        return ServerAddress(chosen.server, _context_token(name, chosen, options, environment), authority)
    folder = data_folder(options.data, environment)
    up_settings = _read_up_file(folder / UP_FILE)
    if options.data is not None and options.server is None:
        environment = {}  # `--data` without `--server` selects the server and the tokens of that folder
    server = options.server or environment.get("PILOTAGE_SERVER") or up_settings.get("server")
    if not server:
        raise InvalidInputError(
            Violation(
                "server",
                f"no server is set, nor found in {folder}; start one with `pilotage up` and wait until it is up, "
                "join one with `pilotage join`, or set one by --data, --server, --context, PILOTAGE_DATA, "
                "PILOTAGE_SERVER or PILOTAGE_CONTEXT",
            )
        )
    # The tokens of `pilotage up` are valid at its own server only, and must not be sent to others.
    own = up_settings if server == up_settings.get("server") else {}
    authority = _root_ca(options, environment)
    if authority is None and own.get("ca_file"):
        authority = _read_authority(Path(own["ca_file"]))
    return ServerAddress(server, _token(options, environment, own), authority, own.get("public", ""))


def _chosen_context(options: ServerOptions, environment: Mapping[str, str]) -> tuple[str, Context] | None:
    """Return the name and the context to use; None = another source names the server."""
    if options.context is not None:
        if options.server is not None or options.data is not None:
            raise InvalidInputError(Violation("--context", "names a server, as --server and --data do: give one"))
        return options.context, load_contexts(environment).named(options.context)
    if options.server is not None or options.data is not None:
        return None
    name = environment.get("PILOTAGE_CONTEXT")
    if name:
        if environment.get("PILOTAGE_SERVER"):
            raise InvalidInputError(Violation("PILOTAGE_CONTEXT", "names a server, as PILOTAGE_SERVER does: set one"))
        return name, load_contexts(environment).named(name)
    if environment.get("PILOTAGE_SERVER") or environment.get("PILOTAGE_DATA"):
        return None
    contexts = load_contexts(environment)
    return (contexts.current, contexts.named(contexts.current)) if contexts.current else None


def _context_token(name: str, context: Context, options: ServerOptions, environment: Mapping[str, str]) -> str:
    if options.token_file is not None:
        return _read_token(options.token_file)
    token = environment.get("PILOTAGE_TOKEN", "").strip() or context.token
    if not token:
        why = "has no token of a user: this machine runs jobs only; set one by --token-file or PILOTAGE_TOKEN"
        raise InvalidInputError(Violation(f"context {name}", why))
    return token


def _root_ca(options: ServerOptions, environment: Mapping[str, str]) -> bytes | None:
    given = options.ca_file or environment.get("PILOTAGE_CA")
    return _read_authority(Path(given)) if given else None


def _read_authority(path: Path) -> bytes:
    path = path.expanduser()
    try:
        return path.read_bytes()
    except OSError as error:
        why = f"the authority of the server cannot be read: {error.strerror}"
        raise InvalidInputError(Violation(str(path), why)) from error


def _token(options: ServerOptions, environment: Mapping[str, str], up_tokens: Mapping[str, str]) -> str:
    if options.token_file is not None:
        return _read_token(options.token_file)
    if environment.get("PILOTAGE_TOKEN"):
        return environment["PILOTAGE_TOKEN"].strip()
    token_file = up_tokens.get(_TOKEN_KEYS[options.role])
    if token_file:
        return _read_token(Path(token_file))
    raise InvalidInputError(Violation("token", "no token is set; set one by --token-file or PILOTAGE_TOKEN"))


def _read_token(path: Path) -> str:
    try:
        return path.expanduser().read_text(encoding="utf-8").strip()
    except OSError as error:
        raise InvalidInputError(Violation(str(path), f"the token cannot be read: {error.strerror}")) from error
    except UnicodeDecodeError as error:
        raise InvalidInputError(Violation(str(path), "the token cannot be read: it is no text")) from error


def _read_up_file(path: Path) -> dict[str, str]:
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise InvalidInputError(Violation(str(path), f"cannot be read: {error}")) from error
    return {str(key): str(value) for key, value in settings.items()} if isinstance(settings, dict) else {}


class Connection:
    """A channel to `server` ("host:port", several with commas) with one token.

    `root_ca` = the trusted authorities of its certificate (PEM), None = the system's. `timeout_s` is the default
    deadline of calls.
    """

    def __init__(
        self, server: str, token: str, root_ca: bytes | None = None, timeout_s: float = UNARY_TIMEOUT_S
    ) -> None:
        self.server = server
        self.public = ""
        """The address at which other machines reach a server of this machine; "" = they do not, or it is `server`."""
        self._opened_with = server, token, root_ca, timeout_s
        self._channel = open_channel(Endpoint.parse(server, token, root_ca), timeout_s=timeout_s)

    @cached_property
    def _agents(self) -> AgentServiceStub:
        from pilotage.v1.agent_service_pb2_grpc import AgentServiceStub

        return AgentServiceStub(self._channel)

    @cached_property
    def _audit(self) -> AuditServiceStub:
        from pilotage.v1.audit_service_pb2_grpc import AuditServiceStub

        return AuditServiceStub(self._channel)

    @cached_property
    def _jobs(self) -> JobServiceStub:
        from pilotage.v1.job_service_pb2_grpc import JobServiceStub

        return JobServiceStub(self._channel)

    @cached_property
    def _pools(self) -> PoolServiceStub:
        from pilotage.v1.pool_service_pb2_grpc import PoolServiceStub

        return PoolServiceStub(self._channel)

    @cached_property
    def _resources(self) -> ResourceServiceStub:
        from pilotage.v1.resource_service_pb2_grpc import ResourceServiceStub

        return ResourceServiceStub(self._channel)

    @cached_property
    def _pilots(self) -> PilotServiceStub:
        from pilotage.v1.pilot_service_pb2_grpc import PilotServiceStub

        return PilotServiceStub(self._channel)

    @cached_property
    def _nodes(self) -> NodeServiceStub:
        from pilotage.v1.node_service_pb2_grpc import NodeServiceStub

        return NodeServiceStub(self._channel)

    @cached_property
    def _notifications(self) -> NotificationServiceStub:
        from pilotage.v1.notification_service_pb2_grpc import NotificationServiceStub

        return NotificationServiceStub(self._channel)

    @cached_property
    def _races(self) -> RaceServiceStub:
        from pilotage.v1.race_service_pb2_grpc import RaceServiceStub

        return RaceServiceStub(self._channel)

    @cached_property
    def _routes(self) -> RouteServiceStub:
        from pilotage.v1.route_service_pb2_grpc import RouteServiceStub

        return RouteServiceStub(self._channel)

    @cached_property
    def _shares(self) -> ShareServiceStub:
        from pilotage.v1.share_service_pb2_grpc import ShareServiceStub

        return ShareServiceStub(self._channel)

    @cached_property
    def _identity(self) -> IdentityServiceStub:
        from pilotage.v1.identity_service_pb2_grpc import IdentityServiceStub

        return IdentityServiceStub(self._channel)

    @cached_property
    def _diagnosis(self) -> DiagnosisServiceStub:
        from pilotage.v1.diagnosis_service_pb2_grpc import DiagnosisServiceStub

        return DiagnosisServiceStub(self._channel)

    @classmethod
    def located(cls, options: ServerOptions | None = None, timeout_s: float = UNARY_TIMEOUT_S) -> Self:
        """Connect to the server of the options, the environment or the data folder."""
        address = resolve_server(options or ServerOptions())
        located = cls(address.server, address.token, address.root_ca, timeout_s)
        located.public = address.public
        return located

    def reconnected(self) -> Self:
        """Return another connection to the same server with the same token."""
        return type(self)(*self._opened_with)

    def __enter__(self) -> Self:
        """Return the connection."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection, but not after Ctrl-C, when gRPC may wait forever for the call that was interrupted."""
        if kind is not KeyboardInterrupt:
            self.close()

    def close(self) -> None:
        """Close the connection."""
        self._channel.close()


def new_request_id() -> str:
    """Return a new idempotency key."""
    return secrets.token_hex(16)
