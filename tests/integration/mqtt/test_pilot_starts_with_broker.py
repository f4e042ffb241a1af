"""A pilot that is started with a broker, or without one, where the package that speaks to brokers is missing."""

from __future__ import annotations

from pathlib import Path

from support.commands import run_pilot


def test_without_the_package_a_pilot_with_a_broker_does_not_start(tmp_path: Path) -> None:
    code, said, left = run_pilot(tmp_path, "aiomqtt", broker="mqtt://broker.example.org")
    assert (code, left) == (2, [])
    assert said[-1].startswith("pilotage-pilot: broker: needs the Python package aiomqtt")


def test_without_a_broker_a_pilot_does_not_need_the_package(tmp_path: Path) -> None:
    code, said, left = run_pilot(tmp_path, "aiomqtt", "paho")
    assert (code, left) == (3, [])
    assert "the server could not be reached" in said[-1]


def test_a_broker_that_no_url_leads_to_is_a_wrong_configuration_and_its_password_is_not_shown(tmp_path: Path) -> None:
    code, said, left = run_pilot(tmp_path, broker="http://pilot:PASSWORD@broker.example.org")
    assert (code, left) == (2, [])
    assert "broker: is not a URL such as mqtt://host:1883" in said[-1]
    assert "PASSWORD" not in "".join(said)
