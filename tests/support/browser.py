"""Debian's Chromium, driven by Playwright: the pages of a server as a visitor sees them, with all faults in them."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, async_playwright

from support.debian import find_or_install

DESKTOP, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@asynccontextmanager
async def a_browser() -> AsyncIterator[Browser]:
    """Run Chromium until the end of the block."""
    program = find_or_install(lambda: shutil.which("chromium"), "chromium")
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            await browser.close()


@dataclass
class WebVisitor:
    """A visitor with a page of its own; `faults` are violations of the policy, errors of scripts, and dialogs."""

    address: str
    context: BrowserContext
    page: Page
    faults: list[str] = field(default_factory=list)

    @classmethod
    async def arrive(cls, browser: Browser, address: str, **options: Any) -> WebVisitor:
        """Open an empty page; `options` are those of Playwright's contexts."""
        context = await browser.new_context(**{"viewport": DESKTOP, **options})
        visitor = cls(address, context, await context.new_page())
        visitor.page.on("console", visitor._note)
        visitor.page.on("pageerror", lambda error: visitor.faults.append(str(error)))
        visitor.page.on("dialog", lambda dialog: visitor.faults.append(f"dialog: {dialog.message}"))
        return visitor

    def _note(self, message: ConsoleMessage) -> None:
        # A page with a status of 400 or more is such an error too, and no fault of the page.
        if message.type == "error" and not message.text.startswith("Failed to load resource"):
            self.faults.append(message.text)

    async def open(self, path: str) -> Page:
        """Open a page."""
        await self.page.goto(f"http://{self.address}{path}")
        return self.page

    async def log_in(self, token: str) -> Page:
        """Log in with a token; the page is the overview then."""
        await self.open("/login")
        await self.page.get_by_label("Token").fill(token)
        await self.page.get_by_role("button", name="Log in").click()
        await self.page.wait_for_url("**/")
        return self.page

    async def barriers(self, *, colours_only: bool = False) -> list[str]:
        """Return what axe-core finds serious or critical in the page, or only what it finds of colours."""
        options = {"runOnly": ["color-contrast"]} if colours_only else {"resultTypes": ["violations"]}
        found = (await Axe().run(self.page, options=options)).response["violations"]
        return [
            f"{each['id']}: {node['html']} ({node['failureSummary']})"
            for each in found
            if each["impact"] in ("serious", "critical")
            for node in each["nodes"]
        ]

    async def overflow(self) -> int:
        """Return by how many pixels the page is wider than its window."""
        width = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
        found: int = await self.page.evaluate(width)
        return found
