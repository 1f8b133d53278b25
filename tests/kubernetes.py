"""A Kubernetes for tests: a real API server, which admits, stores and authorizes as in a cluster.

There are no controllers: pods are given to it as a controller would make them.
"""

import json
import shutil
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from millrace.local.processes import Process, release_port, reserve_port

__all__ = ["MISSING", "NAMESPACE", "ApiServer"]

MISSING = [tool for tool in ("kube-apiserver", "etcd", "kubectl") if shutil.which(tool) is None]
"""Programs that an API server needs and that are not on PATH."""

NAMESPACE = "millrace"


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
        self._ports = store, peers, port = [reserve_port() for _ in range(3)]
        self.url = f"https://127.0.0.1:{port}"
        store_url, peer_url = (f"http://127.0.0.1:{each}" for each in (store, peers))
        cluster = {"server": self.url, "insecure-skip-tls-verify": True}
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

    def __enter__(self) -> Self:
        try:
            self._wait()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _wait(self) -> None:
        """Wait until it serves, and make the namespace."""
        deadline = time.monotonic() + 240
        while self.kubectl("get", "--raw", "/readyz").returncode != 0:
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
        done = self.kubectl("apply", "--validate=strict", *options, "--filename=-", text=text)
        assert done.returncode == 0, done.stderr

    def names(self, kind: str) -> set[str]:
        """Give the names of all objects of a kind."""
        done = self.kubectl("get", kind, "--output=jsonpath={.items[*].metadata.name}")
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    def kubectl(self, *arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
        """Run kubectl to its end, whatever its exit code."""
        """Run kubectl to its end, whatever its exit code."""
        command = ["kubectl", f"--kubeconfig={self.config}", *arguments]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)

    def close(self) -> None:
        """End it."""
        self._server.stop()
        self._etcd.stop()
        for port in self._ports:
            release_port(port)
