"""Odd values. Helm refuses each with the path of the value, in our words or in those of the schema."""

import json
import re
from functools import reduce
from typing import Any

import pytest

from .chart import MINIMAL, helm_template, merged

POD = "reader"
SOURCE = "sources.shop"
TLS = f"{SOURCE}.mysql.tls"
CA = {f"{TLS}.existingSecret": "ca"}
CLAIM = {"jobs.output.existingClaim": "reports"}
ARCHIVE = {"jobs.archive.enabled": True}
RUN = {f"{SOURCE}.mode": "run"}
FILES: dict[str, Any] = {
    f"{SOURCE}.mysql": {"host": "", "existingSecret": "", "serverId": 0},
    f"{SOURCE}.files": ["/l"],
}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}


def env(name: str, value: Any = "x", **more: Any) -> list[dict[str, Any]]:
    return [{"name": name, "value": value, **more}]


def volume(name: str, **source: Any) -> dict[str, Any]:
    return {"name": name, **(source or {"emptyDir": {}})}


def mount(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "mountPath": path}


ODD: list[tuple[str, Any] | tuple[str, Any, dict[str, Any]]] = [
    # scheduling
    (f"{POD}.tolerations", [{"key": "a", "operater": "Exists"}]),
    (f"{POD}.tolerations", [{"key": "a", "operator": "Exist"}]),
    (f"{POD}.tolerations", [{"key": "a", "effect": "NoScheduled"}]),
    (f"{POD}.tolerations", [{"operator": "Equal", "value": "x"}]),
    (f"{POD}.tolerations", [{"key": "a", "operator": "Exists", "value": "x"}]),
    (f"{POD}.tolerations", [{"key": "a", "value": "x", "tolerationSeconds": 5}]),
    (f"{POD}.tolerations", {"key": "a"}),
    ("jobs.tolerations", [{"keys": "a"}]),
    (f"{POD}.affinity", {"nodeAfinity": {}}),
    (f"{POD}.affinity", {"nodeAffinity": {"required": {}}}),
    (
        f"{POD}.affinity",
        {"podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 0}]}},
    ),
    (f"{POD}.nodeSelector", {"disk": True}),
    (f"{POD}.nodeSelector", {"a b": "c"}),
    (f"{POD}.topologySpreadConstraints", [{"maxSkew": 1, "topologyKey": "zone"}]),
    (
        f"{POD}.topologySpreadConstraints",
        [{"maxSkew": 0, "topologyKey": "z", "whenUnsatisfiable": "ScheduleAnyway"}],
    ),
    (f"{POD}.priorityClassName", "High Priority"),
    (f"{POD}.terminationGracePeriodSeconds", "60"),
    # resources
    (f"{POD}.resources.limits", {"memory": "512m"}),
    (f"{POD}.resources.limits", {"memory": "512"}),
    (f"{POD}.resources.limits", {"memory": "1GB"}),
    (f"{POD}.resources.limits", {"memory": "512MB"}),
    (f"{POD}.resources.limits", {"mem": "1Gi"}),
    (f"{POD}.resources.limits", {"cpu": "one"}),
    (f"{POD}.resources.requests", {"cpu": "0"}),
    (f"{POD}.resources.limit", {"cpu": "1"}),
    (f"{POD}.resources.requests.memory", "2Gi"),
    (f"{POD}.resources.requests.cpu", "1500m", {f"{POD}.resources.limits.cpu": 1}),
    (f"{SOURCE}.decoder.resources.requests.memory", "1025Mi"),
    ("jobs.resources.requests.memory", "4G"),
    ("snapshot.resources.requests.memory", "1.5Gi", {"snapshot.mode": "signals"}),
    ("tmp.sizeLimit", "1g"),
    ("jobs.tmp.sizeLimit", "20m"),
    (f"{SOURCE}.rows.store.sizeLimit", "8GiB"),
    # pods
    (f"{POD}.extraEnv", env("MILLRACE_KAFKA_BOOTSTRAP_SERVERS")),
    (f"{POD}.extraEnv", env("MILLRACE_COLUMN_DROP")),
    (f"{POD}.extraEnv", env("millrace_config")),
    (f"{POD}.extraEnv", env("A", "1") + env("A", "2")),
    (f"{POD}.extraEnv", env("A", 1)),
    (f"{POD}.extraEnv", env("A", valueFrom=SECRET)),
    (f"{POD}.extraEnv", [{"name": "A", "valueFrom": {"secretKey": {"name": "s", "key": "k"}}}]),
    (f"{POD}.extraEnv", env("A B")),
    (f"{POD}.extraEnv", {"A": "1"}),
    (f"{POD}.extraEnv", env("DB_PASSWORD")),
    (f"{POD}.extraEnv", env("http_proxy", "http://user:hidden@proxy")),
    ("rowmapper.extraEnv", env("MILLRACE_COLUMNS_DROP", "a.b.c")),
    ("rowmapper.extraEnv", [{"name": "MILLRACE_COLUMNS_HASH_SALT", "valueFrom": SECRET}]),
    ("rowmapper.extraEnv", env("MILLRACE_COLUMNS_HASH_SALT", "0123456789abcdef")),
    (f"{SOURCE}.rowmapper.extraEnv", env("MILLRACE_REPLICATE_DO_DB", "a")),
    ("jobs.extraEnv", env("AWS_SECRET_ACCESS_KEY")),
    ("jobs.extraEnv", env("MILLRACE_ROWS_FILTER", "a.b: c = 1")),
    (f"{POD}.extraVolumes", [volume("a"), volume("a")]),
    (f"{POD}.extraVolumes", [volume("tmp")]),
    (f"{POD}.extraVolumes", [volume("tls-kafka")]),
    (f"{POD}.extraVolumes", [{"name": "a"}]),
    (f"{POD}.extraVolumes", [volume("a", emptydir={})]),
    (f"{POD}.extraVolumes", [volume("a", emptyDir={}, configMap={"name": "b"})]),
    (f"{POD}.extraVolumes", [volume("a", persistentVolumeClaim={"claim": "b"})]),
    (f"{POD}.extraVolumes", [volume("A_b")]),
    (f"{POD}.extraVolumeMounts", [mount("a", "/a")]),
    (f"{POD}.extraVolumeMounts", [mount("a", "a")], {f"{POD}.extraVolumes": [volume("a")]}),
    (f"{POD}.extraVolumeMounts", [mount("a", "/tmp")], {f"{POD}.extraVolumes": [volume("a")]}),
    (
        f"{POD}.extraVolumeMounts",
        [mount("a", "/a"), mount("a", "/a/")],
        {f"{POD}.extraVolumes": [volume("a")]},
    ),
    (f"{POD}.extraVolumeMounts", [{"name": "a", "path": "/a"}], {f"{POD}.extraVolumes": [volume("a")]}),
    ("jobs.extraVolumes", [volume("reports")]),
    (f"{POD}.podAnnotations", {"a": 1}),
    (f"{POD}.podAnnotations", {"a b": "c"}),
    (f"{POD}.podLabels", {"tier": "a b"}),
    ("commonLabels", {"-a": "b"}),
    (f"{POD}.replicas", 2),
    (f"{POD}.enabled", "no"),
    ("podSecurityContext", {"runAsNonroot": True}),
    ("podSecurityContext", {"runAsUser": "10001"}),
    ("podSecurityContext.seccompProfile", {"type": "Runtime"}),
    ("containerSecurityContext", {"readOnlyRootFileSystem": True}),
    ("containerSecurityContext.capabilities", {"drops": ["ALL"]}),
    ("imagePullSecrets", "pull"),
    ("image.pullPolicy", "always"),
    # Kafka, registry, server
    ("kafka.bootstrapServers", "http://kafka:9092"),
    ("kafka.bootstrapServers", "user:hidden@kafka:9092"),
    ("kafka.securityProtocol", "sasl_ssl"),
    ("kafka.connectTimeoutSeconds", 0),
    ("kafka.fencedWaitSeconds", -1),
    ("kafka.compression", "gzip"),
    ("registry.url", "http://user:hidden@registry"),
    ("topics.replicationFactor", 0),
    (f"{SOURCE}.mysql.host", "mysql://db"),
    (f"{SOURCE}.mysql.host", "root:hidden@db"),
    (f"{SOURCE}.mysql.host", "db/app"),
    (f"{SOURCE}.mysql.port", "3306"),
    (f"{SOURCE}.mysql.port", 3307, {f"{SOURCE}.mysql.host": "a:1,b:2"}),
    (f"{SOURCE}.mysql.serverId", -1),
    (f"{SOURCE}.mysql.heartbeatSeconds", 0),
    (f"{SOURCE}.mysql.connectTimeoutSeconds", 0.5),
    (f"{SOURCE}.mysql.allowStatements", "yes"),
    (f"{TLS}.mode", "VERIFY_CA"),
    (f"{TLS}.mode", "VERIFY_CA", CA | {f"{TLS}.caKey": ""}),
    (f"{TLS}.mode", "REQUIRED", CA),
    (f"{TLS}.mode", "PREFERRED", CA),
    (f"{TLS}.mode", "verify_ca", CA),
    (f"{TLS}.existingSecret", "ca", {f"{TLS}.mode": "DISABLED"}),
    (f"{TLS}.getServerPublicKey", True, CA),
    (f"{TLS}.serverPublicKeyKey", "k.pem"),
    (f"{TLS}.serverPublicKeyKey", "k.pem", CA),
    # what a source has
    (f"{SOURCE}.nosuch", 1),
    (f"{SOURCE}.mode", "all"),
    (f"{SOURCE}.reader", {"enabled": False}, RUN),
    (f"{SOURCE}.rowmapper", {"podLabels": {"a": "b"}}, RUN),
    ("reader", {"enabled": False}, RUN),
    ("rowmapper", {"enabled": False}, {"sourceDefaults.mode": "run"}),
    ("sourceDefaults.decoder", {"enabled": False}, RUN),
    (f"{SOURCE}.run", {"enabled": False}),
    ("run", {"enabled": False}),
    ("snapshot.parallel", 4),
    (f"{SOURCE}.snapshot.tables", ["a.b"]),
    (f"{SOURCE}.snapshot.tables", ["a.b"], {f"{SOURCE}.snapshot.mode": "signals"}),
    (f"{SOURCE}.snapshot.tables", ["orders"], {f"{SOURCE}.snapshot.mode": "once"}),
    (f"{SOURCE}.snapshot.chunkRows", 0, {f"{SOURCE}.snapshot.mode": "once"}),
    (f"{SOURCE}.mysql", {"heartbeatSeconds": 5}, FILES),
    (f"{SOURCE}.semiSync", "true"),
    (f"{SOURCE}.start", "mysql-bin.000001"),
    (f"{SOURCE}.onGap", "skip"),
    # rows and selection
    (f"{SOURCE}.rows.onIncompatible", "new-topic", {"registry.url": ""}),
    (f"{SOURCE}.rows.onIncompatible", "new-topic", {f"{SOURCE}.rows.format": "json"}),
    (f"{SOURCE}.rows.wideDecimal", "decimal", {f"{SOURCE}.rows.decimal": "double"}),
    (f"{SOURCE}.rows.columnAttributes", "debezium", {f"{SOURCE}.rows.format": "json"}),
    (f"{SOURCE}.rows.propagateSourceType", True, {f"{SOURCE}.rows.format": "cloudevents"}),
    (f"{SOURCE}.rows.includeQuery", True, {f"{SOURCE}.columns.drop": ["a.b.c"]}),
    (f"{SOURCE}.rows.store.existingClaim", "rows"),
    (f"{SOURCE}.rows.keys", ["orders=id"]),
    (f"{SOURCE}.rows.keys", ["a.b=c", "a.b=d"]),
    (f"{SOURCE}.rows.filter", "a.b: c = 1"),
    (f"{SOURCE}.columns.hash", ["a.b.c"]),
    (f"{SOURCE}.columns.drop", "a.b.c"),
    (f"{SOURCE}.columns.drop", ["a"]),
    (f"{SOURCE}.columns.mask", ["a.b.c"]),
    (f"{SOURCE}.columns.salt", "0123456789abcdef"),
    (f"{SOURCE}.hashSalt.existingSecret", "salt"),
    (f"{SOURCE}.replicate.doDb", ["a.b"]),
    (f"{SOURCE}.replicate.dodb", ["a"]),
    (f"{SOURCE}.replicate.ignoreDb", ["a"], {f"{SOURCE}.replicate.doDb": ["b"]}),
    (f"{SOURCE}.replicate.ignoreServerIds", [1], {f"{SOURCE}.replicate.doServerIds": [2]}),
    (f"{SOURCE}.replicate.doServerIds", ["a"]),
    (f"{SOURCE}.topics.names", ["a.b=c.d", "a.b=e.f"]),
    (f"{SOURCE}.topics.partitions", ["a.b"]),
    # the file
    (f"{SOURCE}.config", "source = "),
    (f"{SOURCE}.config", "[kafka]\n[kafka]\n"),
    (f"{SOURCE}.config", "[nosuch]\na = 1\n"),
    (f"{SOURCE}.config", "[column]\ndrop = 'a.b.c'\n"),
    (f"{SOURCE}.config", "strat = 'latest'\n"),
    (f"{SOURCE}.config", "[columns]\nhash_salt = '0123456789abcdef'\n"),
    (f"{SOURCE}.config", "[kafka] # SASL\nsasl_username = 'a#b' \nsasl_password = 'x'\n"),
    (f"{SOURCE}.config", "kafka = {sasl_mechanism = '#', sasl_password = 'x'}\n"),
    (f"{SOURCE}.config", "kafka.ssl_key_password = 'x'\n"),
    (f"{SOURCE}.config", "[rows]\nbuffer_mib = 5\n"),
    (f"{SOURCE}.config", "[mysql]\nssl_mode = 'DISABLED'\n"),
    (f"{SOURCE}.config", {"kafka": {}}),
    # jobs
    *(
        ("jobs.analytics.schedule", schedule)
        for schedule in (
            *("61 25 * * *", "hourly", "* * * *", "0 0 0 * *", "0 0 31 2 *", "0 24 * * *", "0 0 * 13 *"),
            *("0 0 * * 8", "50-10 * * * *", "*/0 * * * *", "@fortnightly", "0 0 * * monday", "a b c d e", ""),
        )
    ),
    ("jobs.archive.schedule", "0 0 31 4 *"),
    ("jobs.archive.enabled", True),
    ("jobs.archive.folder", "/archive", ARCHIVE),
    ("jobs.archive.folder", "/archive", ARCHIVE | CLAIM),
    ("jobs.archive.folder", "file:///archive", ARCHIVE),
    ("jobs.archive.folder", "/var/lib/millrace/reports2", ARCHIVE | CLAIM),
    (
        "jobs.archive.folder",
        "/a/b",
        ARCHIVE | {"jobs.extraVolumes": [volume("a")], "jobs.extraVolumeMounts": [mount("a", "/a")]},
    ),
    ("jobs.analytics.extraArgs", ["--tpo", "5"]),
    ("jobs.analytics.extraArgs", ["--output", "/x"]),
    ("jobs.analytics.extraArgs", ["--source=other"]),
    ("jobs.analytics.extraArgs", ["--registry-url", "http://u:hidden@r"]),
    ("jobs.archive.extraArgs", ["--archive", "/x"]),
    ("jobs.analytics.from", "1 day"),
    (
        "jobs.executors.sparkConf",
        {"spark.hadoop.fs.s3a.secret.key": "x"},
        CLAIM | {"jobs.executors.count": 1, **ARCHIVE},
    ),
    ("jobs.output.path", "/tmp/reports", CLAIM),
    ("jobs.analytics.enable", True),
    # the rest
    ("metrics.serviceMonitor.scrapeTimeout", "31s"),
    ("metrics.serviceMonitor.interval", "0s"),
    ("metrics.serviceMonitor.relabelings", [{"sourceLabel": ["a"]}]),
    ("networkPolicy.egress", [{"to": [{"ipBlock": {"cidr": "10.0.0.0"}}]}]),
    ("networkPolicy.ingressFrom", [{"namespaceselector": {}}]),
    ("networkPolicy.egress", [{"ports": [{"port": 9092, "protocol": "tcp"}]}]),
    ("probes.readiness.initialDelaySeconds", 5),
    ("http.port", "8080"),
    ("logLevel", "debug"),
    *(
        (path, None)
        for path in ("kafka.sasl", "registry.tls", "jobs.output", "metrics.serviceMonitor", "http.port")
    ),
    (f"{SOURCE}.mysql", None),
]


def values(path: str, value: Any) -> dict[str, Any]:
    """Values that have one at ``path``."""
    return reduce(lambda below, part: {part: below}, reversed(path.split(".")), value)  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", ODD, ids=lambda case: f"{case[0]}={json.dumps(case[1])[:60]}")
def test_it_is_refused_by_its_path(case: tuple[str, Any] | tuple[str, Any, dict[str, Any]]) -> None:
    path, value, *beside = case
    before = merged(MINIMAL, *(values(*item) for given in beside for item in given.items()))
    done = helm_template("try", merged(before, values(path, value)))
    assert done.returncode != 0, done.stdout[-2000:]
    said = done.stderr
    schema = f"'/{path.replace('.', '/')}" in said
    parent, _, name = path.rpartition(".")
    schema |= f"at '/{parent.replace('.', '/')}'" in said.replace("at ''", "at '/'") and f"'{name}'" in said
    own = said.partition("): ")[2] if "execution error at" in said else ""
    inherited = path.split(".")[0] in {"reader", "rowmapper", "snapshot", "decoder"}
    named = path in own or (inherited and f"{SOURCE}.{path}" in own)
    assert schema or named, said
    assert not re.search(r"nil pointer|error calling|wrong type|YAML parse|<\.", said), said
    assert "hidden" not in own, said


def test_there_are_enough_of_them() -> None:
    assert len(ODD) >= 190
