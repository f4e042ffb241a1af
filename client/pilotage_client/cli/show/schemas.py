"""The published schemas of what commands print with --json: which object each command prints, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from pydantic import TypeAdapter

from pilotage_client.cli.show import operator_outputs, outputs

DIALECT = "https://json-schema.org/draft/2020-12/schema"

AnyObject = dict[str, Any]
"""An object whose keys follow from the input, such as the attributes of an ad."""

OUTPUTS: Mapping[str, Sequence[Any]] = {
    "submit": [outputs.SubmissionJson, outputs.JobJson],
    "status": [outputs.ClusterJson, outputs.JobJson],
    "watch": [outputs.ClusterJson, outputs.JobJson],
    "wait": [outputs.JobJson],
    "userlog": [outputs.JobJson],
    "demo": [outputs.JobJson],
    "events": [outputs.EventJson],
    "logs": [outputs.OutputPartJson],
    "output": [outputs.OutputFileJson],
    "why": [outputs.ExplanationJson],
    "ad": [AnyObject],
    "edit": [outputs.EditedJobJson],
    "hold": [outputs.ChangedJobJson],
    "release": [outputs.ChangedJobJson],
    "remove": [outputs.ChangedJobJson],
    "reschedule": [outputs.ChangedJobJson],
    "notify": [outputs.SubscriptionJson, outputs.UnsubscribedJson],
    "rescue": [outputs.RescueJson],
    "pools": [outputs.PoolJson],
    "queues": [outputs.QueueJson],
    "pilots": [outputs.PilotJson, outputs.PilotLogJson],
    "pilots revoke": [operator_outputs.RevokedPilotsJson],
    "pilot-token": [operator_outputs.PilotTokenJson],
    "slots": [outputs.SlotJson, AnyObject],
    "drain": [operator_outputs.DrainedJson],
    "node set": [outputs.NodeJson],
    "node unset": [outputs.NodeJson],
    "node list": [outputs.NodeJson],
    "races": [outputs.RaceJson, outputs.RaceCostJson],
    "routes list": [outputs.RouteJson],
    "routes explain": [outputs.RoutesOfJobJson],
    "routes give-up": [outputs.RoutedJobJson],
    "shares": [outputs.SharesJson, outputs.ShareJson],
    "shares set-factor": [operator_outputs.FactorJson],
    "shares set-quota": [operator_outputs.QuotaJson],
    "usage": [outputs.UsageSumJson],
    "whoami": [outputs.IdentityJson],
    "doctor": [operator_outputs.FindingJson],
    "agents": [operator_outputs.AgentJson],
    "audit": [operator_outputs.AuditJson],
    "tree show": [operator_outputs.TreeJson],
    "tree put": [operator_outputs.TreeChangesJson],
    "tree resolve": [operator_outputs.ResolvedQueueJson],
    "tree eligible": [operator_outputs.EligibleJson],
    "ban": [operator_outputs.BanJson],
    "unban": [operator_outputs.BanJson],
    "bans": [operator_outputs.BanJson],
    "downtime plan": [operator_outputs.DowntimeJson],
    "downtime list": [operator_outputs.DowntimeJson],
    "downtime cancel": [operator_outputs.DowntimeJson],
    "health list": [operator_outputs.ThrottleJson],
    "health hold": [operator_outputs.ThrottleJson],
    "health open": [operator_outputs.ThrottleJson],
    "token": [operator_outputs.TokenJson],
    "token join": [operator_outputs.JoinTokenJson],
    "token revoke": [operator_outputs.RevocationJson],
    "token revocations": [operator_outputs.RevocationJson],
    "convert": [outputs.ConvertedJobJson],
    "join": [operator_outputs.ContextJson],
    "context list": [operator_outputs.ContextJson],
    "context show": [operator_outputs.ContextJson],
    "context use": [operator_outputs.ContextJson],
    "context remove": [operator_outputs.ContextJson],
    "init": [operator_outputs.WrittenJson],
    "condor-commands": [operator_outputs.WrittenJson],
}
"""The types of the objects that a command prints: the first is the usual one, the others need options."""

WITHOUT_JSON: Mapping[str, str] = {
    "up": "it is a service in the foreground; `up.json` in its data folder has its address",
    "top": "it is a screen",
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
