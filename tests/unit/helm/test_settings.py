"""The environment that the chart gives to the services is one that they accept."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from millrace.runtime.settings import load_settings
from spark_jobs.common.job import JobSettings

from .chart import CHART, MINIMAL, merged, render
from .test_render import environment, pods

FULL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text())
SETTINGS = {
    "reader": "ReaderSettings",
    "decoder": "DecoderSettings",
    "rowmapper": "RowMapperSettings",
    "run": "RunSettings",
    "snapshot": "SnapshotSettings",
}
BESIDE = {"inputSource": "stock", "mysql": {"host": ""}}
RUN: dict[str, Any] = {"sourceDefaults": {"mode": "run"}}
BY_FILE = {
    "MILLRACE_KAFKA_CONNECT_TIMEOUT_S",
    "MILLRACE_KAFKA_FENCED_WAIT_S",
    "MILLRACE_MYSQL_CONNECT_TIMEOUT_S",
    "MILLRACE_TOPICS_NAMES",
    *(
        f"MILLRACE_REPLICATE_{name}"
        for name in ("DO_DB", "IGNORE_DB", "DO_TABLE", "IGNORE_TABLE", "WILD_DO_TABLE", "WILD_IGNORE_TABLE")
    ),
    *(
        f"MILLRACE_REPLICATE_{name}"
        for name in ("REWRITE_DB", "DO_SERVER_IDS", "IGNORE_SERVER_IDS", "IGNORE_OPERATIONS")
    ),
    "MILLRACE_ROWS_FILTER",
    "MILLRACE_ROWS_KEYS",
    "MILLRACE_TOPICS_PARTITIONS",
    "MILLRACE_TOPICS_RAW_EXCLUDE",
    *(f"MILLRACE_COLUMNS_{name}" for name in ("DROP", "MASK", "HASH", "TRUNCATE")),
    "MILLRACE_RESTART",
    "MILLRACE_SPARK_JARS",
}
"""Settings for which the chart has no value; the file in ``config`` can hold them."""


def settings_class(service: str) -> Any:
    package = "millrace" if service == "rowmapper" else "services"
    return getattr(importlib.import_module(f"{package}.{service}.settings"), SETTINGS[service])


def variables(model: Any, prefix: str = "MILLRACE_") -> set[str]:
    """The names of the environment variables of a settings class."""
    names: set[str] = set()
    for name, field in model.model_fields.items():
        variable = prefix + name.upper()
        section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        names |= variables(field.annotation, variable + "_") if section else {variable}
    return names


def as_in_a_pod(value: Any, folder: Path) -> str:
    """The value of a variable where Secrets are mounted below ``folder``."""
    if isinstance(value, tuple):
        return "what the secret has"
    if not value.startswith("/etc/millrace/tls/"):
        return str(value)
    file = folder / value.removeprefix("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return str(file)


def test_the_templates_name_every_setting_and_no_other() -> None:
    text = (CHART / "templates" / "_environment.tpl").read_text()
    named = set(re.findall(r"\bMILLRACE_[A-Z_]*[A-Z]\b", text)) - {"MILLRACE_CONFIG"}
    models = [JobSettings, *map(settings_class, SETTINGS)]
    known = {name for model in models for name in variables(model)}
    assert named == known - BY_FILE


@pytest.mark.parametrize("service", SETTINGS)
@pytest.mark.parametrize("source", ["shop", "stock", "archive"])
def test_the_services_accept_their_environment(
    service: str, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if (service, source) == ("snapshot", "archive"):
        pytest.skip("files have no tables")
    values = merged(FULL, RUN) if service == "run" else FULL
    given = environment(render(values), f"try-millrace-{source}-{service}")
    if given.pop("MILLRACE_CONFIG", None):
        (tmp_path / "millrace.toml").write_text(values["sources"][source]["config"])
        monkeypatch.setenv("MILLRACE_CONFIG", str(tmp_path / "millrace.toml"))
    ours = {name for name in given if name.startswith("MILLRACE_")}
    assert ours <= variables(settings_class(service))
    for name, value in given.items():
        monkeypatch.setenv(name, as_in_a_pod(value, tmp_path))
    settings = load_settings(settings_class(service))
    assert settings.source == {"shop": "Shop_EU"}.get(source, source)
    assert settings.http_port == 8080
    assert settings.kafka.sasl_password.get_secret_value() == "what the secret has"


def test_each_service_gets_all_of_its_settings() -> None:
    trusting = {"mode": "DISABLED", "getServerPublicKey": True}
    without_tls = merged(FULL, {"sources": {"shop": {"mysql": {"tls": trusting}}}})
    beside = merged(MINIMAL, {"sources": {"shop": BESIDE}})
    for service in SETTINGS:
        given: set[str] = set()
        for values in (MINIMAL, FULL, without_tls):
            objects = render(merged(values, RUN) if service == "run" else values)
            for source in values["sources"]:
                name = f"try-millrace-{source}-{service}"
                if name in pods(objects) or service != "snapshot":
                    given |= environment(objects, name).keys()
        if service in ("decoder", "rowmapper"):
            given |= environment(render(beside), f"try-millrace-shop-{service}").keys()
        else:  # who takes no part in that refuses it
            given.add("MILLRACE_INPUT_SOURCE")
        missing = variables(settings_class(service)) - given - BY_FILE
        if service not in ("rowmapper", "run"):  # only the row mapper makes topics of tables
            missing -= {"MILLRACE_TOPICS_MAX_TABLES", "MILLRACE_TOPICS_TABLE_PARTITIONS"}
        assert missing == set(), service


def test_the_jobs_accept_their_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = merged(FULL, {"jobs": {"analytics": {"follow": True}, "reprocess": {"enabled": True}}})
    for name in ("stock-analytics", "all-loop-detection", "stock-reprocess"):
        given = environment(render(values), f"try-millrace-{name}")
        given.pop("MILLRACE_CONFIG", None)
        assert given.keys() <= variables(JobSettings)
        for variable, value in given.items():
            monkeypatch.setenv(variable, as_in_a_pod(value, tmp_path))
        spark = load_settings(JobSettings, source="stock").spark
        assert (spark.cores, spark.memory_mib) == (1, 3072)
