"""A Kubernetes for tests: a real API server, and a stand-in for the kubelet that runs the containers of pods.

The API server admits, stores and authorizes as in a cluster. There are no controllers: pods are given to it
as a controller would make them.
"""

import json
import os
import re
import shutil
import signal
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from millrace.local.artifacts import cache_folder
from millrace.local.guard import descendants
from millrace.local.processes import Process, release_port, reserve_port

__all__ = ["MISSING", "NAMESPACE", "ApiServer", "Kubelet"]

MISSING = [tool for tool in ("kube-apiserver", "etcd", "kubectl") if shutil.which(tool) is None]
"""Programs that an API server needs and that are not on PATH."""

NAMESPACE = "millrace"

_AUDIT = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "users": ["admin", "system:apiserver"]},
        {"level": "Metadata", "namespaces": [NAMESPACE]},
    ],
}


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
        (folder / "audit.yaml").write_text(json.dumps(_AUDIT))
        self._ports = store, peers, port = [reserve_port() for _ in range(3)]
        self.url = f"https://127.0.0.1:{port}"
        self._folder = folder
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
                f"--audit-policy-file={folder / 'audit.yaml'}", f"--audit-log-path={folder / 'audit.log'}",
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
        """Return the names of all objects of a kind."""
        done = self.kubectl("get", kind, "--output=jsonpath={.items[*].metadata.name}")
        assert done.returncode == 0, done.stderr
        return set(done.stdout.split())

    @property
    def certificate(self) -> str:
        """The certificates by which it is known (PEM)."""
        return (self._folder / "certificates" / "apiserver.crt").read_text()

    def requests(self) -> list[dict[str, Any]]:
        """Return what others than the tests have asked of it in the namespace, as its audit log has it."""
        return [json.loads(line) for line in (self._folder / "audit.log").read_text().splitlines()]

    def call(
        self, method: str, path: str, body: Any = None, kind: str = "application/json"
    ) -> dict[str, Any] | None:
        """Ask something of it in the namespace; None where it has no such object."""
        request = urllib.request.Request(
            f"{self.url}/api/v1/namespaces/{NAMESPACE}/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": "Bearer token", "Content-Type": kind},
        )
        context = ssl.create_default_context(cadata=self.certificate)
        try:
            with urllib.request.urlopen(request, context=context, timeout=60) as response:
                answer: dict[str, Any] = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            with error:
                if error.code == 404:
                    return None
                raise AssertionError(f"{method} {path}: {error.read().decode()}") from None

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


@dataclass(slots=True)
class _Running:
    """A pod whose container runs here, or has run."""

    process: Process
    ip: str
    container: str
    ended: bool = False
    kill_at: float | None = None


class Kubelet:
    """Stands in for scheduler and kubelet: runs the one container of each pod as a process of this machine.

    A process has the variables and files that the pod's spec gives its container, and an address of the
    loopback interface of its own. It has no file system of its own: where its command, its variables and its
    ConfigMaps name a directory at which a volume is mounted, they name the volume's folder instead, and where
    they name the API server, its address. The image is this environment of Python. ``claims`` are folders, by
    the names of PersistentVolumeClaims.
    """

    def __init__(self, server: ApiServer, folder: Path, claims: Mapping[str, Path]) -> None:
        self.seen: dict[str, dict[str, Any]] = {}
        self._server = server
        self._folder = folder
        self._claims = claims
        self._running: dict[str, _Running] = {}
        self._stopped = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="kubelet", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()
        for pod in self._running.values():
            pod.process.stop()

    def log(self, name: str) -> str:
        """Return what the container of a pod has written."""
        assert self._error is None, self._error
        file = self._folder / name / "log"
        return file.read_text(errors="replace") if file.exists() else ""

    def phase(self, name: str) -> str:
        """Return the phase of a pod."""
        assert self._error is None, self._error
        pod = self._server.call("GET", f"pods/{name}")
        return "" if pod is None else str(pod["status"]["phase"])

    def kill(self, name: str) -> None:
        """Kill what runs in the container of a pod, as for want of memory."""
        for process in descendants(self._running[name].process.pid):
            os.kill(process, signal.SIGKILL)

    def _work(self) -> None:
        try:
            while not self._stopped.wait(0.1):
                self._look()
        except BaseException as error:  # noqa: BLE001 - the test is told
            self._error = error

    def _look(self) -> None:
        answer = self._server.call("GET", "pods")
        assert answer is not None
        pods = {pod["metadata"]["name"]: pod for pod in answer["items"]}
        for name, pod in pods.items():
            if "deletionTimestamp" in pod["metadata"]:
                self._end(name, pod["metadata"]["deletionGracePeriodSeconds"])
            elif "nodeName" not in pod["spec"]:
                self.seen[name] = pod
                self._start(name, pod)
            else:
                self._report(name)
        for name in self._running.keys() - pods.keys():
            self._running.pop(name).process.stop()

    def _start(self, name: str, pod: dict[str, Any]) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": "here"}
        self._server.call("POST", f"pods/{name}/binding", {"metadata": {"name": name}, "target": target})
        (container,) = pod["spec"]["containers"]
        ip = f"127.0.0.{1 + len(self.seen)}"
        folder = self._folder / name
        volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes", [])}
        mounts: dict[str, Path] = {}
        for mount in container.get("volumeMounts", []):
            place = self._volume(pod, volumes[mount["name"]], mount["mountPath"], folder / mount["name"])
            mounts[mount["mountPath"]] = place
        here = _Here(self._server, mounts)
        environment = {
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "HOME": str(mounts["/tmp"]),
            "TMPDIR": str(mounts["/tmp"]),
            "MILLRACE_CACHE": str(cache_folder()),
        }
        if token := mounts.get("/var/run/secrets/kubernetes.io/serviceaccount"):
            # Where clients look for it instead, if they are told to.
            environment["KUBERNETES_AUTH_SERVICEACCOUNT_TOKEN"] = str(token / "token")
            environment["KUBERNETES_CERTS_CA_FILE"] = str(token / "ca.crt")
        for variable in container.get("env", []):
            environment[variable["name"]] = here.text(self._value(pod, container, variable, ip))
        if environment.get("MILLRACE_HTTP_HOST") == "*":  # all addresses that the pod has
            environment["MILLRACE_HTTP_HOST"] = ip
        command = container.get("command") or ["python", "-m", "millrace.cli"]
        process = Process(
            name,
            [here.text(part) for part in [*command, *container.get("args", [])]],
            log=folder / "log",
            env=environment,
            cwd=mounts["/tmp"],
            tree=True,
        )
        self._running[name] = _Running(process, ip, container["name"])
        self._tell(name, "Running", {"running": {}})

    def _volume(self, pod: dict[str, Any], volume: dict[str, Any], path: str, folder: Path) -> Path:
        match volume:
            case {"persistentVolumeClaim": {"claimName": claim}}:
                return self._claims[claim]
            case {"configMap": {"name": name}}:
                found = self._server.call("GET", f"configmaps/{name}")
                assert found is not None, name
                files = {
                    file: _Here(self._server, {path: folder}).text(text)
                    for file, text in found["data"].items()
                }
            case {"projected": _}:  # the token of the ServiceAccount
                account = pod["spec"]["serviceAccountName"]
                bound = {"kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
                wanted = {"spec": {"boundObjectRef": {"apiVersion": "v1", **bound}}}
                made = self._server.call("POST", f"serviceaccounts/{account}/token", wanted)
                assert made is not None, account
                files = {"token": made["status"]["token"], "ca.crt": self._server.certificate}
            case {"emptyDir": _}:
                files = {}
            case _:
                raise AssertionError(volume)
        folder.mkdir(parents=True)
        for file, text in files.items():
            (folder / file).write_text(text)
        return folder

    def _value(
        self, pod: dict[str, Any], container: dict[str, Any], variable: dict[str, Any], ip: str
    ) -> str:
        match variable.get("valueFrom"):
            case None:
                return str(variable.get("value", ""))
            case {"fieldRef": {"fieldPath": "status.podIP"}}:
                return ip
            case {"fieldRef": {"fieldPath": "metadata.name"}}:
                return str(pod["metadata"]["name"])
            case {"resourceFieldRef": {"resource": resource, "divisor": divisor}}:
                kind, name = resource.split(".")
                return str(_amount(container["resources"][kind][name]) // _amount(divisor))
            case {"secretKeyRef": {"name": name, "key": key}}:
                found = self._server.call("GET", f"secrets/{name}")
                assert found is not None, name
                return b64decode(found["data"][key]).decode()
        raise AssertionError(variable)

    def _end(self, name: str, grace_s: float) -> None:
        """Tell a container to end; where it has ended, or the time for it is over, the pod is gone."""
        pod = self._running.get(name)
        if pod is not None and pod.kill_at is None:
            pod.kill_at = time.monotonic() + grace_s
            for first in descendants(pod.process.pid)[:1]:
                os.kill(first, signal.SIGTERM)
        if pod is None or pod.process.poll() is not None or time.monotonic() > (pod.kill_at or 0):
            if pod is not None:
                self._running.pop(name).process.stop()
            self._server.call("DELETE", f"pods/{name}", {"gracePeriodSeconds": 0})

    def _report(self, name: str) -> None:
        pod = self._running.get(name)
        if pod is None or pod.ended or (code := pod.process.poll()) is None:
            return
        pod.ended = True
        ended = {"terminated": {"exitCode": code if code >= 0 else 128 - code}}
        self._tell(name, "Failed" if code else "Succeeded", ended)

    def _tell(self, name: str, phase: str, state: dict[str, Any]) -> None:
        pod = self._running[name]
        ready = phase == "Running"
        status = {
            "phase": phase,
            "podIP": pod.ip,
            "podIPs": [{"ip": pod.ip}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [
                {
                    "name": pod.container,
                    "ready": ready,
                    "restartCount": 0,
                    "image": "",
                    "imageID": "",
                    "state": state,
                }
            ],
        }
        self._server.call("PATCH", f"pods/{name}/status", {"status": status}, "application/merge-patch+json")


class _Here:
    """Names of a container's directories and of the API server as names of this machine."""

    def __init__(self, server: ApiServer, mounts: Mapping[str, Path]) -> None:
        self._names = {path: str(folder) for path, folder in mounts.items()}
        self._names["https://kubernetes.default.svc"] = server.url
        names = "|".join(map(re.escape, sorted(self._names, key=len, reverse=True)))
        self._pattern = re.compile(rf"(?<![\w.-])({names})(?![\w.-])")

    def text(self, text: str) -> str:
        return self._pattern.sub(lambda found: self._names[found[1]], text)


def _amount(quantity: str) -> int:
    number, unit = re.fullmatch(r"([0-9]+)(\D*)", quantity).groups()  # type: ignore[union-attr]
    return int(number) * {"": 1, "Mi": 1 << 20, "Gi": 1 << 30}[unit]
