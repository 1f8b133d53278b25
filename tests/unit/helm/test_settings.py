"""The environment that the chart gives to the services is one that they accept."""

import importlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel, SecretStr
from pydantic.fields import FieldInfo

from millrace.runtime.settings import load_settings
from spark_jobs.common.job import JobSettings, RowJobSettings

from .chart import CHART, MINIMAL, in_one_process, merged, render
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
WITHOUT_VALUE = {
    "MILLRACE_RESTART",  # of a snapshot that is taken by hand
    "MILLRACE_SPARK_JARS",  # the image has them
}
SELECTION = {
    "columns": {"drop": ["a.b.c"], "mask": ["a.b.d=x"], "hash": ["a.b.e"], "truncate": ["a.b.f=1"]},
    "hashSalt": {"existingSecret": "salt"},
    "replicate": {
        "doDb": ["a"],
        "doTable": ["a.b"],
        "ignoreTable": ["a.c"],
        "wildDoTable": ["a.%"],
        "wildIgnoreTable": ["a.x%"],
        "rewriteDb": ["a->b"],
        "doServerIds": [1],
        "ignoreOperations": ["a.b=d"],
    },
    "rows": {"filter": ["a.b: id > 1"], "keys": ["a.b=id"]},
    "topics": {"names": ["a.b=c.d"], "partitions": ["a.b=2"], "rawExclude": ["a.secret"]},
}
NO_MATERIAL = {"existingSecret": "", "certificateKey": "", "privateKeyKey": ""}
OTHER_SELECTION = {"replicate": {"ignoreDb": ["a"], "ignoreServerIds": [2]}}


def settings_class(service: str) -> Any:
    package = "millrace" if service in {"reader", "decoder", "rowmapper"} else "services"
    return getattr(importlib.import_module(f"{package}.{service}.settings"), SETTINGS[service])


def fields(model: Any, prefix: str = "MILLRACE_") -> dict[str, FieldInfo]:
    """The fields of a settings class by the names of their environment variables."""
    found: dict[str, FieldInfo] = {}
    for name, field in model.model_fields.items():
        variable = prefix + name.upper()
        section = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        found |= fields(field.annotation, variable + "_") if section else {variable: field}
    return found


def variables(model: Any) -> set[str]:
    """The names of the environment variables of a settings class."""
    return set(fields(model))


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
    named |= {
        name for name, _ in json.loads((CHART / "files" / "settings.json").read_text())["lists"].values()
    }
    models = [JobSettings, *map(settings_class, SETTINGS)]
    known = {name for model in models for name in variables(model)}
    assert named == known - WITHOUT_VALUE


@pytest.mark.parametrize("service", SETTINGS)
@pytest.mark.parametrize("source", ["shop", "stock", "archive"])
def test_the_services_accept_their_environment(
    service: str, source: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if (service, source) == ("snapshot", "archive"):
        pytest.skip("files have no tables")
    values = in_one_process(FULL) if service == "run" else FULL
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
    without_tls = merged(FULL, {"sources": {"shop": {"mysql": {"tls": trusting | NO_MATERIAL}}}})
    selecting = merged(MINIMAL, {"sources": {"shop": SELECTION}})
    ignoring = merged(MINIMAL, {"sources": {"shop": OTHER_SELECTION}})
    beside = merged(MINIMAL, {"sources": {"shop": BESIDE}})
    for service in SETTINGS:
        given: set[str] = set()
        for values in (MINIMAL, FULL, without_tls, selecting, ignoring):
            objects = render(in_one_process(values) if service == "run" else values)
            for source in values["sources"]:
                name = f"try-millrace-{source}-{service}"
                if name in pods(objects):
                    given |= environment(objects, name).keys()
        if service == "snapshot":
            once = {"sources": {"shop": {"snapshot": {"mode": "once"}}}}
            for values in (selecting, ignoring):
                given |= environment(render(merged(values, once)), "try-millrace-shop-snapshot").keys()
        if service in ("decoder", "rowmapper"):
            given |= environment(render(beside), f"try-millrace-shop-{service}").keys()
        else:  # who takes no part in that refuses it
            given.add("MILLRACE_INPUT_SOURCE")
        missing = variables(settings_class(service)) - given - WITHOUT_VALUE
        if service not in ("rowmapper", "run"):  # only the row mapper makes topics of tables
            missing -= {"MILLRACE_TOPICS_MAX_TABLES", "MILLRACE_TOPICS_TABLE_PARTITIONS"}
        assert missing == set(), service


def test_the_jobs_accept_their_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    values = merged(FULL, {"jobs": {"analytics": {"follow": True}, "reprocess": {"enabled": True}}})
    for name in ("stock-analytics", "all-loop-detection", "stock-reprocess"):
        given = environment(render(values), f"try-millrace-{name}")
        given.pop("MILLRACE_CONFIG", None)
        kind = RowJobSettings if name.endswith("reprocess") else JobSettings
        assert given.keys() <= variables(kind)
        for variable, value in given.items():
            monkeypatch.setenv(variable, as_in_a_pod(value, tmp_path))
        spark = load_settings(kind, source="stock").spark
        assert (spark.cores, spark.memory_mib) == (1, 3072)


RULES = ("MILLRACE_REPLICATE_", "MILLRACE_COLUMNS_", "MILLRACE_ROWS_FILTER", "MILLRACE_ROWS_KEYS")


def test_selection_reaches_everything_that_makes_rows() -> None:
    """What hides a column from row topics hides it from the rows of reprocess, and tables from snapshots."""
    jobs = {"jobs": {"reprocess": {"enabled": True}}}
    for given in (SELECTION, OTHER_SELECTION):
        once = {"sources": {"shop": {**given, "snapshot": {"mode": "once"}}}}
        three, one = (
            render(merged(MINIMAL, jobs, once, more)) for more in ({}, {"sources": {"shop": {"mode": "run"}}})
        )

        def selection(objects: list[dict[str, Any]], part: str) -> dict[str, Any]:
            found = environment(objects, f"try-millrace-shop-{part}")
            return {name: value for name, value in found.items() if name.startswith(RULES)}

        wanted = selection(three, "rowmapper")
        assert len(wanted) == sum(map(len, given.values())) - 3 * (given is SELECTION)
        assert wanted == selection(one, "run") == selection(three, "reprocess")
        assert selection(three, "snapshot") == {
            name: value for name, value in wanted.items() if "_REPLICATE_" in name
        }


def test_the_defaults_are_those_of_the_settings() -> None:
    given = environment(render(MINIMAL), "try-millrace-shop-rowmapper")
    given |= environment(render(MINIMAL), "try-millrace-shop-reader")
    for service in ("reader", "rowmapper"):
        for name, field in fields(settings_class(service)).items():
            if (
                name in given
                and not field.is_required()
                and name not in {"MILLRACE_HTTP_HOST", "MILLRACE_HTTP_PORT"}
            ):
                default = field.get_default(call_default_factory=True)
                if (
                    default not in (None, "")
                    and not isinstance(default, SecretStr)
                    and isinstance(given[name], str)
                ):
                    assert given[name].lower() == str(default).lower().removesuffix(".0"), name
