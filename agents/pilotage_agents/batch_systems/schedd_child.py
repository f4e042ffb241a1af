"""The child process that makes one call to a schedd by HTCondor's Python library.

`htcondor.LibrarySchedd` starts it with a request on its standard input. It answers on the last line of its standard
output, both in JSON; errors go to the standard error.
"""

from __future__ import annotations

import json
import sys
from typing import Any

NO_LIBRARY = "the Python package htcondor is missing"


def main() -> None:
    """Do what the request says."""
    request = json.load(sys.stdin)
    try:
        import htcondor2
    except ImportError:
        sys.exit(NO_LIBRARY)
    # HTCondor's library raises its own exceptions and plain ones for the same causes.
    try:
        answer = _DOES[request["do"]](htcondor2, request)
    except Exception as error:
        sys.exit(f"{request['do']}: {error}")
    sys.stdout.write("\n" + json.dumps(answer) + "\n")


def _located(library: Any, request: dict[str, Any]) -> Any:
    collector = library.Collector(request["collector"] or None)
    name = request["schedd"] or None
    location = collector.locate(library.DaemonType.Schedd, name)
    if location is None:
        raise LookupError(f"the collector knows no schedd {name or ''}".rstrip())
    return library.Schedd(location)


def _submit(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    clusters: list[int] = []
    try:
        schedd = _located(library, request)
    except (library.HTCondorException, LookupError) as error:
        return {"clusters": clusters, "refused": True, "error": str(error)}
    for description in request["descriptions"]:
        try:
            job = library.Submit(description)
        except (library.HTCondorException, ValueError, TypeError) as error:
            return {"clusters": clusters, "refused": True, "error": f"submit description: {error}"}
        try:
            clusters.append(schedd.submit(job, count=1).cluster())
        except library.HTCondorException as error:
            # The schedd may have taken it before the connection broke.
            return {"clusters": clusters, "refused": False, "error": f"submit: {error}"}
    return {"clusters": clusters}


def _queue(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    schedd = _located(library, request)
    options = library.QueryOpt.DefaultMyJobsOnly if request["of_this_user"] else library.QueryOpt.Default
    return _ads(schedd.query(request["constraint"], request["attributes"], opts=options), request["attributes"])


def _history(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    schedd = _located(library, request)
    found = schedd.history(request["constraint"], request["attributes"], match=request["most"])
    return _ads(found, request["attributes"])


def _remove(library: Any, request: dict[str, Any]) -> dict[str, Any]:
    _located(library, request).act(library.JobAction.Remove, request["constraint"], request["reason"])
    return {}


def _ads(found: Any, attributes: list[str]) -> dict[str, Any]:
    """Return the attributes of the ads that have plain values."""
    plain = [
        {name: value for name in attributes if isinstance(value := ad.get(name), bool | int | float | str)}
        for ad in found
    ]
    return {"ads": plain}


_DOES = {"submit": _submit, "queue": _queue, "history": _history, "remove": _remove}

if __name__ == "__main__":
    main()
