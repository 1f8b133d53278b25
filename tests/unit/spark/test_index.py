"""The page over all reports: what it lists, and what names and files do to it that it did not write."""

import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote

import pytest

from spark_jobs.common.faults import Fault
from spark_jobs.common.index import index_page, reports_in
from spark_jobs.common.job import Input, Job, _settings
from spark_jobs.common.kafka import TopicSlice
from spark_jobs.common.report import Report
from tests.unit.spark.test_report import EVIL
from tests.unit.spark.test_results import Steps, environment

__all__ = ["environment"]


def finish(
    output: Path, job: str, *sources: str, verdict: tuple[str, str] | None = None, faults: int = 0
) -> None:
    """Let a job end, as its command does."""
    nothing = cast("Any", None)
    inputs = [Input(source, TopicSlice(f"{source}.raw", {0: (0, 9)}), {}) for source in sources]
    settings = _settings(["shop"], None, None)
    made = Job(job, str(output), {}, inputs, cast("Any", Steps()), nothing, settings)
    made.faults.add(faults, [Fault("shop.raw", 0, n, "", "why") for n in range(faults)])
    page = Report(job, [])
    if verdict is not None:
        page.verdict(*verdict)
    made.finish({}, page)


class Links(HTMLParser):
    """The links of a page."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.feed(markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert not any(name.startswith("on") for name, _ in attrs)
        self.targets += [value or "" for name, value in attrs if name == "href"]


def text_of(folder: Path) -> str:
    markup = (folder / "index.html").read_text()
    return re.sub(r"<[^>]*>", " ", markup[markup.index("<main>") :])


def test_each_job_adds_its_last_report(tmp_path: Path) -> None:
    finish(tmp_path / "analytics-shop", "analytics", "shop", verdict=("4 transactions.", "good"))
    finish(tmp_path / "loops", "loop_detection", "shop", "north", verdict=("One incident: loop.", "bad"))
    finish(tmp_path / "reprocess-shop", "reprocess", "shop", faults=3)
    finish(tmp_path / "analytics-shop", "analytics", "shop", verdict=("5 transactions.", "good"))
    (tmp_path / "else").mkdir()
    text = " ".join(text_of(tmp_path).split())
    north, shop = text.index(" north "), text.index(" shop ")
    assert text.count("One incident: loop.") == 2
    assert north < text.index("One incident") < shop < text.index("5 transactions.")
    assert "4 transactions" not in text
    assert "3 records could not be read." in text
    targets = Links((tmp_path / "index.html").read_text()).targets
    assert sorted(targets) == [
        "./analytics-shop/report.html", "./loops/report.html", "./loops/report.html",
        "./reprocess-shop/report.html",
    ]  # fmt: skip
    assert all((tmp_path / target).is_file() for target in targets)


@pytest.mark.parametrize(
    "name",
    [
        EVIL.replace("/", ""),
        "javascript:alert(1)",
        "a b?c#d%41",
        "\u202eevil",
        b"\xff\xfe",
        "x" * 250,
        '"><b>',
    ],
)
def test_names_stay_names(tmp_path: Path, name: str | bytes) -> None:
    folder = tmp_path / (os.fsdecode(name) if isinstance(name, bytes) else name)
    # Jobs are told of a folder by an option, which is a text.
    finish(tmp_path / "plain", "analytics", "shop", verdict=(EVIL, "good"))
    (tmp_path / "plain").rename(folder)
    finish(tmp_path / "other", "analytics", "shop")
    markup = (tmp_path / "index.html").read_text()
    assert "\u202e" not in markup
    assert markup.count("<script>") == 1
    assert "<b>" not in markup
    targets = Links(markup).targets
    assert len(targets) == 2
    assert all(target.startswith("./") for target in targets)
    encoded = [unquote(target.split("/")[1], errors="surrogateescape") for target in targets]
    assert sorted(encoded) == sorted([folder.name, "other"])


@pytest.mark.parametrize(
    "manifest",
    [
        "", "[]", "{}", "null", "nonsense", '{"job": 1, "input": {"shop": {}}, "written_at": "x"}',
        '{"job": "x", "input": [], "written_at": "x"}', '{"job": "x", "input": 7, "written_at": "x"}',
        "[" * 100_000, '{"job": "' + "x" * 2_000_000 + '", "input": {"shop": {}}, "written_at": "x"}',
    ],
)  # fmt: skip
def test_what_is_no_manifest_is_left_out(tmp_path: Path, manifest: str) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "manifest.json").write_text(manifest)
    (tmp_path / "strange" / "report.html").touch()
    assert list(reports_in(tmp_path)) == []
    assert "Reports" in index_page([])


def test_a_pipe_in_place_of_a_manifest_does_not_hang(tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "report.html").touch()
    os.mkfifo(tmp_path / "strange" / "manifest.json")
    assert list(reports_in(tmp_path)) == []


def test_what_a_manifest_holds_stays_data(tmp_path: Path) -> None:
    (tmp_path / "strange").mkdir()
    (tmp_path / "strange" / "report.html").touch()
    values = {"job": EVIL, "input": {EVIL: {}}, "written_at": EVIL, "verdict": EVIL, "mood": EVIL}
    (tmp_path / "strange" / "manifest.json").write_text(json.dumps(values | {"faulty_records": EVIL}))
    markup = index_page(reports_in(tmp_path))
    assert markup.count("<script>") == 1
    assert markup.count("&lt;script&gt;") == 4
    assert 'class=""' in markup


def test_a_page_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<h1>My own</h1>")
    finish(tmp_path / "analytics-shop", "analytics", "shop")
    assert (tmp_path / "index.html").read_text() == "<h1>My own</h1>"
    assert (tmp_path / "analytics-shop" / "report.html").is_file()


def test_where_there_can_be_no_page_the_results_stand(tmp_path: Path) -> None:
    (tmp_path / "index.html").mkdir()
    finish(tmp_path / "analytics-shop", "analytics", "shop")
    assert (tmp_path / "analytics-shop" / "report.html").is_file()
