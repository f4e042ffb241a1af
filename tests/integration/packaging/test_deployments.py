"""Compose file, Kubernetes manifests and Ansible role, by the tools that read them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from pilotage_agents.settings import AgentSettings
from pilotage_server.settings import ServerSettings
from support.debian import find_or_install
from support.deployment import DEPLOY, mounted
from support.metrics import promtool

pytestmark = pytest.mark.process

CONTAINERS, ANSIBLE = DEPLOY / "containers", DEPLOY / "ansible"


def run(*command: str | Path, folder: Path = DEPLOY) -> str:
    """Run a command, which must succeed; returns its output."""
    done = subprocess.run([*map(str, command)], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def check_variables(names: set[str]) -> None:
    """Check that variables of the programs are settings."""
    for prefix, settings in (("PILOTAGE_SERVER_", ServerSettings), ("PILOTAGE_AGENTS_", AgentSettings)):
        known = {f"{prefix}{name.upper()}" for name in settings.model_fields}
        assert {name for name in names if name.startswith(prefix)} <= known


def test_compose_file_is_valid(tmp_path: Path) -> None:
    compose = find_or_install(lambda: shutil.which("docker-compose"), "docker-compose")
    folder = tmp_path / "deploy" / "containers"
    shutil.copytree(CONTAINERS, folder)
    (folder / "secrets").mkdir()
    for name in ("server", "postgresql", "broker", "grafana"):
        (folder / "secrets" / f"{name}.env").touch()
    found = yaml.safe_load(run(compose, "--file", folder / "compose.yaml", "config"))
    assert {"server1", "server2", "agents1", "agents2", "postgresql", "mosquitto", "prometheus"} < found[
        "services"
    ].keys()
    for service in found["services"].values():
        check_variables(set(service.get("environment", {})))
        for volume in service["volumes"]:
            source = volume if isinstance(volume, str) else volume["source"]
            path = Path(source.split(":")[0].replace(str(tmp_path / "deploy"), str(DEPLOY)))
            # What make-secrets makes and named volumes are not there yet.
            assert "secrets" in path.parts or path.exists() or not path.is_absolute(), path


def test_prometheus_of_the_compose_file_finds_the_alerts(tmp_path: Path) -> None:
    shutil.copy(CONTAINERS / "prometheus.yml", tmp_path)
    shutil.copy(DEPLOY / "monitoring" / "alerts.yml", tmp_path)
    assert "1 rule files found" in promtool("check", "config", tmp_path / "prometheus.yml")


def test_scripts_for_containers_and_packages_are_valid() -> None:
    for script in (CONTAINERS / "make-secrets", *(DEPLOY / "packages").glob("[lb]*")):
        run("sh", "-n", script)


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """Return what `kubectl apply --kustomize` would send."""
    kubectl = find_or_install(lambda: shutil.which("kubectl"), "kubernetes-client")
    folder = tmp_path_factory.mktemp("deploy")
    for name in ("kubernetes", "settings"):
        shutil.copytree(DEPLOY / name, folder / name)
    if "v1.20." in run(kubectl, "version", "--client"):  # Debian's, which knows folders as bases only
        file = folder / "kubernetes" / "kustomization.yaml"
        file.write_text(file.read_text().replace("  - ../settings\n", "") + "bases: [../settings]\n")
    return list(yaml.safe_load_all(run(kubectl, "kustomize", folder / "kubernetes")))


def test_kubernetes_manifests_follow_the_schemas(manifests: list[dict[str, Any]], tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(yaml.safe_dump_all(manifests))
    validate = Path(sys.executable).with_name("kubernetes-validate")
    done = subprocess.run([validate, "--strict", file], capture_output=True, text=True, check=False)
    passed = (done.stdout + done.stderr).count(" passed for resource ")
    assert (done.returncode, passed) == (0, len(manifests)), done.stdout + done.stderr


def test_kubernetes_pods_are_restricted_and_complete(manifests: list[dict[str, Any]]) -> None:
    maps = {each["metadata"]["name"]: each["data"] for each in manifests if each["kind"] == "ConfigMap"}
    pods = [each["spec"]["template"]["spec"] for each in manifests if each["kind"] in ("Deployment", "StatefulSet")]
    assert len(pods) == 2
    for pod in pods:
        assert pod["securityContext"]["runAsNonRoot"]
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        volumes = {each["name"]: each for each in pod["volumes"]} | {"data": {}}
        (container,) = pod["containers"]
        assert container["image"].startswith("registry.example.org/")
        context = container["securityContext"]
        assert (context["allowPrivilegeEscalation"], context["capabilities"]) == (False, {"drop": ["ALL"]})
        check_variables({each["name"] for each in container["env"]})
        ports = {each["name"] for each in container["ports"]}
        for probe in ("livenessProbe", "readinessProbe"):
            assert container[probe]["httpGet"]["port"] in ports
        for mount in container["volumeMounts"]:
            source = volumes[mount["name"]]
            if "configMap" in source:
                assert mount["subPath"] in maps[source["configMap"]["name"]]
                assert mount["mountPath"] in container["command"]


def test_kubernetes_policies_select_pods_and_their_ports(manifests: list[dict[str, Any]]) -> None:
    pods = [each["spec"]["template"] for each in manifests if each["kind"] in ("Deployment", "StatefulSet")]
    for each in manifests:
        if each["kind"] not in ("NetworkPolicy", "Service", "PodDisruptionBudget"):
            continue
        spec = each["spec"]
        if each["kind"] == "Service":
            wanted, ports = spec["selector"], {port["targetPort"] for port in spec["ports"]}
        else:
            wanted = spec.get("podSelector", spec.get("selector", {})).get("matchLabels", {})
            ports = {port["port"] for rule in spec.get("ingress", ()) for port in rule["ports"]}
        selected = [pod for pod in pods if wanted.items() <= pod["metadata"]["labels"].items()]
        assert selected, each["metadata"]["name"]
        for pod in selected:
            assert ports <= {port["name"] for port in pod["spec"]["containers"][0]["ports"]}


def test_ansible_role_is_accepted(tmp_path: Path) -> None:
    find_or_install(lambda: shutil.which("ansible-playbook"), "ansible-core")
    lint = find_or_install(lambda: shutil.which("ansible-lint"), "ansible-lint")
    copied = shutil.copytree(ANSIBLE, tmp_path / "ansible")
    run(lint, "--offline", "--nocolor", "site.yml", folder=copied)
    run("ansible-playbook", "--syntax-check", "--inventory", "inventory.example.yml", "site.yml", folder=copied)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may hide the folder /etc of this machine")
def test_ansible_role_writes_settings_and_secrets(tmp_path: Path) -> None:
    """The role writes to an /etc that only this test sees; packages and services are left out."""
    find_or_install(lambda: shutil.which("ansible-playbook"), "ansible-core")
    inventory = yaml.safe_load((ANSIBLE / "inventory.example.yml").read_text())
    servers = inventory["pilotage_servers"]
    servers["hosts"] = {"localhost": {"ansible_connection": "local"}}
    servers["vars"]["pilotage_environment"] = {"PILOTAGE_SERVER_DATABASE": "postgresql+psycopg://u:hush@db/p"}
    for file in servers["vars"]["pilotage_files"]:
        file["src"] = str(tmp_path / file["src"])
        Path(file["src"]).parent.mkdir(parents=True, exist_ok=True)
        Path(file["src"]).write_text("secret")
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump({"pilotage_servers": servers}))
    playbook = f"ansible-playbook --inventory {tmp_path}/inventory.yml --tags settings {ANSIBLE}/site.yml"
    prepare = f"systemd-sysusers {DEPLOY}/systemd/pilotage.sysusers; mkdir -p /etc/pilotage/tls /etc/pilotage/keys"
    show = "stat --format '%n %U %a' /etc/pilotage/*.* /etc/pilotage/*/*; cat /etc/pilotage/server.env"
    script = f"({prepare}; {playbook}) >&2 && {show}"
    found = run(*mounted(["sh", "-c", script], {}))
    assert "/etc/pilotage/tls/server.key pilotage 600" in found
    assert "/etc/pilotage/tls/server.pem root 644" in found
    assert "/etc/pilotage/server.env root 600" in found
    assert "PILOTAGE_SERVER_DATABASE=postgresql+psycopg://u:hush@db/p\n" in found
