"""Writes what follows from the code: tables of the documentation, the schema of events, parts of the kernel.

``make generate`` fills what stands between ``<!-- generated: NAME -->`` and ``<!-- end -->`` in the files
below (``# generated: NAME`` and ``# end`` in code), and writes the schema BinlogEvent and the help of the
Spark jobs for where Spark is not installed. With ``--check`` it writes nothing, and fails where a file is
stale; a test does that. ``tools/generate_event_types.py`` runs before: it writes EventType, which this
script imports. Character sets and collations come from running servers: ``tools/generate_*.py``.
"""  # noqa: INP001 - a script beside the pages, no package

import argparse
import json
import re
import runpy
import sys
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from enum import IntEnum, IntFlag
from functools import partial
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

import click
from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from millrace.avro import columnar, plans, transactions
from millrace.avro.events import binlog_event_schema
from millrace.avro.events.schema import HEAD
from millrace.binlog.columns.declaration import NativeKind, SelectedKind
from millrace.binlog.declaration import declared_fields
from millrace.binlog.events.rows import PlainRowsEvent
from millrace.binlog_command.row_kernel import TextKind
from millrace.binlog_command.tool_options import TOOL_OPTIONS
from millrace.cli.job import JOBS
from millrace.contract import OF_ALL_SOURCES
from millrace.decoder.settings import DecoderSettings
from millrace.kafka.metrics import CommitMetrics
from millrace.kafka.topics import TOPIC_SPECS
from millrace.reader.metrics import ReaderMetrics
from millrace.reader.settings import ReaderSettings
from millrace.rowmapper import json_format
from millrace.rowmapper.non_row_changes import NonRowChanges
from millrace.rowmapper.quarantine import Quarantine
from millrace.rowmapper.settings import RowMapperSettings
from millrace.runtime.health import Health
from millrace.runtime.metrics import ServiceMetrics
from millrace.runtime.settings import (
    PREFIX,
    KafkaSettings,
    RegistrySettings,
    ServiceSettings,
    TopicsSettings,
)
from millrace.spark import json_columns
from services.decoder.metrics import DecoderMetrics
from services.rowmapper.metrics import RowMapperMetrics
from services.snapshot.metrics import SnapshotMetrics
from services.snapshot.settings import SnapshotSettings
from spark_jobs.common.job import RawJobSettings

PROJECT: Final = Path(__file__).resolve().parents[1]
VALUES: Final = PROJECT / "helm" / "millrace" / "values.yaml"
SERVICES: Final[dict[str, type[ServiceSettings]]] = {
    "reader": ReaderSettings,
    "decoder": DecoderSettings,
    "row mapper": RowMapperSettings,
    "snapshot": SnapshotSettings,
}
KERNEL_ENUMS: Final[dict[str, tuple[str, type[IntEnum | IntFlag]]]] = {
    "NativeKind": ("", NativeKind),
    "SelectedKind": ("", SelectedKind),
    "TextKind": ("", TextKind),
    "ColumnKind": ("KIND_", columnar._Kind),
    "JsonKind": ("KIND_", json_format._Kind),
    "ValueKind": ("KIND_", json_columns._Kind),
    "FieldKind": ("KIND_", plans.FieldKind),
    "RowsField": (
        "ROWS_",
        IntEnum("RowsField", [each.name.upper() for each in declared_fields(PlainRowsEvent)], start=0),
    ),
    "Use": ("USE_", transactions.Use),
    "Layout": ("LAYOUT_", plans.Layout),
    "Wire": ("WIRE_", plans.Wire),
    "Condition": ("CONDITION_", plans.Condition),
}
"""Numbers that the kernel shares with the reference: the prefix of their names there, and the enum."""
SCHEMA: Final = "schemas/avro/BinlogEvent.avsc"
PAGES: Final = {
    "docs/columns.md": ("columns",),
    "docs/types.md": ("types", "changes"),
    "docs/events.md": ("events",),
    "docs/configuration.md": ("settings",),
    "docs/topics.md": ("topics",),
    "docs/metrics.md": ("metrics",),
    "docs/binlog-command.md": ("tool options",),
    "helm/millrace/README.md": ("values",),
    "millrace/runtime/setting_names.py": ("setting names",),
    "millrace/kernel/columns.pyx": ("ColumnKind",),
    "millrace/kernel/event_records.pxd": ("FieldKind", "RowsField", "Head"),
    "millrace/kernel/events.pyx": ("Layout", "Wire", "Condition"),
    "millrace/kernel/json_columns.pyx": ("ValueKind",),
    "millrace/kernel/json_text.pyx": ("JsonKind",),
    "millrace/kernel/rows.pyx": ("NativeKind",),
    "millrace/kernel/selected.pyx": ("SelectedKind",),
    "millrace/kernel/text.pyx": ("TextKind",),
    "millrace/kernel/transactions.pyx": ("Use",),
    SCHEMA: (),
    "helm/millrace/values.schema.json": (),
    "helm/millrace/files/settings.json": (),
    **{f"spark_jobs/help/{name}.txt": () for name in JOBS},
}

Setting = tuple[str, FieldInfo]


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """Write a table in Markdown."""
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def settings(model: type[BaseModel], prefix: str = PREFIX) -> Iterator[Setting]:
    """Yield the environment variables of a settings class, each with its field."""
    for name, field in model.model_fields.items():
        variable = prefix + name.upper()
        section = _section(field)
        if section is None:
            yield variable, field
        else:
            yield from settings(section, variable + "_")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    """Return the class of a section's settings; None for a setting."""
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def settings_text() -> str:
    """List the settings that services share, and those of each service, every setting once."""
    sections = {
        "All services": [
            (PREFIX + name.upper(), field)
            for name, field in ServiceSettings.model_fields.items()
            if _section(field) is None
        ],
        "Kafka: all services": list(settings(KafkaSettings, PREFIX + "KAFKA_")),
        "New topics: all services": list(settings(TopicsSettings, PREFIX + "TOPICS_")),
        "Schema registry: decoder, row mapper and snapshot": list(
            settings(RegistrySettings, PREFIX + "REGISTRY_")
        ),
    }
    shared = {name for section in sections.values() for name, _ in section}
    owners: dict[str, str] = {}
    notes: dict[str, str] = {}
    for service, model in SERVICES.items():
        title = service.capitalize()
        found = [item for item in settings(model) if item[0] not in shared]
        sections[title] = [item for item in found if item[0] not in owners]
        others = {(owners[name], name.split("_")[1]) for name, _ in found if name in owners}
        if others:
            listed = " and ".join(f"`{PREFIX}{part}_…` of the {owner}" for owner, part in sorted(others))
            notes[title] = f"\n\nIt takes {listed} too."
        owners = {name: service for name, _ in found} | owners
    return "\n\n".join(
        f"## {title}\n\n" + "\n".join(map(_setting_line, section)) + notes.get(title, "")
        for title, section in sections.items()
        if section
    )


def _setting_line(setting: Setting) -> str:
    """Write a setting with its default, if it has one."""
    name, field = setting
    default = "" if field.is_required() else field.get_default(call_default_factory=True)
    if isinstance(default, SecretStr):
        default = default.get_secret_value()
    if isinstance(default, bool):
        default = str(default).lower()
    shown = " (**required**)" if field.is_required() else "" if default in (None, "") else f" (`{default}`)"
    secret = SecretStr in (field.annotation, *getattr(field.annotation, "__args__", ()))
    return _item(f"`{name}`{shown}: {field.description}{' (secret)' if secret else ''}")


def setting_names_text() -> str:
    """Write the keys of all settings by section, those without a section first."""
    keys: dict[str, list[str]] = {"": []}
    for model in (*SERVICES.values(), RawJobSettings):
        for name, field in model.model_fields.items():
            section = _section(field)
            if section is None:
                keys[""].append(name)
            else:
                keys.setdefault(name, []).extend(section.model_fields)
    lines = ["SETTINGS: Final[Mapping[str, tuple[str, ...]]] = {"]
    for section_name in sorted(keys):
        lines += [f'    "{section_name}": (']
        lines += [f'        "{key}",' for key in sorted(set(keys[section_name]))]
        lines += ["    ),"]
    return "\n".join((*lines, "}"))


def topics_table() -> str:
    """Write how topics of each kind are created."""
    names = {"table": "{source}.{db}.{table}", **OF_ALL_SOURCES}
    rows: dict[tuple[str, ...], list[str]] = {}
    for kind, spec in TOPIC_SPECS.items():
        others = sorted(spec.accepted_cleanup_policies - {spec.cleanup_policy})
        cells = (
            spec.cleanup_policy,
            ", ".join(f"`{other}`" for other in others),
            str(spec.max_message_bytes),
            "chunks" if spec.chunked else "",
        )
        rows.setdefault(cells, []).append(f"`{names.get(kind, f'{{source}}.{kind}')}`")
    return table(
        ("topics", "cleanup.policy", "accepted too", "max.message.bytes", "too large"),
        ((", ".join(topics), *cells) for cells, topics in rows.items()),
    )


def metrics_table() -> str:
    """Write the metrics of the services, those of one meaning together."""
    rows: dict[str, list[str]] = {}
    for name, family in metrics().items():
        rows.setdefault(family.documentation, []).append(f"`{name}`")
    return table(("metric", "meaning"), ((", ".join(names), meaning) for meaning, names in rows.items()))


def metrics() -> dict[str, Metric]:
    """Return the metrics of all services by their names as Prometheus has them."""
    registry = CollectorRegistry()
    nothing_yet: Any = SimpleNamespace(
        counters=Counter(),
        non_row_changes=NonRowChanges(),
        pending_xa=0,
        completed_rows=0,
        snapshot_left_out=0,
        record_time_ms=0,
        events=0,
        bytes=0,
        dead_letters={},
        quarantine=Quarantine(),
        commits=0,
        commit_time=0,
    )
    ServiceMetrics(registry, "", "", Health())
    ReaderMetrics(registry)
    CommitMetrics(registry, "reader", nothing_yet)
    DecoderMetrics(registry, nothing_yet, lambda: None)
    CommitMetrics(registry, "decoder", nothing_yet)
    RowMapperMetrics(registry, nothing_yet, lambda: None)
    CommitMetrics(registry, "rowmapper", nothing_yet)
    SnapshotMetrics(registry)
    suffixes = {"counter": "_total", "info": "_info"}
    return {family.name + suffixes.get(family.type, ""): family for family in registry.collect()}


def values_table() -> str:
    """List the values of the chart: those of one meaning together, settings with their section."""
    chart = runpy.run_path(str(PROJECT / "docs" / "chart.py"))
    described = {}
    for name, (section, key, field) in chart["settings"]().items():
        if name not in chart["OWN"]:
            path = chart["value_path"](name, section, key)
            path = path.replace("sources.*.snapshot.", "snapshot.").replace("sources.*.", "sourceDefaults.")
            is_list = bool(section and chart["separator"](name, section, key))
            described[path] = None if is_list else f"{field.description[0].upper()}{field.description[1:]}."
    settings_of: dict[str, list[str]] = {}
    rows: dict[tuple[str, str], list[str]] = {}
    for path, default, meaning in values():
        section, _, key = path.rpartition(".")
        if section and path in described and described[path] in {None, meaning}:
            settings_of.setdefault(section, []).append(f"`{key}={default}`")
        else:
            rows.setdefault((default, meaning), []).append(path)
    lines = []
    for (default, meaning), paths in rows.items():
        own = [name for path in paths for name in settings_of.get(path, [])]
        also = f" Settings: {', '.join(own)}." if own else ""
        names = ", ".join(f"`{path}`" for path in paths)
        lines.append((names, f"`{default}`" if default else "", meaning + also))
    return table(("value", "default", "meaning"), lines)


def values() -> list[tuple[str, str, str]]:
    """Return path, default and comment of the values of the chart."""
    rows: list[tuple[str, str, str]] = []
    path: list[str] = []
    comment: list[str] = []
    for line in VALUES.read_text().splitlines():
        match = re.match(r"( *)([A-Za-z]+):(?: (.*))?$", line)
        text = line.strip()
        if match is None:
            if text.startswith("#"):
                comment.append(text.removeprefix("#").strip())
            elif not text:
                comment = []
            continue
        depth = len(match[1]) // 2
        path = [*path[:depth], match[2]]
        if comment:
            rows.append((".".join(path), match[3] or "", _sentences(comment)))
        comment = []
    return rows


def _sentences(comment: list[str]) -> str:
    """Join the lines of a comment, without the example in it, which blank lines enclose."""
    while "" in comment:
        start = comment.index("")
        end = comment.index("", start + 1)
        comment = [*comment[:start], *comment[end + 1 :]]
    return " ".join(comment).replace(", for example ", ". ").replace("<", "&lt;")


def enum_text(name: str) -> str:
    """Write an enum of the kernel."""
    prefix, reference = KERNEL_ENUMS[name]
    members = (f"    {prefix}{key} = {int(each)}" for key, each in reference.__members__.items())
    return "\n".join((f"cdef enum {name}:", *members))


def head_text() -> str:
    """Write for the kernel what stands in front of the event, how it is read, and how it is written."""
    text = ("Span", "Text", "{}span", "{}text")
    number = ("int64_t", "int64_t", "long", "long")
    kinds = {"string": text, "bytes": text, "boolean": ("bint", "bint", "flag", "byte")}
    fields = [
        (field.name, *(each.format("nullable_" * field.optional) for each in kinds.get(field.kind, number)))
        for field in HEAD
    ]
    lines = ["cdef struct Head:", *(f"    {kind} {name}" for name, kind, *_ in fields)]
    lines += ["    Py_ssize_t event  # where it begins"]
    lines += ["", "", "cdef struct NewHead:", *(f"    {kind} {name}" for name, _, kind, *_ in fields)]
    lines += ["", "", "cdef inline void read_head(Source* source, Head* head) noexcept nogil:"]
    lines += [f"    head.{name} = read_{kind}(source)" for name, _, _, kind, _ in fields]
    lines += ["    head.event = source.at"]
    lines += ["", "", "cdef inline void put_head(Output* out, const NewHead* head) noexcept nogil:"]
    lines += [f"    put_{kind}(out, head.{name})" for name, *_, kind in fields]
    return "\n".join(lines)


def _of_script(name: str, script: str = "") -> Callable[[], str]:
    """Take the generator from a script beside this one, which is named as its page unless it is given."""

    def generate() -> str:
        text: str = runpy.run_path(str(PROJECT / "docs" / f"{script or name}.py"))[f"{name}_text"]()
        return text

    return generate


def tool_options_text() -> str:
    """List what becomes of each option of mysqlbinlog and mariadb-binlog."""
    fates: dict[str, list[str]] = {}
    for option in sorted(TOOL_OPTIONS, key=lambda option: (bool(option.refused), bool(option.ignored))):
        name = f"`--{option.name}`" + (f" `-{option.short}`" if option.short else "")
        fate = f"As `--{option.instead}`" if option.instead else "The same"
        if option.ignored:
            fate = f"No effect ({option.ignored})"
        elif option.refused:
            fate = f"Error ({option.refused})"
            name += "" if option.harmless is None else f" (but for `{option.harmless}`)"
        fates.setdefault(fate, []).append(name)
    return "\n".join(_item(f"{fate}: {', '.join(names)}") for fate, names in fates.items())


def _item(text: str) -> str:
    """Write an item of a list in lines of 120 columns."""
    return textwrap.fill(f"- {text}", 120, subsequent_indent="  ", break_on_hyphens=False)


GENERATORS: Final[dict[str, Callable[[], str]]] = {
    "columns": _of_script("columns"),
    "types": _of_script("types", "columns"),
    "changes": _of_script("changes", "columns"),
    "events": _of_script("events"),
    "settings": settings_text,
    "setting names": setting_names_text,
    "topics": topics_table,
    "metrics": metrics_table,
    "tool options": tool_options_text,
    "values": values_table,
    "Head": head_text,
    **{name: partial(enum_text, name) for name in KERNEL_ENUMS},
}


def job_help(name: str) -> str:
    """Write the help of a job as it is on a terminal of 80 columns."""
    command = import_module(f"spark_jobs.{name}").main
    context = click.Context(command, info_name=f"millrace job {name}", terminal_width=80)
    return str(command.get_help(context)) + "\n"


def generated(page: str, names: tuple[str, ...]) -> str:
    """Return the text of a file with its generated parts filled."""
    if page == SCHEMA:
        return json.dumps(binlog_event_schema(), indent=2, ensure_ascii=False) + "\n"
    if page.startswith("helm/") and page.endswith(".json"):
        name = "schema" if page.endswith("schema.json") else "settings"
        return _of_script(name, "chart")()
    if page.startswith("spark_jobs/"):
        return job_help(Path(page).stem)
    text = (PROJECT / page).read_text()
    mark, gap = ("<!-- {} -->", "\n\n") if page.endswith(".md") else ("# {}", "\n")
    end = mark.format("end")
    for name in names:
        begin = mark.format(f"generated: {name}")
        before, found, rest = text.partition(begin + "\n")
        _, closed, after = rest.partition(end)
        if not (found and closed):
            raise SystemExit(f"error: {page} has no {begin} … {end}")
        text = f"{before}{begin}{gap}{GENERATORS[name]()}{gap}{end}{after}"
    return text


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or with --check say which are stale; give the exit code."""
    parser = argparse.ArgumentParser(description="Write what is generated of documentation and code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    check = parser.parse_args(arguments).check
    stale = []
    for page, names in PAGES.items():
        text = generated(page, names)
        if not (PROJECT / page).exists() or text != (PROJECT / page).read_text():
            stale.append(page)
            if not check:
                (PROJECT / page).write_text(text)
    for page in stale:
        sys.stdout.write(f"{page}: {'stale; run make generate' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
