"""The page about events and the declarations say the same, and each type has a vector.

That the page is fresh is tested with the other generated pages.
"""

from inspect import ismethod
from types import ModuleType

import pytest

from millrace.binlog.declaration import Event
from millrace.binlog.events import EVENTS
from millrace.binlog.types import EventType
from tests.shared import load_script
from tests.unit.binlog.cases import CASES, SOURCES


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("docs/events.py")


def test_every_event_says_whether_its_vector_is_of_a_server(script: ModuleType) -> None:
    sections = script.events_text().removeprefix("## ").partition("\n## Structures")[0].split("\n## ")
    assert len(sections) == len(EVENTS)
    for section, code in zip(sections, sorted(EVENTS), strict=True):
        assert f"\n*{EventType(code).name}, {code}, " in section
        assert (", by hand*\n" in section) == (code in SOURCES), code


def test_a_type_without_a_vector_is_refused(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    others = [case for case in CASES if case.event.event_type is not EventType.XID_EVENT]
    monkeypatch.setattr(script, "CASES", others)
    with pytest.raises(SystemExit, match="XID_EVENT has no vector"):
        script.events_text()


def test_what_was_made_by_hand_names_two_sources() -> None:
    by_hand = {int(case.event.event_type) for case in CASES if case.by_hand} - {EventType.UNKNOWN_EVENT}
    assert by_hand == set(SOURCES)
    assert all(first != second for first, second in SOURCES.values())


def test_a_codec_by_hand_has_a_reason() -> None:
    """A method of the class, where a codec that is built of the fields is a function."""
    by_hand = [each.event_class for each in EVENTS.values() if ismethod(each.decode)]
    assert 0 < len(by_hand) < len(EVENTS) / 2
    for event_class in by_hand:
        said = " ".join(f"{each.__doc__}" for each in event_class.__mro__ if issubclass(each, Event))
        assert "Codec by hand: " in " ".join(said.split()), event_class.__name__
