"""The code on the page about the library runs, on the log of a real server (MySQL 8.0.15)."""

import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

import millrace.binlog
from tests.shared import PROJECT

LOG = Path(__file__).with_name("mysql-bin.000001")


@pytest.fixture(autouse=True)
def folder_with_a_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copy(LOG, tmp_path)
    monkeypatch.chdir(tmp_path)


def blocks_of(page: str) -> list[str]:
    return re.findall(r"(?ms)^```python\n(.*?)^```", (PROJECT / page).read_text("utf-8"))


def test_the_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    namespace: dict[str, object] = {}
    blocks = blocks_of("docs/library.md")
    assert len(blocks) == 8
    printed = []
    for block in blocks:
        exec(compile(block, "docs/library.md", "exec"), namespace)
        printed.append(capsys.readouterr().out)
    assert "update shop.orders {'id': 1, 'customer': 'Zoë', 'state': 1," in printed[0]
    assert "insert shop.orders None {'id': 2, 'customer': 'Bob', 'state': 1," in printed[0]
    assert "124 PreviousGtidsLogEvent" in printed[1]
    assert "shop.orders update\n  before {'id': 1, 'customer': 'Zoë', 'state': 1," in printed[2]
    assert "shop.orders delete" in printed[2]
    assert "  after  None" in printed[2]
    assert printed[3].count("commit") == 4
    assert "cannot be decoded: an event header is 19 bytes long, 12 are there" in printed[5]


def test_the_types_on_the_page_are_right(tmp_path: Path) -> None:
    """What users' type checkers find: the package has its annotations with it."""
    page = (PROJECT / "docs/library.md").read_text("utf-8")
    first, live = re.findall(r"(?ms)^```python(?: skip)?\n(.*?)^```", page)[:2]
    script = tmp_path / "script.py"
    script.write_text(f"{first}\nname: str = event.table\nwhen: int = event.header.timestamp\n{live}")
    command = [sys.executable, "-m", "mypy", "--strict", script]
    checked = subprocess.run(command, capture_output=True, text=True, cwd=PROJECT, check=False)
    assert checked.returncode == 0, checked.stdout


def test_the_code_in_the_package_runs(capsys: pytest.CaptureFixture[str]) -> None:
    _, code = (millrace.binlog.__doc__ or "").split("::\n")
    exec(textwrap.dedent(code))
    assert capsys.readouterr().out.startswith("4 15 FormatDescriptionEvent(")


def test_every_name_that_is_offered_is_there() -> None:
    assert len(set(millrace.binlog.__all__)) == len(millrace.binlog.__all__)
    for name in millrace.binlog.__all__:
        assert getattr(millrace.binlog, name) is not None


def test_every_name_on_the_page_is_offered() -> None:
    for block in blocks_of("docs/library.md"):
        for names in re.findall(r"from millrace\.binlog import (.*)", block):
            assert set(names.split(", ")) <= set(millrace.binlog.__all__)
