"""A job of the chart whose executors are pods, with a real API server that makes them only where it may.

There is no kubelet: a stand-in runs what the pods say as processes of this machine.
"""

import copy
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from millrace.contract import OF_ALL_SOURCES
from millrace.local import Kafka, MySQL, Registry
from millrace.local.processes import release_port, reserve_port
from tests.kubernetes import MISSING, NAMESPACE, ApiServer, Kubelet
from tests.live.job_world import JobWorld
from tests.live.reader_world import ReaderWorld, log_end
from tests.live.test_cluster import rows, write
from tests.service_process import wait_for
from tests.unit.helm.chart import MINIMAL, merged, render
from tests.unit.helm.test_render import by_kind, pods

pytestmark = [
    pytest.mark.slow,
    pytest.mark.spark,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(MISSING), reason=f"not on PATH: {', '.join(MISSING)}"),
]

SOURCE = "pods"
EXECUTORS = 2
ACCOUNT = f"system:serviceaccount:{NAMESPACE}:try-millrace-spark"
VALUES = merged(
    MINIMAL,
    {
        "sources": {"shop": {"name": SOURCE}},
        "jobs": {
            "executors": {"count": EXECUTORS, "memoryMib": 1024},
            "output": {"existingClaim": "reports"},
            "analytics": {"enabled": True, "from": "earliest"},
        },
    },
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with ApiServer(tmp_path_factory.mktemp("kubernetes")) as server:
        yield server


@pytest.fixture(scope="module")
def expected(
    kafka: Kafka, registry: Registry, mysql: MySQL, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[str]]:
    """What the job makes of the source in one process, by table."""
    job = JobWorld(kafka, registry, SOURCE, tmp_path_factory.mktemp("local"))
    log_file, position = log_end(mysql)
    write(mysql, SOURCE)
    reader = ReaderWorld.of(kafka, SOURCE, mysql, MILLRACE_START=f"{log_file}:{position}")
    with reader.reader() as process:
        reader.wait_until_at(mysql, process)
    job.job("analytics")
    return rows(job.folder)


class Cluster:
    """The chart, installed."""

    def __init__(
        self, server: ApiServer, kafka: Kafka, kubelet: Kubelet, values: dict[str, Any] = VALUES
    ) -> None:
        self.server = server
        self.kubelet = kubelet
        values = merged(values, {"kafka": {"bootstrapServers": kafka.bootstrap_servers}})
        self._objects = render(values, namespace=NAMESPACE)
        server.apply([item for item in self._objects if item["kind"] != "CronJob"])

    def start(self, name: str, *more: str) -> dict[str, Any]:
        """Make the pod of the job, with more arguments, as Kubernetes' controllers would."""
        template = copy.deepcopy(pods(self._objects)["try-millrace-shop-analytics"])
        template["spec"]["containers"][0]["args"] += more
        metadata = {**template["metadata"], "name": name}
        pod = {"apiVersion": "v1", "kind": "Pod", **template, "metadata": metadata}
        made = self.server.call("POST", "pods", pod)
        assert made is not None
        return made

    def phase_at_end(self, name: str) -> str:
        """Wait until a pod has ended, and say how."""

        def phase() -> str:
            found = self.kubelet.phase(name)
            return found if found in {"Succeeded", "Failed"} else ""

        return wait_for(phase, None, lambda: self.kubelet.log(name), 600)

    def executors(self) -> Sequence[dict[str, Any]]:
        """Return the pods of executors."""
        answer = self.server.call("GET", "pods?labelSelector=spark-role%3Dexecutor")
        assert answer is not None
        found: list[dict[str, Any]] = answer["items"]
        return found

    def works(self, name: str) -> bool:
        """Say whether an executor has begun a task that it has not ended."""
        told = self.kubelet.log(name)
        return told.count("Running task") > told.count("Finished task")


@pytest.fixture
def kubelet(server: ApiServer, tmp_path: Path) -> Iterator[Kubelet]:
    (tmp_path / "claim").mkdir()
    with Kubelet(server, tmp_path / "pods", {"reports": tmp_path / "claim"}) as kubelet:
        yield kubelet


@pytest.fixture
def cluster(server: ApiServer, kafka: Kafka, kubelet: Kubelet) -> Cluster:
    return Cluster(server, kafka, kubelet)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    return tmp_path / "claim" / SOURCE / "analytics"


def test_executors_are_pods(cluster: Cluster, expected: dict[str, list[str]], results: Path) -> None:
    driver = cluster.start("whole")
    assert cluster.phase_at_end("whole") == "Succeeded", cluster.kubelet.log("whole")
    assert rows(results) == expected
    wait_for(lambda: not cluster.executors())
    made = {name: pod for name, pod in cluster.kubelet.seen.items() if name != "whole"}
    assert len(made) == EXECUTORS
    for name, pod in made.items():
        assert "Finished task" in cluster.kubelet.log(name)
        (owner,) = pod["metadata"]["ownerReferences"]
        assert (owner["kind"], owner["uid"]) == ("Pod", driver["metadata"]["uid"])
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"memory": "1Gi"}
        assert pod["spec"]["automountServiceAccountToken"] is False


@pytest.mark.parametrize("how", ["deleted", "killed"])
def test_an_executor_is_lost_while_it_works(
    how: str, cluster: Cluster, expected: dict[str, list[str]], results: Path
) -> None:
    cluster.start(how)

    def at_work() -> str:
        assert cluster.kubelet.phase(how) in {"Pending", "Running"}, cluster.kubelet.log(how)
        if "places to cut found" not in cluster.kubelet.log(how):
            return ""
        return next((name for name in list(cluster.kubelet.seen) if cluster.works(name)), "")

    name = wait_for(at_work, None, lambda: cluster.kubelet.log(how))
    if how == "deleted":
        cluster.server.call("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})
    else:
        cluster.kubelet.kill(name)
    assert cluster.phase_at_end(how) == "Succeeded", cluster.kubelet.log(how)
    assert cluster.works(name)
    assert "Lost executor" in cluster.kubelet.log(how)
    assert len(cluster.kubelet.seen) == 1 + EXECUTORS + 1
    assert rows(results) == expected
    wait_for(lambda: not cluster.executors())


@pytest.mark.usefixtures("expected")
def test_a_job_that_is_told_to_end_removes_its_executors(cluster: Cluster) -> None:
    cluster.start("ended")
    wait_for(
        lambda: "places to cut found" in cluster.kubelet.log("ended"),
        None,
        lambda: cluster.kubelet.log("ended"),
    )
    assert len(cluster.executors()) == EXECUTORS
    cluster.server.call("DELETE", "pods/ended")
    wait_for(lambda: not cluster.kubelet.phase("ended"), None, lambda: cluster.kubelet.log("ended"))
    assert "analytics was stopped by SIGTERM" in cluster.kubelet.log("ended")
    wait_for(lambda: not cluster.executors())


@pytest.mark.usefixtures("expected")
def test_an_output_folder_that_executors_do_not_share_is_refused(cluster: Cluster) -> None:
    cluster.start("alone", "--output", "/proc/self/cwd/reports")  # the path of another folder in each pod
    assert cluster.phase_at_end("alone") == "Failed"
    told = cluster.kubelet.log("alone")
    assert "error: executors cannot reach /proc/self/cwd/reports: name a folder" in told
    assert "Traceback" not in told
    wait_for(lambda: not cluster.executors())


def test_the_pod_of_a_deployment_resumes_where_the_last_one_was(
    server: ApiServer, kafka: Kafka, mysql: MySQL, kubelet: Kubelet
) -> None:
    """A job that follows: its windows are in their topic, and its metrics at its port."""
    source, port = f"{SOURCE}-followed", reserve_port()
    follow = {"follow": True, "extraArgs": ["--every", "1", "--publish"]}
    values = {"sources": {"shop": {"name": source}}, "jobs": {"analytics": follow}, "http": {"port": port}}
    cluster = Cluster(server, kafka, kubelet, merged(VALUES, values))
    log_file, position = log_end(mysql)
    reader = ReaderWorld.of(kafka, source, mysql, MILLRACE_START=f"{log_file}:{position}")
    mysql.execute("CREATE DATABASE followed", "CREATE TABLE followed.t (n INT)")

    def insert(count: int) -> None:
        mysql.execute("USE followed", *(f"INSERT INTO t VALUES ({n})" for n in range(count)))
        with reader.reader() as process:
            reader.wait_until_at(mysql, process)

    def told() -> int:
        windows = reader.topic_reader.messages(OF_ALL_SOURCES["analytics"])
        last = {window.key(): window.value() for window in windows if source.encode() in window.key()}
        return sum(json.loads(value)["inserts"] for value in last.values())

    for name, count in (("first", 200), ("second", 300)):
        insert(count)
        cluster.start(name)
        expected = count if name == "first" else 500
        wait_for(lambda expected=expected: told() == expected, None, lambda name=name: kubelet.log(name))
        begun = re.search(rf"reading {source}.raw, offsets ([\d,]+) to", kubelet.log(name))
        assert begun is not None
        assert (begun[1] == "0") == (name == "first")
        assert len(cluster.executors()) == EXECUTORS
        pod = server.call("GET", f"pods/{name}")
        assert pod is not None
        with urlopen(f"http://{pod['status']['podIP']}:{port}/metrics", timeout=60) as answer:
            assert f'source="{source}"' in answer.read().decode()
        server.call("DELETE", f"pods/{name}")
        wait_for(lambda name=name: not kubelet.phase(name), None, lambda name=name: kubelet.log(name))
        wait_for(lambda: not cluster.executors())
    release_port(port)


def test_jobs_have_the_rights_that_they_use(server: ApiServer) -> None:
    """The tests above have asked for nothing that was refused, and for everything that is allowed."""
    used: dict[str, set[str]] = {}
    for request in server.requests():
        assert request["user"]["username"] == ACCOUNT
        # Spark may ask for the pod of an executor that is gone by then.
        assert request["responseStatus"]["code"] not in {401, 403}, request
        used.setdefault(request["objectRef"]["resource"], set()).add(request["verb"])
    (role,) = by_kind(render(VALUES), "Role").values()
    assert used == {"pods": set(role["rules"][0]["verbs"])}


@pytest.mark.usefixtures("expected")
def test_an_account_without_rights_is_told(cluster: Cluster) -> None:
    assert cluster.server.kubectl("delete", "rolebinding", "try-millrace-spark").returncode == 0
    cluster.start("barred")
    assert cluster.phase_at_end("barred") == "Failed"
    told = cluster.kubelet.log("barred")
    assert told.startswith("error: analytics got no executors from Kubernetes (pods "), told
    assert f'is forbidden: User "{ACCOUNT}" cannot ' in told
    assert told.count("\n") == 1
