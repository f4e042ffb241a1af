"""HyperQueue with one worker of two cores: an array of /bin/true with captured output.

Run by the Python of its own environment: hyperqueue_peer.py true JOBS. Prints the seconds from the submission to the
start of the last task, read from its output files: the library polls for the end only once a second.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from hyperqueue import Job, LocalCluster
from hyperqueue.cluster import WorkerConfig

CORES = 2


def measure(jobs: int, folder: Path) -> float:
    """Return the seconds for `jobs` tasks."""
    with LocalCluster(worker_config=WorkerConfig(cores=CORES)) as cluster:
        client = cluster.client()
        job = Job(folder)
        for _ in range(jobs):
            job.program(["/bin/true"])
        began_s = time.time()
        client.wait_for_jobs([client.submit(job)])
        started = [file.stat().st_mtime for file in folder.glob("*.stdout")]
    assert len(started) == jobs, "a task has left no output"
    return max(started) - began_s


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        print(measure(int(sys.argv[2]), Path(name)))
