"""`pilotage up`: the whole stack as one command, also with a site policy."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, Request, build_opener

import pytest

from pilotage.job_description import JobDescription
from support.commands import WAIT_TIMEOUT_S, up_command
from support.metrics import Scrape, get
from support.site_policies import SHIPPED

pytestmark = pytest.mark.process


def a_job(script: str) -> JobDescription:
    return JobDescription("/bin/sh", arguments=f"-c '{script}'", stdout="out", request_cpus=1)


def test_jobs_and_output_persist_across_restarts(tmp_path: Path) -> None:
    with up_command(tmp_path / "data") as up:
        up.start()
        with up.client() as client:
            (job_id,) = client.submit([a_job("echo hello")]).job_ids
            (before,) = client.wait([job_id], WAIT_TIMEOUT_S)
            assert before.state == "DONE"
            folder = tmp_path / "data" / "director" / "pilots"
            assert list(folder.glob("*/pilot.json"))
            assert not list(folder.glob("*/token")), "the pilot has removed its used secret"
        assert up.stop() == 0
        up.start()
        with up.client() as client:
            assert client.jobs([job_id]) == [before]
            (out,) = [file for file in client.output_files(job_id) if file.name == "out"]
            assert client.read_output(job_id, out) == b"hello\n"


def test_web_page_of_this_machine_takes_the_token_that_is_named(tmp_path: Path) -> None:
    with up_command(tmp_path / "data") as up:
        up.start()
        (address,) = re.findall(r"  web page (http://127\.0\.0\.1:\d+)/ ", up.printed)
        (token_file,) = re.findall(r"  token    (.*)", up.printed)
        form = urlencode({"token": Path(token_file).read_text(), "next": "/"}).encode()
        visitor = build_opener(HTTPCookieProcessor())
        with visitor.open(Request(f"{address}/login", form, {"Origin": address}), timeout=WAIT_TIMEOUT_S) as page:
            assert page.url == f"{address}/"
            assert "<h1>Overview</h1>" in page.read().decode()


def test_job_reads_no_key_of_the_installation(tmp_path: Path) -> None:
    data = tmp_path / "data"
    with up_command(data) as up:
        up.start()
        with up.client() as client:
            (job_id,) = client.submit([a_job(f"grep -r . {data}/tokens {data}/server; ls -A {data}")]).job_ids
            client.wait([job_id], WAIT_TIMEOUT_S)
            (out,) = [file for file in client.output_files(job_id) if file.name == "out"]
            assert client.read_output(job_id, out) == b"scratch\n"
        assert "Jobs are isolated (namespace): they cannot read the keys of this installation." in up.printed


def test_up_without_isolation_is_for_own_jobs_only(tmp_path: Path) -> None:
    notice = "import pathlib, sys; from pilotage_client.up.up import isolation_notice as notice"
    program = [sys.executable, "-c", f"{notice}; print(notice(pathlib.Path(sys.argv[1])))", str(tmp_path)]
    forbids = 'echo 0 > /proc/sys/user/max_mnt_namespaces; exec "$@"'
    command = ["unshare", "--user", "--map-root-user", "sh", "-c", forbids, "sh", *program]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("WARNING: jobs run as your user and can read the keys")
    assert "Submit only your own jobs." in done.stdout


def test_job_interrupted_by_stop_is_requeued(tmp_path: Path) -> None:
    started = tmp_path / "started"
    with up_command(tmp_path / "data") as up:
        up.start()
        with up.client() as client:
            script = f"if [ -e {started} ]; then exit 0; fi; touch {started}; sleep 1000"
            (job_id,) = client.submit([a_job(script)]).job_ids
            up.until(started.exists)
        assert up.stop() == 0
        up.start()
        with up.client() as client:
            (job,) = client.wait([job_id], WAIT_TIMEOUT_S)
            causes = [event.cause for event in client.events(job_id)]
            assert (job.state, job.attempt) == ("DONE", 2), causes
    assert "evicted" in causes


def test_stop_leaves_no_processes(tmp_path: Path) -> None:
    with up_command(tmp_path / "data") as up:
        up.start()
        with up.client() as client:
            up.until(lambda: any(pilot.node for pilot in client.pilots()))
        children = up.children()
        assert len(children) == 2
        assert _processes_of(tmp_path) != []
        up.stop(signal.SIGTERM)
    assert _processes_of(tmp_path) == []


def _processes_of(folder: Path) -> list[str]:
    """Return the ids of the processes whose command line contains the folder."""
    mark = f"{folder}/".encode()
    return [path.parent.name for path in Path("/proc").glob("[0-9]*/cmdline") if mark in _content(path)]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


def test_second_up_on_the_same_data_is_one_error_line(tmp_path: Path) -> None:
    with up_command(tmp_path / "data") as up:
        up.start()
        with up_command(tmp_path / "data") as second:
            exit_code, printed = second.run()
    assert exit_code == 1
    assert printed.startswith("pilotage: another `pilotage up` works with ")
    assert printed.count("\n") == 1


def test_killed_agents_are_restarted(tmp_path: Path) -> None:
    with up_command(tmp_path / "data") as up:
        up.start()
        os.kill(up.children()[-1], signal.SIGKILL)
        up.until(lambda: "the agents ended with signal 9" in up.printed)
        up.until(lambda: len(up.children()) == 2)
        with up.client() as client:
            (job_id,) = client.submit([a_job("exit 0")]).job_ids
            (job,) = client.wait([job_id], WAIT_TIMEOUT_S)
            assert job.state == "DONE"
        served = re.findall(r"http://(\S+)/metrics \((\w+)\)", up.printed)
        assert [process for _, process in served] == ["server", "agents"]
        for address, _ in served:
            up.until(partial(_is_ready, address))
            assert Scrape(address).faults() == []


def _is_ready(address: str) -> bool:
    try:
        return get(address, "/readyz")[0] == 200
    except ConnectionRefusedError:
        return False


def test_job_survives_a_server_crash(tmp_path: Path) -> None:
    go, started = tmp_path / "go", tmp_path / "started"
    with up_command(tmp_path / "data") as up:
        up.start()
        with up.client() as client:
            script = f"touch {started}; while [ ! -e {go} ]; do sleep 0.05; done"
            (job_id,) = client.submit([a_job(script)]).job_ids
            up.until(started.exists)
        os.kill(up.children()[0], signal.SIGKILL)
        up.until(lambda: "the server ended with signal 9" in up.printed)
        up.until(up.answers)
        go.touch()
        with up.client() as client:
            (job,) = client.wait([job_id], WAIT_TIMEOUT_S)
            assert (job.state, job.attempt) == ("DONE", 1)


Obstacle = Literal[
    "port in use", "folder in the way", "no tree", "listens at loopback", "listens at a port", "has a certificate"
]


@pytest.mark.parametrize("obstacle", get_args(Obstacle))
def test_start_error_is_one_line(tmp_path: Path, obstacle: Obstacle, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    options, message = ["--port", "0"], ""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        match obstacle:
            case "port in use":
                port = listener.getsockname()[1]
                options, message = ["--port", str(port)], f"pilotage: port {port} is in use"
            case "folder in the way":
                data.write_text("")
                message = f"pilotage: {data} cannot be used: File exists"
            case "no tree":
                (tmp_path / "tree.toml").write_text("sites = 3")
                options, message = [*options, "--tree", str(tmp_path / "tree.toml")], f"{tmp_path}/tree.toml: sites"
            case "listens at loopback":
                options, message = [*options, "--listen", "127.0.0.2"], "--listen: 127.0.0.2 is loopback"
            case "listens at a port":
                options, message = [*options, "--listen", "10.0.0.1:47"], "--listen: 10.0.0.1:47 is no address"
            case "has a certificate":
                monkeypatch.setenv("PILOTAGE_SERVER_TLS_CERT", "/x.pem")
                options, message = [*options, "--listen", "0.0.0.0"], "PILOTAGE_SERVER_TLS_CERT: `up` needs"
        with up_command(data, *options) as up:
            exit_code, printed = up.run()
    assert exit_code in (1, 2)
    (line,) = printed.splitlines()
    assert line.startswith(message)


def test_policy_defines_the_slots_of_local_pilots(tmp_path: Path) -> None:
    policy = str(SHIPPED / "whole-machine.conf")
    with up_command(tmp_path / "data", "--port", "0", "--cpus", "2", "--policy", policy) as up:
        up.start()
        with up.client() as client:
            up.until(lambda: len(client.slots()) >= 3)
            slots = {info.name: info.state for info in client.slots()}
    assert slots == {"slot1": "Unclaimed", "slot2": "Unclaimed", "slot3": "Owner"}


def test_invalid_policy_is_reported_before_start(tmp_path: Path) -> None:
    policy = tmp_path / "broken.conf"
    policy.write_text("START = True\nPREEMPT = ((\n")
    with up_command(tmp_path / "data", "--port", "0", "--policy", str(policy)) as up:
        code, printed = up.run()
    assert code == 2
    assert str(policy) in printed
    assert "PREEMPT" in printed
    assert not (tmp_path / "data").exists()
