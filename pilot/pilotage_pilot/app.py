"""Builds one pilot from its settings: node, folder, links, payload runner, machine, runner."""

from __future__ import annotations

import importlib.metadata
import json
import os
import secrets
import signal
import stat
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

import structlog

from pilotage import clock
from pilotage.classads.library import ClassAdLibraryMissingError, is_available
from pilotage.errors import InvalidInputError, Violation, WorldError
from pilotage.job_description import Value
from pilotage.jobs.files import OutputLimits
from pilotage.mqtt.settings import parse_broker
from pilotage.mqtt.topics import NodeStatus
from pilotage.processes import file_text, memory_file
from pilotage.resources.tree import QueueId
from pilotage.rpc.channel import Endpoint
from pilotage_pilot.core.ads.attributes import NodeFacts as SlotsNode
from pilotage_pilot.core.ads.node_ads import BuiltInAds
from pilotage_pilot.core.ads.policy_ads import SlotAds
from pilotage_pilot.core.events import PoolsRead
from pilotage_pilot.core.machine import PilotMachine
from pilotage_pilot.core.model import Now
from pilotage_pilot.core.node.node_slots import NodeSlots
from pilotage_pilot.core.policy import Policy
from pilotage_pilot.core.rules import Lifetime
from pilotage_pilot.core.slots.layout import lay_out
from pilotage_pilot.link.base import MqttPublisher, NodeDescription, PilotServerLink
from pilotage_pilot.link.enrolment import EnrolledCredential, EnrolmentSecret
from pilotage_pilot.link.server_link import GrpcLink, queue_of_token, stamp_of_token
from pilotage_pilot.node.node import Checks, ClaimEndFile, LocalNode, identity
from pilotage_pilot.node.resources import NodeShare, Probe, ProbeContext, Stated
from pilotage_pilot.policy.loading import PolicyKeeper, PolicySource
from pilotage_pilot.runner import PilotPorts, PilotRunner, ReadPools
from pilotage_pilot.settings import PilotSettings
from pilotage_pilot.supervise.cgroups import cgroup_maker
from pilotage_pilot.supervise.containers import NO_CONTAINERS, ContainerRules
from pilotage_pilot.supervise.folders import PilotFolder, remove_leftovers
from pilotage_pilot.supervise.isolation import AccountRules, Confinement, IsolationRules, PayloadPaths, confine
from pilotage_pilot.supervise.monitor import PayloadRules
from pilotage_pilot.supervise.payload_runner import LocalPayloadRunner
from pilotage_pilot.supervise.runtimes import Containers, find_containers
from pilotage_pilot.supervise.spawn import Launcher, PayloadSite, without_secrets
from pilotage_pilot.supervise.watchdog import WatchdogLink

log = structlog.get_logger()

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Pilot:
    """A pilot ready to run, and the link to close afterwards."""

    runner: PilotRunner
    link: PilotServerLink


def build_pilot(
    settings: PilotSettings, watchdog: WatchdogLink | None = None, config_file: Path | None = None
) -> Pilot:
    """Return the pilot of these settings from this file, if any, inside a running event loop.

    Raises
    ------
    InvalidInputError
        When the enrolment secret names no queue, or it is for a set of queues and the settings do not say which of them
        this is, or a setting cannot be applied on this machine.
    WorldError
        When the enrolment secret or the scratch cannot be used.
    IsolationError
        When payloads cannot be isolated as the settings demand.
    """
    name = f"pilot-{secrets.token_hex(6)}"
    secret = read_secret(settings)
    bound_queue = queue_of_token(secret.text)
    queue = bound_queue or landed_queue(settings)
    scratch = settings.scratch_folder()
    for left in remove_leftovers(scratch):
        log.info("folder of a dead pilot removed", path=str(left))
    with ExitStack() as undo:
        folder = PilotFolder(scratch)
        undo.callback(folder.remove)
        confinement = _confinement(settings, folder, config_file)
        undo.callback(confinement.close)
        node = _node(settings, folder.path)
        share = node.share()
        keeper = _policy_keeper(settings, share)
        now = Now(clock.now(), clock.boot_time_s())
        lifetime = settings.lifetime(share.ends_boot_s, now.utc, now.boot_s)
        containers = _containers(settings, folder, confinement)
        if containers is not None:
            undo.callback(containers.close)
        of_containers = containers.runtime.attributes() if containers is not None else NO_CONTAINERS
        facts = _facts(settings, share, lifetime, now, queue)
        attributes = {**facts.attributes, **of_containers}
        facts = replace(facts, isolation=confinement.level, attributes=attributes)
        link = GrpcLink(
            Endpoint(settings.server, root_ca=_authorities(settings), tls=settings.tls),
            queue,
            EnrolledCredential(secret, clock.boot_time_s, queue if bound_queue is None else None),
            timeout_s=settings.call_timeout_s,
        )
        mqtt_publisher = _mqtt_publisher(settings, secret.text, facts, link)
        slots = _slots(settings, facts, share, keeper, now, of_containers, node.claim_ends())
        rules = replace(settings.rules(), isolation=confinement.level, has_containers=containers is not None)
        machine = PilotMachine(name, slots, rules, lifetime, now)
        payload_runner = _payload_runner(settings, name, folder, link, facts, confinement, watchdog, containers)
        undo.pop_all()
    pools = _pools_reader(settings, link)
    log.info("pilot starts", name=name, queue=str(queue), node=facts.name, share=share.sources, gpus=share.gpu_ids)
    edges = PilotPorts(link, payload_runner, node, clock.now, clock.boot_time_s, keeper, mqtt_publisher)
    return Pilot(PilotRunner(machine, edges, facts, pools), link)


def _mqtt_publisher(
    settings: PilotSettings, token: str, facts: NodeDescription, link: GrpcLink
) -> MqttPublisher | None:
    if settings.broker is None:
        return None
    try:
        # Imported here, so that a pilot without a broker does not need the package.
        from pilotage_pilot.link.mqtt import BrokerPublisher
    except ModuleNotFoundError as error:
        if error.name != "aiomqtt":
            raise
        why = "needs the Python package aiomqtt, which is not installed: install pilotage[pilot]"
        raise InvalidInputError(Violation("broker", why)) from error
    status = NodeStatus(stamp_of_token(token), facts.name, str(facts.attributes["Queue"]))
    return BrokerPublisher(parse_broker(settings.broker.get_secret_value()), status, get_login=link.broker_login)


def _policy_keeper(settings: PilotSettings, share: NodeShare) -> PolicyKeeper | None:
    if settings.policy is None:
        also = "" if is_available() else ", and HTCondor's library, which a policy needs, is not installed"
        log.info("built-in policy, every job may start", why=f"no policy is set{also}")
        return None
    source = PolicySource(settings.policy, share.amounts, share.gpu_ids, settings.policy_commands)
    try:
        keeper = PolicyKeeper(source)
    except ClassAdLibraryMissingError as error:
        raise InvalidInputError(Violation(str(settings.policy), f"cannot be used: {error}")) from error
    log.info("policy read", path=str(settings.policy), slots=len(keeper.layout.slots), wrapper=str(keeper.wrapper))
    return keeper


def _slots(
    settings: PilotSettings,
    facts: NodeDescription,
    share: NodeShare,
    keeper: PolicyKeeper | None,
    now: Now,
    of_containers: Mapping[str, Value],
    claim_ends: Mapping[str, datetime],
) -> NodeSlots:
    layout = keeper.layout if keeper is not None else lay_out(Policy({}), share.amounts, share.gpu_ids)
    attributes = {**identity(), **settings.node_attributes, **of_containers}
    node = SlotsNode.of(facts.name, share.amounts, layout, attributes, facts.isolation)
    if keeper is None:
        return NodeSlots(layout, BuiltInAds(node), now)
    return NodeSlots(layout, SlotAds(keeper.policy, node), now, claim_ends)


def read_secret(settings: PilotSettings) -> EnrolmentSecret:
    """Return the enrolment secret; raises WorldError if its file cannot be read."""
    if settings.token is not None:
        return EnrolmentSecret(settings.token.get_secret_value())
    path = settings.token_file
    assert path is not None, "settings have a token or a file of it"
    try:
        if path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            log.warning("others may read the pilot's enrolment secret", path=str(path))
        return EnrolmentSecret(path.read_text().strip(), path)
    except OSError as error:
        raise WorldError(f"{path}: {error.strerror}", transient=True) from error


def landed_queue(settings: PilotSettings) -> QueueId:
    """Return the queue that the pilot landed on; raises InvalidInputError if the settings do not say it."""
    if settings.queue_name is not None:
        return _parsed_queue("queue_name", settings.queue_name)
    if settings.queue_command is None:
        why = "is missing, nor is there a queue_command: the enrolment secret is for a set of queues"
        raise InvalidInputError(Violation("queue_name", why))
    name, timeout_s = settings.queue_command[0], settings.validate_timeout_s
    with memory_file() as output:
        try:
            done = subprocess.run(
                settings.queue_command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                env=without_secrets(os.environ),
                timeout=timeout_s,
                check=False,
            )
        except OSError as error:
            raise InvalidInputError(Violation("queue_command", f"{name}: {error.strerror}")) from error
        except subprocess.TimeoutExpired as error:
            why = f"{name}: it did not end within {timeout_s:g} s"
            raise InvalidInputError(Violation("queue_command", why)) from error
        printed = file_text(output).strip()
    if done.returncode != 0:
        raise InvalidInputError(Violation("queue_command", f"{name}: exit code {done.returncode}"))
    return _parsed_queue("queue_command", printed)


def _parsed_queue(source: str, text: str) -> QueueId:
    try:
        return QueueId.parse(text)
    except InvalidInputError as error:
        raise InvalidInputError(*(Violation(source, each.why) for each in error.violations)) from error


def _authorities(settings: PilotSettings) -> bytes | None:
    """Return the trusted certificate authorities in PEM; None = the system's."""
    if settings.ca is not None:
        return settings.ca.encode()
    try:
        return settings.ca_file.read_bytes() if settings.ca_file is not None else None
    except OSError as error:
        raise InvalidInputError(Violation("ca_file", f"{settings.ca_file}: {error.strerror}")) from error


def _node(settings: PilotSettings, folder: Path) -> LocalNode:
    sizes = settings.queue
    queue = Stated(sizes.cpus, sizes.memory_mib, sizes.disk_mib, sizes.gpus, sizes.wall_time_s)
    operator = Stated(settings.cpus, settings.memory_mib, settings.disk_mib, settings.gpus)
    probe = Probe(ProbeContext(dict(os.environ), folder), queue, operator)
    checks = Checks(
        folder,
        settings.min_free_disk_mib,
        settings.validate_commands,
        settings.validate_timeout_s,
        without_secrets(os.environ),
    )
    return LocalNode(probe, checks, ClaimEndFile(settings.scratch_folder()), clock.now, clock.boot_time_s)


def _facts(settings: PilotSettings, share: NodeShare, lifetime: Lifetime, now: Now, queue: QueueId) -> NodeDescription:
    ends = None
    if lifetime.ends_boot_s is not None:
        ends = now.utc + timedelta(seconds=lifetime.ends_boot_s - now.boot_s)
    attributes: dict[str, Value] = {"Queue": str(queue), "ShareFrom": share.sources, **settings.node_attributes}
    if settings.glidein_id is not None:
        attributes["GlideinId"] = settings.glidein_id
    return NodeDescription(
        settings.node_name or share.host,
        share.amounts,
        settings.cpu_power,
        ends,
        attributes,
        importlib.metadata.version("pilotage"),
    )


def _isolation_rules(settings: PilotSettings, config_file: Path | None) -> IsolationRules:
    """Return what the settings demand of isolation; the pilot's own files are hidden from payloads too."""
    files = (config_file, settings.token_file, settings.ca_file, settings.pools_file, settings.policy)
    own = (*files, settings.scratch_folder(), settings.image_cache)
    hidden = (*settings.hidden_paths, *(path for path in own if path is not None))
    paths = PayloadPaths.of(hidden, settings.visible_paths, settings.writable_paths)
    accounts = AccountRules(settings.payload_accounts, settings.account_command, settings.account_timeout_s)
    return IsolationRules(settings.isolation, paths, *settings.payload_uids, accounts)


def _confinement(settings: PilotSettings, folder: PilotFolder, config_file: Path | None) -> Confinement:
    launcher = Launcher()
    try:
        confinement, refused = confine(_isolation_rules(settings, config_file), launcher, folder.jobs)
    except BaseException:
        launcher.close()
        raise
    for level, why in refused.items():
        log.warning("isolation does not work here", isolation=level, why=why)
    has_accounts = confinement.accounts is not None
    if not has_accounts and (settings.payload_accounts or settings.account_command):
        log.warning("payloads run as the pilot's user, not as accounts", why="the pilot does not run as root")
    log.info("payloads are isolated", isolation=confinement.level.value, accounts=has_accounts)
    return confinement


def container_rules(settings: PilotSettings) -> ContainerRules:
    """Return the rules for the images of jobs."""
    return ContainerRules(
        cache=settings.image_cache or settings.scratch_folder() / f"pilotage-images-{os.geteuid()}",
        runtimes=settings.container_runtimes,
        options=settings.container_options,
        binds=settings.container_binds,
        cache_mib=settings.image_cache_mib,
        timeout_s=settings.image_timeout_s,
        max_age_s=settings.image_max_age_s,
    )


def _containers(settings: PilotSettings, folder: PilotFolder, confinement: Confinement) -> Containers | None:
    """Return the runner of container images, with the first runtime that works; None = none does."""
    rules = container_rules(settings)
    containers, refused = find_containers(rules, confinement, folder.jobs, settings.payload_path)
    for name, why in refused.items():
        log.warning("container runtime does not work here", runtime=name, why=why)
    if containers is not None:
        runtime = containers.runtime
        log.info("jobs run in container images", runtime=runtime.kind.value, version=runtime.version)
    return containers


def _payload_runner(
    settings: PilotSettings,
    name: str,
    folder: PilotFolder,
    link: GrpcLink,
    facts: NodeDescription,
    confinement: Confinement,
    watchdog: WatchdogLink | None,
    containers: Containers | None,
) -> LocalPayloadRunner:
    handling = PayloadRules(
        bounds=OutputLimits(settings.output_mib * _MIB, all_bytes=settings.all_output_mib * _MIB),
        cache_bytes=settings.cache_mib * _MIB,
        nice=settings.nice,
        cpus_hard=settings.cpus_hard,
        warn_signal=_signal(settings.warn_signal),
        processes=settings.payload_processes,
        file_mib=settings.payload_file_mib,
    )
    site = PayloadSite(
        name, settings.payload_path, str(facts.attributes["Queue"]), facts.name, passed=settings.pass_environment
    )
    groups = cgroup_maker(name, [watchdog.pid] if watchdog is not None else []) if settings.cgroups else None
    if groups is None:
        log.info("payloads have no control groups", why="off" if not settings.cgroups else "not permitted")
    return LocalPayloadRunner(folder, link, site, handling, groups, confinement, watchdog, containers)


def _signal(name: str | None) -> signal.Signals | None:
    if name is None:
        return None
    try:
        return signal.Signals[name]
    except KeyError:
        raise InvalidInputError(Violation("warn_signal", f"this machine has no signal {name}")) from None


def _pools_reader(settings: PilotSettings, link: PilotServerLink) -> ReadPools:
    """Return a reader of pools: first those from the site director, then the server's."""

    async def read(fresh: bool) -> PoolsRead:
        if not fresh and settings.pools is not None:
            return PoolsRead(known=True, pool_ids=settings.pools)
        if not fresh and settings.pools_file is not None:
            return PoolsRead(known=True, pool_ids=read_pool_ids(settings.pools_file))
        return await link.read_pools()

    return read


def read_pool_ids(path: Path) -> tuple[str, ...]:
    """Return the pool ids in a file, a JSON list or one id a line; raises WorldError if it cannot be read."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise WorldError(f"the list of pools {path} cannot be read: {error}", transient=True) from error
    if not text.lstrip().startswith("["):
        return tuple(line.strip() for line in text.splitlines() if line.strip())
    try:
        return tuple(str(each) for each in json.loads(text))
    except ValueError as error:
        raise WorldError(f"the list of pools {path} cannot be read: {error}", transient=True) from error
