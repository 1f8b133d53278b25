"""The chart as the tests see it: its files, and what helm renders from values."""

import json
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

PROJECT = Path(__file__).resolve().parents[3]
CHART = PROJECT / "helm" / "millrace"
VALUES_FILES = sorted((CHART / "ci").glob("*.yaml"))

MINIMAL: dict[str, Any] = yaml.safe_load((CHART / "ci" / "minimal-values.yaml").read_text())

needs_helm = pytest.mark.skipif(shutil.which("helm") is None, reason="helm is not on PATH")


def run_helm(*arguments: str, values: Any = None) -> subprocess.CompletedProcess[str]:
    """Run helm with ``values`` on its standard input (JSON is YAML)."""
    if values is not None:
        arguments = (*arguments, "--values", "-")
    return subprocess.run(
        ["helm", *arguments], input=json.dumps(values), capture_output=True, text=True, check=False
    )


def render(values: Any, release: str = "try") -> list[dict[str, Any]]:
    """All objects that the chart makes of ``values``."""
    text = _rendered(json.dumps(values), release)
    return [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]


@cache
def _rendered(values: str, release: str) -> str:
    result = run_helm("template", release, str(CHART), values=json.loads(values))
    assert result.returncode == 0, result.stderr
    return result.stdout


def refusal(values: Any) -> str:
    """What helm says when it refuses ``values``."""
    result = run_helm("template", "try", str(CHART), values=values)
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
