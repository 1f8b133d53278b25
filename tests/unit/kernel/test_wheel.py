"""The wheel: with the kernel where it can be built, else without it and with a line that says so."""

import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

from millrace.kernel import MODULES, build
from tests.shared import PROJECT, environment_with

FILES = ("pyproject.toml", "README.md", "LICENSE", "tools", "schemas", "millrace", "services", "spark_jobs")
BUILT = MODULES[:2]
"""The modules of the kernel that the copy of the project has: each takes a second to build."""

LIBRARIES = {f"millrace/kernel/{name}{sysconfig.get_config_var('EXT_SUFFIX')}" for name in BUILT}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """The project as it is checked out, with a kernel that is quickly built."""
    copy = tmp_path / "project"
    copy.mkdir()
    for name in FILES:
        if (PROJECT / name).is_dir():
            without = shutil.ignore_patterns("*.so", "*.pyx", "*.pxd", "__pycache__", ".build-*")
            shutil.copytree(PROJECT / name, copy / name, ignore=without)
        else:
            shutil.copy(PROJECT / name, copy)
    for name in BUILT:
        (copy / "millrace" / "kernel" / f"{name}.pyx").write_text("x = 1\n")
    return copy


def wheel(project: Path, **settings: str) -> tuple[Path, str]:
    done = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", project / "dist"],
        cwd=project,
        env=environment_with({"MILLRACE_KERNEL": "on"}) | settings,
        capture_output=True,
        text=True,
        check=True,
    )
    (path,) = (project / "dist").glob("*.whl")
    return path, done.stdout + done.stderr


def content(path: Path) -> set[str]:
    with zipfile.ZipFile(path) as archive:
        return {name for name in archive.namelist() if not name.endswith("/")}


def requirements(project: Path, **settings: str) -> str:
    asked = "from hatchling.build import *; print(get_requires_for_build_wheel())"
    return subprocess.run(
        [sys.executable, "-c", asked],
        cwd=project,
        env=environment_with({"MILLRACE_KERNEL": "on"}) | settings,
        capture_output=True,
        text=True,
        check=True,
    ).stdout


@pytest.mark.skipif(build.what_is_missing() is not None, reason="no C compiler or no headers of Python")
def test_where_there_is_a_compiler(project: Path) -> None:
    assert "Cython" in requirements(project)
    path, _ = wheel(project)
    assert path.name.startswith(f"millrace_cdc-0.1.0-cp{sys.version_info.major}{sys.version_info.minor}-")
    assert content(path) >= LIBRARIES | {f"{library}.sha256" for library in LIBRARIES}
    assert list((project / "millrace" / "kernel").glob("*.so")) == []


def test_where_there_is_none(project: Path) -> None:
    for settings in ({"CC": "no-such-compiler"}, {"MILLRACE_KERNEL": "off"}):
        assert requirements(project, **settings) == "[]\n"
        path, said = wheel(project, **settings)
        assert path.name == "millrace_cdc-0.1.0-py3-none-any.whl"
        assert not content(path) & LIBRARIES
        assert ("without the compiled kernel" in said) == ("CC" in settings)
        path.unlink()


def test_a_compiler_that_fails(project: Path) -> None:
    path, said = wheel(project, CC="false")
    assert path.name == "millrace_cdc-0.1.0-py3-none-any.whl"
    assert "without the compiled kernel" in said


def test_what_was_built_in_place_is_taken_if_it_is_current(project: Path) -> None:
    for library in LIBRARIES:
        (project / library).write_bytes(b"built")
    path, _ = wheel(project, CC="no-such-compiler")
    assert content(path) >= LIBRARIES
    path.unlink()
    (project / "millrace" / "kernel" / f"{BUILT[0]}.pyx").touch()
    path, said = wheel(project, CC="no-such-compiler")
    assert not content(path) & LIBRARIES
    assert "no-such-compiler is not on PATH" in said


def test_it_has_all_that_is_read_at_run_time(project: Path) -> None:
    """Schemas, tables, styles, texts: whatever is no Python and yet belongs to a package."""
    path, _ = wheel(project, MILLRACE_KERNEL="off")
    found = content(path)
    for folder in ("millrace", "services", "spark_jobs"):
        there = {str(one.relative_to(project)) for one in (project / folder).rglob("*") if one.is_file()}
        assert there <= found
    names = {one.name for one in (project / "schemas" / "avro").iterdir()}
    assert {f"millrace/avro/schemas/{name}" for name in names} <= found
