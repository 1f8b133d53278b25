"""What the chart makes of values, rendered by a real helm."""

from itertools import pairwise
from typing import Any

import pytest
import yaml

from .chart import CHART, MINIMAL, VALUES_FILES, merged, needs_helm, refusal, render, run_helm

pytestmark = needs_helm

SHOP: dict[str, Any] = MINIMAL["sources"]["shop"]
SERVICES = ("reader", "decoder", "rowmapper")
FULL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "full-values.yaml").read_text())


def by_kind(objects: list[dict[str, Any]], kind: str) -> dict[str, dict[str, Any]]:
    return {item["metadata"]["name"]: item for item in objects if item["kind"] == kind}


def pods(objects: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """The pod templates of all Deployments and CronJobs."""
    deployments = {name: item["spec"]["template"] for name, item in by_kind(objects, "Deployment").items()}
    jobs = {
        name: item["spec"]["jobTemplate"]["spec"]["template"]
        for name, item in by_kind(objects, "CronJob").items()
    }
    return deployments | jobs


def environment(objects: list[dict[str, Any]], name: str) -> dict[str, Any]:
    """The variables of the first container of the pod ``name``; those from Secrets as (secret, key)."""
    container = pods(objects)[name]["spec"]["containers"][0]
    variables: dict[str, Any] = {}
    for source in container.get("envFrom", []):
        variables |= by_kind(objects, "ConfigMap")[source["configMapRef"]["name"]]["data"]
    for variable in container.get("env", []):
        reference = variable.get("valueFrom", {}).get("secretKeyRef")
        variables[variable["name"]] = (
            (reference["name"], reference["key"]) if reference else variable["value"]
        )
    return variables


@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda file: file.name)
def test_lint(file: Any) -> None:
    result = run_helm("lint", "--strict", "--values", str(file), str(CHART))
    assert result.returncode == 0, result.stdout + result.stderr


def test_without_a_source_there_is_nothing_to_run() -> None:
    assert [item["kind"] for item in render({})] == ["ServiceAccount"]


def test_each_source_has_its_three_services() -> None:
    deployments = by_kind(render(FULL), "Deployment")
    assert set(deployments) == {
        f"try-millrace-{source}-{service}" for source in ("archive", "shop", "stock") for service in SERVICES
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
    assert set(matching) == deployments.keys()
    monitor = by_kind(objects, "ServiceMonitor")["try-millrace"]["spec"]["selector"]["matchLabels"]
    assert monitor.items() <= service["metadata"]["labels"].items()


def test_alerts() -> None:
    assert "PrometheusRule" not in {item["kind"] for item in render(MINIMAL)}
    late = {"metrics": {"prometheusRule": {"enabled": True, "labels": {"team": "data"}, "lagSeconds": 60}}}
    (rule,) = by_kind(render(merged(MINIMAL, late)), "PrometheusRule").values()
    assert rule["metadata"]["labels"]["team"] == "data"
    (group,) = rule["spec"]["groups"]
    alerts = {alert["alert"]: alert for alert in group["rules"]}
    assert alerts["MillraceDecoderBehind"]["expr"].endswith("_record_timestamp_seconds > 60")
    for alert in alerts.values():
        assert alert["labels"]["severity"] in {"warning", "critical"}
        assert alert["annotations"]["summary"].endswith(".")


@pytest.mark.parametrize("values", [MINIMAL, FULL], ids=["minimal", "full"])
def test_no_pod_has_more_rights_than_it_needs(values: dict[str, Any]) -> None:
    objects = render(values)
    for account in by_kind(objects, "ServiceAccount").values():
        assert account["automountServiceAccountToken"] is False
    for template in pods(objects).values():
        spec = template["spec"]
        assert spec["automountServiceAccountToken"] is False
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
            assert container["resources"]["limits"]["memory"]
            mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
            assert mounts["tmp"] == "/tmp"
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


def test_kafka_without_tls_needs_no_material() -> None:
    values = merged(MINIMAL, {"kafka": {"tls": {"existingSecret": "kafka-tls"}}})
    variables = environment(render(values), "try-millrace-shop-decoder")
    assert not [name for name in variables if "SSL" in name or "SASL" in name]


def test_no_secret_is_made_or_printed() -> None:
    objects = render(FULL)
    assert not by_kind(objects, "Secret")
    for name in pods(objects):
        for variable, value in environment(objects, name).items():
            assert isinstance(value, tuple) == variable.endswith(("USERNAME", "USER", "PASSWORD")), variable


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
    trusting = merged(
        MINIMAL, {"sources": {"shop": {"mysql": {"tls": {"existingSecret": "ca", "mode": "REQUIRED"}}}}}
    )
    assert "MILLRACE_MYSQL_SSL_CA" not in environment(render(trusting), "try-millrace-shop-reader")


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

    two = merged(MINIMAL, {"sources": {"stock": SHOP}})
    before = checksums(two)
    after = checksums(merged(two, {"sources": {"stock": {"config": "[topics]\nmax_tables = 5\n"}}}))
    assert {name for name in before if before[name] != after[name]} == {
        f"try-millrace-stock-{service}" for service in SERVICES
    }


def test_the_jobs_are_off_until_they_are_enabled() -> None:
    assert not by_kind(render(MINIMAL), "CronJob")
    jobs = by_kind(render(merged(MINIMAL, {"jobs": {"analytics": {"enabled": True}}})), "CronJob")
    assert list(jobs) == ["try-millrace-shop-analytics"]
    assert jobs["try-millrace-shop-analytics"]["spec"]["concurrencyPolicy"] == "Forbid"


def test_a_job_can_look_at_all_sources_together() -> None:
    jobs = by_kind(render(FULL), "CronJob")
    assert set(jobs) == {
        "try-millrace-all-loop-detection",
        *(f"try-millrace-{source}-analytics" for source in ("archive", "shop", "stock")),
    }
    arguments = pods(render(FULL))["try-millrace-all-loop-detection"]["spec"]["containers"][0]["args"]
    assert arguments[:2] == ["job", "loop_detection"]
    sources = [after for option, after in pairwise(arguments) if option == "--source"]
    assert sources == ["archive", "Shop_EU", "stock"]
    assert arguments[-2:] == ["--servers", "1,2"]


def test_the_network_policy_allows_dns_when_it_restricts_egress() -> None:
    policy = by_kind(render(FULL), "NetworkPolicy")["try-millrace"]["spec"]
    assert policy["policyTypes"] == ["Ingress", "Egress"]
    assert {port["port"] for port in policy["egress"][0]["ports"]} == {53}
    values = merged(MINIMAL, {"networkPolicy": {"enabled": True}})
    open_policy = by_kind(render(values), "NetworkPolicy")["try-millrace"]["spec"]
    assert open_policy["policyTypes"] == ["Ingress"]
    assert "egress" not in open_policy


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"kafka": {"bootstrapServers": ""}}, "set kafka.bootstrapServers"),
        ({"registry": {"url": ""}}, "set registry.url"),
        ({"kafka": {"securityProtocol": "SASL_SSL"}}, "set kafka.sasl.existingSecret"),
        ({"sources": {"shop": {"mysql": {"host": ""}}}}, "set mysql.host (a server) or files"),
        ({"sources": {"shop": {"files": ["/logs/x"]}}}, "set either mysql.host or files"),
        ({"sources": {"shop": {"mysql": {"existingSecret": ""}}}}, "set mysql.existingSecret"),
        ({"sources": {"other": SHOP | {"name": "shop"}}}, "have the same name"),
        ({"fullnameOverride": "f" * 40, "sources": {"s" * 24: SHOP}}, "longer than 63"),
        ({"kafka": {"bootstrapServer": "misspelt"}}, "'bootstrapServer' not allowed"),
        (
            {"metrics": {"service": {"enabled": False}, "serviceMonitor": {"enabled": True}}},
            "metrics.serviceMonitor.enabled needs metrics.service.enabled",
        ),
    ],
)
def test_what_is_wrong_is_said(change: dict[str, Any], said: str) -> None:
    assert said in refusal(merged(MINIMAL, change))
