"""The resource tree: its text, and what another text would change.

The values of queues, each with the level that it comes from, are on the pages of sites.
"""

from __future__ import annotations

import secrets
from http import HTTPStatus
from typing import Any

from starlette.responses import Response

from pilotage.v1 import resource_service_pb2
from pilotage_server.web.calls import CallFailedError
from pilotage_server.web.pages import PageMaker, PageView, Shown, Visit
from pilotage_server.web.sessions import read_form

FORMATS = ("toml", "yaml", "json", "cfg")
MOST_CHANGES = 50
MOST_QUEUES = 5
"""Pools that a page names of those that a text changes, and queues of each one."""


async def collect_tree(visit: Visit) -> Shown:
    """Return the active tree."""
    tree = await visit.calls("ResourceService/GetTree", resource_service_pb2.GetTreeRequest())
    return _shown(tree, tree.text, tree.format or FORMATS[0])


def _shown(tree: Any, text: str, format_: str, **more: Any) -> Shown:
    shown = {"tree": tree, "text": text, "format": format_, "formats": FORMATS, "request_id": secrets.token_hex(16)}
    usual = {"answer": None, "fault": "", "is_applied": False, "most": MOST_CHANGES, "most_queues": MOST_QUEUES}
    return {**shown, **usual, **more}


TREE = PageView("/tree", "Tree", ("ResourceService/GetTree",), "tree.html", collect_tree)
PUT_TREE = ("ResourceService/PutTree", "ResourceService/GetTree")


class TreeForms:
    """Shows what a text of the tree would change, and makes it the active tree."""

    def __init__(self, pages: PageMaker) -> None:
        self._pages = pages

    async def change(self, visit: Visit) -> Response:
        """Try the text in the form, or with `apply` make it the active tree; a refused text stays in the form."""
        form = await read_form(visit.request)
        text, format_ = form.one("text").replace("\r\n", "\n"), form.one("format")  # browsers send CRLF
        is_applied = bool(form.one("apply"))
        tree = await visit.calls("ResourceService/GetTree", resource_service_pb2.GetTreeRequest())
        if is_applied and form.one("seen") != str(tree.version):
            fault = f"Version {tree.version} of the tree has become active in between: look again at what would change."
            shown = _shown(tree, text, format_, fault=fault)
            return self._pages.page("tree.html", visit, shown, path=TREE.path, status=HTTPStatus.CONFLICT)
        request = resource_service_pb2.PutTreeRequest(
            request_id=form.one("request_id") or secrets.token_hex(16),
            text=text,
            format=format_,
            validate_only=not is_applied,
        )
        answer, fault, status = None, "", HTTPStatus.OK
        try:
            answer = await visit.calls("ResourceService/PutTree", request)
        except CallFailedError as failed:
            if failed.problem.status == HTTPStatus.UNAUTHORIZED:
                raise
            fault, status = str(failed), HTTPStatus(failed.problem.status)
        if answer is not None and is_applied:
            tree = await visit.calls("ResourceService/GetTree", resource_service_pb2.GetTreeRequest())
        shown = _shown(tree, text, format_, answer=answer, fault=fault, is_applied=is_applied)
        return self._pages.page("tree.html", visit, shown, path=TREE.path, status=status)
