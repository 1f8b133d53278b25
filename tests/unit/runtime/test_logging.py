"""Lines of the log: JSON in which nothing acts on a terminal."""

import io
import json
import logging
from collections.abc import Iterator

import pytest

from millrace.runtime.logging import configure_logging, get_logger


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers, root.level
    yield
    root.handlers, root.level = before


def test_what_comes_from_elsewhere_is_escaped() -> None:
    stream = io.StringIO()
    configure_logging(stream=stream)
    get_logger("a").info("said \x1b[2J\x9b", table="t\u202e\udcff\n")
    logging.getLogger("b").error("ü %s", "\x7f")
    ours, theirs = stream.getvalue().splitlines()
    assert ours.isascii()
    assert json.loads(ours)["event"] == "said \x1b[2J\x9b"
    assert json.loads(ours)["table"] == "t\u202e\\xff\n"
    assert json.loads(theirs)["event"] == "ü \x7f"
    assert "\x7f" not in theirs
