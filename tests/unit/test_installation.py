"""The command that adds what is missing: it works where it is said, and names nothing of somebody else."""

import json
import re
import shlex
import sys
import tomllib
from importlib.metadata import PackageNotFoundError
from pathlib import Path
from types import SimpleNamespace

import pytest

from millrace import installation
from millrace.installation import DISTRIBUTION, install_command
from tests.shared import PROJECT


def said(monkeypatch: pytest.MonkeyPatch, url: str | None, checkout: Path | None) -> list[str]:
    text = None if url is None else json.dumps({"url": url, "dir_info": {}})
    found = SimpleNamespace(read_text=lambda _: text)
    monkeypatch.setattr(installation, "distribution", lambda _: found)
    monkeypatch.setattr(installation, "_checkout", lambda: checkout)
    return shlex.split(install_command("spark", "local"))


def test_from_an_index(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-P", "-m", "pip", "install", "millrace-cdc[spark,local]"]
    assert said(monkeypatch, None, None) == command
    assert said(monkeypatch, "https://example.org/millrace_cdc.whl", None) == command
    assert said(monkeypatch, "file:///no/longer/there.whl", None) == command


def test_from_a_folder_or_a_wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("a folder", "millrace_cdc-0.1.0-py3-none-any.whl"):
        (tmp_path / name).mkdir()
        assert said(monkeypatch, (tmp_path / name).as_uri(), None)[-1] == f"{tmp_path / name}[spark,local]"


def test_in_a_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = ["install", "--editable", f"{tmp_path}[spark,local]"]
    assert said(monkeypatch, tmp_path.as_uri(), tmp_path)[4:] == command
    assert said(monkeypatch, None, tmp_path)[4:] == command

    def absent(_: str) -> None:
        raise PackageNotFoundError

    monkeypatch.setattr(installation, "distribution", absent)
    assert shlex.split(install_command("spark", "local"))[4:] == command


def test_here() -> None:
    assert install_command("local").endswith(f" -P -m pip install --editable '{PROJECT}[local]'")


def test_the_name_is_ours_everywhere() -> None:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    texts = [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", PROJECT / "Makefile"]
    for folder in ("docs", "docker", "helm", "millrace", "services", "spark_jobs"):
        texts += [path for path in (PROJECT / folder).rglob("*") if path.suffix in {".md", ".py", ".txt", ""}]
    for path in texts:
        if path.is_file():
            named = re.findall(r"install [^`\n]*?\bmillrace(?!-cdc)\[", path.read_text(errors="replace"))
            assert not named, path
