"""Logins of pilots at the broker, by Mosquitto's dynamic security plugin: each reaches the topics of its stamp only.

The server makes a login when a pilot asks for one, and removes it when the stamp is over. A password is random and
stored nowhere but hashed at the broker, so any server may make the next one. The plugin takes commands as JSON
(https://mosquitto.org/documentation/dynamic-security/).
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import structlog

from pilotage.errors import OverloadedError, WorldError
from pilotage.mqtt.settings import Broker, BrokerLogin
from pilotage.mqtt.topics import Message

log = structlog.get_logger()

COMMANDS = "$CONTROL/dynamic-security/v1"
RESPONSES = f"{COMMANDS}/response"

TIMEOUT_S = 5.0
"""How long the broker may take to answer commands."""

MAX_PENDING = 100
"""Commands that wait for an answer: the broker writes its file for each of them."""

_MAX_RESPONSE_BYTES = 1 << 20
_PAGE = 1000
_EXISTS = "already exists"

Command = Mapping[str, Any]


class PilotLogins:
    """Makes and removes the logins of pilots; `publish` sends a message to the broker. Runs in the event loop."""

    def __init__(self, broker: Broker, publish: Callable[[Message], None]) -> None:
        self._topics = broker.topics
        self._server = broker.username
        self._publish = publish
        self._pending: dict[str, asyncio.Future[list[Command]]] = {}
        self._is_connected = False
        self._is_set_up = False

    def set_connected(self, connected: bool) -> None:
        """Record whether there is a connection to the broker."""
        self._is_connected = connected
        self._is_set_up &= connected

    async def set_up(self) -> None:
        """Give this server access to its topics, once for each connection; raises WorldError without the plugin."""
        if not self._is_connected or self._is_set_up:
            return
        prefix = self._topics.prefix
        own, viewer = f"{prefix}/server", f"{prefix}/viewer"
        results = await self._run(
            _role(own, publishClientSend=f"{prefix}/#", subscribePattern=f"{prefix}/#"),
            {"command": "addClientRole", "username": self._server, "rolename": own},
            _role(viewer, subscribePattern=self._topics.node("#")),
        )
        _check(results[:1])
        self._is_set_up = True
        log.info("pilots get logins at the broker", role_of_viewers=viewer)

    async def make(self, stamp: str) -> BrokerLogin:
        """Return a new login of a pilot; raises WorldError or OverloadedError."""
        if not self._is_set_up:
            raise WorldError("this server has no rights at the broker, or not yet", transient=True)
        name, password = self._topics.node(stamp), secrets.token_urlsafe(24)
        role = _role(
            name,
            publishClientSend=self._topics.node(stamp),
            subscribeLiteral=self._topics.poll(stamp),
            subscribePattern=self._topics.pool("#"),
        )
        client = {
            "command": "createClient",
            "username": name,
            "password": password,
            "clientid": self._topics.pilot_client_id(stamp),
            "roles": [{"rolename": name}],
        }
        results = await self._run(role, client)
        if _EXISTS in str(results[-1].get("error", "")):
            results = await self._run({"command": "setClientPassword", "username": name, "password": password})
        _check(results)
        return BrokerLogin(name, password)

    async def stamps(self) -> frozenset[str]:
        """Return the stamps of all pilots that have a login; raises WorldError. Empty without a connection."""
        found = set[str]()
        offset, total = 0, 1 if self._is_set_up else 0
        while offset < total:
            page = {"command": "listClients", "verbose": False, "count": _PAGE, "offset": offset}
            (result,) = await self._run(page)
            _check([result])
            names, total = result["data"]["clients"], result["data"]["totalCount"]
            found |= {stamp for name in names if (stamp := self._topics.stamp_of(name)) is not None}
            offset += _PAGE
        return frozenset(found)

    async def remove(self, stamps: Sequence[str]) -> None:
        """Remove the logins of pilots, which ends their connections."""
        for name in map(self._topics.node, stamps):
            commands = ({"command": "deleteClient", "username": name}, {"command": "deleteRole", "rolename": name})
            await self._run(*commands)
            log.info("login at the broker removed", username=name)

    async def _run(self, *commands: Command) -> list[Command]:
        """Return the results of commands; the broker answers them in one message."""
        if not self._is_connected:
            raise WorldError("the server has no connection to the broker", transient=True)
        if len(self._pending) >= MAX_PENDING:
            raise OverloadedError("too many logins are being made at the broker", TIMEOUT_S)
        key = secrets.token_hex(8)
        self._pending[key] = asyncio.get_running_loop().create_future()
        content = {"commands": [{**command, "correlationData": key} for command in commands]}
        try:
            self._publish(Message(COMMANDS, json.dumps(content).encode()))
            async with asyncio.timeout(TIMEOUT_S):
                return await self._pending[key]
        except TimeoutError:
            why = "the broker does not answer: it needs the dynamic security plugin, and this server's login its rights"
            raise WorldError(why, transient=True) from None
        finally:
            del self._pending[key]

    def receive(self, message: Message) -> None:
        """Apply a message of the plugin; raises ValueError or TypeError, which the link logs."""
        if len(message.payload) > _MAX_RESPONSE_BYTES:
            raise ValueError("the response is too large")
        results: list[Command] = [dict(result) for result in json.loads(message.payload)["responses"]]
        pending = self._pending.get(str(results[0].get("correlationData")))
        if pending is not None and not pending.done():
            pending.set_result(results)


def _role(name: str, **topics: str) -> Command:
    acls = [{"acltype": acl_type, "topic": topic, "allow": True} for acl_type, topic in topics.items()]
    return {"command": "createRole", "rolename": name, "acls": acls}


def _check(results: Sequence[Command]) -> None:
    """Raise WorldError if a command has failed; what exists already is no failure."""
    errors = [error for result in results if (error := str(result.get("error", ""))) and _EXISTS not in error]
    if errors:
        raise WorldError(f"the broker refuses a command: {errors[0]:.200}", transient=True)
