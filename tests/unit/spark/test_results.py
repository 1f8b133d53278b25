"""The folder of a job's results: those of a run replace the ones before it when they are whole."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import SparkSession

from millrace.runtime.settings import load_settings
from spark_jobs import archive, reprocess
from spark_jobs.common.files import WrittenFile
from spark_jobs.common.job import Job, RawJobSettings, _settings
from spark_jobs.common.outcome import Outcome
from spark_jobs.common.report import Report


class Steps:
    def __init__(self) -> None:
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_REGISTRY_URL", "http://registry:8081")
    monkeypatch.setenv("MILLRACE_KAFKA_BOOTSTRAP_SERVERS", "kafka:9092")


def named(*runs: str) -> list[str]:
    return [f"run-20260101T00000{run}-00000000" for run in runs]


def number_of(run: str) -> str:
    return run.removeprefix("run-20260101T00000").removesuffix("-00000000")


def a_run(folder: Path, run: str) -> Job:
    """Begin a run, and write a table of it."""
    nothing = cast("Any", None)
    settings = _settings(["shop"], None, None)
    job = Job("analytics", str(folder), {}, [], cast("Any", Steps()), nothing, settings, run=named(run)[0])
    (folder / job.run / "rows").mkdir(parents=True)
    (folder / job.run / "rows" / "part").write_text(run)
    return job


def found(folder: Path) -> list[str]:
    """Say which run each way leads to."""
    manifest = json.loads((folder / "manifest.json").read_text())
    return [
        number_of(manifest["run"]),
        json.loads((folder / "summary.json").read_text())["run"],
        (folder / "rows" / "part").read_text(),
        (folder / "latest" / "rows" / "part").read_text(),
    ]


def finish(job: Job) -> None:
    job.finish({"run": number_of(job.run)}, Report("title", []))


def test_a_run_replaces_the_one_before(tmp_path: Path) -> None:
    (tmp_path / "run-1.log").write_text("not ours")
    for run in ("1", "2", "3", "4"):
        finish(a_run(tmp_path, run))
        assert found(tmp_path) == [run] * 4
    # The last but one may still be read.
    assert sorted(path.name for path in tmp_path.glob("run-*")) == ["run-1.log", *named("3", "4")]
    assert (tmp_path / "report.html").is_file()
    assert not list(tmp_path.glob(".*"))


def test_what_is_not_whole_replaces_nothing(tmp_path: Path) -> None:
    finish(a_run(tmp_path, "1"))
    broken = a_run(tmp_path, "2")  # killed: nothing follows
    assert found(tmp_path) == ["1"] * 4
    broken.discard()
    assert not (tmp_path / broken.run).exists()
    assert found(tmp_path) == ["1"] * 4


@pytest.mark.spark
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_results_that_are_not_on_this_machine(spark: SparkSession, tmp_path: Path) -> None:
    """Through Hadoop, as in an object store: earlier runs and those that failed are removed there too."""
    context: Any = spark.sparkContext._jsc
    context.hadoopConfiguration().set("fs.viewfs.mounttable.far.link./results", tmp_path.as_uri())
    (tmp_path / "of-job").mkdir()

    def far(run: str) -> Job:
        job = replace(a_run(tmp_path / "of-job", run), spark=spark)
        return replace(job, output="viewfs://far/results/of-job")

    for run in ("1", "2", "3"):
        finish(far(run))
    broken = far("4")
    assert sorted(path.name for path in tmp_path.rglob("run-*")) == named("2", "3", "4")
    broken.discard()
    assert sorted(path.name for path in tmp_path.rglob("run-*")) == named("2", "3")
    assert json.loads((tmp_path / "of-job" / "manifest.json").read_text())["run"] == named("3")[0]


@pytest.mark.parametrize("step", ["write_text", "_link"])
def test_killed_while_results_are_swapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    finish(a_run(tmp_path, "1"))
    with monkeypatch.context() as patched:
        patched.setattr(f"spark_jobs.common.job.{step}", _killed)
        killed = a_run(tmp_path, "2")
        with pytest.raises(KeyboardInterrupt):
            finish(killed)
    killed.discard()  # what is published stays
    of = {"write_text": "1", "_link": "2"}[step]
    assert found(tmp_path) == [of] * 4
    finish(a_run(tmp_path, "3"))
    assert found(tmp_path) == ["3"] * 4


def _killed(*_: object) -> None:
    raise KeyboardInterrupt


def test_results_of_an_earlier_version_give_way(tmp_path: Path) -> None:
    (tmp_path / "rows").mkdir()
    (tmp_path / "rows" / "part").write_text("old")
    (tmp_path / "summary.json").write_text("{}")
    finish(a_run(tmp_path, "1"))
    assert found(tmp_path) == ["1"] * 4


def test_the_verdict_is_said(tmp_path: Path) -> None:
    job = a_run(tmp_path, "1")
    report = Report("title", [])
    report.verdict("One incident: loop.", "bad")
    job.offsets = 1234
    job.finish({}, report)
    said = cast("Steps", job.steps).said
    assert said[0].startswith("1,234 offsets of row topics: ")
    assert said[1] == "One incident: loop."


def test_nothing_read_is_a_verdict_of_its_own() -> None:
    rows = {"complete": "shop.%", "store": "rows"}
    settings = load_settings(RawJobSettings, source="shop", rows=rows)
    job = cast(
        "Job", SimpleNamespace(sources=["shop"], facts=[], notes=reprocess._notes(settings, "rows", "a:1"))
    )
    none, some = Outcome(), Outcome(events=12)
    assert reprocess.report(job, {"shop": none}).result == ("There was no event to read.", "doubt")
    page = reprocess.report(job, {"shop": some})
    assert page.result == ("Nothing was written: no record is made of 12 events.", "doubt")
    for note in ("Only transactions of a:1 are decoded.", "MILLRACE_ROWS_COMPLETE does not apply: "):
        assert note in page.html("")
    assert reprocess._notes(settings, "events", None) == []
    some.files.append(WrittenFile("ddl", "ddl/1.parquet", 2, 10))
    assert reprocess.report(job, {"shop": some}).result == (
        "2 records were written: everything could be decoded.",
        "good",
    )
    lost = Outcome(events=12, files=some.files)
    lost.counters["dead_letters"] = 3
    assert reprocess.report(job, {"shop": some, "other": lost}).result == (
        "4 records were written, but 3 dead letters could not be decoded.",
        "bad",
    )
    figures = {"archive": "archive", "start": 0, "end": 5, "records": 5, "files": 1, "bytes": 100}
    for added, expected in (
        (0, ("Nothing was added: the topics have no record after the archives.", "doubt")),
        (5, ("5 records added.", "good")),
    ):
        told = {"shop": {**figures, "added": {"records": added}}}
        assert archive.report(job, told).result == expected
