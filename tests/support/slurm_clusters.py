"""Two real clusters of Slurm that know of each other by one accounting: slurmdbd over a MariaDB of its own."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from support.debian import found_or_installed
from support.ports import free_port
from support.slurm import SlurmCluster, programs, slurm_folder, stopped_at_the_end


class TwoClusters(NamedTuple):
    """Clusters of which each can be asked by the commands of the other."""

    near: SlurmCluster
    far: SlurmCluster


@contextmanager
def running_clusters() -> Iterator[TwoClusters]:
    """Run two clusters and their accounting; all is stopped, and its folders removed, at the end."""
    found_or_installed(programs(["mariadbd"]), "mariadb-server-core")
    found_or_installed(programs(["slurmdbd"]), "slurmdbd")
    key, port = os.urandom(1024), free_port()
    accounting = {
        "AccountingStorageType": "accounting_storage/slurmdbd",
        "AccountingStorageHost": "127.0.0.1",
        "AccountingStoragePort": port,
        "MinJobAge": 5,
    }
    with slurm_folder() as near_folder, slurm_folder() as far_folder:
        clusters = TwoClusters(
            SlurmCluster(near_folder, "near", key, accounting), SlurmCluster(far_folder, "far", key, accounting)
        )
        with stopped_at_the_end(clusters.near), stopped_at_the_end(clusters.far):
            for cluster in clusters:
                cluster.start_munge()
            _start_accounting(clusters.near, port)
            for cluster in clusters:
                cluster.run("sacctmgr", "--immediate", "add", "cluster", cluster.name)
                cluster.start_slurm()
            clusters.near.until(lambda: all(_is_known(clusters.near, each.name) for each in clusters))
            yield clusters


def _start_accounting(cluster: SlurmCluster, port: int) -> None:
    """Start a MariaDB that only this user reaches, and the slurmdbd over it, with a cluster's daemons."""
    folder, user = cluster.folder / "accounting", pwd.getpwuid(os.geteuid()).pw_name
    (folder / "db").mkdir(parents=True)
    folder.chmod(0o700)
    # Nobody's rights are looked at, so that it needs no tables of its own; nothing but its socket leads to it.
    options = ["--no-defaults", "--skip-grant-tables", "--skip-networking", "--innodb-flush-log-at-trx-commit=0"]
    places = [f"--datadir={folder}/db", f"--socket={folder}/socket", f"--pid-file={folder}/pid"]
    cluster.start_daemon("mariadbd", "mariadbd", *options, *places, f"--user={user}")
    cluster.until((folder / "socket").exists)
    _configure(cluster.folder / "slurmdbd.conf", user, port, cluster.folder / "munge" / "socket")
    cluster.start_daemon("slurmdbd", "env", f"MYSQL_UNIX_PORT={folder}/socket", "slurmdbd", "-D")
    cluster.until(lambda: cluster.try_to_run("sacctmgr", "--noheader", "show", "cluster").returncode == 0)


def _configure(path: Path, user: str, port: int, munge: Path) -> None:
    settings = {
        "AuthType": "auth/munge",
        "AuthInfo": f"socket={munge}",
        "DbdHost": "localhost",
        "DbdAddr": "127.0.0.1",
        "DbdPort": port,
        "SlurmUser": user,
        "StorageType": "accounting_storage/mysql",
        "StorageHost": "localhost",
        "StorageLoc": "slurm",
        "StorageUser": user,
        "LogFile": path.parent / "log" / "slurmdbd",
        "PidFile": path.with_suffix(".pid"),
    }
    path.touch(mode=0o600)
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))


def _is_known(cluster: SlurmCluster, name: str) -> bool:
    """Whether the accounting knows where the controller of a cluster is."""
    said = cluster.run(
        "sacctmgr", "--noheader", "--parsable2", "show", "cluster", name, "format=ControlHost,ControlPort"
    )
    host, _, port = said.strip().partition("|")
    return bool(host) and port not in ("", "0")


@pytest.fixture(scope="module")
def slurm_clusters() -> Iterator[TwoClusters]:
    """Return two running clusters that the tests of a module share."""
    with running_clusters() as clusters:
        yield clusters
