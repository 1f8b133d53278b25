"""The chart's objects, given to a real API server: it takes them, and takes them as changes of each other.

It has no controllers, so it makes no pods of them; pods are given to it as they would be made.
"""

import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from millrace.local.processes import Process, reserve_port

from .chart import MINIMAL, VALUES_FILES, helm_template, merged, render
from .test_render import by_kind, pods

MISSING = [tool for tool in ("kube-apiserver", "etcd", "kubectl") if shutil.which(tool) is None]
pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"not on PATH: {', '.join(MISSING)}"),
    pytest.mark.timeout(600),
]

NAMESPACE = "millrace"
NOT_KUBERNETES = re.compile(r"^kind: (ServiceMonitor|PrometheusRule)$", re.MULTILINE)
"""Types of the Prometheus Operator."""

ONCE = merged(MINIMAL, {"sources": {"shop": {"snapshot": {"mode": "once", "tables": ["shop.orders"]}}}})


class ApiServer:
    """A kube-apiserver with an etcd of its own, and a namespace that enforces the standard *restricted*."""

    def __init__(self, folder: Path) -> None:
        key = rsa.generate_private_key(65537, 2048).private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.TraditionalOpenSSL,
            serialization.NoEncryption(),
        )
        (folder / "key").write_bytes(key)
        (folder / "tokens").write_text('token,admin,admin,"system:masters"\n')
        store, peers, port = (reserve_port() for _ in range(3))
        store_url, peer_url = (f"http://127.0.0.1:{each}" for each in (store, peers))
        cluster = {"server": f"https://127.0.0.1:{port}", "insecure-skip-tls-verify": True}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "it", "cluster": cluster}],
            "users": [{"name": "it", "user": {"token": "token"}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it", "namespace": NAMESPACE}}],
            "current-context": "it",
        }
        self.config = folder / "config"
        self.config.write_text(json.dumps(config))
        self._etcd = Process(
            "etcd",
            [
                "etcd", f"--data-dir={folder / 'etcd'}", f"--listen-client-urls={store_url}",
                f"--advertise-client-urls={store_url}", f"--listen-peer-urls={peer_url}",
                f"--initial-advertise-peer-urls={peer_url}", f"--initial-cluster=default={peer_url}",
            ],
            log=folder / "etcd.log",
        )  # fmt: skip
        self._server = Process(
            "kube-apiserver",
            [
                "kube-apiserver", f"--etcd-servers={store_url}", f"--cert-dir={folder / 'certificates'}",
                "--bind-address=127.0.0.1", f"--secure-port={port}", "--service-cluster-ip-range=10.0.0.0/24",
                "--authorization-mode=RBAC", f"--token-auth-file={folder / 'tokens'}",
                "--service-account-issuer=https://kubernetes.default.svc",
                f"--service-account-key-file={folder / 'key'}",
                f"--service-account-signing-key-file={folder / 'key'}",
            ],
            log=folder / "server.log",
        )  # fmt: skip

    def wait(self) -> None:
        """Wait until it serves, and make the namespace."""
        deadline = time.monotonic() + 240
        while self._kubectl("get", "--raw", "/readyz").returncode != 0:
            assert self._server.poll() is None, self._server.log_tail()
            assert time.monotonic() < deadline, self._server.log_tail()
            time.sleep(0.5)
        labels = {"pod-security.kubernetes.io/enforce": "restricted"}
        self.apply(
            [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE, "labels": labels}}]
        )

    def apply(self, objects: Sequence[dict[str, Any]], *options: str) -> None:
        """Create objects, or change those of the same names to them."""
        self.apply_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)}), *options)

    def apply_text(self, text: str, *options: str) -> None:
        """Do the same with objects as Helm has written them."""
        done = self._kubectl("apply", "--validate=strict", *options, "--filename=-", text=text)
        assert done.returncode == 0, done.stderr

    def names(self, kind: str) -> set[str]:
        """Give the names of all objects of a kind."""
        done = self._kubectl("get", kind, "--output=jsonpath={.items[*].metadata.name}")
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    def _kubectl(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        command = ["kubectl", f"--kubeconfig={self.config}", *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def close(self) -> None:
        self._server.stop()
        self._etcd.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    server = ApiServer(tmp_path_factory.mktemp("kubernetes"))
    try:
        server.wait()
        yield server
    finally:
        server.close()


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
