"""The kernel's build; and that the reference does the work where it cannot be built."""

import ast
import hashlib
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from millrace import kernel
from millrace.kernel import build
from tests.shared import environment_with
from tests.unit.test_imports import CODEC_STDLIB_FORBIDDEN, within

SOURCES = build.sources()
SHARED = sorted(SOURCES[0].parent.glob("*.pxd"))
"""What modules of the kernel have of each other."""


def test_every_module_has_a_source_and_its_types() -> None:
    assert tuple(source.stem for source in SOURCES) == kernel.MODULES
    assert all(source.with_suffix(".pyi").exists() for source in SOURCES)


@pytest.mark.parametrize("source", [*SOURCES, *SHARED], ids=lambda source: source.name)
def test_modules_import_the_codec_and_the_kernel_alone(source: Path) -> None:
    found = re.findall(r"^\s*(?:from|import|cimport) +([\w.]+)", source.read_text("utf-8"), re.MULTILINE)
    assert found or source in SHARED
    pure = sys.stdlib_module_names - CODEC_STDLIB_FORBIDDEN | {"cpython", "cython", "libc"}
    ours = [name for name in found if name.split(".")[0] not in pure]
    assert all(within(name, "millrace.binlog") or within(name, "millrace.kernel") for name in ours), ours


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_what_is_built_is_current(source: Path) -> None:
    """A library that is older than its source would be tested in its place."""
    if not kernel.built(source.stem):
        pytest.skip("the kernel is not built (make kernel)")
    assert build._is_current(source), "run make kernel"


@pytest.mark.parametrize("source", SOURCES, ids=lambda source: source.stem)
def test_types_name_what_the_module_has(source: Path) -> None:
    if not kernel.built(source.stem):
        pytest.skip("the kernel is not built (make kernel)")
    module = __import__(f"millrace.kernel.{source.stem}", fromlist=["*"])
    for node in ast.parse(source.with_suffix(".pyi").read_text("utf-8")).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            assert hasattr(module, node.name)


def test_without_a_compiler_the_reference_is_used(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CC", "no-such-compiler --fast")
    assert build.main(["--force", "--if-possible"]) == 0
    out = capsys.readouterr().out
    assert out == (
        "no C compiler: no-such-compiler is not on PATH; the reference codec is used, which is slower\n"
    )
    assert build.main(["--force"]) == 1
    assert capsys.readouterr().err == "error: no C compiler: no-such-compiler is not on PATH\n"


def test_a_compiler_that_fails_is_said_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("Cython")
    source = tmp_path / "broken.pyx"
    source.write_text("x = (\n", "ascii")
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setattr(build, "_require_tools", lambda: None)
    assert build.main(["--if-possible"]) == 0
    assert "the kernel does not build" in capsys.readouterr().out.splitlines()[-1]
    assert build.main([]) == 1
    assert "broken.pyx:2:0" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["broken.pyx"]


def test_modules_are_built_at_the_same_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    pytest.importorskip("Cython")
    if (missing := build.what_is_missing()) is not None:
        pytest.skip(missing)
    for name in ("one", "two"):
        (tmp_path / f"{name}.pyx").write_text("x = 1\n", "ascii")
    both = threading.Barrier(2)
    run = build._run

    def run_beside(command: list[str]) -> None:
        both.wait(60)
        run(command)

    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    monkeypatch.setattr(build.os, "cpu_count", lambda: 2)
    monkeypatch.setattr(build, "_run", run_beside)
    assert build.main([]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.rpartition(", ")[0] for line in told] == ["built the kernel: one", "built the kernel: two"]
    assert build.libraries(tmp_path / "none") == [build.target_of(source) for source in build.sources()]


def test_off_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "_enabled", False)
    assert not any(map(kernel.has, kernel.MODULES))
    monkeypatch.setattr(kernel, "_enabled", True)
    assert [kernel.has(name) for name in kernel.MODULES] == [kernel.built(name) for name in kernel.MODULES]
    assert not kernel.has("no_such_module")


def test_a_step_that_fails_is_told_with_what_it_said() -> None:
    with pytest.raises(build.BuildError) as caught:
        build._run(["sh", "-c", "echo no such thing; exit 3"])
    assert str(caught.value) == "sh -c 'echo no such thing; exit 3' failed:\nno such thing"


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("_include_folders", list, "no C headers of Python "),
        ("_compiler", lambda: ["/nowhere/cc"], "no C compiler: /nowhere/cc is not on PATH"),
        (
            "importlib.util.find_spec",
            lambda _name: None,
            "no Cython: the extra 'kernel' brings it$",
        ),
    ],
)
def test_what_the_kernel_lacks(
    monkeypatch: pytest.MonkeyPatch, name: str, value: object, message: str
) -> None:
    monkeypatch.setattr(build.shutil, "which", lambda path: None if path == "/nowhere/cc" else path)
    monkeypatch.setattr(f"millrace.kernel.build.{name}", value)
    with pytest.raises(build.BuildError, match=f"^{message}"):
        build._require_tools()


ALTERED = """
import millrace.kernel as kernel
print(kernel.state(), kernel.has("rows"), kernel.altered())
"""


@pytest.mark.skipif(kernel.state() != "on", reason="the kernel is not built, or turned off")
def test_a_library_that_was_altered_is_not_used(tmp_path: Path) -> None:
    """Nor are the others, which load it; the reference does the work."""
    copy = tmp_path / "millrace" / "kernel"
    shutil.copytree(SOURCES[0].parent, copy, ignore=shutil.ignore_patterns("*.sha256", "__pycache__"))
    (tmp_path / "millrace" / "__init__.py").touch()

    def look() -> list[str]:
        environment = environment_with({"PYTHONPATH": str(tmp_path), "MILLRACE_KERNEL": "on"})
        done = subprocess.run(
            [sys.executable, "-P", "-c", ALTERED], env=environment, capture_output=True, text=True, check=True
        )
        return done.stdout.split()

    library = build.target_of(copy / "columns.pyx")
    digest = library.with_name(library.name + kernel.DIGEST)
    assert look() == ["on", "True", "None"]
    digest.write_text(hashlib.sha256(library.read_bytes()).hexdigest())
    assert look() == ["on", "True", "None"]
    with library.open("ab") as file:
        file.write(b"x")
    assert look() == ["altered", "False", str(library)]


@pytest.mark.skipif(build.what_is_missing() is not None, reason="no C compiler or no headers of Python")
def test_the_build_notes_the_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "columns.pyx"
    source.write_text("x = 1\n")
    monkeypatch.setattr(build, "_FOLDER", tmp_path)
    assert build.build() == 1
    library = build.target_of(source)
    noted = library.with_name(library.name + kernel.DIGEST).read_text()
    assert noted == hashlib.sha256(library.read_bytes()).hexdigest()
