"""The table of the HTTP gateway covers the protocol, and its OpenAPI document is valid."""

from __future__ import annotations

from collections import Counter
from typing import Any

from openapi_spec_validator import OpenAPIV31SpecValidator

from pilotage.v1 import jobs_pb2, route_service_pb2
from pilotage_server.core.identity import Role
from pilotage_server.rpc.framework.access import REQUIRED_ROLES
from pilotage_server.rpc.gateway.json_form import descriptor_of, method_types, to_json, to_message
from pilotage_server.rpc.gateway.openapi import comments, document
from pilotage_server.rpc.gateway.routes import LEFT_OUT, ROUTES


def test_each_call_has_a_route_or_is_left_out() -> None:
    routed = {route.method for route in ROUTES}
    left_out = {f"/pilotage.v1.{call}" for calls in LEFT_OUT.values() for call in calls}
    assert routed | left_out == set(REQUIRED_ROLES)
    assert not routed & left_out
    users_calls = {method for method in left_out if Role.USER in REQUIRED_ROLES[method]}
    assert not users_calls, "calls of users have a route"


def test_routes_are_unique_and_name_fields() -> None:
    assert max(Counter((route.verb, route.path) for route in ROUTES).values()) == 1
    for route in ROUTES:
        request, response = map(descriptor_of, method_types(route))
        assert set(route.fields.values()) <= set(request.fields_by_name)
        assert not route.only or route.only in response.fields_by_name


def test_document_is_valid_and_has_the_comments_of_the_protocol() -> None:
    found = document()
    assert list(OpenAPIV31SpecValidator(found).iter_errors()) == []
    assert found["paths"]["/v1/jobs/{job_id}/why"]["get"]["summary"] == "Returns the reasons of a job's present state"
    job = found["components"]["schemas"]["Job"]
    assert job["properties"]["submitted"] == {
        "description": comments()["pilotage.v1.Job.submitted"],
        "type": "string",
        "format": "date-time",
    }
    texts: list[Any] = [each.get("description") for each in job["properties"].values()]
    assert all(texts), "each field has its comment"
    names = [each["operationId"] for verbs in found["paths"].values() for each in verbs.values()]
    assert max(Counter(names).values()) == 1


def test_json_has_numbers_for_64_bit_integers_at_all_depths() -> None:
    message = jobs_pb2.JobDescription(executable="x", request_memory_mib=2**40)
    message.attributes["n"].list.values.add(integer=-(2**60))
    found = to_json(message)
    assert found["request_memory_mib"] == 2**40
    assert found["attributes"] == {"n": {"list": {"values": [{"integer": -(2**60)}]}}}
    assert to_message(jobs_pb2.JobDescription, found) == message
    routes = route_service_pb2.PutRoutesRequest(max_jobs=7)
    assert to_json(routes)["max_jobs"] == 7
