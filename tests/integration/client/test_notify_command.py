"""`pilotage notify` and the options of `submit` with a running server: subscribe, list, remove, and refusals."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pilotage.job_description import JobDescription
from pilotage.v1 import notification_service_pb2 as messages
from pilotage.v1.job_service_pb2 import JOB_CHANGE_REMOVE
from pilotage.v1.notification_service_pb2_grpc import NotificationServiceStub
from pilotage_client.cli.main import main
from pilotage_server.core.identity import Role
from support.commands import KEYS
from support.wire_grid import WireGrid, submission

Pilotage = Callable[..., Result]


@pytest.fixture
def pilotage(grid: WireGrid, tmp_path: Path) -> Pilotage:
    """Return the command line of a user, in this process."""
    token_file = tmp_path / "my.token"
    token_file.write_text(grid.server.token(owner="alice", vo=grid.vo))
    place = ["--server", grid.server.address, "--token-file", str(token_file)]
    return lambda *command: CliRunner().invoke(main, [*map(str, command), *place])


def submit(grid: WireGrid, owner: str = "alice", count: int = 1) -> list[int]:
    """Submit a cluster and return its id."""
    request = submission([JobDescription("/bin/true", count=count)])
    return list(grid.user(owner).SubmitJobs(request).job_ids)[:1]


def listed(pilotage: Pilotage, *ids: int | str) -> list[dict[str, object]]:
    result = pilotage("notify", *ids, "--list", "--json")
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_subscription_is_made_listed_and_removed(grid: WireGrid, pilotage: Pilotage, tmp_path: Path) -> None:
    (job,) = submit(grid, count=3)
    (tmp_path / "secret").write_text("wine\n")
    url = ("--url", "https://hooks.example.org/x", "--secret-file", tmp_path / "secret", "--on", "failure,end")
    made = pilotage("notify", f"{job}.0-1", *url)
    assert made.exit_code == 0, made.output
    assert made.stdout.startswith("subscription ")
    assert "no notifier runs now" in made.stderr
    assert f"{job}-{job + 1}" in made.stdout
    (shown,) = listed(pilotage)
    assert list(shown) == KEYS["notify"]
    assert (shown["first_job"], shown["last_job"], shown["on"]) == (job, job + 1, ["end", "failure"])
    assert "wine" not in json.dumps(shown)
    assert listed(pilotage, f"{job}.2") == []
    assert "open" in pilotage("notify", job, "--list").stdout
    assert pilotage("notify", "--remove", shown["id"]).exit_code == 0
    assert listed(pilotage) == []
    assert pilotage("notify", "--remove", shown["id"]).exit_code == 2


def test_submit_subscribes_for_clusters_and_for_all_jobs(pilotage: Pilotage, tmp_path: Path) -> None:
    file, other = tmp_path / "a.sub", tmp_path / "b.toml"
    lines = "transfer_executable = false\nnotification = Error\nnotify_user = alice@example.org\nqueue 3\n"
    file.write_text(f"executable = /bin/true\n{lines}")
    other.write_text('executable = "/bin/true"\nnotify = {url = "https://example.org/"}\n')
    result = pilotage("submit", "--notify-mail-to", "bob@example.org", file, other, "--notify-on", "end", "--json")
    assert result.exit_code == 0, result.output
    first, *_, last = json.loads(result.stdout)["jobs"]
    found = [(each["address"], each["first_job"], each["last_job"], each["on"]) for each in listed(pilotage)]
    assert sorted(found) == [
        ("alice@example.org", first, last - 1, ["failure", "hold"]),
        ("bob@example.org", first, last, ["end"]),
        ("https://example.org/", last, last, ["end", "failure", "hold"]),
    ]


def test_notifications_are_leased_and_reported_over_the_wire(grid: WireGrid, pilotage: Pilotage) -> None:
    (job,) = submit(grid)
    assert pilotage("notify", job, "--mail-to", "a@example.org", "--command", "--on", "end").exit_code == 0
    grid.change(JOB_CHANGE_REMOVE, job)
    token = grid.server.token(Role.NOTIFIER, owner="notifier:test")
    with grid.server.channel(token) as channel:
        notifier = NotificationServiceStub(channel)
        due: list[messages.DueNotification] = []
        while len(due) < 2:
            answer = notifier.TakeNotifications(messages.TakeNotificationsRequest(most=10))
            due += [each for each in answer.notifications if json.loads(each.body)["first_job"] == job]
        mail, command = sorted(due, key=lambda each: each.kind)
        reports = [
            messages.DeliveryReport(id=mail.id, tries=mail.tries, error="no such host"),
            messages.DeliveryReport(id=command.id, tries=command.tries, error="no command", permanent=True),
        ]
        for _ in range(2):
            notifier.ReportDeliveries(messages.ReportDeliveriesRequest(reports=reports))
    table = pilotage("notify", job, "--list").stdout
    assert "waits, last try: no such host" in table
    assert "given up after 1 tries: no command" in table


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (("notify", "12"), "give --url, --mail, --mail-to or --command"),
        (("notify", "12", "--mail-to", "a@b.ch", "--list"), "give --url, --mail, --mail-to or --command"),
        (("notify", "--command"), "name the jobs"),
        (("notify", "12", "--command", "--on", "begin"), "--on: begin is none of end, failure, hold"),
        (("notify", "12", "--url", "example.org"), "is not a URL"),
        (("notify", "--mail", "12"), "the server has no mail domain"),
        (("notify", "12-15", "--command"), "is a range of job ids"),
        (("notify", "999999999", "--command"), "999999999"),
        (("notify", "12", "--url", "https://a.ch", "--secret-file", "/no/such"), "cannot be read"),
        (("notify", "12", "--url", "https://a.ch", "--secret-file", "/dev/null"), "/dev/null is empty"),
        (("notify", "12", "--mail-to", "a@b.ch", "--secret-file", "/dev/null"), "give --url"),
        (("notify", "12", "13x", "--url", "https://a.ch", "--mail-to", "a@"), "notify: 'a@' is not a mail address"),
        (("notify", "12", "13x", "--command"), "13x"),
    ],
)
def test_bad_command_is_refused(grid: WireGrid, pilotage: Pilotage, command: tuple[str, ...], why: str) -> None:
    (job,) = submit(grid)
    result = pilotage(*(str(job) if each == "12" else each for each in command))
    assert (result.exit_code, result.stdout) == (2, "")
    assert why in result.stderr
    assert listed(pilotage, job) == []


def test_secret_is_of_the_url_only(pilotage: Pilotage, grid: WireGrid, tmp_path: Path) -> None:
    (job,) = submit(grid)
    (tmp_path / "secret").write_text("wine\n")
    signed = ("--url", "https://hooks.example.org/x", "--secret-file", tmp_path / "secret")
    assert pilotage("notify", job, *signed, "--mail-to", "a@example.org").exit_code == 0
    assert len(listed(pilotage, job)) == 2


def test_subscription_is_shown_before_the_next_one_fails(pilotage: Pilotage, grid: WireGrid) -> None:
    (job,) = submit(grid)
    result = pilotage("notify", job, "999999999", "--command", "--on", "end")
    (shown,) = listed(pilotage, job)
    assert result.exit_code == 2
    assert result.stdout == f"subscription {shown['id']}: jobs {job}, command, end\n"


def test_jobs_of_others_are_unknown(grid: WireGrid, pilotage: Pilotage) -> None:
    (job,) = submit(grid, owner="bob")
    result = pilotage("notify", job, "--command")
    assert (result.exit_code, result.stdout) == (2, "")
