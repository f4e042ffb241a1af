"""Writes the reference pages that are made from code: `make reference`."""

from __future__ import annotations

from support.reference.pages import FOLDER, PAGES

if __name__ == "__main__":
    for name, page in PAGES.items():
        (FOLDER / name).write_text(page())
