"""The life of a server process: from an empty data folder to serving, and back to rest."""

from __future__ import annotations

import asyncio
import gc
import json
import secrets
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from functools import partial
from pathlib import Path

import grpc
import structlog

from pilotage import clock
from pilotage.broker import parse_broker
from pilotage.channel import split_address
from pilotage.errors import WorldError
from pilotage.folder_lock import sole_owner
from pilotage_server.compiled import is_compiled
from pilotage_server.duties import Duty, duties_of, keep_doing
from pilotage_server.events.broker_feed import BrokerFeed
from pilotage_server.operations.expire_leases import note_alive
from pilotage_server.operations.expression_holds import release_expression_holds
from pilotage_server.operations.job_policies import watch_all
from pilotage_server.operations.limit_keys import rekey_for_limits
from pilotage_server.operations.load_world import load_world
from pilotage_server.operations.running_counts import count_anew
from pilotage_server.operations.world import World
from pilotage_server.rpc.server import Ground, Limits, RpcServer
from pilotage_server.rpc.tokens import TokenIssuer, TokenVerifier, load_or_make_key
from pilotage_server.rpc.transactions import Transactions
from pilotage_server.setting_types import MIB
from pilotage_server.settings import Settings
from pilotage_server.storage.engine import Database, closing
from pilotage_server.storage.file_store import open_store
from pilotage_server.storage.schema import upgrade
from pilotage_server.submit_policy_file import read_submit_policy
from pilotage_server.token_files import RENEWED_EVERY_S, TokenFiles

log = structlog.get_logger()

_NEW_OBJECTS = 50_000

BROKER_TIDIED_EVERY_S = 60.0
"""How often the nodes of pilots that are over are taken off the broker."""


def run_server(settings: Settings, ready_file: Path | None = None, token_files: TokenFiles | None = None) -> None:
    """Serve until SIGTERM or SIGINT, with `token_files` kept from expiring.

    Raises WorldError, with one clear sentence, where the data folder, the database, the key or the address
    cannot be used.
    """
    with _clear_failures(settings), sole_owner(settings.data, "another server"):
        _forget(ready_file)
        issuer = TokenIssuer(load_or_make_key(settings.key_file))
        if token_files is not None:
            token_files.write(issuer)
        submission = read_submit_policy(settings.submit_policy, settings.submit_domain)
        rules = replace(settings.rules(), submission=submission)
        with closing(Database(settings.database_url)) as database:
            upgrade(database)
            world = database.read(lambda unit: load_world(unit, rules))
            database.write(lambda unit: note_alive(unit, world))
            database.write(lambda unit: rekey_for_limits(unit, world))
            database.write(lambda unit: count_anew(unit, world))
            while database.write(lambda unit: release_expression_holds(unit, world)):
                pass
            database.write(lambda unit: watch_all(unit, world))
            try:
                asyncio.run(_serve(settings, _ground(settings, database, world, issuer), ready_file, token_files))
            finally:
                _forget(ready_file)


def _forget(ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


def _ground(settings: Settings, database: Database, world: World, issuer: TokenIssuer) -> Ground:
    store = open_store(settings.files_url, settings.max_file_mib * MIB)
    verifier = TokenVerifier([issuer.trusted()])
    return Ground(Transactions(database, world), store, issuer, verifier, clock.now, clock.boot_time_s)


async def _serve(settings: Settings, ground: Ground, ready_file: Path | None, token_files: TokenFiles | None) -> None:
    _look_for_garbage_seldom()
    stopping = _stop_on_signals()
    transactions = ground.transactions
    limits = Limits(
        settings.long_poll_s,
        settings.max_calls_in_flight,
        timedelta(seconds=settings.pilot_token_s),
        timedelta(seconds=settings.longest_token_s),
    )
    server = RpcServer(ground, limits, reflects=settings.reflection)
    address = _listen(server, settings)
    database = transactions.database.url.render_as_string()
    tree = transactions.world.tree.version
    log.info("server started", address=address, database=database, tree=tree, compiled=is_compiled())
    if ready_file is not None:  # who calls now is heard: the port is open, and his call is taken in a moment
        write_atomically(ready_file, json.dumps({"address": address}) + "\n")
    async with asyncio.TaskGroup() as tasks:
        server.serve(tasks)
        feed = _broker_feed(settings, transactions)
        duties = [
            tasks.create_task(keep_doing(duty, stopping))
            for duty in (
                *duties_of(settings, transactions, ground.store, server.nudge),
                *_token_duties(token_files, ground.issuer),
                *(() if feed is None else (Duty("ended nodes", BROKER_TIDIED_EVERY_S, feed.forget_ended),)),
            )
        ]
        if feed is not None:
            duties.append(tasks.create_task(feed.run()))
        await stopping.wait()
        log.info("server stops", grace_s=settings.stop_grace_s)
        await server.stop(settings.stop_grace_s)
        for task in duties:  # one that has much to remove would go on for long; each of its transactions is whole
            task.cancel()
    board = transactions.world.board
    log.info("server stopped", jobs_bound=board.bound_in_all, choices_missed=board.missed_in_all)


def _look_for_garbage_seldom() -> None:
    """Let the collector pass over what was there at the start, and come after many more new objects than it would.

    Hardly anything here is in a circle; each match makes hundreds of objects that go by themselves, and looking for
    garbage among all that stays took an eighth of its time. What has come lately is looked through often enough that
    no round takes long: everything stands still meanwhile, and calls that wait are a million objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS, 1, 500)


def _broker_feed(settings: Settings, transactions: Transactions) -> BrokerFeed | None:
    if settings.broker is None:
        return None
    broker = parse_broker(settings.broker.get_secret_value())
    return BrokerFeed(broker, f"pilotage-server-{secrets.token_hex(6)}", transactions)


def _token_duties(token_files: TokenFiles | None, issuer: TokenIssuer) -> Iterator[Duty]:
    if token_files is not None:
        renew = partial(asyncio.to_thread, token_files.write, issuer)
        yield Duty("tokens in files", RENEWED_EVERY_S, renew)


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _listen(server: RpcServer, settings: Settings) -> str:
    host, port = split_address(settings.listen)
    _check_free(host, port)
    credentials = None
    if settings.tls_key is not None and settings.tls_cert is not None:
        credentials = _credentials(settings.tls_cert, settings.tls_key)
    try:
        taken = server.listen(settings.listen, credentials)
    except RuntimeError as error:
        raise WorldError(f"cannot listen at {settings.listen}: {error}", transient=False) from error
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{taken}"


def _credentials(certificate: Path, key: Path) -> grpc.ServerCredentials:
    try:  # gRPC itself would say in many lines that they do not fit
        ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(certificate, key)
    except OSError as error:
        message = f"the certificate {certificate} with the key {key} cannot be used: {error}"
        raise WorldError(message, transient=False) from error
    return grpc.ssl_server_credentials([(key.read_bytes(), certificate.read_bytes())])


def _check_free(host: str, port: int) -> None:
    """Raise WorldError where the address cannot be had; gRPC itself would say so in many lines."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            message = f"cannot listen at {host}:{port}: {error.strerror or error}"
            raise WorldError(message, transient=False) from error


@contextmanager
def _clear_failures(settings: Settings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = error.filename or settings.data
        raise WorldError(f"{what} cannot be used: {error.strerror or error}", transient=False) from error
    except ModuleNotFoundError as error:  # a driver comes with an extra of the distribution
        raise WorldError(f"the database needs the Python module {error.name}", transient=False) from error


def write_atomically(path: Path, text: str) -> None:
    """Put a file in place whole, so that whoever waits for it never reads half of it."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
