"""The build of the documentation: one folder for each version, and the files that lead to them."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

CHECKOUT = Path(__file__).parents[3]
SITE = CHECKOUT / "build" / "docs"
"""Where `make docs` puts the versions."""

_REDIRECT = """<!doctype html>
<meta charset="utf-8"><title>Pilotage</title><meta http-equiv="refresh" content="0; url={0}/index.html">
<a href="{0}/index.html">Pilotage {0}</a>
"""


def version() -> str:
    """Return the version of the checkout."""
    return str(tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["project"]["version"])


def build(site: Path) -> int:
    """Build this version's pages below `site`; returns the exit code of Sphinx, to which each warning is an error."""
    pages, kept = site / version(), site / ".doctrees"
    for folder in (pages, kept):  # Sphinx does not renew the navigation of pages that have not changed themselves
        shutil.rmtree(folder, ignore_errors=True)
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--keep-going", "--quiet", "-j", "auto"]
    done = subprocess.run([*command, "-d", str(kept), str(CHECKOUT / "docs"), str(pages)], check=False)
    if done.returncode == 0:
        list_versions(site)
    return done.returncode


def list_versions(site: Path) -> None:
    """Write the list of the versions below `site`, from which pages offer the others, and the way to the newest."""
    found = [path.parent.name for path in site.glob("*/index.html")]
    versions = sorted(found, key=lambda name: [int(number) for number in re.findall(r"\d+", name)], reverse=True)
    (site / "versions.js").write_text(f"window.pilotageVersions = {json.dumps(versions)};\n")
    (site / "index.html").write_text(_REDIRECT.format(versions[0]))
