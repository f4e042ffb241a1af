"""The shipped settings, units and compose file without systemd and containers: all programs run, and a job too."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest
import yaml

from support.debian import find_or_install
from support.deployment import DEPLOY, Deployment, Service, unit_command
from support.metrics import get
from support.network import Network
from support.postgresql import installed_programs, running_postgresql
from support.process_grid import QUEUE, TREE

CONTAINERS = DEPLOY / "containers"
COMPOSE = yaml.safe_load((CONTAINERS / "compose.yaml").read_text())
PILOTAGE = ("server1", "server2", "agents1", "agents2")
NODE = "node"


@pytest.fixture
def deployment(tmp_path: Path) -> Iterator[Deployment]:
    network = Network()
    try:
        yield Deployment(network, tmp_path)
    finally:
        network.close()


def shipped_settings(folder: Path) -> Path:
    """Copy the shipped settings to a folder, as a package installs them."""
    shutil.copytree(DEPLOY / "settings", folder, ignore=shutil.ignore_patterns("*.yaml"))
    return folder


def new_folder(path: Path, mode: int = 0o700) -> Path:
    path.mkdir()
    path.chmod(mode)
    return path


def put_tree(deployment: Deployment, etc: Path, login: Mapping[str, str]) -> None:
    """Activate a tree with one queue; `login` is that of an administrator."""
    (etc / "tree.json").write_text(json.dumps(TREE))
    command = ["pilotage", "tree", "put", "/etc/pilotage/tree.json"]
    deployment.run(NODE, command, {"/etc/pilotage": etc}, **login)


def run_a_job(
    deployment: Deployment, etc: Path, login: Mapping[str, str], pilot_settings: Mapping[str, str] = {}
) -> str:
    """Run a job with the pilot of the unit; returns the pilot's log."""
    volumes = {"/etc/pilotage": etc, "/var/lib/pilotage-pilot": new_folder(deployment.folder / "scratch", 0o711)}
    (etc / "job.toml").write_text('executable = "/usr/bin/id"')

    def pilotage(*words: str) -> str:
        return deployment.run(NODE, ["pilotage", *words], volumes, **login)

    pilotage("pilot-token", str(QUEUE), "--to", "/etc/pilotage/pilot.token")
    (job_id,) = json.loads(pilotage("submit", "/etc/pilotage/job.toml", "--json"))["jobs"]
    command = unit_command("pilotage-pilot.service")
    with deployment.service(NODE, command, volumes, pilot_settings) as pilot:
        pilotage("wait", str(job_id), "--timeout", "60")
        # Its secret works once, and the unit must let it be removed.
        assert not (etc / "pilot.token").exists()
        pilot.stop()
        return pilot.log()


def test_units_run_a_job_with_the_shipped_settings(deployment: Deployment) -> None:
    deployment.add_hosts(NODE)
    etc = shipped_settings(deployment.folder / "etc")
    of_server = {"/etc/pilotage": etc, "/var/lib/pilotage": new_folder(deployment.folder / "server")}
    with ExitStack() as stack:
        server = stack.enter_context(deployment.service(NODE, unit_command("pilotage-server.service"), of_server))
        server.ready()
        (etc / "tokens").mkdir()
        for name, roles in (("admin", "--role admin"), ("agents", "--role cleaner --role racer --role notifier")):
            command = f"pilotage-server token --config /etc/pilotage/server.toml {roles}"
            (etc / "tokens" / f"{name}.token").write_text(deployment.run(NODE, command.split(), of_server))
        of_agents = unit_command("pilotage-agents.service")
        agents = stack.enter_context(deployment.service(NODE, of_agents, {"/etc/pilotage": etc}))
        agents.ready()
        token = (etc / "tokens" / "admin.token").read_text().strip()
        login = {"PILOTAGE_SERVER": "127.0.0.1:4711", "PILOTAGE_TOKEN": token}
        put_tree(deployment, etc, login)
        log = run_a_job(deployment, etc, login)
        # The rights that the unit leaves to it are enough.
        assert '"isolation": "namespace"' in log
        for service in (agents, server):
            code = service.stop()
            assert (service.reported(), code) == ("STOPPING=1", 0), service.log()


@pytest.fixture
def secrets(tmp_path: Path) -> Path:
    """Return the folder that `make-secrets` makes."""
    programs = {"PATH": f"{Path(sys.prefix, 'bin')}:{os.environ['PATH']}"}
    command = [str(CONTAINERS / "make-secrets"), str(tmp_path / "secrets"), "server1", "server2", "mosquitto"]
    subprocess.run(command, env=os.environ | programs, check=True)
    return tmp_path / "secrets"


class Composition:
    """The services of the compose file, each on a host of its name."""

    def __init__(self, deployment: Deployment, secrets: Path) -> None:
        self.deployment = deployment
        self._secrets = secrets
        self._volumes = new_folder(deployment.folder / "volumes")

    def volumes(self, name: str) -> dict[str, Path]:
        """Return what a service sees, by path."""
        found = {}
        for volume in COMPOSE["services"][name]["volumes"]:
            source, target, *_ = volume.split(":")
            if source.startswith("./secrets/"):
                found[target] = self._secrets / source.removeprefix("./secrets/")
            elif source.startswith("."):
                found[target] = (CONTAINERS / source).resolve(strict=True)
            else:
                found[target] = self._volumes / source
                found[target].mkdir(exist_ok=True)
        return found

    def environment(self, name: str) -> dict[str, str]:
        """Return the variables of a service."""
        files = (self._secrets / Path(file).name for file in COMPOSE["services"][name].get("env_file", ()))
        lines = [line.partition("=") for file in files for line in file.read_text().splitlines()]
        found: dict[str, str] = COMPOSE["services"][name].get("environment", {})
        return {key: value for key, _, value in lines} | found

    def service(self, name: str, **replaced: Path) -> AbstractContextManager[Service]:
        """Run a service until the end of a block; `replaced` are files in place of its own, by path."""
        words = [word.replace("$$", "$") for word in COMPOSE["services"][name]["command"]]
        return self.deployment.service(name, words, self.volumes(name) | replaced, self.environment(name))

    def check_health(self, name: str) -> None:
        """Run the health check of a service, which must pass."""
        program, *words = COMPOSE["services"][name]["healthcheck"]["test"]
        assert program == "CMD"
        self.deployment.run(name, words)


def test_services_of_the_compose_file_run_a_job(deployment: Deployment, secrets: Path) -> None:
    find_or_install(lambda: shutil.which("mosquitto", path="/usr/sbin:/usr/bin"), "mosquitto")
    postgresql = find_or_install(installed_programs, "postgresql")
    deployment.add_hosts(*PILOTAGE, "postgresql", "mosquitto", NODE)
    composition = Composition(deployment, secrets)
    broker = deployment.folder / "mosquitto.conf"
    # Debian has the plugin elsewhere than the image, and its broker wants a user of its own.
    text = (CONTAINERS / "mosquitto.conf").read_text()
    broker.write_text(text.replace("/usr/lib/", "/usr/lib/x86_64-linux-gnu/") + "user root\n")
    with ExitStack() as stack:
        with deployment.network.inside(deployment.hosts["postgresql"]):
            database = stack.enter_context(running_postgresql(postgresql, address="0.0.0.0"))
            database.run_on(database.url("postgres"), "CREATE DATABASE pilotage")
        stack.enter_context(composition.service("mosquitto", **{"/etc/mosquitto/pilotage.conf": broker}))
        etc = shipped_settings(deployment.folder / "etc")
        shutil.copytree(secrets / "tls", etc / "tls")
        servers = "server1:4711,server2:4711"
        login = {"PILOTAGE_SERVER": servers, "PILOTAGE_TOKEN": (secrets / "admin.token").read_text().strip()}
        login["PILOTAGE_CA"] = "/etc/pilotage/tls/ca.pem"
        running = []
        for name in PILOTAGE:
            running.append(stack.enter_context(composition.service(name)).ready())
            composition.check_health(name)
            if name == "server1":  # a server that runs already would learn of the tree only seconds later
                put_tree(deployment, etc, {**login, "PILOTAGE_SERVER": "server1:4711"})
        pilot = {
            "PILOTAGE_PILOT_SERVER": json.dumps(servers.split(",")),
            "PILOTAGE_PILOT_CA_FILE": "/etc/pilotage/tls/ca.pem",
            "PILOTAGE_PILOT_BROKER": "mqtts://mosquitto:8883",
            "SSL_CERT_FILE": "/etc/pilotage/tls/ca.pem",
        }
        run_a_job(deployment, etc, login, pilot)
        (scrape,) = yaml.safe_load((CONTAINERS / "prometheus.yml").read_text())["scrape_configs"]
        targets = [target for each in scrape["static_configs"] for target in each["targets"]]
        assert sorted(target.partition(":")[0] for target in targets) == sorted(PILOTAGE)
        with deployment.network.inside(deployment.hosts[NODE]):
            for target in targets:
                name, _, port = target.partition(":")
                assert get(f"{deployment.hosts[name].address}:{port}", "/readyz") == (200, "ok\n")
        assert [service.stop() for service in running] == [0, 0, 0, 0]
