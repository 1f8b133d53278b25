"""The binary logs beside the project: real files of many servers, and runs of servers with known results."""

import csv
import tarfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from millrace.local.artifacts import untar
from tests.shared import SHARED


@dataclass(frozen=True, slots=True)
class CorpusFile:
    """A file of the corpus with what its index says about it."""

    name: str
    path: Path
    event_types: dict[int, int]
    remark: str
    binlog_version: str


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.corpus)


@pytest.fixture(scope="session")
def corpus() -> list[CorpusFile]:
    """All files of the corpus."""
    folder = SHARED / "corpus"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set MILLRACE_SHARED to the folder that holds corpus/ and samples/")
    with (folder / "INDEX.tsv").open(encoding="utf-8", newline="") as index:
        return [
            CorpusFile(
                row["path"],
                folder / row["path"],
                _event_types(row["event_types"]),
                row["remark"],
                row["binlog_version"],
            )
            for row in csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE)
        ]


def _event_types(text: str) -> dict[int, int]:
    """Read ``2:5 4:1``; what stands after ``{inner`` is inside payloads."""
    pairs = (pair.split(":") for pair in text.split("{", maxsplit=1)[0].split())
    return {int(code): int(count) for code, count in pairs}


@pytest.fixture(scope="session")
def samples(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The sample archives, unpacked: name to folder."""
    folder = SHARED / "samples"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set MILLRACE_SHARED to the folder that holds corpus/ and samples/")
    target = tmp_path_factory.mktemp("samples")
    unpacked = {}
    for archive in sorted(folder.glob("*.tar.xz")):
        with tarfile.open(archive) as tar:
            untar(tar, target)
        name = archive.name.removesuffix(".tar.xz")
        unpacked[name] = target / name
    return unpacked


@pytest.fixture(scope="session")
def sample_logs(samples: dict[str, Path]) -> list[Path]:
    """The log files of all samples."""
    return [
        path
        for folder in samples.values()
        for path in sorted(folder.glob("mysql-bin.[0-9]*"))
        if path.suffix[1:].isdigit()
    ]
