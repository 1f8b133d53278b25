"""The chart as the tests see it: its files, and what Helm renders from values.

Helm is the program on PATH, else its library, which is fetched once as the servers of the local stack are.
"""

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from millrace.local.artifacts import fetch
from tests.shared import PROJECT

CHART = PROJECT / "helm" / "millrace"
VALUES_FILES = sorted((CHART / "ci").glob("*.yaml"))

MINIMAL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "minimal-values.yaml").read_text())


def helm_template(
    release: str, values: Any, namespace: str = "default", chart: Path = CHART
) -> subprocess.CompletedProcess[str]:
    """Run ``helm template`` with ``values`` (JSON is YAML)."""
    text = json.dumps(values)
    if shutil.which("helm"):
        command = ["helm", "template", release, str(chart), "--namespace", namespace, "--values", "-"]
        return subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    return _ask_library(str(chart), release, namespace, text)


def helm_lint(values: Any, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run ``helm lint --strict`` on a copy of the chart in ``folder`` that has ``values`` as defaults."""
    chart = Path(shutil.copytree(CHART, folder / CHART.name))
    defaults = yaml.safe_load((chart / "values.yaml").read_text())
    (chart / "values.yaml").write_text(json.dumps(merged(defaults, values)))
    if shutil.which("helm"):
        command = ["helm", "lint", "--strict", str(chart)]
        return subprocess.run(command, capture_output=True, text=True, check=False)
    return _ask_library(str(chart))


def _ask_library(*request: str) -> subprocess.CompletedProcess[str]:
    library = _library()
    assert library.stdin is not None
    assert library.stdout is not None
    library.stdin.write(json.dumps(request) + "\n")
    library.stdin.flush()
    return subprocess.CompletedProcess((), *json.loads(library.stdout.readline()))


@cache
def _library() -> subprocess.Popen[str]:
    """Start what renders with Helm's library; it ends with its input, and so with this process."""
    script = Path(__file__).with_name("library.py")
    command = [sys.executable, script, fetch("helm") / "helm-linux-amd64.so"]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def render(values: Any, release: str = "try", namespace: str = "default") -> list[dict[str, Any]]:
    """All objects that the chart makes of ``values``."""
    text = _rendered(json.dumps(values), release, namespace)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def _rendered(values: str, release: str, namespace: str) -> str:
    result = helm_template(release, json.loads(values), namespace)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refusal(values: Any) -> str:
    """What helm says when it refuses ``values``."""
    result = helm_template("try", values)
    assert result.returncode != 0
    return result.stderr


def merged(*parts: dict[str, Any]) -> dict[str, Any]:
    """Merge values as helm does: maps by key, everything else by the last."""
    result: dict[str, Any] = {}
    for part in parts:
        for key, value in part.items():
            both_maps = isinstance(value, dict) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if both_maps else value
    return result


def in_one_process(values: dict[str, Any]) -> dict[str, Any]:
    """The same sources with mode run, which has no values of the three services."""
    three = ("reader", "decoder", "rowmapper")
    kept = {name: value for name, value in values.items() if name not in {"sources", *three}}
    sources = {
        key: {name: value for name, value in source.items() if name not in three}
        | ({"run": source["reader"]} if "reader" in source else {})
        for key, source in values["sources"].items()
    }
    return merged(kept, {"sources": sources, "sourceDefaults": {"mode": "run"}})
