"""The chart as the tests see it: its files, and what Helm renders from values.

Helm is the program on PATH, else its library, which is fetched once as the servers of the local stack are.
"""

import atexit
import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import yaml

from millrace.local.artifacts import fetch
from tests.shared import PROJECT

CHART = PROJECT / "helm" / "millrace"
VALUES_FILES = sorted((CHART / "ci").glob("*.yaml"))

MINIMAL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "minimal-values.yaml").read_text())


def helm_template(release: str, values: Any, namespace: str = "default") -> tuple[str, str]:
    """Run ``helm template``; give what it makes, and what it says where it refuses."""
    if not shutil.which("helm"):
        asked, answered = _library()
        asked.write(json.dumps([release, namespace, values]) + "\n")
        made, said = json.loads(answered.readline())
        return made, said
    command = ["helm", "template", release, str(CHART), "--namespace", namespace, "--values", "-"]
    done = subprocess.run(command, input=json.dumps(values), capture_output=True, text=True, check=False)
    return done.stdout, done.stderr if done.returncode else ""


@cache
def _library() -> tuple[IO[str], IO[str]]:
    """Start Helm's library in a process that ends with this one."""
    script = Path(__file__).with_name("library.py")
    command = [sys.executable, script, fetch("helm") / "helm-linux-amd64.so", CHART]
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, bufsize=1, text=True)
    atexit.register(process.__exit__, None, None, None)
    assert process.stdin is not None
    assert process.stdout is not None
    return process.stdin, process.stdout


def render(values: Any, release: str = "try", namespace: str = "default") -> list[dict[str, Any]]:
    """All objects that the chart makes of ``values``."""
    text = _rendered(json.dumps(values), release, namespace)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def _rendered(values: str, release: str, namespace: str) -> str:
    made, said = helm_template(release, json.loads(values), namespace)
    assert not said
    return made


def refusal(values: Any) -> str:
    """What helm says when it refuses ``values``."""
    _, said = helm_template("try", values)
    assert said
    return said


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Merge values as helm does: maps by key, everything else by the last."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            both_maps = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both_maps else value
    return result
