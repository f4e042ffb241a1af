"""What the documentation needs of Sphinx beside its own extensions: diagrams, and pages of files outside of docs."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from typing import Any, ClassVar

from docutils import nodes
from docutils.parsers.rst import directives
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.util.docutils import SphinxDirective

from support.site.diagrams import DIAGRAMS, HEAD

PAGES_OF_FILES = {
    "CHANGELOG.md": "/project/changes.md",
    "CODE_OF_CONDUCT.md": "/project/conduct.md",
    "CONTRIBUTING.md": "/project/contributing.md",
    "SECURITY.md": "/project/security.md",
}
"""The pages that include files of the checkout's root. A link to such a file leads to its page."""

_LINK = re.compile(rf"\]\((?:\.\./)+({'|'.join(map(re.escape, PAGES_OF_FILES))})(?=[#)])")


class DiagramDirective(SphinxDirective):
    """`{diagram} NAME` draws a diagram that is made from code; without a name it draws the DOT statements in it.

    `caption` is the text below it, and what a screen reader reads.
    """

    optional_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {"caption": directives.unchanged_required}

    def run(self) -> list[nodes.Node]:
        """Return the figure; a name that no diagram has, or bad DOT, ends the build."""
        caption = html.escape(self.options["caption"])
        dot = DIAGRAMS[self.arguments[0]]() if self.arguments else "\n".join([HEAD, *self.content, "}"])
        label = re.sub(r"[`*]", "", caption)
        figure = f'<figure class="diagram" role="img" aria-label="{label}">{svg_of(dot)}'
        return [nodes.raw("", f"{figure}<figcaption>{label}</figcaption></figure>", format="html")]


def svg_of(dot: str) -> str:
    """Return the picture as SVG that takes its colours from the page; raises SphinxError without `dot`."""
    program = shutil.which("dot")
    if program is None:
        raise SphinxError("the diagrams are drawn by dot: install the Debian package graphviz")
    done = subprocess.run([program, "-Tsvg"], input=dot, capture_output=True, text=True, check=False)
    if done.returncode != 0 or done.stderr:
        raise SphinxError(f"dot: {done.stderr.strip()}\n{dot}")
    picture = done.stdout[done.stdout.index("<svg") :]
    # Titles would show as tooltips, and ids would be there once for each diagram of a page.
    return re.sub(r"<title>.*?</title>\n?| id=\"[^\"]*\"", "", picture, flags=re.DOTALL).replace(
        '"black"', '"currentColor"'
    )


def link_pages_of_files(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let links to included files of the root lead to their pages."""
    source[0] = _LINK.sub(lambda found: f"]({PAGES_OF_FILES[found[1]]}", source[0])


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the extension."""
    app.add_directive("diagram", DiagramDirective)
    app.connect("source-read", link_pages_of_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
