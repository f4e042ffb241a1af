"""`make docs` builds the documentation without a warning, and its pages load nothing from other hosts."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from support.debian import find_or_install
from support.site.build import CHECKOUT, build, list_versions, version
from support.site.diagrams import DIAGRAMS

ROOT_PAGES = sorted(CHECKOUT.glob("*.md"))


class Site(NamedTuple):
    """The built documentation."""

    folder: Path
    pages: dict[str, str]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    find_or_install(lambda: shutil.which("dot"), "graphviz")
    folder = tmp_path_factory.mktemp("site")
    assert build(folder) == 0  # its warnings, such as links that lead nowhere, are in the captured output
    pages = folder / version()
    return Site(folder, {str(path.relative_to(pages)): path.read_text() for path in pages.rglob("*.html")})


def test_each_page_is_built(site: Site) -> None:
    docs = CHECKOUT / "docs"
    expected = {str(path.relative_to(docs).with_suffix(".html")) for path in docs.rglob("*.md")}
    assert expected <= site.pages.keys()


def test_pages_load_nothing_from_other_hosts(site: Site) -> None:
    loading = r"<(?:link|script|img|iframe|source|object)\b[^>]*?(?:src|href|data)=\"((?:https?:)?//[^\"]*)"
    assert not {url for page in site.pages.values() for url in re.findall(loading, page)}
    styles = [path.read_text() for path in site.folder.rglob("*.css")]
    assert styles
    assert not [found for text in styles for found in re.findall(r"(?:@import|url\()[\s\"']*(?:https?:)?//[^)]*", text)]


def test_each_diagram_is_drawn_in_the_colours_of_the_page(site: Site) -> None:
    drawn = "".join(re.findall(r"<figure class=\"diagram\".*?</figure>", "".join(site.pages.values()), re.DOTALL))
    assert drawn.count("<svg") >= len(DIAGRAMS)
    assert set(re.findall(r"(?:fill|stroke)=\"([^\"]+)\"", drawn)) <= {"none", "currentColor", "transparent"}
    used = "".join(path.read_text() for path in (CHECKOUT / "docs").rglob("*.md"))
    assert not [name for name in DIAGRAMS if f"{{diagram}} {name}\n" not in used]


def test_search_index_and_versions_are_files_of_the_site(site: Site) -> None:
    assert (site.folder / version() / "searchindex.js").exists()
    older = site.folder / "0.0.9"
    older.mkdir()
    (older / "index.html").touch()
    list_versions(site.folder)
    assert (site.folder / "versions.js").read_text() == f'window.pilotageVersions = ["{version()}", "0.0.9"];\n'
    assert f"url={version()}/index.html" in (site.folder / "index.html").read_text()


@pytest.mark.parametrize("page", ROOT_PAGES, ids=lambda page: page.name)
def test_links_of_pages_outside_the_site_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text())
    assert not [link for link in links if not (page.parent / link).exists()]


def test_citation_and_issue_forms_are_valid() -> None:
    citation = yaml.safe_load((CHECKOUT / "CITATION.cff").read_text())
    assert (citation["cff-version"], citation["version"], citation["type"]) == ("1.2.0", version(), "software")
    forms = [path for path in (CHECKOUT / ".github/ISSUE_TEMPLATE").glob("*.yml") if path.name != "config.yml"]
    assert forms
    for form in (yaml.safe_load(path.read_text()) for path in forms):
        assert form.keys() >= {"name", "description", "body"}
        assert {part["type"] for part in form["body"]} <= {"markdown", "textarea", "input", "dropdown", "checkboxes"}
