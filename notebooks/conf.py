"""Sphinx configuration of the HTML book. `richbook book` builds it; so does plain sphinx-build.

The notebooks come executed, so nothing runs here. What pages need from outside (MathJax, the widget
manager) comes from the pinned addresses that `richbook.course.vendor` names; `richbook book`
replaces them by copies inside the book where npm can fetch them.
"""

from richbook.course import vendor

project = "richbook"
author = "The richbook authors"
copyright = "2026, The richbook authors. Text: CC BY 4.0, code: MIT"
html_title = "richbook"
language = "en"

extensions = ["myst_nb", "sphinx_copybutton"]
exclude_patterns = ["text", "assignments", "**.ipynb_checkpoints", "_build", "**/.*"]

nb_execution_mode = "off"
nb_merge_streams = True
nb_render_markdown_format = "myst"
nb_code_prompt_show = "Show the code"
nb_code_prompt_hide = "Hide the code"
nb_mime_priority_overrides = [
    # A figure that has both goes in as a picture; the widget view wins over its text.
    ("html", "application/vnd.jupyter.widget-view+json", 0),
]
myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist"]
myst_heading_anchors = 3
# Prose marks its mathematics by itself; the dollars are for the labels of sliders.
mathjax3_config = {"tex": {"inlineMath": [["\\(", "\\)"], ["$", "$"]]}}

html_theme = "sphinx_book_theme"
html_theme_options = {
    "navbar_persistent": [],  # the search field is in the side bar
    "use_download_button": True,
    "use_fullscreen_button": False,
    "use_repository_button": False,
    "show_toc_level": 2,
    "home_page_in_toc": True,
}
html_context = {"default_mode": "auto"}
html_static_path = ["_static"]
html_css_files = ["richbook.css"]
html_copy_source = False
html_show_sphinx = False
html_last_updated_fmt = None
copybutton_selector = "div.cell_input div.highlight pre, div.highlight-bash pre"

globals().update(vendor.settings(local=False))
