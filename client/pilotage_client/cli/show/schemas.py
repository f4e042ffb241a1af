"""The published schemas of what commands print with --json: which object each command prints, as JSON Schema."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Union

from pydantic import TypeAdapter

from pilotage_client.cli.show import outputs

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
    "pilots revoke": [outputs.RevokedPilotsJson],
    "pilot-token": [outputs.PilotTokenJson],
    "slots": [outputs.SlotJson, AnyObject],
    "drain": [outputs.DrainedJson],
    "node set": [outputs.NodeJson],
    "node unset": [outputs.NodeJson],
    "node list": [outputs.NodeJson],
    "races": [outputs.RaceJson, outputs.RaceCostJson],
    "routes list": [outputs.RouteJson],
    "routes explain": [outputs.RoutesOfJobJson],
    "routes give-up": [outputs.RoutedJobJson],
    "shares": [outputs.SharesJson, outputs.ShareJson],
    "shares set-factor": [outputs.FactorJson],
    "shares set-quota": [outputs.QuotaJson],
    "usage": [outputs.UsageSumJson],
    "whoami": [outputs.IdentityJson],
    "doctor": [outputs.FindingJson],
    "agents": [outputs.AgentJson],
    "audit": [outputs.AuditJson],
    "tree show": [outputs.TreeJson],
    "tree put": [outputs.TreeChangesJson],
    "tree resolve": [outputs.ResolvedQueueJson],
    "tree eligible": [outputs.EligibleJson],
    "ban": [outputs.BanJson],
    "unban": [outputs.BanJson],
    "bans": [outputs.BanJson],
    "downtime plan": [outputs.DowntimeJson],
    "downtime list": [outputs.DowntimeJson],
    "downtime cancel": [outputs.DowntimeJson],
    "health list": [outputs.ThrottleJson],
    "health hold": [outputs.ThrottleJson],
    "health open": [outputs.ThrottleJson],
    "token": [outputs.TokenJson],
    "token join": [outputs.JoinTokenJson],
    "token revoke": [outputs.RevocationJson],
    "token revocations": [outputs.RevocationJson],
    "convert": [outputs.ConvertedJobJson],
    "join": [outputs.ContextJson],
    "context list": [outputs.ContextJson],
    "context show": [outputs.ContextJson],
    "context use": [outputs.ContextJson],
    "context remove": [outputs.ContextJson],
    "init": [outputs.WrittenJson],
    "condor-commands": [outputs.WrittenJson],
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
