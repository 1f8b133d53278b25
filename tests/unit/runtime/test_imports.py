"""Imports at the start of a process."""

import importlib
import sys
import zipfile
from pathlib import Path
from zipimport import zipimporter

import pytest

from millrace.runtime.imports import forget_zips


def test_a_zip_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = tmp_path / "packages.zip"
    with zipfile.ZipFile(place, "w") as written:
        for name in ("__init__", "one", "two"):
            written.writestr(f"millrace_zipped/{name}.py", "")
    monkeypatch.setattr(sys, "path", [str(place), *sys.path])
    importlib.import_module("millrace_zipped.one")
    assert any(isinstance(found, zipimporter) for found in sys.path_importer_cache.values())
    forget_zips()

    def read(*_: object) -> None:
        raise AssertionError("the zip is read again")

    monkeypatch.setattr("zipimport._read_directory", read)
    importlib.invalidate_caches()
    importlib.import_module("millrace_zipped.two")
    for name in ("", ".one", ".two"):
        del sys.modules[f"millrace_zipped{name}"]
