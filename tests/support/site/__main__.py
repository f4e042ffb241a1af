"""Builds the documentation: `make docs`."""

from __future__ import annotations

import sys

from support.site.build import SITE, build

if __name__ == "__main__":
    sys.exit(build(SITE))
