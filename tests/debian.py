"""Programs from Debian's packages, unpacked into a folder and run from there: nothing is installed."""

import shutil
import subprocess
from pathlib import Path

__all__ = ["perl_environment", "unpacked"]


def unpacked(folder: Path, *packages: str) -> Path | None:
    """Fetch packages and unpack them into ``folder``; None where apt-get or a package is not at hand."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    folder.mkdir(parents=True)
    root = folder / "root"
    fetched = subprocess.run(
        ["apt-get", "download", *packages], cwd=folder, capture_output=True, check=False, timeout=300
    )
    files = list(folder.glob("*.deb"))
    if fetched.returncode or len(files) != len(packages):
        return None
    for file in files:
        subprocess.run(["dpkg", "-x", str(file), str(root)], check=True, capture_output=True)
    return root


def perl_environment(root: Path) -> dict[str, str]:
    """Give the environment in which the system's perl finds the modules that were unpacked."""
    modules = [str(path) for path in (root / "usr/lib").glob("*/perl5/*")]
    libraries = [str(path) for path in (root / "usr/lib").glob("*-linux-gnu")]
    return {
        "PERL5LIB": ":".join([*modules, str(root / "usr/share/perl5")]),
        "LD_LIBRARY_PATH": ":".join(libraries),
        "MARIADB_PLUGIN_DIR": ":".join(f"{path}/libmariadb3/plugin" for path in libraries),
    }
