"""The chart's objects, given to a real API server: it takes them, and takes them as changes of each other.

It has no controllers, so it makes no pods of them; pods are given to it as they would be made.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.kubernetes import MISSING, ApiServer

from .chart import CHART, MINIMAL, VALUES_FILES, helm_template, merged, render
from .test_render import EXECUTORS, by_kind, executor_pod, pods

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not on PATH: {', '.join(MISSING)}"),
    pytest.mark.timeout(600),
]

NOT_KUBERNETES = re.compile(r"^kind: (ServiceMonitor|PrometheusRule)$", re.MULTILINE)
"""Types of the Prometheus Operator."""

ONCE = merged(MINIMAL, {"sources": {"shop": {"snapshot": {"mode": "once", "tables": ["shop.orders"]}}}})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


@pytest.mark.parametrize("release", ["try", "123"])
@pytest.mark.parametrize("file", VALUES_FILES, ids=lambda file: file.name)
def test_every_object_is_taken(server: ApiServer, file: Path, release: str) -> None:
    """None has a field that is misspelt, or a value or name that is refused."""
    objects = helm_template(release, yaml.safe_load(file.read_text())).stdout.split("\n---\n")
    text = "\n---\n".join(one for one in objects if not NOT_KUBERNETES.search(one))
    assert len(objects) >= text.count("\nkind: ") > len(objects) - 3
    server.apply_text(text, "--dry-run=server")


def test_pods_are_admitted_where_the_standard_is_restricted(server: ApiServer) -> None:
    objects = render(ONCE)
    server.apply(list(by_kind(objects, "ServiceAccount").values()))
    made = [
        {"apiVersion": "v1", "kind": "Pod", **pod, "metadata": {**pod["metadata"], "name": name}}
        for name, pod in pods(objects).items()
    ]
    assert "try-millrace-shop-snapshot" in {pod["metadata"]["name"] for pod in made}
    executor = executor_pod(render(EXECUTORS))
    executor["metadata"]["name"] = "executor"
    executor["spec"]["containers"][0]["image"] = "millrace-jobs:1.0"  # as Spark sets it
    made.append(executor)
    server.apply(made, "--dry-run=server")


def test_an_upgrade_and_a_rollback_change_nothing_that_cannot_be_changed(server: ApiServer) -> None:
    """Of a Deployment the selector, of a Job the pod: with another pod it is another Job."""
    changes: list[tuple[dict[str, Any], bool]] = [
        ({"commonAnnotations": {"a": "b"}}, False),
        ({"snapshot": {"backoffLimit": 3}}, False),
        ({"snapshot": {"enabled": False}}, False),
        ({"sources": {"shop": {"reader": {"resources": {"limits": {"memory": "2Gi"}}}}}}, False),
        ({"sources": {"shop": {"snapshot": {"tables": ["shop.orders", "shop.lines"]}}}}, True),
        ({"commonLabels": {"team": "data"}}, True),
        ({"image": {"tag": "2"}}, True),
        ({"kafka": {"bootstrapServers": "other:9092"}}, True),
        ({"sources": {"shop": {"config": "[kafka]\nconnect_timeout_s = 5\n"}}}, True),
        ({"snapshot": {"resources": {"limits": {"memory": "2Gi"}}}}, True),
        ({"snapshot": {"podLabels": {"team": "data"}, "nodeSelector": {"disk": "ssd"}}}, True),
        ({"sourceDefaults": {"mode": "run"}}, False),
    ]
    first = render(ONCE)
    server.apply(first)
    before = server.names("job")
    assert before == by_kind(first, "Job").keys()
    for change, another in changes:
        changed = render(merged(ONCE, change))
        (job,) = by_kind(changed, "Job")
        assert (job not in before) is another, change
        server.apply(changed)
        server.apply(first)
        assert server.names("job") == before | {job}
        before |= {job}
    assert len(before) == 1 + sum(another for _, another in changes)


KINDS = "configmap,cronjob,deployment,networkpolicy,role,rolebinding,service,serviceaccount"


def installed(server: ApiServer, release: str) -> dict[str, Any]:
    """The objects of a release as the API server has them, but for what it counts and dates itself."""
    done = server.kubectl("get", KINDS, f"--selector=app.kubernetes.io/instance={release}", "--output=json")
    assert done.returncode == 0, done.stderr
    found = {}
    for item in json.loads(done.stdout)["items"]:
        item.pop("status", None)
        for name in ("creationTimestamp", "generation", "managedFields", "resourceVersion", "uid"):
            item["metadata"].pop(name, None)
        item["metadata"].get("annotations", {}).pop("deployment.kubernetes.io/revision", None)
        found[f"{item['kind']}/{item['metadata']['name']}"] = item
    return found


@pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not on PATH")
def test_helm_installs_upgrades_and_rolls_back(server: ApiServer) -> None:
    """Helm itself, which keeps its releases in the cluster; there are no hooks for which it would wait."""

    def helm(*arguments: str, values: Any = None) -> str:
        command = ["helm", f"--kubeconfig={server.config}", *arguments]
        text = None if values is None else json.dumps(values)
        done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    alone = {"executors": {"count": 0}, "output": {"existingClaim": ""}}
    alone |= {"archive": {"enabled": False}, "loopDetection": {"follow": False}}
    one_pod = merged(EXECUTORS, {"jobs": alone})
    helm("install", "kept", str(CHART), "--values=-", values=one_pod)
    before = installed(server, "kept")
    assert "Role/kept-millrace-spark" not in before
    other = {"sources": {"stock": merged(MINIMAL["sources"]["shop"], {"mysql": {"serverId": 4002}})}}
    upgraded = merged(EXECUTORS, other, {"sourceDefaults": {"mode": "run"}})
    helm("upgrade", "kept", str(CHART), "--values=-", values=upgraded)
    after = installed(server, "kept")
    assert {"Role/kept-millrace-spark", "Deployment/kept-millrace-stock-run"} <= after.keys()
    assert "Deployment/kept-millrace-shop-reader" not in after
    helm("rollback", "kept", "1")
    assert installed(server, "kept") == before
    history = json.loads(helm("history", "kept", "--output=json"))
    assert [(one["revision"], one["status"]) for one in history] == [
        (1, "superseded"),
        (2, "superseded"),
        (3, "deployed"),
    ]
    assert history[-1]["description"] == "Rollback to 1"
    helm("uninstall", "kept")
    assert installed(server, "kept") == {}
