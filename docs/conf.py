"""Settings of Sphinx for this documentation; `make docs` builds it."""

import sys
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
sys.path.insert(0, str(CHECKOUT / "tests"))

from support.site.build import version as checkout_version  # noqa: E402 - found by the line above

project = "Pilotage"
version = release = checkout_version()
extensions = ["myst_parser", "sphinx_copybutton", "support.site.extension"]
exclude_patterns = ["language/*.toml"]

myst_heading_anchors = 4  # as GitHub makes them, so that links work there and here
highlight_language = "none"
copybutton_prompt_text = "$ "
copybutton_only_copy_prompt_lines = True
copybutton_line_continuation_character = "\\"

html_theme = "furo"
html_title = f"Pilotage {version}"
html_static_path = ["_static"]
html_css_files = ["pilotage.css"]
html_js_files = ["versions.js"]
html_copy_source = False
html_show_copyright = False
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "versions.html",
        "sidebar/search.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
