"""The values of the chart and their schema; needs no helm."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from .chart import CHART, VALUES_FILES, merged

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
VALUES: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())


def paths(values: Any, above: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Every key of nested maps."""
    if not isinstance(values, dict):
        return []
    return [path for key, value in values.items() for path in ((*above, key), *paths(value, (*above, key)))]


def test_the_schema_is_a_schema() -> None:
    jsonschema.Draft7Validator.check_schema(SCHEMA)


def test_the_defaults_fit_the_schema() -> None:
    jsonschema.Draft7Validator(SCHEMA).validate(VALUES)


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda file: file.name)
def test_the_examples_fit_the_schema(file: Path) -> None:
    values = merged(VALUES, yaml.safe_load(file.read_text()))
    jsonschema.Draft7Validator(SCHEMA).validate(values)


def test_the_schema_knows_every_value_and_no_other() -> None:
    def known(schema: dict[str, Any], above: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
        if "$ref" in schema:
            schema = SCHEMA["definitions"][schema["$ref"].rsplit("/", 1)[1]]
        result: set[tuple[str, ...]] = set()
        for name, below in schema.get("properties", {}).items():
            result |= {(*above, name)} | known(below, (*above, name))
        return result

    # Overrides within sourceDefaults are empty, and free maps (a security context) are Kubernetes' own.
    overrides = {("sourceDefaults", part) for part in ("reader", "decoder", "rowmapper", "run", "snapshot")}
    in_schema = {path for path in known(SCHEMA) if path[:2] not in overrides} | overrides
    free = ("podSecurityContext", "containerSecurityContext")
    in_values = {path for path in paths(VALUES) if path[0] not in free or len(path) == 1}
    in_values = {path for path in in_values if "resources" not in path[:-1]}
    in_schema = {path for path in in_schema if "resources" not in path[:-1]} - {("global",)}
    in_schema = {path for path in in_schema if path[0] not in free or len(path) == 1}
    in_schema = {path for path in in_schema if "affinity" not in path[:-1]}
    assert in_values == in_schema


@pytest.mark.parametrize(
    "wrong",
    [
        {"kafka": {"bootstrapServer": "misspelt"}},
        {"kafka": {"securityProtocol": "TLS"}},
        {"kafka": {"password": "secret"}},
        {"sources": {"Upper": {}}},
        {"sources": {"shop": {"name": "a.dot"}}},
        {"sources": {"shop": {"start": "yesterday"}}},
        {"sources": {"shop": {"mysql": {"serverId": 4294967296}}}},
        {"topics": {"replicationFactor": 0}},
        {"registry": {"url": "registry:8081"}},
        {"http": {"port": 80}},
        {"fullnameOverride": "1st"},
        {"fullnameOverride": "f" * 41},
        {"nameOverride": "a.dot"},
        {"nameOverride": "1st"},
        {"commonLabels": {"team": "data platform"}},
        {"sources": {"shop": "mysql"}},
        {"reader": {"terminationGracePeriodSeconds": 0}},
        {"reader": {"resources": {"limits": {"memory": "1 GB"}}}},
        {"reader": {"extraEnv": [{"value": "1"}]}},
        {"image": {"repository": "millrace:1.0"}},
        {"image": {"tag": "1:0"}},
        {"image": {"digest": "sha256:abc"}},
        {"imagePullSecrets": ["pull"]},
        {"kafka": {"bootstrapServers": "kafka"}},
        {"kafka": {"bootstrapServers": "PLAINTEXT://kafka:9092"}},
        {"kafka": {"bootstrapServers": "kafka-0:9092, kafka-1:9092"}},
        {"kafka": {"sasl": {"mechanism": "OAUTHBEARER"}}},
        {"kafka": {"sasl": {"existingSecret": "Kafka_User"}}},
        {"kafka": {"tls": {"caKey": "folder/ca.crt"}}},
        {"logLevel": "info"},
        {"sources": {"shop": {"name": "n" * 201}}},
        {"sources": {"shop": {"name": False}}},
        {"sources": {"s" * 25: {}}},
        {"sources": {"shop": {"start": "mysql-bin.000001:3"}}},
        {"sources": {"shop": {"start": "time:10:00"}}},
        {"sources": {"shop": {"start": "time:2026-01-31T12:00:00"}}},
        {"sources": {"shop": {"files": "/logs/x"}}},
        {"sources": {"shop": {"onGap": "skip"}}},
        {"sources": {"shop": {"mysql": {"password": "secret"}}}},
        {"sources": {"shop": {"mysql": {"port": 0}}}},
        {"sources": {"shop": {"rows": {"bufferMib": 0}}}},
        {"sources": {"shop": {"rows": {"complete": "shop.%"}}}},
        {"snapshot": {"mode": "now"}},
        {"sources": {"shop": {"snapshot": {"tables": ["orders"]}}}},
        {"sources": {"shop": {"snapshot": {"parallel": 65}}}},
        {"jobs": {"analytics": {"from": "yesterday"}}},
        {"jobs": {"analytics": {"schedule": "hourly"}}},
        {"jobs": {"archive": {"follow": True}}},
        {"jobs": {"reprocess": {"together": True}}},
        {"jobs": {"reprocess": {"from": "yesterday"}}},
        {"jobs": {"output": {"path": "reports"}}},
        {"jobs": {"tmp": {"sizeLimit": "20 GB"}}},
        {"jobs": {"output": {"path": "s3a:/lake"}}},
        {"jobs": {"executors": {"count": -1}}},
        {"jobs": {"executors": {"count": "2"}}},
        {"jobs": {"executors": {"memoryMib": 512}}},
        {"jobs": {"executors": {"cores": 0}}},
        {"jobs": {"executors": {"sparkConf": {"executor.cores": "2"}}}},
        {"jobs": {"executors": {"sparkConf": {"spark.a": "b\nspark.c d"}}}},
        {"jobs": {"executors": {"sparkConf": {"spark.a b": "c"}}}},
        {"metrics": {"serviceMonitor": {"interval": "30"}}},
        {"metrics": {"prometheusRule": {"selector": '{job="millrace"}'}}},
        {"podDisruptionBudget": {"maxUnavailable": 2}},
    ],
    ids=json.dumps,
)
def test_wrong_values_are_refused(wrong: dict[str, Any]) -> None:
    assert not jsonschema.Draft7Validator(SCHEMA).is_valid(merged(VALUES, wrong))


def test_every_value_has_a_comment_in_full_sentences() -> None:
    lines = (CHART / "values.yaml").read_text().splitlines()
    # These have the same fields as the reader, which are described there, or are Kubernetes' own.
    explained_elsewhere = ("decoder", "rowmapper", "run", "podSecurityContext", "containerSecurityContext")
    explained_elsewhere += ("probes",)
    section = inside = ""
    missing: list[str] = []
    for number, line in enumerate(lines):
        match = re.match(r"( *)([A-Za-z]+):", line)
        if match is None:
            continue
        depth = len(match[1])
        if depth == 0:
            section = match[2]
        if depth and section in explained_elsewhere:
            continue
        if inside and depth > len(inside):
            continue
        inside = match[1] + " " if match[2] == "resources" else ""
        above = lines[number - 1].strip()
        if not (above.startswith("#") and above.endswith(".")):
            missing.append(line)
    assert missing == []


def test_the_services_take_the_same_values() -> None:
    reader = paths(VALUES["reader"])
    assert [paths(VALUES[service]) for service in ("decoder", "rowmapper", "run")] == [reader] * 3


def test_no_value_holds_a_secret() -> None:
    for path in paths(VALUES):
        if re.search(r"(?i)password", path[-1]):
            assert path[-1].endswith("Key"), path
