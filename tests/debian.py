"""Programs from Debian's packages, unpacked into a folder and run from there: nothing is installed."""

import shutil
import subprocess
from pathlib import Path

__all__ = ["perl_environment", "unpacked", "unpacked_from"]


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


def unpacked_from(suite: str, folder: Path, *packages: str) -> Path | None:
    """Fetch packages of any suite with all that they depend on, and unpack them; None as :func:`unpacked`."""
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        return None
    wanted = ["--format", "$(REPO_URI)", "Created-By: Packages", "Origin: Debian", "Label: Debian"]
    listed = subprocess.run(["apt-get", "indextargets", *wanted], capture_output=True, text=True, check=False)
    if not (mirrors := listed.stdout.split()):
        return None
    for name in ("lists/partial", "cache/archives/partial"):
        (folder / name).mkdir(parents=True)
    (folder / "status").touch()
    sources = folder / "sources.list"
    signed = "signed-by=/usr/share/keyrings/debian-archive-keyring.gpg"
    sources.write_text(f"deb [{signed}] {mirrors[0]} {suite} main\n")
    settings = {
        "Dir::Etc::SourceList": sources,
        "Dir::Etc::SourceParts": "-",
        "Dir::State::Lists": folder / "lists",
        "Dir::State::Status": folder / "status",
        "Dir::Cache": folder / "cache",
        "Debug::NoLocking": "true",
    }
    options = [f"-o{name}={value}" for name, value in settings.items()]
    for command in (["update"], ["install", "--download-only", "--no-install-recommends", "-y", *packages]):
        done = subprocess.run(["apt-get", *options, *command], capture_output=True, check=False, timeout=900)
        if done.returncode:
            return None
    root = folder / "root"
    for file in (folder / "cache/archives").glob("*.deb"):
        subprocess.run(["dpkg", "-x", str(file), str(root)], check=True, capture_output=True)
    for name in ("lists", "cache"):
        shutil.rmtree(folder / name)
    return root


def perl_environment(root: Path) -> dict[str, str]:
    """Return the environment in which the system's perl finds the modules that were unpacked."""
    modules = [str(path) for path in (root / "usr/lib").glob("*/perl5/*")]
    libraries = [str(path) for path in (root / "usr/lib").glob("*-linux-gnu")]
    return {
        "PERL5LIB": ":".join([*modules, str(root / "usr/share/perl5")]),
        "LD_LIBRARY_PATH": ":".join(libraries),
        "MARIADB_PLUGIN_DIR": ":".join(f"{path}/libmariadb3/plugin" for path in libraries),
    }
