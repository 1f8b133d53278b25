"""Findings as lines and as JSON, and checks that cannot look."""

import json
import re
from collections.abc import Iterator

import click

from millrace.doctor.report import as_json, as_lines, summary
from millrace.finding import CheckResult, Finding, Level, error, examine, listed, ok, warning

FOUND = [
    Finding("server db1:3306", "log_bin", ok("3 files, 12 MiB")),
    Finding("server db1:3306", "gtids", warning("gtid_mode is OFF", "SET GLOBAL gtid_mode=ON", ["x"])),
    Finding("Kafka", "connection", error("cannot be reached", "start it")),
]


def test_lines() -> None:
    assert [click.unstyle(line) for line in as_lines(FOUND, 1000)] == [
        "server db1:3306",
        "  ok         log_bin: 3 files, 12 MiB",
        "  warning    gtids: gtid_mode is OFF",
        "             → SET GLOBAL gtid_mode=ON",
        "",
        "Kafka",
        "  error      connection: cannot be reached",
        "             → start it",
    ]
    assert click.unstyle(summary(FOUND)) == "1 error, 1 warning"
    assert click.unstyle(summary([])) == "no errors, no warnings"


def test_lines_fit_a_terminal() -> None:
    long = [Finding("here", "check", warning("word " * 40, "do " * 40))]
    assert max(len(click.unstyle(line)) for line in as_lines(long, 60)) <= 60


def test_nothing_that_a_server_says_acts_on_the_terminal() -> None:
    evil = "x\x1b[2J\x9b\u202e\udcff\n"
    found = [Finding(evil, evil, warning(evil, evil, [evil]))]
    assert re.findall("[^ -~→]", "".join(map(click.unstyle, as_lines(found, 1000)))) == []
    assert re.findall("[^\n -~→]", as_json(found)) == []
    assert json.loads(as_json(found))["findings"][0]["items"] == ["x\x1b[2J\x9b\u202e\\xff\n"]


def test_json() -> None:
    report = json.loads(as_json(FOUND))
    assert (report["errors"], report["warnings"]) == (1, 1)
    assert report["findings"][1] == {
        "place": "server db1:3306",
        "check": "gtids",
        "level": "warning",
        "text": "gtid_mode is OFF",
        "advice": "SET GLOBAL gtid_mode=ON",
        "items": ["x"],
    }


def test_a_check_that_cannot_look_does_not_stop_the_others() -> None:
    def refused(subject: str) -> Iterator[CheckResult]:
        raise PermissionError(f"{subject} refuses")
        yield

    def fine(subject: str) -> Iterator[CheckResult]:
        yield ok(subject)

    first, second = examine("here", "it", (refused, fine), PermissionError)
    assert (first.outcome.level, first.outcome.text) == (Level.UNCHECKED, "it refuses")
    assert (second.check, second.outcome.text) == ("fine", "it")


def test_long_lists_are_cut() -> None:
    assert listed(["a", "b"]) == "a, b"
    assert listed(list("abcdefgh")) == "a, b, c, d, e and 3 more"
