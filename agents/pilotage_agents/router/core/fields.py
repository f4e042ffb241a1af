"""The fields that both forms of a route table share: limits, universe, GridResource, failure test.

Names are folded. Values are ClassAd values; one of the wrong type is a fault that names the field. Source: HTCondor
manual, Job Router; the defaults are HTCondor's.
"""

from __future__ import annotations

from collections.abc import Mapping

from pilotage.classads.evaluation import Ad, compile_expression, evaluate
from pilotage.classads.library import AdValue, Expression, InvalidClassAdError
from pilotage.classads.text import value_text
from pilotage.errors import Violation
from pilotage_agents.router.core.table import GRID, InvalidRoutesError, Route, RouteLimits

FIELDS = {
    "gridresource": "GridResource",
    "maxjobs": "MaxJobs",
    "maxidlejobs": "MaxIdleJobs",
    "failureratethreshold": "FailureRateThreshold",
    "jobfailuretest": "JobFailureTest",
    "jobshouldbesandboxed": "JobShouldBeSandboxed",
    "editjobinplace": "EditJobInPlace",
    "usesharedx509userproxy": "UseSharedX509UserProxy",
    "sharedx509userproxy": "SharedX509UserProxy",
    "sendidtokens": "SendIDTokens",
    "targetuniverse": "TargetUniverse",
}
"""The settings of a route, by their folded names."""

_NOT_HONOURED = ("sendidtokens",)


def route_of(
    name: str,
    fields: Mapping[str, AdValue],
    requirements: str | None,
    defaults: RouteLimits,
    own: Mapping[str, AdValue] | None = None,
    changes: tuple[str, ...] = (),
) -> Route:
    """Return the route with these `fields`, by folded names; raises InvalidRoutesError."""
    return Route(
        name,
        requirements,
        own,
        grid_resource=_grid_resource(fields),
        universe=_integer(fields, "targetuniverse", GRID),
        limits=_limits(fields, defaults),
        failure_test=condition(fields, "jobfailuretest", FIELDS["jobfailuretest"]),
        edits_in_place=_is_set(fields, "editjobinplace"),
        changes=changes,
        shared_proxy=_shared_proxy(fields),
        notes=tuple(f"{FIELDS[field]} is not honoured" for field in _NOT_HONOURED if _is_set(fields, field)),
    )


def constant_text(value: AdValue) -> str | None:
    """Return the text that a value has in every ad, None = it has none, or it depends on the ad."""
    if isinstance(value, Expression):
        result = evaluate(compile_expression(value.text), Ad({}))
        return result if isinstance(result, str) else None
    return value if isinstance(value, str) else None


def expression_text(value: AdValue) -> str:
    """Return a value as an expression in the ClassAd language's own syntax."""
    return value.text if isinstance(value, Expression) else value_text(value)


def condition(fields: Mapping[str, AdValue], field: str, spelled: str) -> str | None:
    """Return the expression of a field, None = there is none; raises InvalidRoutesError."""
    if field not in fields:
        return None
    text = expression_text(fields[field])
    try:
        return compile_expression(text, refuse_random=True).text
    except InvalidClassAdError as error:
        raise InvalidRoutesError(*(Violation(spelled, each.why) for each in error.violations)) from error


def _grid_resource(fields: Mapping[str, AdValue]) -> str:
    if "gridresource" not in fields:
        return ""
    text = constant_text(fields["gridresource"])
    if text is None:
        raise _fault("gridresource", fields, "a text")
    return " ".join(text.split())


def _shared_proxy(fields: Mapping[str, AdValue]) -> str:
    """Return the path of the route's X.509 proxy, "" = it gives none."""
    if fields.get("usesharedx509userproxy", False) is not True:
        return ""
    path = constant_text(fields.get("sharedx509userproxy", ""))
    if path is None or not path.startswith("/"):
        why = "is not the absolute path of a file, which UseSharedX509UserProxy needs"
        raise InvalidRoutesError(Violation(FIELDS["sharedx509userproxy"], why))
    return path


def _limits(fields: Mapping[str, AdValue], defaults: RouteLimits) -> RouteLimits:
    idle = _integer(fields, "maxidlejobs", -1 if defaults.max_idle_jobs is None else defaults.max_idle_jobs)
    rate = fields.get("failureratethreshold", defaults.failure_rate)
    if not isinstance(rate, int | float) or isinstance(rate, bool) or rate <= 0:
        raise _fault("failureratethreshold", fields, "a number of failures a second, above 0")
    return RouteLimits(_integer(fields, "maxjobs", defaults.max_jobs), None if idle < 0 else idle, rate)


def _integer(fields: Mapping[str, AdValue], field: str, default: int) -> int:
    value = fields.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise _fault(field, fields, "a whole number")
    return value


def _is_set(fields: Mapping[str, AdValue], field: str) -> bool:
    return fields.get(field, False) not in (False, "")


def _fault(field: str, fields: Mapping[str, AdValue], wanted: str) -> InvalidRoutesError:
    why = f"{expression_text(fields[field])} is not {wanted}"
    return InvalidRoutesError(Violation(FIELDS[field], why))
