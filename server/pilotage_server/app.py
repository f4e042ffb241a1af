"""The life of a server process: lock of the data folder, migrations, start, serving, shutdown."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import resource
import secrets
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import structlog

from pilotage import clock
from pilotage.backoff import Retry, backoff
from pilotage.errors import WorldError
from pilotage.metrics.endpoint import Exposition, serving
from pilotage.mqtt.settings import parse_broker
from pilotage.processes import exclusive_folder
from pilotage.rpc.channel import split_address
from pilotage.service_manager import READY, STOPPING, notify
from pilotage_server.background import HealthReport, PeriodicTask, TaskOutcomes, periodic_tasks, run_periodically
from pilotage_server.certificates import ConfiguredCertificate, ServedCertificate
from pilotage_server.core.incarnation import Installation
from pilotage_server.core.matching import matcher
from pilotage_server.core.rules import Rules
from pilotage_server.events.mqtt import BrokerFeed
from pilotage_server.metrics import EndedJobs, PeriodicCounts, ServerParts
from pilotage_server.operations.accounting.limits import recount_limits
from pilotage_server.operations.attempts.expiry import record_server_life
from pilotage_server.operations.installation import Belongings, change_keys, join
from pilotage_server.operations.jobs.periodic_policies import watch_all
from pilotage_server.operations.server_state import ServerState
from pilotage_server.operations.startup.loading import load_state, rekey_for_limits
from pilotage_server.own_authority import AuthorityFiles, OwnCertificate
from pilotage_server.process_checks import ProcessChecks
from pilotage_server.rpc.framework.admission import CallLimits, CallQuota
from pilotage_server.rpc.framework.issuer_keys import IssuerKeys
from pilotage_server.rpc.framework.key_files import KeyFiles, KeySet, key_times
from pilotage_server.rpc.framework.outside_issuers import OutsideIssuer, owner_suffix
from pilotage_server.rpc.framework.proofs import PilotProofs
from pilotage_server.rpc.framework.tokens import TokenIssuer, TokenVerifier
from pilotage_server.rpc.framework.transactions import Transactions
from pilotage_server.rpc.server import HttpGateway, RpcServer, ServiceContext, ServiceLimits
from pilotage_server.settings import MIB, ServerSettings, read_submit_policy
from pilotage_server.storage.blobs.base import FileStore
from pilotage_server.storage.blobs.opening import local_folder, open_store
from pilotage_server.storage.database.disk import DiskSpace
from pilotage_server.storage.database.engine import Database, closing, upgrade
from pilotage_server.storage.database.fence import Fence
from pilotage_server.storage.database.installation import load_installation
from pilotage_server.storage.database.last_seen import LastSeenFile
from pilotage_server.token_files import TokenFiles


def is_compiled() -> bool:
    """Return whether the hot modules are compiled: either all of them are, or none."""
    return matcher.__file__.endswith(tuple(EXTENSION_SUFFIXES))


def build_name() -> str:
    """Return the kind of build in words."""
    return "compiled" if is_compiled() else "plain Python"


log = structlog.get_logger()

_OBJECTS_OF_A_COLLECTION = 5_000
"""New objects after which the collector examines them, which stops all threads: for 25 ms (with 50,000: 200)."""
_COLLECTIONS_BEFORE_A_FULL_ONE = 5_000

KEYS_EVERY_S = 3.0
"""Interval at which the files of the signing keys are read."""

LOOK_AT_ISSUER_EVERY_S = 0.5
"""Interval at which a server looks whether the keys of an outside issuer are due; mostly they are not."""

_M_ARENA_MAX = -8
"""The parameter of mallopt(3) with this name in malloc.h."""

_MOST_OPEN_FILES = 1 << 20
"""More open files than any server needs; some machines have no bound."""


def run_server(settings: ServerSettings, ready_file: Path | None = None, token_files: TokenFiles | None = None) -> None:
    """Serve until SIGTERM or SIGINT; `token_files` are renewed before they expire.

    Raises WorldError, with one sentence, if the data folder, the database, the key or the address cannot be used.
    """
    _share_freed_memory()
    _raise_file_limit()
    disk = _disk_space(settings)
    with _translate_errors(settings), _used_folder(settings, disk), _monitored(settings) as monitoring:
        _remove_ready_file(ready_file)
        issuer = own_issuer(settings)
        if token_files is not None:
            token_files.write(issuer)
        store = open_store(settings)
        submission = read_submit_policy(settings.submit_policy, settings.submit_domain)
        rules = replace(settings.rules(), submission=submission)
        with closing(Database(settings.database_url)) as database:
            state = _open_state(database, settings, rules, issuer.keys, store)
            try:
                outside = _outside_issuers(settings)
                transactions = Transactions(database, state)
                context = _service_context(settings, transactions, store, issuer, outside, disk)
                asyncio.run(_serve(settings, context, outside, monitoring, ready_file, token_files))
            finally:
                _remove_ready_file(ready_file)


def _share_freed_memory() -> None:
    """Let all threads allocate from one arena of glibc; other C libraries are left as they are.

    By default each thread gets an arena of its own. What is freed in one serves no other thread, so the server would
    grow with varied calls although it needs no more.
    """
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def _raise_file_limit() -> None:
    """Raise the soft limit of open files to the hard one: each connection is one, with or without a token."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_OPEN_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_OPEN_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        log.info("limit of open files is raised", before=soft, now=most)


def _disk_space(settings: ServerSettings) -> DiskSpace:
    files = local_folder(settings.files_url)
    folders = [settings.data, files] if files is not None and files.exists() else [settings.data]
    return DiskSpace(folders, settings.disk_reserve_mib * MIB, holds_files=files is not None)


@contextmanager
def _used_folder(settings: ServerSettings, disk: DiskSpace) -> Iterator[None]:
    """Make room if the disk is full, and lock the data folder."""
    if settings.data.exists():
        disk.keep_ballast()
    with exclusive_folder(settings.data, "another server"):
        disk.keep_ballast()
        yield


CERTIFICATE_EVERY_S = 10.0
"""Interval at which the files of the certificate, and the addresses of this machine, are read."""


@dataclass
class _Monitoring:
    """The endpoint for operators; `fault` returns why the server does not serve in full, "" = it does."""

    address: str = ""
    fault: Callable[[], str] = lambda: "the server starts"

    def __post_init__(self) -> None:
        self.exposition = Exposition(build_name(), lambda: self.fault())


@contextmanager
def _monitored(settings: ServerSettings) -> Iterator[_Monitoring]:
    """Serve metrics and health checks if the settings have an address for them, also while the server starts."""
    monitoring = _Monitoring()
    wanted = None if settings.metrics_listen is None else split_address(settings.metrics_listen)
    with serving(wanted, monitoring.exposition) as monitoring.address:
        if monitoring.address:
            log.info("metrics are served", url=f"http://{monitoring.address}/metrics")
        yield monitoring


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 10.0
"""Pauses between two attempts to reach the database at the start."""


def _open_state(
    database: Database, settings: ServerSettings, rules: Rules, keys: KeySet, store: FileStore
) -> ServerState:
    """Join the database and return its state, with its schema upgraded; its steps may be repeated.

    Raises WorldError when the database is away for `database_wait_s`, or as soon as it shows another fault.
    """
    seen = LastSeenFile(settings.data)
    retry = Retry(settings.database_wait_s, clock.boot_time_s)
    while True:
        try:
            return _load_state(database, rules, lambda: join_database(database, keys, store, seen))
        except WorldError as error:
            may_return = error.transient and not database.is_sqlite
            pause_s = retry.failed(lambda failures: backoff(failures, FIRST_PAUSE_S, LONGEST_PAUSE_S))
            if not may_return or pause_s is None:
                raise
            log.warning("server waits for its database", why=str(error), again_in_s=pause_s)
        time.sleep(pause_s)


def _load_state(database: Database, rules: Rules, join: Callable[[], Installation]) -> ServerState:
    upgrade(database)
    joined = join()
    database.fence = Fence(joined.schema, joined.incarnation)
    state = database.read(lambda transaction: load_state(transaction, rules))
    database.write(lambda transaction: record_server_life(transaction, state))
    database.write(lambda transaction: rekey_for_limits(transaction, state))
    database.write(lambda transaction: recount_limits(transaction, state))
    database.write(lambda transaction: watch_all(transaction, state))
    return state


def _remove_ready_file(ready_file: Path | None) -> None:
    if ready_file is not None:
        ready_file.unlink(missing_ok=True)


def own_issuer(settings: ServerSettings) -> TokenIssuer:
    """Return this server as an issuer; the first call makes its key. Raises WorldError if a key cannot be used."""
    keys = KeySet(KeyFiles(settings.key_file).load_or_make())
    return TokenIssuer(keys, grid=settings.grid, foreign_suffixes=[owner_suffix(each) for each in settings.issuers])


def _outside_issuers(settings: ServerSettings) -> tuple[OutsideIssuer, ...]:
    folder = settings.data / "issuers"
    return tuple(
        OutsideIssuer(each, IssuerKeys(each, folder / f"{each.name}.json", clock.now, clock.boot_time_s))
        for each in settings.issuers
    )


def join_database(database: Database, keys: KeySet, store: FileStore, seen: LastSeenFile) -> Installation:
    """Join a database with these keys and this store; the first server gives the store its id.

    Raises StateConflictError if the database is a backup that was put back, or has another store or other keys.
    """
    store_id = store.id()
    if store_id is None and not database.read(lambda transaction: load_installation(transaction.session)).store:
        store_id = store.set_id(secrets.token_hex(8))
    own = Belongings(key_times(keys.all()), store_id, seen.load())
    return database.write(lambda transaction: join(transaction, own))


def _service_context(
    settings: ServerSettings,
    transactions: Transactions,
    store: FileStore,
    issuer: TokenIssuer,
    outside: Sequence[OutsideIssuer],
    disk: DiskSpace,
) -> ServiceContext:
    verifier = TokenVerifier([issuer.trusted(), *outside])
    proofs = PilotProofs(issuer, timedelta(seconds=settings.proof_window_s))
    return ServiceContext(transactions, store, disk, issuer, verifier, proofs, clock.now, clock.boot_time_s)


async def _serve(
    settings: ServerSettings,
    context: ServiceContext,
    outside: Sequence[OutsideIssuer],
    monitoring: _Monitoring,
    ready_file: Path | None,
    token_files: TokenFiles | None,
) -> None:
    _tune_garbage_collector()
    stopping = _stop_on_signals()
    fenced: list[WorldError] = []

    def stop_fenced(error: WorldError) -> None:
        fenced.append(error)
        stopping.set()

    transactions = context.transactions
    feed = _broker_feed(settings, transactions)
    if feed is not None and feed.logins is not None:
        context = replace(context, make_broker_login=feed.logins.make)
    certificate = _served_certificate(settings)
    if certificate is not None:
        context = replace(context, authority=lambda: certificate.authority)
    outcomes = TaskOutcomes()
    checks = ProcessChecks(context.disk, outcomes, context.issuer.keys, context.clock, feed, certificate)
    context = replace(context, check_process=checks.findings)
    gateway, http_address = _gateway(settings, certificate, context.issuer, outside)
    server = RpcServer(context, _service_limits(settings), gateway, reflects=settings.reflection)
    address = _listen(server, settings, certificate)
    _log_start(address, transactions)
    _report_ready(ready_file, {"address": address, "metrics": monitoring.address, "http": http_address})
    async with asyncio.TaskGroup() as tasks:
        server.serve(tasks)
        health = HealthReport(context.disk, context.store, server.report_health)
        monitoring.fault = lambda: (
            str(fenced[0]) if fenced else "the server stops" if stopping.is_set() else health.fault()
        )
        background = [
            tasks.create_task(run_periodically(duty, stopping, outcomes))
            for duty in (
                *periodic_tasks(settings, transactions, context.store, server.wake_followers, health, stop_fenced),
                *_token_tasks(settings, token_files, context.issuer, transactions.database),
                *_certificate_tasks(certificate),
                *map(_keys_task, outside),
                *(() if feed is None else feed.duties()),
                *_metrics_tasks(monitoring, ServerParts(transactions, server, context.disk, outcomes)),
            )
        ]
        if feed is not None:
            background.append(tasks.create_task(feed.run()))
        await stopping.wait()
        notify(STOPPING)
        log.info("server stops", grace_s=settings.stop_grace_s)
        await server.stop(settings.stop_grace_s)
        for task in background:  # retention may run for long; a cancelled task leaves only whole transactions
            task.cancel()
    if fenced:
        raise fenced[0]
    ended = transactions.state.matcher
    log.info("server stopped", jobs_bound=ended.committed_total, choices_missed=ended.exhausted_total)


def _report_ready(ready_file: Path | None, addresses: Mapping[str, str]) -> None:
    """Report the addresses of open ports: calls are queued from now on, and taken in a moment."""
    if ready_file is not None:
        write_atomically(ready_file, json.dumps({name: each for name, each in addresses.items() if each}) + "\n")
    notify(READY)


def _log_start(address: str, transactions: Transactions) -> None:
    database, tree = transactions.database, transactions.state.tree.version
    log.info(
        "server started",
        address=address,
        database=database.url.render_as_string(),
        incarnation=None if database.fence is None else database.fence.incarnation,
        tree=tree,
        compiled=is_compiled(),
    )


def _service_limits(settings: ServerSettings) -> ServiceLimits:
    most = settings.max_open_calls_per_pilot
    calls = CallLimits(
        settings.max_calls_in_flight,
        owner=CallQuota(settings.max_calls_in_flight_per_owner, settings.max_open_calls_per_owner),
        vo=CallQuota(settings.max_calls_in_flight_per_vo, settings.max_open_calls_per_vo),
        pilot=CallQuota(most, most),
    )
    return ServiceLimits(
        settings.long_poll_s,
        calls,
        timedelta(seconds=settings.pilot_token_s),
        timedelta(seconds=settings.enrolment_s),
        timedelta(seconds=settings.longest_token_s),
        settings.second_use,
        timedelta(seconds=settings.handshake_s),
        timedelta(seconds=settings.idle_connection_s),
    )


def _tune_garbage_collector() -> None:
    """Exclude the objects of the start from garbage collection, and collect more rarely.

    Reference cycles are rare here. A match makes hundreds of objects that reference counting frees; with the
    default threshold collections took an eighth of its time. The thresholds also bound the length of one collection,
    which stops all threads: waiting calls are a million objects. So collections are never paused during work that
    makes many objects: the next one would examine them all.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_OBJECTS_OF_A_COLLECTION, 1, _COLLECTIONS_BEFORE_A_FULL_ONE)


def _broker_feed(settings: ServerSettings, transactions: Transactions) -> BrokerFeed | None:
    if settings.broker is None:
        return None
    broker = parse_broker(settings.broker.get_secret_value())
    makes_logins = settings.broker_pilot_logins
    log.info("broker is used", host=broker.host, logins="one per pilot" if makes_logins else "those of the settings")
    return BrokerFeed(broker, f"pilotage-server-{secrets.token_hex(6)}", transactions, makes_logins=makes_logins)


def _token_tasks(
    settings: ServerSettings, token_files: TokenFiles | None, issuer: TokenIssuer, database: Database
) -> Iterator[PeriodicTask]:
    refresh = KeyRefresh(KeyFiles(settings.key_file), issuer.keys, database)
    yield PeriodicTask("signing keys", KEYS_EVERY_S, partial(asyncio.to_thread, refresh.run_once))
    if token_files is not None:
        renew = partial(asyncio.to_thread, token_files.renew, issuer)
        yield PeriodicTask("tokens in files", KEYS_EVERY_S, renew)


def _certificate_tasks(certificate: ServedCertificate | None) -> Iterator[PeriodicTask]:
    if certificate is not None:
        yield PeriodicTask("certificate", CERTIFICATE_EVERY_S, certificate.refresh)


def _metrics_tasks(monitoring: _Monitoring, parts: ServerParts) -> Iterator[PeriodicTask]:
    """Export the metrics of a server that serves now, if there is an endpoint; yields the task that they need."""
    if monitoring.address:
        counts = PeriodicCounts(parts.transactions, clock.boot_time_s)
        ended = EndedJobs(parts.transactions.state)
        monitoring.exposition.sources += [*parts.sources(), ended.samples, counts.samples]
        yield counts.task()


def _keys_task(issuer: OutsideIssuer) -> PeriodicTask:
    """Return the task that reads the keys of an outside issuer; a slow issuer delays no other one."""
    refresh = partial(asyncio.to_thread, issuer.keys.refresh_if_due)
    return PeriodicTask(f"keys of {issuer.name}", LOOK_AT_ISSUER_EVERY_S, refresh)


class KeyRefresh:
    """Reads the signing keys again, and records their changes in the database, which other servers compare with."""

    def __init__(self, files: KeyFiles, keys: KeySet, database: Database) -> None:
        self._files = files
        self._keys = keys
        self._database = database
        self._recorded = key_times(keys.all())

    def run_once(self) -> None:
        """Read the keys. Without a readable key the present ones stay; without the database only the record waits."""
        found = self._files.load()
        if not found:
            raise WorldError(f"the signing key {self._files.first} is gone; the present keys stay", transient=False)
        if self._keys.replace(found):
            kids, signing = [key.kid for key in self._keys.all()], self._keys.signing(clock.now()).kid
            log.info("signing keys changed", keys=kids, signing=signing)
        present = key_times(found)
        if present != self._recorded:
            removed = frozenset(self._recorded.keys() - present.keys())
            self._database.submit_write(lambda transaction: change_keys(transaction, present, removed)).result()
            self._recorded = present


def _stop_on_signals() -> asyncio.Event:
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    return stopping


def _served_certificate(settings: ServerSettings) -> ServedCertificate | None:
    """Return the certificate to present, of the settings or the server's own; None = loopback, without TLS."""
    if settings.tls_cert is not None and settings.tls_key is not None:
        return ServedCertificate(ConfiguredCertificate(settings.tls_cert, settings.tls_key), clock.now)
    own = own_certificate(settings)
    if own is None:
        return None
    certificate = ServedCertificate(own, clock.now)
    log.info(
        "own certificate is served; `pilotage token join` lets machines join",
        authority=certificate.authority,
        file=str(AuthorityFiles(own.folder).certificate),
    )
    return certificate


def own_certificate(settings: ServerSettings) -> OwnCertificate | None:
    """Return the certificate of the server's own authority; None = the settings need none."""
    if not settings.has_own_certificate:
        return None
    return OwnCertificate(settings.tls_folder, settings.tls_names, timedelta(seconds=settings.tls_life_s))


def _listen(server: RpcServer, settings: ServerSettings, certificate: ServedCertificate | None) -> str:
    host, port = split_address(settings.listen)
    _check_free(host, port)
    try:
        encrypts = certificate is not None and settings.has_tls
        taken = server.listen(settings.listen, certificate.credentials() if certificate and encrypts else None)
    except RuntimeError as error:
        raise WorldError(f"cannot listen at {settings.listen}: {error}", transient=False) from error
    shown = f"[{host}]" if ":" in host else host
    return f"{shown}:{taken}"


def _gateway(
    settings: ServerSettings,
    certificate: ServedCertificate | None,
    issuer: TokenIssuer,
    outside: Sequence[OutsideIssuer],
) -> tuple[HttpGateway | None, str]:
    """Return the gateway and its address, where it listens from now on; "" = the settings have none."""
    if settings.http_listen is None:
        return None, ""
    # Imported here: the libraries take a third of a second, and most servers need none of them.
    from pilotage_server.rpc.gateway.gateway import Gateway, GatewayLimits

    host, port = split_address(settings.http_listen)
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        message = f"cannot listen at {settings.http_listen}: {error.strerror or error}"
        raise WorldError(message, transient=False) from error
    # Connections inherit it; asyncio sets it for sockets of its own only, and each answer would wait for 40 ms.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    limits = GatewayLimits(
        settings.handshake_s,
        settings.idle_connection_s,
        settings.stop_grace_s,
        settings.http_connections,
        settings.long_poll_s,
    )
    tls = certificate.tls_context() if certificate is not None and settings.has_https else None
    shown = f"{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
    log.info("calls over HTTP are served", url=f"{'http' if tls is None else 'https'}://{shown}/v1")
    pages = None
    if settings.web_page:
        from pilotage_server.web.openid import Attempts, find_providers
        from pilotage_server.web.routes import web_routes

        providers = find_providers(outside, settings.web_address, clock.now, clock.boot_time_s)
        attempts = Attempts(issuer, clock.now)
        pages = partial(web_routes, clock=clock.now, providers=providers, attempts=attempts)
    gateway = Gateway(listener, tls, limits, settings.http_origins, describes=settings.reflection, pages=pages)
    return gateway, shown


def _check_free(host: str, port: int) -> None:
    """Raise WorldError if the address is in use; gRPC's own report has many lines."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            message = f"cannot listen at {host}:{port}: {error.strerror or error}"
            raise WorldError(message, transient=False) from error


@contextmanager
def _translate_errors(settings: ServerSettings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        what = error.filename or settings.data
        raise WorldError(f"{what} cannot be used: {error.strerror or error}", transient=False) from error
    except ModuleNotFoundError as error:  # a database driver is an optional dependency
        raise WorldError(f"the database needs the Python module {error.name}", transient=False) from error


def write_atomically(path: Path, text: str) -> None:
    """Write a file under another name and rename it, so that a reader never sees a partial file."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    draft.write_text(text, encoding="utf-8")
    draft.replace(path)
