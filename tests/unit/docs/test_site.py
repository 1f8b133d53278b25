"""The site that ``make docs`` builds has a way to every page."""

from tests.shared import PROJECT, load_script


def test_every_page_is_in_the_navigation_once() -> None:
    listed = [page for pages in load_script("docs/conf.py").NAVIGATION.values() for page in pages]
    decisions = "docs/adr/0"  # below the page that lists them
    pages = [
        str(page.relative_to(PROJECT).with_suffix(""))
        for folder, pattern in (
            (PROJECT, "*.md"),
            (PROJECT / "docs", "**/*.md"),
            (PROJECT / "helm", "**/*.md"),
        )
        for page in folder.glob(pattern)
    ]
    assert sorted(listed) == sorted({page for page in pages if not page.startswith(decisions)} - {"README"})
