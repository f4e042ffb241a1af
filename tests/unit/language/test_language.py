"""Pages, help texts, settings and messages are in plain technical English: docs/language/rules.toml."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pilotage_client.cli.main import main
from support.language import (
    CHECKOUT,
    beginning_of_page,
    cells_of_page,
    faults_of,
    helps_of,
    raised_messages,
    sentences_of,
    sentences_of_page,
)
from support.reference.settings import PROGRAMS, sections

DOCS = CHECKOUT / "docs"
PAGES = [
    *(path for path in DOCS.rglob("*.md") if path.parent.name != "decisions"),  # records are not rewritten
    *CHECKOUT.glob("*.md"),
]
PAGES_OF_SITE = [
    path
    for path in DOCS.rglob("*.md")
    if path.parent.name not in {"decisions", "project"}  # files of the checkout
]
PACKAGES = ("proto", "server", "pilot", "agents", "client")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_page_is_plain_english(page: Path) -> None:
    text = page.read_text()
    assert not faults_of(sentences_of_page(text))
    assert not faults_of(cells_of_page(text), in_tables=True)


@pytest.mark.parametrize("page", PAGES_OF_SITE, ids=lambda page: str(page.relative_to(DOCS)))
def test_page_begins_with_what_its_reader_can_do(page: Path) -> None:
    first = beginning_of_page(page.read_text())
    assert re.search(r"\byou(r)?\b", first, re.IGNORECASE), first
    assert len(first.split()) <= 80


def test_help_of_commands_is_plain_english() -> None:
    helps = list(helps_of(main))
    assert len(helps) > 200
    assert not {name: faults for name, text in helps if (faults := faults_of(sentences_of(text)))}


def test_descriptions_of_settings_are_plain_english() -> None:
    models = [model for program in PROGRAMS for model in (program.model, *sections(program.model))]
    texts = {
        f"{model.__name__}.{name}": field.description or ""
        for model in models
        for name, field in model.model_fields.items()
    }
    assert not {name: faults for name, text in texts.items() if (faults := faults_of(sentences_of(text)))}


@pytest.mark.parametrize("package", PACKAGES)
def test_messages_of_errors_are_plain_english(package: str) -> None:
    modules = [path for path in (CHECKOUT / package).rglob("*.py") if "_pb2" not in path.name]
    messages = {
        f"{path.relative_to(CHECKOUT)}:{line}": text for path in modules for line, text in raised_messages(path)
    }
    assert messages
    assert not {place: faults for place, text in messages.items() if (faults := faults_of(sentences_of(text)))}


@pytest.mark.parametrize(
    "sentence",
    [
        "Lest it fails, nothing is sent.",
        "Whoever has the login may publish.",
        "The server is told of the end.",
        "A pilot asks for a job.",
        "Who gives `--data` means the server of that folder.",
        "What is absent satisfies none.",
    ],
)
def test_constructions_of_the_guide_are_faults(sentence: str) -> None:
    assert faults_of(sentences_of(sentence))


@pytest.mark.parametrize(
    "sentence",
    ["Who did that?", "A pilot requests a job.", "Give it a name: what it does.", "See `lest`, or [x](lest.md)."],
)
def test_plain_sentences_are_none(sentence: str) -> None:
    assert not faults_of(sentences_of(sentence))


def test_sentences_of_a_page_leave_out_code_and_tables() -> None:
    text = "# Title\n\nOne is here. Two\nis here:\n\n    lest\n\n- Three.\n- Four, [a](b.md).\n\n"
    page = text + "| lest | cell |\n\n```\nlest\n```\n"
    assert list(sentences_of_page(page)) == ["One is here.", "Two is here:", "Three.", "Four, a."]
    assert list(cells_of_page(page)) == ["Title", "lest", "cell"]


def test_long_sentence_is_a_fault() -> None:
    assert faults_of([" ".join(["word"] * 26)])
    assert not faults_of([" ".join(["word"] * 25)])
    assert not faults_of([" ".join(["word"] * 24) + " `X`, `X` and `X`"])
