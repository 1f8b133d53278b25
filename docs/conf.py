"""The site of the documentation, which ``make docs`` builds with Sphinx from the same Markdown files."""  # noqa: INP001

import re
import tomllib
from pathlib import Path
from typing import Any, Final

PROJECT: Final = Path(__file__).resolve().parents[1]
NAVIGATION: Final = {
    "Start": ("docs/quick-start", "docs/how-to/cloud", "docs/kubernetes", "docs/local-stack"),
    "Operate": tuple(
        f"docs/how-to/{page}"
        for page in (
            *("check", "server", "run", "monitor", "troubleshoot", "snapshot", "quarantine", "definitions"),
            *("minimal-images", "verify", "upgrade", "fail-over", "recover"),
        )
    ),
    "Use the data": (
        *("docs/selection", "docs/consumers", "docs/spark", "docs/jobs"),
        *(
            f"docs/jobs/{job}"
            for job in (
                *("analytics", "archive", "conformance", "flashback", "loop_detection", "reprocess"),
                *("row_history", "table_state"),
            )
        ),
        *("docs/binlog-command", "docs/library"),
    ),
    "Reference": (
        *("docs/configuration", "docs/topics", "docs/types", "docs/metrics", "docs/events", "docs/columns"),
        *("helm/millrace/README", "CHANGELOG"),
    ),
    "Background": (
        *("docs/architecture", "docs/reliability", "docs/security", "docs/semi-sync", "docs/performance"),
        *("docs/adr/README", "CONTRIBUTING"),
    ),
}
"""The pages by what a reader needs. Below ``docs/adr/README`` come the decisions."""

project: Final = "Millrace"
version: Final = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]["version"]
html_title: Final = f"{project} {version}"
root_doc: Final = "README"
include_patterns: Final = ["*.md", "docs/**.md", "helm/millrace/README.md"]
exclude_patterns: Final = [
    path.name for path in PROJECT.iterdir() if path.is_dir() and path.name not in {"docs", "helm"}
]

extensions: Final = ["myst_parser"]
myst_heading_anchors: Final = 4
smartquotes: Final = False
html_theme: Final = "furo"
html_show_sphinx: Final = False
html_show_sourcelink: Final = False
html_copy_source: Final = False
html_use_index: Final = False


def add_navigation(_app: Any, page: str, text: list[str]) -> None:
    """Add the hidden tables of contents of which the theme makes the navigation."""
    captions = {"README": NAVIGATION, "docs/adr/README": {"Decisions": ("/docs/adr/0*",)}}
    for caption, pages in captions.get(page, {}).items():
        names = "\n".join(name if name.startswith("/") else f"/{name}" for name in pages)
        text[0] += f"\n\n```{{toctree}}\n:hidden:\n:glob:\n:caption: {caption}\n\n{names}\n```\n"


def finish(app: Any, error: Exception | None) -> None:
    """Make the README the front page, and fail if a page would load anything from another host."""
    if error is not None:
        return
    folder = Path(app.outdir)
    (folder / "index.html").write_bytes((folder / "README.html").read_bytes())
    for page in folder.rglob("*.html"):
        found = re.search(
            r'<(?:link|script|img|iframe)[^>]*(?:href|src)="(?:https?:)?//[^"]*"', page.read_text()
        )
        if found:
            raise SystemExit(f"error: {page} loads from another host: {found[0]}")


def setup(app: Any) -> None:
    """Let Sphinx call the functions above."""
    app.connect("source-read", add_navigation)
    app.connect("build-finished", finish)
