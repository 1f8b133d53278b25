"""Millrace as a zip on the path, as workers of a Spark cluster have it: the kernel and all that is read."""

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from millrace import kernel
from tests.shared import PROJECT, environment_with

LOOK = """
import millrace.kernel as kernel
from millrace.avro.events import EventDeserializer
from millrace.avro.schemas import load_schema, schema_names
assert ".zip" in kernel.__file__, kernel.__file__
EventDeserializer()
assert {load_schema(name)["name"] for name in schema_names()} >= {"BinlogEvent", "Ddl"}
print(kernel.state())
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "millrace-spark.zip"
    with zipfile.ZipFile(path, "w") as packed:
        for one in (PROJECT / "millrace").rglob("*"):
            if one.is_file() and one.parent.name != "__pycache__" and one.suffix not in {".pyx", ".pxd"}:
                packed.write(one, one.relative_to(PROJECT))
        for one in (PROJECT / "schemas" / "avro").iterdir():
            packed.write(one, f"millrace/avro/schemas/{one.name}")
    return path


def look(archive: Path, **settings: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", LOOK],
        cwd=archive.parent,
        env=environment_with({"PYTHONPATH": str(archive), **settings}),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def libraries(archive: Path) -> dict[str, int]:
    return {one.name: one.stat().st_mtime_ns for one in archive.parent.rglob("*.so")}


@pytest.mark.skipif(kernel.state() != "on", reason="the kernel is not built, or turned off")
def test_the_kernel_is_unpacked_once(archive: Path) -> None:
    assert look(archive) == "on"
    unpacked = libraries(archive)
    assert len(unpacked) == len(kernel.MODULES)
    assert look(archive) == "on"
    assert libraries(archive) == unpacked
    altered = next(archive.parent.rglob("*.so"))
    content = altered.read_bytes()
    altered.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert look(archive) == "on"
    assert altered.read_bytes() == content


def test_a_kernel_that_is_turned_off_is_not_unpacked(archive: Path) -> None:
    assert look(archive, MILLRACE_KERNEL="off") == "off"
    assert libraries(archive) == {}


@pytest.mark.skipif(kernel.state() != "on", reason="the kernel is not built, or turned off")
def test_a_folder_that_cannot_be_written(archive: Path) -> None:
    assert look(archive) == "on"
    (folder,) = (one for one in archive.parent.iterdir() if one.is_dir())
    for library in folder.iterdir():
        library.unlink()
    folder.rmdir()
    folder.touch()  # a file is where it should be
    assert look(archive) == "not built"
