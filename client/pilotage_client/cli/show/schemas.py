"""The published schemas of what commands print with --json: which object each command prints, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from pydantic import TypeAdapter

from pilotage_client.cli.show import explanation_outputs, grid_outputs, operator_outputs, outputs

DIALECT = "https://json-schema.org/draft/2020-12/schema"

AnyObject = dict[str, Any]
"""An object whose keys follow from the input, such as the attributes of an ad."""

OUTPUTS: Mapping[str, Sequence[Any]] = {
    "job submit": [outputs.SubmissionJson, explanation_outputs.SubmissionDryRunJson, outputs.JobJson],
    "job status": [outputs.ClusterJson, outputs.JobJson, outputs.JobCountJson, AnyObject],
    "job watch": [outputs.ClusterJson, outputs.JobJson],
    "job wait": [outputs.JobJson],
    "job userlog": [outputs.JobJson],
    "demo": [outputs.JobJson],
    "job events": [outputs.EventJson],
    "job logs": [outputs.OutputPartJson],
    "job output": [outputs.OutputFileJson],
    "job why": [explanation_outputs.ExplanationJson],
    "job ad": [AnyObject],
    "job edit": [outputs.EditedJobJson],
    "job hold": [outputs.ChangedJobJson],
    "job release": [outputs.ChangedJobJson],
    "job remove": [outputs.ChangedJobJson],
    "job reschedule": [outputs.ChangedJobJson],
    "job notify": [outputs.SubscriptionJson, outputs.UnsubscribedJson],
    "workflow rescue": [outputs.RescueJson],
    "pool list": [grid_outputs.PoolJson],
    "queue list": [grid_outputs.QueueJson],
    "pilot list": [grid_outputs.PilotJson, grid_outputs.PilotLogJson],
    "pilot revoke": [operator_outputs.RevokedPilotsJson],
    "pilot token": [operator_outputs.PilotTokenJson],
    "slot list": [grid_outputs.SlotJson, AnyObject],
    "pilot drain": [operator_outputs.DrainedJson],
    "node set": [grid_outputs.NodeJson],
    "node unset": [grid_outputs.NodeJson],
    "node list": [grid_outputs.NodeJson],
    "race list": [grid_outputs.RaceJson, grid_outputs.RaceCostJson],
    "route list": [grid_outputs.RouteJson],
    "route explain": [grid_outputs.RoutesOfJobJson],
    "route give-up": [grid_outputs.RoutedJobJson],
    "share list": [grid_outputs.SharesJson, grid_outputs.ShareJson],
    "share set-factor": [operator_outputs.FactorJson],
    "share set-quota": [operator_outputs.QuotaJson],
    "usage": [grid_outputs.UsageSumJson],
    "whoami": [grid_outputs.IdentityJson],
    "doctor": [operator_outputs.FindingJson],
    "agent list": [operator_outputs.AgentJson],
    "audit": [operator_outputs.AuditJson],
    "tree show": [operator_outputs.TreeJson],
    "tree put": [operator_outputs.TreeChangesJson],
    "tree resolve": [operator_outputs.ResolvedQueueJson],
    "tree eligible": [operator_outputs.EligibleJson],
    "policy try": [explanation_outputs.TriedPolicyJson],
    "site list": [grid_outputs.SiteJson],
    "site ban": [operator_outputs.BanJson],
    "site unban": [operator_outputs.BanJson],
    "site bans": [operator_outputs.BanJson],
    "downtime plan": [operator_outputs.DowntimeJson],
    "downtime list": [operator_outputs.DowntimeJson],
    "downtime cancel": [operator_outputs.DowntimeJson],
    "health list": [operator_outputs.ThrottleJson],
    "health hold": [operator_outputs.ThrottleJson],
    "health open": [operator_outputs.ThrottleJson],
    "token create": [operator_outputs.TokenJson],
    "token join": [operator_outputs.JoinTokenJson],
    "token revoke": [operator_outputs.RevocationJson],
    "token revocations": [operator_outputs.RevocationJson],
    "job convert": [outputs.ConvertedJobJson],
    "join": [operator_outputs.ContextJson],
    "context list": [operator_outputs.ContextJson],
    "context show": [operator_outputs.ContextJson],
    "context use": [operator_outputs.ContextJson],
    "context remove": [operator_outputs.ContextJson],
    "init": [operator_outputs.WrittenJson],
    "condor-commands": [operator_outputs.WrittenJson],
}
"""The types of the objects that a command prints, by its full name; the first is the usual one, others need options."""

WITHOUT_JSON: Mapping[str, str] = {
    "up": "it is a service in the foreground; `up.json` in its data folder has its address",
    "top": "it is a screen",
    "completion": "it prints a script for a shell",
}
"""The commands without --json, and why."""


def schema_of(command: str) -> dict[str, Any]:
    """Return the JSON Schema of each object that a command prints."""
    types = OUTPUTS[command]
    printed: Any = types[0] if len(types) == 1 else Union.__getitem__(tuple(types))
    return _schema(printed, f"pilotage {command} --json")


def error_schema() -> dict[str, Any]:
    """Return the JSON Schema of the object that a command with --json prints when it fails."""
    return _schema(outputs.ErrorJson, "error of a command with --json")


def _schema(printed: Any, title: str) -> dict[str, Any]:
    return {"$schema": DIALECT, **TypeAdapter[Any](printed).json_schema(), "title": title}
