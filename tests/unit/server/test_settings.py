"""The server's settings: sources, precedence, rejected values."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from pilotage.accounts import Quota, QuotaUnit
from pilotage.errors import InvalidInputError
from pilotage.settings import load_settings
from pilotage.values.accounts import Account, GroupId
from pilotage.values.isolation import Isolation
from pilotage_server.core.health.black_holes import LocationLevel
from pilotage_server.core.rules import Rules
from pilotage_server.settings import ServerSettings


def read_settings(options: Mapping[str, Any], file: Path | None = None) -> ServerSettings:
    return load_settings(ServerSettings, file, options)


def a_file(folder: Path, text: str) -> Path:
    path = folder / "server.toml"
    path.write_text(text)
    return path


def test_defaults(tmp_path: Path) -> None:
    settings = read_settings({"data": tmp_path})

    assert settings.rules() == Rules()
    assert settings.lease_s == 1200
    assert settings.attempt_limit == 3
    assert settings.database_url == f"sqlite:///{tmp_path / 'pilotage.db'}"
    assert settings.files_url == f"file://{tmp_path / 'files'}"


def test_options_override_environment_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = a_file(tmp_path, "lease_s = 100\nheartbeat_s = 10\nattempt_limit = 7\n")
    monkeypatch.setenv("PILOTAGE_SERVER_HEARTBEAT_S", "11")
    monkeypatch.setenv("PILOTAGE_SERVER_LEASE_S", "101")

    settings = read_settings({"data": tmp_path, "lease_s": 102}, file)

    assert (settings.lease_s, settings.heartbeat_s, settings.attempt_limit) == (102, 11, 7)


def test_tables_of_file_become_rules(tmp_path: Path) -> None:
    file = a_file(
        tmp_path,
        """
        [priority_factors]
        "sky/grp/alice" = 2
        [group_quotas]
        "sky/grp" = 3.5
        "sky/vip" = "40 cores"
        "sky/" = "25 %"
        [required_isolation]
        CMS = "uid"
        [[running_limits]]
        site = "CERN"
        ce = "ce01"
        attribute = "owner"
        value = "alice"
        at_most = 5
        """,
    )

    rules = read_settings({"data": tmp_path}, file).rules()

    assert rules.sharing.priority_factors == {Account("sky", "grp", "alice"): 2}
    assert rules.sharing.group_quotas == {
        GroupId("sky", "grp"): Quota(3.5),
        GroupId("sky", "vip"): Quota(40, QuotaUnit.CORES),
        GroupId("sky", ""): Quota(0.25, QuotaUnit.PART),
    }
    assert rules.required_isolation == {"cms": Isolation.UID}
    assert str(rules.running_limits[0]) == "at most 5 running jobs with owner alice at CERN/ce01"


def test_durations_are_in_seconds(tmp_path: Path) -> None:
    rules = read_settings({"data": tmp_path, "lease_s": 90, "keep_jobs_s": 3600}).rules()

    assert rules.lease == timedelta(seconds=90)
    assert rules.retention.finished_jobs == timedelta(hours=1)


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"lease_s": 0}, "lease_s"),
        ({"lease_s": float("nan")}, "lease_s"),
        ({"attempt_limit": 0}, "attempt_limit"),
        ({"listen": "nowhere"}, "listen"),
        ({"listen": "127.0.0.1:99999"}, "listen"),
        ({"metrics_listen": "9100"}, "metrics_listen"),
        ({"s3_endpoint": "s3.example.org"}, "s3_endpoint"),
        ({"s3_endpoint": "https://s3.example.org/bucket"}, "s3_endpoint"),
        ({"lesae_s": 5}, "lesae_s"),
        ({"priority_factors": {"sky/g/o": 0}}, "priority_factors.sky/g/o"),
        ({"running_limits": [{"site": "A"}]}, "running_limits.0.at_most"),
        ({"group_sort_expression": "GroupQuota / RequestCpus"}, "group_sort_expression"),
        ({"required_isolation": {"cms": "strict"}}, "required_isolation.cms"),
        ({"health": {"node_rate": 0}}, "health.node_rate"),
        ({"mail_domain": "me@example.org"}, "mail_domain"),
        ({"max_subscriptions_per_owner": -1}, "max_subscriptions_per_owner"),
        ({"pool_sites_shown": -1}, "pool_sites_shown"),
        ({"health": {"plug": True}}, "health.plug"),
    ],
)
def test_error_names_invalid_setting(tmp_path: Path, options: dict[str, object], where: str) -> None:
    with pytest.raises(InvalidInputError) as rejected:
        read_settings({"data": tmp_path, **options})

    assert where in {violation.where for violation in rejected.value.violations}


def test_rejects_unknown_environment_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PILOTAGE_SERVER_LESAE_S", "5")
    monkeypatch.setenv("PILOTAGE_TOKEN", "x")
    with pytest.raises(InvalidInputError, match="PILOTAGE_SERVER_LESAE_S: is no setting"):
        read_settings({"data": tmp_path})


@pytest.mark.parametrize("text", ["lease_s = ", "lesae_s = 5", "lease_s = 'long'"])
def test_rejects_invalid_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidInputError):
        read_settings({"data": tmp_path}, a_file(tmp_path, text))


def test_rejects_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match=r"absent\.toml: cannot be read"):
        read_settings({"data": tmp_path}, tmp_path / "absent.toml")


@pytest.mark.parametrize("url", [None, "mqtt://broker.example.org"])
def test_logins_of_pilots_need_a_login_of_the_server(url: str | None, tmp_path: Path) -> None:
    options = {"data": tmp_path, "broker_pilot_logins": True, "broker": url}
    with pytest.raises(InvalidInputError, match="broker_pilot_logins needs"):
        read_settings(options)
    assert read_settings({**options, "broker": "mqtt://server:x@broker.example.org"}).broker_pilot_logins
    assert not read_settings({"data": tmp_path}).broker_pilot_logins


def test_own_certificate_is_made_beyond_loopback_only(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="belong together"):
        read_settings({"data": tmp_path, "tls_cert": "/x"})
    assert not read_settings({"data": tmp_path, "listen": "[::1]:4711"}).has_own_certificate
    everywhere = {"data": tmp_path, "listen": "0.0.0.0:4711"}
    assert read_settings(everywhere).has_own_certificate
    assert not read_settings({**everywhere, "tls_cert": "/x", "tls_key": "/y"}).has_own_certificate
    with pytest.raises(InvalidInputError, match="tls_names"):
        read_settings({**everywhere, "tls_names": ["https://example.org"]})


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"files": "s3://bucket", "s3_access_key": "AKIA"}, "s3_access_key and s3_secret_key belong together"),
        ({"s3_region": "eu-north-1"}, "need files = s3://BUCKET/PREFIX"),
        ({"files": "file:///shared", "s3_endpoint": "https://s3.example.org"}, "need files = s3://BUCKET/PREFIX"),
    ],
)
def test_settings_of_an_object_store_belong_together(tmp_path: Path, options: dict[str, str], why: str) -> None:
    with pytest.raises(InvalidInputError, match=why):
        read_settings({"data": tmp_path, **options})


def test_repr_hides_secrets(tmp_path: Path) -> None:
    keys = {"files": "s3://bucket", "s3_access_key": "AKIA", "s3_secret_key": "hush"}
    settings = read_settings({"data": tmp_path, "database": "postgresql+psycopg://u:hush@h/d", **keys})

    assert "hush" not in repr(settings)
    assert "hush" in settings.database_url


def test_reads_health_table(tmp_path: Path) -> None:
    text = "[health]\nfast_s = 30\ninterval_s = 100\nnode_rate = 0.5\nproofs = 2\n"
    health = read_settings({"data": tmp_path}, a_file(tmp_path, text)).rules().health
    assert (health.fast, health.proofs) == (timedelta(seconds=30), 2)
    assert health.most_failures(LocationLevel.NODE) == 50


def test_issuers_are_tables(tmp_path: Path) -> None:
    text = """
        longest_token_s = 3600
        [[issuers]]
        url = "https://iam.example.org/"
        name = "iam"
        audiences = ["https://pilotage.example.org"]
        vo = "cms"
        longest_token_s = 7200
        [issuers.roles]
        "/cms/operators" = ["operator"]
        """
    settings = read_settings({"data": tmp_path}, a_file(tmp_path, text))
    (issuer,) = settings.issuers
    assert (issuer.algorithms, issuer.needs_scopes, issuer.any_audience) == (("RS256", "ES256"), True, False)
    assert issuer.roles == {"/cms/operators": ("operator",)}
    assert settings.rules().longest_token == timedelta(hours=2)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ('url = "http://iam.example.org/"', "begins with https://"),
        ('url = "iam.example.org"', "is not the URL of an issuer"),
        ('url = "https://me@iam.example.org/"', "is not the URL of an issuer"),
        ('name = "a@b"', "should match pattern"),
        ("audiences = []", "at least 1"),
        ('algorithms = ["HS256"]', "RS256"),
        ('algorithms = ["none"]', "RS256"),
        ('vo = "a/b"', "holds a slash"),
        ('vos = {"/cms" = ""}', "is empty"),
        ('roles = {"/cms" = ["pilot"]}', "operator"),
        ('roles = {"/cms" = ["director"]}', "operator"),
        ("colour = 1", "is no setting"),
    ],
)
def test_invalid_issuer_is_rejected(tmp_path: Path, line: str, why: str) -> None:
    fields = {"url": '"https://iam.example.org/"', "name": '"iam"', "audiences": '["x"]', "vo": '"cms"'}
    name, _, value = line.partition(" = ")
    table = "\n".join(f"{key} = {text}" for key, text in (fields | {name: value}).items())
    with pytest.raises(InvalidInputError, match=why):
        read_settings({"data": tmp_path}, a_file(tmp_path, f"[[issuers]]\n{table}\n"))


@pytest.mark.parametrize(("other", "what"), [({"name": "b"}, "url"), ({"url": "https://b.example.org/"}, "name")])
def test_two_issuers_differ_in_url_and_name(tmp_path: Path, other: dict[str, str], what: str) -> None:
    one = {"url": "https://iam.example.org/", "name": "iam", "audiences": ["x"], "vo": "cms"}
    with pytest.raises(InvalidInputError, match=f"two issuers have the same {what}"):
        read_settings({"data": tmp_path, "issuers": [one, one | other]})


LOGIN = {"title": "IAM", "client_id": "pilotage"}


@pytest.mark.parametrize(
    ("login", "more", "why"),
    [
        (LOGIN, {}, "log-in through an issuer needs web_address"),
        (LOGIN | {"scopes": ["compute.read"]}, {"web_address": "https://p.example.org"}, "has no openid"),
        (LOGIN | {"scopes": ["openid a"]}, {"web_address": "https://p.example.org"}, "should match pattern"),
        (LOGIN, {"web_address": "http://p.example.org"}, "begins with https://"),
        (LOGIN, {"web_address": "https://p.example.org/web"}, "should match pattern"),
        ({"client_id": "x"}, {"web_address": "https://p.example.org"}, "title"),
    ],
    ids=["no-address", "no-openid", "blank", "plain-http", "path", "no-title"],
)
def test_invalid_login_is_rejected(tmp_path: Path, login: dict[str, Any], more: dict[str, str], why: str) -> None:
    issuer = {"url": "https://iam.example.org/", "name": "iam", "audiences": ["x"], "vo": "cms", "login": login}
    with pytest.raises(InvalidInputError, match=why):
        read_settings({"data": tmp_path, "issuers": [issuer], **more})


def test_login_is_a_table_of_an_issuer(tmp_path: Path) -> None:
    text = """
        web_address = "https://pilotage.example.org"
        [[issuers]]
        url = "https://iam.example.org/"
        name = "iam"
        audiences = ["https://pilotage.example.org"]
        vo = "cms"
        [issuers.login]
        title = "IAM of CMS"
        client_id = "pilotage"
        client_secret_file = "/etc/pilotage/iam.secret"
        """
    (issuer,) = read_settings({"data": tmp_path}, a_file(tmp_path, text)).issuers
    assert issuer.login is not None
    assert issuer.login.client_secret_file == Path("/etc/pilotage/iam.secret")
    assert "openid" in issuer.login.scopes


def test_issuer_needs_a_vo(tmp_path: Path) -> None:
    issuer = {"url": "https://iam.example.org/", "name": "iam", "audiences": ["x"]}
    with pytest.raises(InvalidInputError, match="needs vo or vos"):
        read_settings({"data": tmp_path, "issuers": [issuer]})
