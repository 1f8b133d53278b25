"""The documentation agrees with the project: links lead somewhere, tables and names are those of the code."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from millrace.runtime.exit_codes import ExitCode
from tests.shared import PROJECT, load_script

PAGES = sorted(
    [
        *PROJECT.glob("*.md"),
        *PROJECT.glob("docs/**/*.md"),
        *PROJECT.glob("helm/**/*.md"),
    ]
)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    headings = re.findall(r"(?m)^#+ (.+)$", page.read_text())
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return load_script("docs/generate.py")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(PROJECT)))
def test_links_lead_somewhere(page: Path) -> None:
    for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
        if link.startswith(("https://", "http://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_generated_parts_are_fresh(generator: ModuleType) -> None:
    stale = [
        page
        for page, names in generator.PAGES.items()
        if generator.generated(page, names) != (PROJECT / page).read_text()
    ]
    assert stale == [], "run: python docs/generate.py"


def test_variables_that_are_named_exist(generator: ModuleType) -> None:
    known = {name for model in generator.SERVICES.values() for name, _ in generator.settings(model)}
    known |= {"MILLRACE_CONFIG", "MILLRACE_CACHE", "MILLRACE_KERNEL", "MILLRACE_SHARED"}
    for page in PAGES:
        named = set(re.findall(r"\bMILLRACE_[A-Z_]*[A-Z](?![A-Z_])", page.read_text()))
        assert named <= known, page


def test_every_exit_code_is_described() -> None:
    described = re.findall(r"(?m)^\| (\d+) \|", (PROJECT / "docs" / "operations.md").read_text())
    assert [int(code) for code in described] == [int(code) for code in ExitCode]


def test_every_decision_is_listed() -> None:
    folder = PROJECT / "docs" / "adr"
    listed = re.findall(r"\((\d{4}-[a-z-]+\.md)\)", (folder / "README.md").read_text())
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))
    for name in listed:
        text = (folder / name).read_text()
        assert text.startswith(f"# {int(name[:4])}. "), name
        sections = re.findall(r"(?m)^## (.+)$", text)
        assert {"Context", "Decision", "Rejected alternatives"} <= set(sections), name
