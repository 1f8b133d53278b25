"""What the chart makes of values, rendered by a real Helm."""

import json
import math
import re
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from .chart import (
    CHART,
    MINIMAL,
    VALUES_FILES,
    helm_lint,
    helm_template,
    in_one_process,
    merged,
    refusal,
    render,
)

SHOP: dict[str, Any] = MINIMAL["sources"]["shop"]
OTHER = merged(SHOP, {"mysql": {"serverId": 4002}})
SERVICES = ("reader", "decoder", "rowmapper")
JOBS = ("analytics", "archive", "loop-detection", "reprocess")
FULL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text())
EXECUTORS: dict[str, Any] = yaml.safe_load((CHART / "ci" / "executors-values.yaml").read_text())
NAMES: dict[str, Any] = yaml.safe_load((CHART / "ci" / "names-values.yaml").read_text())


def by_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod templates of all Deployments, Jobs, by the names of their ConfigMaps, and CronJobs."""
    deployments = {name: item["spec"]["template"] for name, item in by_kind(objects, "Deployment").items()}
    jobs = {
        name: item["spec"]["jobTemplate"]["spec"]["template"]
        for name, item in by_kind(objects, "CronJob").items()
    }
    once = {
        name.rpartition("-")[0]: item["spec"]["template"] for name, item in by_kind(objects, "Job").items()
    }
    return deployments | jobs | once


def executor_pod(objects: list[dict[str, Any]]) -> dict[str, Any]:
    """The template of executors' pods, which a job's pod has as a file."""
    text = by_kind(objects, "ConfigMap")["try-millrace-spark"]["data"]["executor.yaml"]
    pod: dict[str, Any] = yaml.safe_load(text)
    return pod


def spark_settings(objects: list[dict[str, Any]]) -> dict[str, str]:
    """Spark's settings for a job that has executors."""
    text: str = by_kind(objects, "ConfigMap")["try-millrace-spark"]["data"]["spark-defaults.conf"]
    return dict(line.split(" ", 1) for line in text.splitlines())  # type: ignore[misc]


def environment(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The variables of the first container of the pod ``name``; those from Secrets as (secret, key).

    Those from the container's resources are what a kubelet makes of them.
    """
    container = pods(objects)[name]["spec"]["containers"][0]
    variables: dict[str, Any] = {}
    for source in container.get("envFrom", []):
        variables |= by_kind(objects, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for variable in container.get("env", []):
        match variable:
            case {"name": name, "value": value}:
                variables[name] = value
            case {"name": name, "valueFrom": {"secretKeyRef": reference}}:
                variables[name] = (reference["name"], reference["key"])
            case {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}:
                variables[name] = path
            case {"name": name, "valueFrom": {"resourceFieldRef": reference}}:
                kind, resource = reference["resource"].split(".")
                amount = quantity(container["resources"][kind][resource])
                variables[name] = str(math.ceil(amount / quantity(reference["divisor"])))
    return variables


def quantity(text: Any) -> float:
    """What Kubernetes takes a quantity for."""
    number, unit = re.fullmatch(r"([0-9.]+)(\D*)", str(text)).groups()  # type: ignore[union-attr]
    return float(number) * {"": 1, "m": 0.001, "Mi": 1 << 20, "Gi": 1 << 30}[unit]


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda file: file.name)
def test_lint(file: Any, tmp_path: Path) -> None:
    result = helm_lint(yaml.safe_load(file.read_text()), tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_lint_finds_what_is_wrong(tmp_path: Path) -> None:
    result = helm_lint({"sources": {"shop": {"nosuch": True}}}, tmp_path)
    assert result.returncode != 0
    assert "nosuch" in result.stdout + result.stderr


def test_without_a_source_there_is_nothing_to_run() -> None:
    assert [item["kind"] for item in render({})] == ["ServiceAccount"]


NUMBERS = {
    *("activeDeadlineSeconds", "backoffLimit", "containerPort", "defaultMode", "failedJobsHistoryLimit"),
    *("failureThreshold", "fsGroup", "maxUnavailable", "periodSeconds", "port", "replicas"),
    *("revisionHistoryLimit", "runAsGroup", "runAsUser", "startingDeadlineSeconds"),
    *("successfulJobsHistoryLimit", "terminationGracePeriodSeconds", "timeoutSeconds"),
}
SWITCHES = {
    *("allowPrivilegeEscalation", "automountServiceAccountToken", "enableServiceLinks"),
    *("publishNotReadyAddresses", "readOnly", "readOnlyRootFilesystem", "runAsNonRoot", "suspend"),
}


def not_texts(node: Any, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    """Where an object has something else than a text, in fields that are texts for Kubernetes."""
    match node:
        case dict():
            keys = [(*path, str(key)) for key in node if not isinstance(key, str)]
            return keys + [found for key, value in node.items() for found in not_texts(value, (*path, key))]
        case list():
            return [found for value in node for found in not_texts(value, path)]
        case bool():
            return [] if path[-1] in SWITCHES else [path]
        case str():
            return []
    return [] if path[-1] in NUMBERS and isinstance(node, int) else [path]


def test_names_stay_texts() -> None:
    """A name such as 123 or no, which YAML takes for something else where it is not quoted."""
    objects = render(NAMES, release="123")
    for item in objects:
        assert not_texts(item) == [], item["metadata"]["name"]
    assert {item["metadata"]["labels"]["app.kubernetes.io/instance"] for item in objects} == {"123"}
    sources = {item["metadata"]["labels"].get("millrace/source") for item in objects}
    assert sources == {"no", "on", "y", "all", None}


@pytest.mark.parametrize(
    ("release", "prefix"),
    [
        ("try", "try-millrace"),
        ("millrace-eu", "millrace-eu"),
        ("123", "millrace-123"),
        ("prod.eu", "prod-eu-millrace"),
        ("1.millrace", "millrace-1-millrace"),
        ("r" * 53, "r" * 40),
    ],
)
def test_every_release_has_a_prefix_that_a_service_may_have(release: str, prefix: str) -> None:
    (service,) = by_kind(render(MINIMAL, release), "Service")
    assert service == f"{prefix}-metrics"
    assert re.fullmatch("[a-z]([a-z0-9-]*[a-z0-9])?", service)
    assert len(service) <= 63


def test_a_source_that_is_null_is_none() -> None:
    assert [item["kind"] for item in render(merged(MINIMAL, {"sources": {"shop": None}}))] == [
        "ServiceAccount"
    ]
    both = merged(MINIMAL, {"sources": {"stock": OTHER}})
    assert render(merged(both, {"sources": {"stock": None}})) == render(MINIMAL)


def test_null_removes_a_resource_of_one_source() -> None:
    bounds = {"resources": {"limits": {"memory": None}, "requests": {"cpu": "2"}}}
    templates = pods(render(merged(MINIMAL, {"sources": {"shop": {"decoder": bounds}}})))
    (container,) = templates["try-millrace-shop-decoder"]["spec"]["containers"]
    assert container["resources"] == {"limits": {}, "requests": {"cpu": "2", "memory": "256Mi"}}


def test_a_file_of_settings_arrives_as_it_is() -> None:
    for config in (
        "  # indented\n[kafka]\n",
        "\n\n",
        "\t[replicate] # \u00fc {{ }}\r\n",
        '[replicate]\n"do_db" = "a:\\\\ b"',
        "#: '- |\n # x",
    ):
        values = merged(MINIMAL, {"sources": {"shop": {"config": config}}})
        maps = by_kind(render(values), "ConfigMap")
        assert maps["try-millrace-shop-config"]["data"] == {"millrace.toml": config}


def test_a_source_may_have_one_process_instead_of_three() -> None:
    run = {"resources": {"limits": {"memory": "2Gi"}}}
    one = merged(FULL, {"sources": {"stock": {"mode": "run", "run": run}}})
    del one["sources"]["stock"]["rowmapper"]
    deployments = by_kind(render(one), "Deployment")
    assert {name for name in deployments if "stock" in name} == {"try-millrace-stock-run"}
    assert len(deployments) == 8
    pod = deployments["try-millrace-stock-run"]["spec"]["template"]["spec"]
    assert pod["containers"][0]["args"] == ["run"]
    assert pod["containers"][0]["resources"]["limits"]["memory"] == "2Gi"
    folders = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
    assert {f"/etc/millrace/tls/{name}" for name in ("kafka", "mysql", "registry")} <= folders
    given = environment(render(one), "try-millrace-stock-run")
    three = [environment(render(FULL), f"try-millrace-stock-{service}") for service in SERVICES]
    assert given == {name: value for part in three for name, value in part.items()}
    everywhere = render(in_one_process(FULL))
    assert len(by_kind(everywhere, "Deployment")) == 4
    assert len(by_kind(everywhere, "PodDisruptionBudget")) == 4


def test_a_source_may_read_the_topics_of_another() -> None:
    beside = {"name": "shop_v2", "inputSource": "Shop_EU", "rows": {"decimal": "string"}}
    before, after = render(FULL), render(merged(FULL, {"sources": {"shop-v2": beside}}))
    made = [item for item in after if item not in before]
    names = {f"try-millrace-shop-v2-{service}" for service in ("decoder", "rowmapper")}
    assert by_kind(made, "Deployment").keys() == by_kind(made, "ConfigMap").keys() == names
    assert not any(by_kind(made, kind) for kind in ("CronJob", "Job"))
    for name in names:
        given = environment(after, name)
        assert (given["MILLRACE_SOURCE"], given["MILLRACE_INPUT_SOURCE"]) == ("shop_v2", "Shop_EU")
        assert not any(variable.startswith("MILLRACE_MYSQL") for variable in given)


def test_each_source_has_its_three_services() -> None:
    deployments = by_kind(render(FULL), "Deployment")
    assert set(deployments) == {
        *(
            f"try-millrace-{source}-{service}"
            for source in ("archive", "shop", "stock")
            for service in SERVICES
        ),
        "try-millrace-shop-snapshot",
    }
    for deployment in deployments.values():
        assert deployment["spec"]["strategy"] == {"type": "Recreate"}
    replicas = {name: item["spec"]["replicas"] for name, item in deployments.items()}
    assert {name for name, count in replicas.items() if count != 1} == {"try-millrace-stock-rowmapper"}
    assert replicas["try-millrace-stock-rowmapper"] == 0


def test_selectors_match_their_own_pods_only() -> None:
    objects = render(FULL)
    deployments = by_kind(objects, "Deployment")
    everyone = pods(objects)
    for name, deployment in deployments.items():
        selector = deployment["spec"]["selector"]["matchLabels"].items()
        matching = [
            pod for pod, template in everyone.items() if selector <= template["metadata"]["labels"].items()
        ]
        assert matching == [name]
    budgets = by_kind(objects, "PodDisruptionBudget")
    assert budgets.keys() == deployments.keys()
    for name, budget in budgets.items():
        assert budget["spec"]["selector"] == deployments[name]["spec"]["selector"]
    service = by_kind(objects, "Service")["try-millrace-metrics"]
    scraped = service["spec"]["selector"].items()
    matching = [
        pod for pod, template in everyone.items() if scraped <= template["metadata"]["labels"].items()
    ]
    assert set(matching) == deployments.keys() | {"try-millrace-stock-snapshot"}
    monitor = by_kind(objects, "ServiceMonitor")["try-millrace"]["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= service["metadata"]["labels"].items()


def test_alerts() -> None:
    assert "PrometheusRule" not in {item["kind"] for item in render(MINIMAL)}
    late = {"metrics": {"prometheusRule": {"enabled": True, "labels": {"team": "data"}, "lagSeconds": 60}}}
    (rule,) = by_kind(render(merged(MINIMAL, late)), "PrometheusRule").values()
    assert rule["metadata"]["labels"]["team"] == "data"
    (group,) = rule["spec"]["groups"]
    alerts = {alert["alert"]: alert for alert in group["rules"]}
    assert alerts["MillraceDecoderBehind"]["expr"].endswith("} > 60")
    for alert in alerts.values():
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["annotations"]["summary"].endswith(".")


@pytest.mark.parametrize("values", [MINIMAL, FULL, EXECUTORS], ids=["minimal", "full", "executors"])
def test_no_pod_has_more_rights_than_it_needs(values: dict[str, Any]) -> None:
    objects = render(values)
    for account in by_kind(objects, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False
    templates = pods(objects)
    drivers = {name for name in templates if name.endswith(JOBS)} if values is EXECUTORS else set()
    if drivers:
        templates |= {"executor": executor_pod(objects)}
    for name, template in templates.items():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is (name in drivers)
        assert spec["enableServiceLinks"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }
            assert name == "executor" or container["resources"]["limits"]["memory"]
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert "/tmp" in mounts.values()
            assert mounts.keys() == {volume["name"] for volume in spec["volumes"]}


def test_probes() -> None:
    for deployment in by_kind(render(MINIMAL), "Deployment").values():
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        assert container["ports"] == [{"name": "http", "containerPort": 8080, "protocol": "TCP"}]
        assert container["startupProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
        assert container["livenessProbe"]["httpGet"] == {"path": "/healthz", "port": "http"}
        assert container["readinessProbe"]["httpGet"] == {"path": "/readyz", "port": "http"}


def test_only_the_reader_knows_the_database_and_only_the_others_the_registry() -> None:
    objects = render(FULL)
    reader = environment(objects, "try-millrace-shop-reader")
    assert reader["MILLRACE_SOURCE"] == "Shop_EU"
    assert reader["MILLRACE_MYSQL_SERVER_ID"] == "4294967295"
    assert reader["MILLRACE_MYSQL_PORT"] == "3307"
    assert reader["MILLRACE_MYSQL_SSL_MODE"] == "VERIFY_CA"
    stock = environment(objects, "try-millrace-stock-reader")
    assert stock["MILLRACE_MYSQL_SSL_MODE"] == "DISABLED"
    assert stock["MILLRACE_MYSQL_HEARTBEAT_S"] == "0.5"
    assert reader["MILLRACE_MYSQL_PASSWORD"] == ("shop-mysql", "password")
    assert not [name for name in reader if "REGISTRY" in name]
    for service in ("decoder", "rowmapper"):
        variables = environment(objects, f"try-millrace-shop-{service}")
        assert variables["MILLRACE_REGISTRY_PASSWORD"] == ("registry-user", "password")
        assert not [name for name in variables if "MYSQL" in name or "START" in name]
    assert environment(objects, "try-millrace-shop-rowmapper")["MILLRACE_TOPICS_MAX_TABLES"] == "2000000"


def test_tls_material_is_mounted_where_the_settings_look_for_it() -> None:
    objects = render(FULL)
    for name, template in pods(objects).items():
        mounts = {mount["mountPath"] for mount in template["spec"]["containers"][0]["volumeMounts"]}
        variables = environment(objects, name)
        files = [value for value in variables.values() if str(value).startswith("/etc/millrace/")]
        assert files
        assert {file.rsplit("/", 1)[0] for file in files} == {
            path for path in mounts if path.startswith("/etc")
        }


@pytest.mark.parametrize(
    "values", [MINIMAL, FULL, NAMES, EXECUTORS], ids=["minimal", "full", "names", "executors"]
)
def test_pods_refer_to_what_is_there(values: dict[str, Any]) -> None:
    """Kubernetes takes any name, and the pod then waits forever."""
    objects = render(values)
    maps = set()
    accounts = set()
    for template in pods(objects).values():
        spec = template["spec"]
        accounts.add(spec["serviceAccountName"])
        maps |= {volume["configMap"]["name"] for volume in spec["volumes"] if "configMap" in volume}
        (container,) = spec["containers"]
        maps |= {source["configMapRef"]["name"] for source in container.get("envFrom", [])}
        assert {mount["name"] for mount in container["volumeMounts"]} == {
            volume["name"] for volume in spec["volumes"]
        }
    assert accounts == by_kind(objects, "ServiceAccount").keys()
    assert maps - {"certificates"} == by_kind(objects, "ConfigMap").keys()


def test_no_secret_is_made_or_printed() -> None:
    objects = render(FULL)
    assert not by_kind(objects, "Secret")
    for name in pods(objects):
        for variable, value in environment(objects, name).items():
            assert isinstance(value, tuple) == variable.endswith(("USERNAME", "USER", "PASSWORD", "SALT")), (
                variable
            )


def test_overrides_of_one_source_leave_the_others_alone() -> None:
    templates = pods(render(FULL))
    shop, stock = (templates[f"try-millrace-{source}-reader"]["spec"] for source in ("shop", "stock"))
    assert shop["nodeSelector"] == {"disk": "ssd"}
    assert "nodeSelector" not in stock
    limits = shop["containers"][0]["resources"]["limits"]
    assert limits == {"cpu": 2, "memory": stock["containers"][0]["resources"]["limits"]["memory"]}
    quieter = merged(
        MINIMAL, {"sources": {"shop": {"mysql": {"tls": {"existingSecret": "ca", "caKey": ""}}}}}
    )
    assert "MILLRACE_MYSQL_SSL_CA" not in environment(render(quieter), "try-millrace-shop-reader")
    for mode in ("", "VERIFY_CA", "VERIFY_IDENTITY"):
        verifying = merged(
            MINIMAL, {"sources": {"shop": {"mysql": {"tls": {"existingSecret": "ca", "mode": mode}}}}}
        )
        assert "MILLRACE_MYSQL_SSL_CA" in environment(render(verifying), "try-millrace-shop-reader")


def test_a_source_of_files_has_no_server() -> None:
    variables = environment(render(FULL), "try-millrace-archive-reader")
    assert not [name for name in variables if "MYSQL" in name]
    assert variables["MILLRACE_FILES"] == "/logs/mysql-bin.000001,/logs/mysql-bin.0000[1-9]*"
    assert variables["MILLRACE_FOLLOW"] == "true"


def test_a_change_of_settings_restarts_the_service_and_no_other_source() -> None:
    def checksums(values: dict[str, Any]) -> dict[str, str]:
        return {
            name: template["metadata"]["annotations"]["checksum/settings"]
            for name, template in pods(render(values)).items()
        }

    two = merged(MINIMAL, {"sources": {"stock": OTHER}})
    before = checksums(two)
    after = checksums(merged(two, {"sources": {"stock": {"config": "[replicate]\nignore_db = 'x'\n"}}}))
    assert {name for name in before if before[name] != after[name]} == {
        f"try-millrace-stock-{service}" for service in SERVICES
    }


def test_the_first_snapshot_is_a_job() -> None:
    assert not by_kind(render(MINIMAL), "Job")

    def job(*changes: dict[str, Any]) -> dict[str, Any]:
        values = merged(MINIMAL, {"sources": {"shop": {"snapshot": {"mode": "once"}}}}, *changes)
        (found,) = by_kind(render(values), "Job").values()
        return found

    found = job()
    pod = found["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "OnFailure"
    assert pod["containers"][0]["args"] == ["snapshot"]
    assert (found["spec"]["suspend"], found["spec"]["backoffLimit"]) == (False, 20)
    # What its pod is made of cannot be changed: with another one it is another Job.
    names = {
        each["metadata"]["name"]
        for each in (
            found,
            job({"commonAnnotations": {"a": "b"}}),
            job({"image": {"tag": "2"}}),
            job({"snapshot": {"rowsPerSecond": 10}}),
            job({"snapshot": {"resources": {"limits": {"memory": "2Gi"}}}}),
        )
    }
    assert len(names) == 4
    assert job({"snapshot": {"enabled": False}})["spec"]["suspend"] is True
    given = environment(render(FULL), "try-millrace-stock-snapshot")
    assert given["MILLRACE_SNAPSHOT_TABLES"] == "stock.*"
    assert json.loads(given["MILLRACE_SNAPSHOT_WHERE"]) == FULL["sources"]["stock"]["snapshot"]["where"]
    assert given["MILLRACE_MYSQL_HOST"] == "mariadb.stock.svc"


def test_the_jobs_are_off_until_they_are_enabled() -> None:
    assert not by_kind(render(MINIMAL), "CronJob")
    jobs = by_kind(render(merged(MINIMAL, {"jobs": {"analytics": {"enabled": True}}})), "CronJob")
    assert list(jobs) == ["try-millrace-shop-analytics"]
    assert jobs["try-millrace-shop-analytics"]["spec"]["concurrencyPolicy"] == "Forbid"


def test_a_job_can_look_at_all_sources_together() -> None:
    jobs = by_kind(render(FULL), "CronJob")
    assert set(jobs) == {
        "try-millrace-all-loop-detection",
        *(
            f"try-millrace-{source}-{job}"
            for source in ("archive", "shop", "stock")
            for job in ("analytics", "archive")
        ),
    }
    arguments = pods(render(FULL))["try-millrace-all-loop-detection"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["job", "loop_detection"]
    sources = [after for option, after in pairwise(arguments) if option == "--source"]
    assert sources == ["archive", "Shop_EU", "stock"]
    assert arguments[-2:] == ["--servers", "1,2"]
    assert argument(arguments, "--from") == "24h"
    assert argument(arguments, "--output") == (
        "/var/lib/millrace/reports/archive+Shop_EU+stock/loop-detection"
    )


def test_loop_detection_compares_all_sources_unless_it_is_told_otherwise() -> None:
    def jobs(**detection: bool) -> set[str]:
        two = {"sources": {"stock": OTHER}, "jobs": {"loopDetection": {"enabled": True, **detection}}}
        return set(by_kind(render(merged(MINIMAL, two)), "CronJob"))

    assert jobs() == {"try-millrace-all-loop-detection"}
    each = {f"try-millrace-{source}-loop-detection" for source in ("shop", "stock")}
    assert jobs(together=False) == each


KEPT = {"output": {"existingClaim": "reports"}}


@pytest.mark.parametrize(
    ("job", "name", "added"),
    [
        ("analytics", "shop-analytics", ["--follow", "--every=1m"]),
        ("loopDetection", "all-loop-detection", ["--follow", "--every=1m"]),
        ("reprocess", "shop-reprocess", ["--follow", "--format", "iceberg", "--every=1m"]),
    ],
)
def test_a_job_that_follows_is_a_deployment(job: str, name: str, added: list[str]) -> None:
    def made(**values: Any) -> dict[str, Any]:
        settings = {"enabled": True, "extraArgs": ["--every=1m"], **values}
        objects = render(merged(MINIMAL, {"jobs": KEPT | {job: settings}}))
        (found,) = (one for one in objects if one["metadata"]["name"] == f"try-millrace-{name}")
        return found

    cron_job, deployment = made(), made(follow=True)
    assert (cron_job["kind"], deployment["kind"]) == ("CronJob", "Deployment")
    spec = deployment["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()
    assert made(follow=True, suspend=True)["spec"]["replicas"] == 0
    # But for what keeps it running, its pod is that of the CronJob.
    pod, other = spec["template"]["spec"], cron_job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert "restartPolicy" not in pod
    (container,), (other_container,) = pod.pop("containers"), other.pop("containers")
    assert pod | {"restartPolicy": "Never"} == other
    assert other_container["args"][-1:] == ["--every=1m"]
    assert container["args"] == other_container["args"][:-1] + added
    for part in ("image", "resources", "securityContext", "volumeMounts"):
        assert container[part] == other_container[part]


def test_a_job_that_follows_is_restarted_by_its_settings() -> None:
    def checksum(*changes: dict[str, Any]) -> str:
        jobs = {"jobs": KEPT | {"reprocess": {"enabled": True, "follow": True}}}
        template = pods(render(merged(MINIMAL, jobs, *changes)))["try-millrace-shop-reprocess"]
        return str(template["metadata"]["annotations"]["checksum/settings"])

    assert checksum({"jobs": {"analytics": {"schedule": "0 * * * *"}}}) == checksum()
    config = {"sources": {"shop": {"config": "[replicate]\nignore_db = 'x'\n"}}}
    spark = {"jobs": {"executors": {"sparkConf": {"spark.sql.catalog.lake.uri": "x"}}}}
    assert len({checksum(), checksum(config), checksum(spark)}) == 3


def test_windows_are_scraped() -> None:
    follow = {"jobs": KEPT | {"analytics": {"enabled": True, "follow": True}}, "http": {"port": 9400}}
    objects = render(merged(MINIMAL, follow))
    name = "try-millrace-shop-analytics"
    given = environment(objects, name)
    assert (given["MILLRACE_HTTP_HOST"], given["MILLRACE_HTTP_PORT"]) == ("*", "9400")
    template = pods(objects)[name]
    (container,) = template["spec"]["containers"]
    assert container["ports"] == [{"name": "http", "containerPort": 9400, "protocol": "TCP"}]
    (service,) = by_kind(objects, "Service").values()
    assert service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    once = render(merged(MINIMAL, {"jobs": {"analytics": {"enabled": True}}}))
    assert "MILLRACE_HTTP_PORT" not in environment(once, name)
    assert not service["spec"]["selector"].items() <= pods(once)[name]["metadata"]["labels"].items()


def test_reprocess_writes_rows_as_the_row_mapper_does() -> None:
    def rows(name: str, **values: Any) -> dict[str, Any]:
        salted: dict[str, Any] = {
            "sources": {"stock": {"hashSalt": {"existingSecret": "salt"}, "columns": {"hash": ["a.b.c"]}}}
        }
        salted["sources"]["stock"]["rows"] = {"includeQuery": False}
        objects = render(merged(FULL, {"jobs": {"reprocess": {"enabled": True, **values}}}, salted))
        given = environment(objects, f"try-millrace-stock-{name}")
        prefixes = ("MILLRACE_ROWS_", "MILLRACE_COLUMNS_")
        return {name: value for name, value in given.items() if name.startswith(prefixes)}

    assert rows("reprocess").items() <= rows("rowmapper").items()
    assert "MILLRACE_COLUMNS_HASH_SALT" in rows("reprocess")
    assert rows("rowmapper").keys() - rows("reprocess").keys() >= {
        "MILLRACE_ROWS_FORMAT",
        "MILLRACE_ROWS_STORE",
    }
    wide = "MILLRACE_ROWS_WIDE_DECIMAL"
    assert rows("reprocess")[wide] == "decimal"
    assert rows("reprocess", follow=True) == rows("reprocess") | {wide: "string"}
    assert rows("reprocess", extraArgs=["--format=iceberg"]) == rows("reprocess", follow=True)


def test_raw_events_are_archived_where_they_stay() -> None:
    def arguments(values: dict[str, Any]) -> list[str]:
        found: list[str] = pods(render(values))["try-millrace-shop-archive"]["spec"]["containers"][0]["args"]
        return found

    assert argument(arguments(FULL), "--archive") == "/var/lib/millrace/reports/archive"
    assert "--from" not in arguments(FULL)
    values = merged(MINIMAL, {"jobs": {"archive": {"enabled": True, "folder": "s3a://lake/millrace"}}})
    assert arguments(values)[:4] == ["job", "archive", "--source", "shop"]
    assert argument(arguments(values), "--archive") == "s3a://lake/millrace"
    values["jobs"]["archive"]["folder"] = ""
    assert "the archives would vanish with the pods" in refusal(values)


def argument(arguments: list[str], option: str) -> str:
    return arguments[arguments.index(option) + 1]


def test_the_folder_of_many_sources_is_one_that_file_systems_take() -> None:
    def folder(count: int) -> str:
        sources = {f"source-{n}": {"mysql": {"host": "h", "existingSecret": "s"}} for n in range(count)}
        jobs = {"analytics": {"enabled": True, "together": True}}
        values = merged(MINIMAL, {"sources": {"shop": None, **sources}, "jobs": jobs})
        arguments = pods(render(values))["try-millrace-all-analytics"]["spec"]["containers"][0]["args"]
        assert arguments.count("--source") == count
        return argument(arguments, "--output").split("/")[-2]

    assert folder(2) == "source-0+source-1"
    assert len(folder(40)) < 255
    assert folder(40) != folder(41)


def test_spark_uses_what_the_pod_of_a_job_may_use() -> None:
    def spark(limits: Any, requests: Any) -> tuple[Any, Any]:
        resources = {"limits": limits, "requests": requests}
        values = merged(MINIMAL, {"jobs": {"resources": resources, "analytics": {"enabled": True}}})
        variables = environment(render(values), "try-millrace-shop-analytics")
        return variables.get("MILLRACE_SPARK_CORES"), variables.get("MILLRACE_SPARK_MEMORY_MIB")

    assert spark({}, {}) == ("1", "3072")  # the defaults
    assert spark({"cpu": 4, "memory": "8Gi"}, {}) == ("4", "8192")
    assert spark({"cpu": "2500m"}, {}) == ("3", "3072")
    assert spark({"memory": None}, {"cpu": 2, "memory": "4Gi"}) == ("2", "4096")
    assert spark({"memory": None}, {"cpu": None, "memory": None}) == (None, None)


def test_jobs_have_a_volume_of_their_own_size() -> None:
    templates = pods(render(merged(FULL, {"jobs": {"tmp": {"sizeLimit": "50Gi"}}})))

    def size(name: str) -> str:
        volumes = {volume["name"]: volume for volume in templates[name]["spec"]["volumes"]}
        return str(volumes["tmp"]["emptyDir"]["sizeLimit"])

    assert size("try-millrace-shop-analytics") == "50Gi"
    assert size("try-millrace-shop-reader") == "1Gi"


DRIVERS = {
    "try-millrace-all-loop-detection",
    *(f"try-millrace-shop-{job}" for job in ("analytics", "archive", "reprocess")),
}


def test_a_job_makes_its_executors() -> None:
    objects = render(EXECUTORS)
    assert by_kind(objects, "CronJob").keys() == DRIVERS - {"try-millrace-all-loop-detection"}
    for name in DRIVERS:
        spec = pods(objects)[name]["spec"]
        assert spec["serviceAccountName"] == "try-millrace-spark"
        arguments = spec["containers"][0]["args"]
        assert argument(arguments, "--master") == "k8s://https://kubernetes.default.svc"
        given = environment(objects, name)
        assert given["SPARK_CONF_DIR"] == "/etc/millrace/spark"
        assert (given["POD_NAME"], given["POD_IP"]) == ("metadata.name", "status.podIP")
    settings = spark_settings(objects)
    assert settings["spark.driver.host"] == "${env:POD_IP}"
    assert settings["spark.kubernetes.driver.pod.name"] == "${env:POD_NAME}"
    assert settings["spark.kubernetes.namespace"] == "default"
    assert settings["spark.kubernetes.container.image"] == "millrace-jobs:1.0"
    assert (settings["spark.executor.instances"], settings["spark.executor.cores"]) == ("2", "2")
    assert settings["spark.executor.memory"] == "1536m"
    assert settings["spark.executor.memoryOverhead"] == "1537m"
    assert settings["spark.executor.extraJavaOptions"] == "-XX:+UseParallelGC -Dnote=a"
    assert settings["spark.network.crypto.enabled"] == "false"
    (role,) = by_kind(objects, "Role").values()
    assert [(rule["apiGroups"], rule["resources"]) for rule in role["rules"]] == [([""], ["pods"])]
    (binding,) = by_kind(objects, "RoleBinding").values()
    assert binding["roleRef"]["name"] == role["metadata"]["name"]
    assert binding["subjects"] == [
        {"kind": "ServiceAccount", "name": "try-millrace-spark", "namespace": "default"}
    ]
    kept = merged(EXECUTORS, {"jobs": {"executors": {"serviceAccount": {"create": False, "name": "own"}}}})
    objects = render(kept)
    assert not by_kind(objects, "Role")
    assert by_kind(objects, "ServiceAccount").keys() == {"try-millrace"}
    assert pods(objects)["try-millrace-shop-analytics"]["spec"]["serviceAccountName"] == "own"


def test_executors_have_what_their_job_has_and_no_password_of_it() -> None:
    objects = render(EXECUTORS)
    job = pods(objects)["try-millrace-shop-analytics"]
    executor = executor_pod(objects)
    for part in ("imagePullSecrets", "securityContext", "nodeSelector", "tolerations"):
        assert executor["spec"][part] == job["spec"][part]
    assert executor["metadata"]["annotations"] == {"example.org/note": "job"}
    of_both = {"example.org/tier": "batch", "team": "data", "millrace/spark": "true"}
    for labels in (executor["metadata"]["labels"], job["metadata"]["labels"]):
        assert of_both.items() <= labels.items()
    (container,) = executor["spec"]["containers"]
    assert container["env"] == [{"name": "AWS_REGION", "value": "eu-central-1"}]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounts == {
        "spark-local-dir-1": "/tmp",
        "reports": "/var/lib/millrace/reports",
        "certificates": "/etc/ssl/lake",
    }
    volumes = {volume["name"]: volume for volume in executor["spec"]["volumes"]}
    assert volumes["reports"] == {"name": "reports", "persistentVolumeClaim": {"claimName": "reports"}}
    named = merged(NAMES, {"jobs": {"executors": {"count": 1}}})
    text = by_kind(render(named, release="123"), "ConfigMap")["no-123-spark"]["data"]["executor.yaml"]
    assert not_texts(yaml.safe_load(text)) == []


def test_executors_write_where_all_of_them_do() -> None:
    bucket = {"output": {"existingClaim": "", "path": "s3a://lake/reports"}}
    objects = render(merged(EXECUTORS, {"jobs": bucket}))
    job = pods(objects)["try-millrace-shop-analytics"]["spec"]
    assert argument(job["containers"][0]["args"], "--output") == "s3a://lake/reports/shop/analytics"
    archive = pods(objects)["try-millrace-shop-archive"]["spec"]["containers"][0]["args"]
    assert argument(archive, "--archive") == "s3a://lake/reports/archive"
    for spec in (job, executor_pod(objects)["spec"]):
        assert "reports" not in {volume["name"] for volume in spec["volumes"]}
        assert "reports" not in {mount["name"] for mount in spec["containers"][0]["volumeMounts"]}
    local = {
        "output": {"existingClaim": ""},
        "archive": {"enabled": False},
        "loopDetection": {"enabled": False},
    }
    assert "needs jobs.output.existingClaim" in refusal(merged(EXECUTORS, {"jobs": local}))


def test_without_executors_a_job_is_as_it_was() -> None:
    """What executors need is not there, neither without them nor without a job."""
    none = merged(EXECUTORS, {"jobs": {"executors": {"count": 0}}})
    off = {job: {"enabled": False} for job in ("analytics", "archive", "loopDetection", "reprocess")}
    no_job = merged(EXECUTORS, {"jobs": off})
    for objects in (render(none), render(no_job)):
        assert not {"Role", "RoleBinding"} & {item["kind"] for item in objects}
        assert "spark" not in json.dumps(objects).lower().replace("millrace_spark", "")


def test_known_rows_have_a_volume() -> None:
    def rows(values: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, template in pods(render(values)).items():
            (container,) = template["spec"]["containers"]
            mounts = [mount["mountPath"] for mount in container["volumeMounts"] if mount["name"] == "rows"]
            volumes = [volume for volume in template["spec"]["volumes"] if volume["name"] == "rows"]
            assert mounts == ["/var/lib/millrace"] * len(volumes)
            if volumes:
                (found[name],) = volumes
        return found

    claim = {"name": "rows", "persistentVolumeClaim": {"claimName": "rows"}}
    assert rows(FULL) == {"try-millrace-stock-rowmapper": claim}
    assert rows(MINIMAL) == {}
    (source,) = MINIMAL["sources"]
    chosen = merged(MINIMAL, {"sources": {source: {"mode": "run", "rows": {"complete": ["a.%", "b.c"]}}}})
    assert rows(chosen) == {f"try-millrace-{source}-run": {"name": "rows", "emptyDir": {"sizeLimit": "8Gi"}}}
    variables = environment(render(chosen), f"try-millrace-{source}-run")
    assert variables["MILLRACE_ROWS_COMPLETE"] == "a.%,b.c"
    assert variables["MILLRACE_ROWS_STORE"] == "/var/lib/millrace"


def test_the_network_policy_allows_dns_when_it_restricts_egress() -> None:
    policy = by_kind(render(FULL), "NetworkPolicy")["try-millrace"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for port in policy["egress"][0]["ports"]} == {53}
    values = merged(MINIMAL, {"networkPolicy": {"enabled": True}})
    open_policy = by_kind(render(values), "NetworkPolicy")["try-millrace"]["spec"]
    assert open_policy["policyTypes"] == ["Ingress"]
    assert "egress" not in open_policy


def test_drivers_and_executors_reach_each_other() -> None:
    objects = render(EXECUTORS)
    policy = by_kind(objects, "NetworkPolicy")["try-millrace-spark"]["spec"]
    settings = spark_settings(objects)
    ports = {
        int(settings[name])
        for name in ("spark.driver.port", "spark.driver.blockManager.port", "spark.blockManager.port")
    }
    for rules, peers in ((policy["ingress"], "from"), (policy["egress"], "to")):
        (rule,) = rules
        assert {port["port"] for port in rule["ports"]} == ports
        assert rule[peers] == [{"podSelector": policy["podSelector"]}]
    selected = policy["podSelector"]["matchLabels"].items()
    templates = pods(objects) | {"executor": executor_pod(objects)}
    matching = {name for name, pod in templates.items() if selected <= pod["metadata"]["labels"].items()}
    assert matching == DRIVERS | {"executor"}
    everywhere = by_kind(objects, "NetworkPolicy")["try-millrace"]["spec"]["podSelector"]["matchLabels"]
    assert all(everywhere.items() <= pod["metadata"]["labels"].items() for pod in templates.values())
    closed = merged(EXECUTORS, {"networkPolicy": {"egress": []}})
    assert "egress" not in by_kind(render(closed), "NetworkPolicy")["try-millrace-spark"]["spec"]


def test_the_notes_say_what_jobs_do(tmp_path: Path) -> None:
    """Of a template Helm shows everything but the notes, which another template shows here."""
    chart = shutil.copytree(CHART, tmp_path / "chart")
    notes = (chart / "templates" / "NOTES.txt").read_text()
    shown = f'{{{{- define "notes" }}}}{notes}{{{{ end -}}}}\nnotes: {{{{ include "notes" . | toJson }}}}\n'
    (chart / "templates" / "notes.yaml").write_text(shown)

    def said(*changes: dict[str, Any]) -> str:
        result = helm_template("try", merged(MINIMAL, *changes), chart=chart)
        (found,) = (one["notes"] for one in yaml.safe_load_all(result.stdout) if one and "notes" in one)
        return str(found)

    def detection(**values: Any) -> dict[str, Any]:
        return {"jobs": {"loopDetection": {"enabled": True, **values}}}

    vanish, stock = "results of jobs vanish", {"sources": {"stock": OTHER}}
    assert vanish not in said()
    assert vanish in said(detection())
    assert vanish not in said(detection(), {"jobs": {"output": {"path": "s3a://lake"}}})
    assert "loopDetection.together" not in said(detection())
    assert "loop detection compares the logs of all sources" in said(detection(), stock)
    assert "looks at the log of each source by itself" in said(detection(together=False), stock)


def tls(**material: str) -> dict[str, Any]:
    return {"sources": {"shop": {"mysql": {"tls": material}}}}


def kafka(protocol: str, **settings: Any) -> dict[str, Any]:
    return {"kafka": {"securityProtocol": protocol, "sasl": {"existingSecret": "user"}, **settings}}


FILES = {"shop": None, "archive": {"files": ["/logs/x"]}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kafka": {"bootstrapServers": ""}}, "set kafka.bootstrapServers"),
        ({"registry": {"url": "", "existingSecret": "user"}}, "registry.url is empty, but a Secret"),
        ({"kafka": {"securityProtocol": "SASL_SSL"}}, "set kafka.sasl.existingSecret"),
        (kafka("PLAINTEXT"), "kafka.sasl.existingSecret is set, but kafka.securityProtocol is PLAINTEXT"),
        (
            kafka("SASL_PLAINTEXT", tls={"existingSecret": "ca"}),
            "kafka.tls.existingSecret is set, but kafka.securityProtocol is SASL_PLAINTEXT",
        ),
        (
            kafka("SASL_SSL", tls={"existingSecret": "ca", "privateKeyKey": "tls.key"}),
            "kafka.tls.privateKeyKey is set without kafka.tls.certificateKey",
        ),
        (
            kafka("SASL_SSL", tls={"existingSecret": "ca", "certificateKey": "tls.crt"}),
            "kafka.tls.certificateKey is set without kafka.tls.privateKeyKey",
        ),
        (
            kafka("SASL_SSL", tls={"existingSecret": "ca", "privateKeyPasswordKey": "password"}),
            "kafka.tls.privateKeyPasswordKey is set without kafka.tls.privateKeyKey",
        ),
        (
            kafka("SASL_SSL", tls={"certificateKey": "tls.crt", "privateKeyKey": "tls.key"}),
            "set kafka.tls.existingSecret to the name of the Secret",
        ),
        (
            tls(existingSecret="ca", privateKeyKey="tls.key"),
            "sources.shop.mysql.tls.privateKeyKey is set without sources.shop.mysql.tls.certificateKey",
        ),
        (tls(certificateKey="tls.crt"), "set sources.shop.mysql.tls.existingSecret"),
        (
            {"registry": {"url": "http://user:secret@registry"}},
            "registry.url holds a user name or a password",
        ),
        ({"registry": {"tls": {"existingSecret": "ca"}}}, "registry.url begins with http://"),
        (
            {"registry": {"url": "https://registry", "tls": {"certificateKey": "tls.crt"}}},
            "registry.tls.certificateKey is set: set registry.tls.existingSecret",
        ),
        ({"sources": {"shop": {"mysql": {"host": ""}}}}, "set mysql.host (a server) or files"),
        ({"sources": {"shop": {"inputSource": "stock"}}}, "the reader and the snapshots are those of stock"),
        ({"sources": {"shop": {"inputSource": "shop"}}}, "the name of the source itself"),
        ({"sources": {"shop": {"files": ["/logs/x"]}}}, "set either mysql.host or files"),
        ({"sources": {"shop": {"mysql": {"existingSecret": ""}}}}, "set mysql.existingSecret"),
        ({"sources": {"other": OTHER | {"name": "shop"}}}, "have the same name"),
        ({"sources": {"other": SHOP}}, "have the same mysql.serverId 4001"),
        ({"sources": {"true": OTHER}}, "quote the name of the source"),
        ({"sources": FILES, "snapshot": {"mode": "once"}}, "files have no tables to read"),
        ({"sources": FILES, "sourceDefaults": {"semiSync": True}}, "semiSync needs a server"),
        ({"sources": FILES, "sourceDefaults": {"start": "gtid:0-1-2"}}, "not from a GTID set"),
        (
            {"sources": {"shop": {"config": "[mysql]\n password = 'x'"}}},
            "sources.shop.config holds a password",
        ),
        ({"sources": {"shop": {"config": 'kafka = { "sasl_password" = 1 }'}}}, "config holds a password"),
        ({"sources": {"shop": {"config": '[columns]\nhash_salt = "x"'}}}, "config holds a password or a key"),
        (
            {"decoder": {"extraEnv": [{"name": "MILLRACE_REGISTRY_PASSWORD", "value": "x"}]}},
            "sources.shop.decoder.extraEnv holds MILLRACE_REGISTRY_PASSWORD in clear",
        ),
        (
            {"jobs": {"extraEnv": [{"name": "MILLRACE_REGISTRY_PASSWORD", "value": "x"}]}},
            "jobs.extraEnv holds MILLRACE_REGISTRY_PASSWORD in clear",
        ),
        (
            {"commonLabels": {"app.kubernetes.io/instance": "other"}},
            'commonLabels has the label "app.kubernetes.io/instance", by which the chart finds its own',
        ),
        ({"reader": {"podLabels": {"millrace/source": "x"}}}, "sources.shop.reader.podLabels has the label"),
        ({"jobs": {"podLabels": {"helm.sh/chart": "x"}}}, "jobs.podLabels has the label"),
        (
            {"metrics": {"prometheusRule": {"labels": {"helm.sh/chart": "x"}}}},
            "prometheusRule.labels has the",
        ),
        (
            {"sources": {"shop": {"decoder": {"podAnnotations": {"checksum/settings": "x"}}}}},
            "sources.shop.decoder.podAnnotations has checksum/settings",
        ),
        ({"fullnameOverride": "f" * 40, "sources": {"s" * 24: OTHER}}, "longer than 63"),
        (
            {"fullnameOverride": "f" * 40, "jobs": {"loopDetection": {"enabled": True}}},
            "longer than 52",
        ),
        ({"kafka": {"bootstrapServer": "misspelt"}}, "'bootstrapServer' not allowed"),
        (
            {"jobs": {"loopDetection": {"extraArgs": ["--alerts", "--follow"]}}},
            "jobs.loopDetection.extraArgs has --follow: leave it out and set jobs.loopDetection.follow",
        ),
        (
            {"jobs": {"reprocess": {"enabled": True, "follow": True}}},
            "jobs.reprocess.follow needs jobs.output.existingClaim",
        ),
        (
            {"jobs": {"output": {"path": "s3a://lake", "existingClaim": "reports"}}},
            "a volume is mounted at a directory only",
        ),
        (
            {"jobs": EXECUTORS["jobs"] | {"extraEnv": [{"name": "SPARK_CONF_DIR", "value": "/conf"}]}},
            "jobs.extraEnv has SPARK_CONF_DIR",
        ),
        (
            {"jobs": merged(EXECUTORS["jobs"], {"executors": {"serviceAccount": {"create": False}}})},
            "set jobs.executors.serviceAccount.name",
        ),
        (
            {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
            "metrics.serviceMonitor.enabled needs metrics.service.enabled",
        ),
    ],
    ids=lambda part: part if isinstance(part, str) else None,
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    assert said in refusal(merged(MINIMAL, change))


def test_what_looks_like_a_password_and_is_none_is_taken() -> None:
    config = '# password = in the Secret\n[columns]\nmask = "shop.users.password=x"\n'
    reference = {"secretKeyRef": {"name": "registry", "key": "password"}}
    values = {
        "registry": {"url": "https://registry:8081/a@b"},
        "sources": {"shop": {"config": config}},
        "reader": {"extraEnv": [{"name": "OTHER_PASSWORD", "valueFrom": reference}]},
    }
    assert render(merged(MINIMAL, values))
