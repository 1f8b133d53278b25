"""Pin the artifacts: resolve the roots of every bundle and rewrite ``files`` in ``artifacts.toml``.

``python -m millrace.local.pin``, after a version in ``roots`` was changed; names of bundles after it mean
those alone.
"""

import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from jgo.maven import MavenContext

from millrace.local.artifacts import PINS, TIMEOUT_S, Pin, sha256


def repin(*names: str) -> None:
    """Resolve the roots of these bundles, or of all, and rewrite their ``files`` in ``artifacts.toml``."""
    text = PINS.read_text()
    bundles = tomllib.loads(text)
    for name in names or bundles:
        entry = bundles[name]
        with tempfile.TemporaryDirectory() as folder:
            context = MavenContext(repo_cache=Path(folder), timeout=TIMEOUT_S)
            coordinates: dict[tuple[str, ...], str] = {}
            for root in entry["roots"]:
                for coordinate in _resolved(context, root, transitive=entry.get("transitive", False)):
                    # The first root that brings an artifact decides on its version.
                    group, artifact, _version, *rest = coordinate.split(":")
                    coordinates.setdefault((group, artifact, *rest), coordinate)
            lines = []
            for coordinate in sorted(coordinates.values()):
                path = Pin(coordinate, "", 0).resolve(context)
                lines.append(f'    "{coordinate} {sha256(path)} {path.stat().st_size}",\n')
            sys.stderr.write(f"{name}: {len(lines)} files\n")
        section = re.compile(rf"(?ms)^(\[{re.escape(name)}\]\n.*?^files = \[\n)[^\]]*^\]")
        pinned = "".join(lines)
        text, count = section.subn(rf"\g<1>{pinned}]", text)
        if count != 1:
            raise ValueError(f"{PINS}: no files of {name}")
    PINS.write_text(text)


def _resolved(context: Any, root: str, *, transitive: bool) -> list[str]:
    if not transitive:
        return [root]
    group, artifact, version, *_rest = root.split(":")
    inputs, others = context.resolver.resolve([context.create_dependency(f"{group}:{artifact}:{version}")])
    return [
        ":".join(filter(None, (d.groupId, d.artifactId, d.version, d.type, d.classifier)))
        for d in inputs + others
    ]


if __name__ == "__main__":
    repin(*sys.argv[1:])
