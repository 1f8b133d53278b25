"""Modules in the folder where a command is started are not run, neither by it nor by its children."""

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from millrace.local.java import spark_environment
from tests.shared import PROJECT, environment_with

OURS = ("millrace", "services", "spark_jobs")
THEIRS = (
    "click",
    "pip",
    "cython",
    "Cython",
    "pyspark",
    "pydantic",
    "confluent_kafka",
    "structlog",
    "hatchling",
)

FOREIGN = "import os; open(os.environ['CANARY'], 'a').write(__file__ + '\\n')\n"

PROGRAMS = {
    "kernel build": (
        "from pathlib import Path; from millrace.kernel import build; "
        "build._build_one(Path(build.__file__).with_name('packets.pyx'), Path('built.so').absolute())"
    ),
    "local up": "from millrace.cli import local; local._up_detached('none', mariadb=False)",
    "demo": (
        "import os; from pathlib import Path; from millrace.demo.pipeline import Services; "
        "Services(dict(os.environ), Path('logs').absolute()).start()"
    ),
    "job": (
        "from spark_jobs.common.session import SparkSettings, spark_session\n"
        "with spark_session('foreign', 'local[1]', SparkSettings()) as spark:\n"
        "    print(spark.sparkContext.parallelize([1, 2]).map(lambda one: one + 1).collect())"
    ),
}
"""What starts children, run as the program ``millrace`` is: the current folder is not on its path."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a foreign module for each name that children might import."""
    made = tmp_path / "foreign"
    made.mkdir()
    for name in {*sys.stdlib_module_names, *OURS, *THEIRS}:
        (made / f"{name}.py").write_text(FOREIGN)
    return made


@pytest.mark.spark
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_children_import_nothing_of_the_current_folder(program: str, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(program)
    canary = tmp_path / "canary"
    settings = {"CANARY": str(canary), "TMPDIR": str(tmp_path)}
    environment = {**spark_environment(archive=False), **environment_with(settings)}
    environment.pop("PYTHONSAFEPATH", None)
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(PROJECT), os.environ.get("PYTHONPATH"))))
    done = subprocess.run(
        [sys.executable, tmp_path / "program.py"],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert not canary.exists(), (canary.read_text(), done)
    assert "No module named" not in done.stderr, done
    if program == PROGRAMS["job"]:
        assert done.stdout == "[2, 3]\n", done


def test_every_command_that_starts_python_leaves_the_current_folder_out() -> None:
    commands = [each for each in lists() if ast.unparse(each[0]) == "sys.executable"]
    assert len(commands) > 5
    for command in commands:
        assert ast.unparse(command[1]) in ("'-P'", "'-I'"), [ast.unparse(part) for part in command]


def lists() -> Iterator[list[ast.expr]]:
    for folder in (*OURS, "tools"):
        for path in (PROJECT / folder).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.List | ast.Tuple) and len(node.elts) > 1:
                    yield node.elts
