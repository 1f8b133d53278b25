import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from millrace.binlog.events import EVENTS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("docs_events", DOCS / "events.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_page_is_that_of_the_declarations(script: ModuleType) -> None:
    """After a change to the declarations: ``python docs/events.py``."""
    assert (DOCS / "events.md").read_text(encoding="utf-8") == script.events_page()


def test_every_event_and_field_is_on_the_page(script: ModuleType) -> None:
    page = script.events_page()
    for declaration in EVENTS.values():
        assert f"\n## {declaration.event_class.__name__}\n" in page
        for field in declaration.fields:
            assert f"| {field.name} |" in page
