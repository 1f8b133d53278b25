import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from pathlib import Path
from typing import Any

import pytest

from millrace.local import LocalError, artifacts
from millrace.local.artifacts import Bundle, Pin, bundle, cache_folder, fetch

NAMES = ("kafka", "registry", "mysql", "mariadb", "libaio", "spark", "connect", "debezium")


class FakeMaven:
    """Stands for the download alone: gives each coordinate the bytes that the test wants."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, contents: dict[str, bytes]) -> None:
        self.contents = contents
        self.downloads: list[str] = []
        self.delay_s = 0.0
        monkeypatch.setattr(Pin, "resolve", lambda pin, context: self.resolve(pin, context))  # noqa: PLW0108 - binds the pin

    def resolve(self, pin: Pin, context: Any) -> Path:
        self.downloads.append(pin.coordinate)
        time.sleep(self.delay_s)
        path: Path = context.repo_cache / pin.coordinate.replace(":", "_")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(self.contents[pin.coordinate])
        return path


def pin(coordinate: str, content: bytes) -> Pin:
    return Pin(coordinate, hashlib.sha256(content).hexdigest(), len(content))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MILLRACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(artifacts, "_retry_wait_s", lambda _attempt: 0)
    return tmp_path / "cache"


def use(monkeypatch: pytest.MonkeyPatch, wanted: Bundle) -> None:
    monkeypatch.setattr(artifacts, "bundle", lambda _name: wanted)


@pytest.mark.parametrize("name", NAMES)
def test_every_bundle_is_pinned(name: str) -> None:
    wanted = bundle(name)
    assert wanted.pins
    assert all(len(one.sha256) == 64 and one.size > 0 for one in wanted.pins)
    assert wanted.version in wanted.folder_name


def test_the_cache_is_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("MILLRACE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "millrace"


def test_jars_are_fetched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    maven = FakeMaven(monkeypatch, {"g:a:1:jar": b"one", "g:b:2:jar": b"two"})
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"), pin("g:b:2:jar", b"two"))))
    folder = fetch("x")
    assert {path.read_bytes() for path in folder.iterdir()} == {b"one", b"two"}
    assert fetch("x") == folder
    assert sorted(maven.downloads) == ["g:a:1:jar", "g:b:2:jar"]


def test_other_bytes_than_pinned_are_refused(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    FakeMaven(monkeypatch, {"g:a:1:jar": b"tampered"})
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),)))
    with pytest.raises(LocalError, match=r"cannot fetch g:a:1:jar .*its SHA-256 is .*, expected"):
        fetch("x")
    assert [path.suffix for path in (cache / "artifacts").iterdir()] == [".lock"]


def tar_of(name: str, content: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.size, info.uid = len(content), 1_876_110_778
        tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def zip_of(**members: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, content in members.items():
            archive.writestr(name.replace("__", "/"), content)
    return out.getvalue()


def test_a_tar_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    content = tar_of("lib/a.jar", b"jar")
    FakeMaven(monkeypatch, {"g:a:1:tar.gz": content})
    use(monkeypatch, Bundle("x", "1", "tar", "", "", (pin("g:a:1:tar.gz", content),)))
    assert (fetch("x") / "lib" / "a.jar").read_bytes() == b"jar"


def test_a_tar_in_a_zip_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    content = zip_of(inner=tar_of("bin/mysqld", b"program"), other=b"")
    FakeMaven(monkeypatch, {"g:a:1:jar": content})
    use(monkeypatch, Bundle("x", "1", "zip", "inner", "", (pin("g:a:1:jar", content),)))
    assert (fetch("x") / "bin" / "mysqld").read_bytes() == b"program"


def test_a_part_of_a_zip_is_unpacked_and_programs_can_run(monkeypatch: pytest.MonkeyPatch) -> None:
    content = zip_of(linux__bin__server=b"program", linux__share__x=b"x", mac__bin__server=b"other")
    FakeMaven(monkeypatch, {"g:a:1:jar": content})
    use(monkeypatch, Bundle("x", "1", "zip", "", "linux/", (pin("g:a:1:jar", content),)))
    folder = fetch("x")
    assert sorted(path.name for path in folder.iterdir()) == ["bin", "share"]
    assert (folder / "bin" / "server").stat().st_mode & 0o111 == 0o111


@pytest.mark.parametrize("name", ["../evil", "a/../../evil", "{outside}/evil", "bin/../../../evil"])
@pytest.mark.parametrize(("layout", "with_filter"), [("zip", True), ("tar", True), ("tar", False)])
def test_an_archive_unpacks_into_its_own_folder_alone(
    name: str, layout: str, with_filter: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    name = name.replace("{outside}", str(outside))
    content = zip_of(**{name: b"x"}) if layout == "zip" else tar_of(name, b"x")
    FakeMaven(monkeypatch, {"g:a:1:jar": content})
    use(monkeypatch, Bundle("x", "1", layout, "", "", (pin("g:a:1:jar", content),)))
    if not with_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    with pytest.raises(LocalError, match="cannot be unpacked"):
        fetch("x")
    assert list(cache_folder().rglob("evil")) == []
    assert list(outside.iterdir()) == []


def tar_member(kind: bytes, name: str, link: str) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        info = tarfile.TarInfo(name)
        info.type, info.linkname = kind, link
        tar.addfile(info)
    return out.getvalue()


@pytest.mark.parametrize("with_filter", [True, False])
@pytest.mark.parametrize(
    ("kind", "link"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.SYMTYPE, "../../outside"),
        (tarfile.LNKTYPE, "../outside"),
        (tarfile.LNKTYPE, "/etc/passwd"),
        (tarfile.CHRTYPE, ""),
        (tarfile.BLKTYPE, ""),
        (tarfile.FIFOTYPE, ""),
    ],
)
def test_links_out_and_devices_are_refused(
    kind: bytes, link: str, with_filter: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not with_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
    content = tar_member(kind, "bin/server", link)
    FakeMaven(monkeypatch, {"g:a:1:jar": content})
    use(monkeypatch, Bundle("x", "1", "tar", "", "", (pin("g:a:1:jar", content),)))
    with pytest.raises(LocalError, match="cannot be unpacked"):
        fetch("x")
    assert [path.suffix for path in (cache_folder() / "artifacts").iterdir()] == [".lock"]


@pytest.mark.parametrize("with_filter", [True, False])
def test_links_within_are_unpacked(with_filter: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not with_filter:
        monkeypatch.delattr(tarfile, "data_filter", raising=False)
        monkeypatch.setattr(tarfile.TarFile, "extraction_filter", None, raising=False)
    content = tar_member(tarfile.SYMTYPE, "lib/a.so", "a.so.1")
    FakeMaven(monkeypatch, {"g:a:1:jar": content})
    use(monkeypatch, Bundle("x", "1", "tar", "", "", (pin("g:a:1:jar", content),)))
    assert (fetch("x") / "lib" / "a.so").readlink() == Path("a.so.1")


def test_a_cache_of_somebody_else_is_not_used(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Its programs would be run."""
    FakeMaven(monkeypatch, {"g:a:1:jar": b"one"})
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),)))
    folder = fetch("x")
    (library,) = folder.iterdir()
    for place in (cache.parent, cache, cache / "artifacts", folder, library):
        monkeypatch.setattr(artifacts, "_is_private", lambda _: False)
        for mode in (0o777, 0o775):
            place.chmod(mode)
            with pytest.raises(LocalError, match="set MILLRACE_CACHE to a folder of your own"):
                fetch("x")
        monkeypatch.setattr(artifacts, "_is_private", lambda _: True)
        assert fetch("x") == folder
        place.chmod(0o755)
    if os.geteuid() == 0:
        os.chown(folder, 4711, -1)
    monkeypatch.setattr(artifacts.os, "geteuid", lambda: 4712)
    with pytest.raises(LocalError, match="belongs to another user"):
        fetch("x")


def test_a_umask_that_gives_all_rights_away(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    FakeMaven(monkeypatch, {"g:a:1:jar": b"one"})
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),)))
    umask = os.umask(0)
    try:
        folder = fetch("x")
    finally:
        os.umask(umask)
    assert fetch("x") == folder
    for path in (cache, cache / "artifacts", folder, *folder.iterdir()):
        assert not path.stat().st_mode & 0o022, path


def test_a_cache_behind_a_link_of_ours(monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    cache.symlink_to(tmp_path / "elsewhere")
    FakeMaven(monkeypatch, {"g:a:1:jar": b"one"})
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),)))
    assert fetch("x").is_dir()
    (tmp_path / "elsewhere").chmod(0o777)
    with pytest.raises(LocalError, match="others may write in it"):
        fetch("x")


def test_what_is_left_over_is_removed_as_what_it_is(
    monkeypatch: pytest.MonkeyPatch, cache: Path, tmp_path: Path
) -> None:
    """Not what a link leads to."""
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").touch()
    (cache / "artifacts").mkdir(parents=True)
    wanted = Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),))
    (cache / "artifacts" / f".{wanted.folder_name}.link").symlink_to(precious)
    (cache / "artifacts" / f"{wanted.folder_name}.lock").symlink_to(tmp_path / "text")
    (tmp_path / "text").write_text("precious")
    FakeMaven(monkeypatch, {"g:a:1:jar": b"one"})
    use(monkeypatch, wanted)
    assert fetch("x").is_dir()
    assert (precious / "file").exists()
    assert (tmp_path / "text").read_text() == "precious"


def test_two_at_once_download_once(monkeypatch: pytest.MonkeyPatch) -> None:
    maven = FakeMaven(monkeypatch, {"g:a:1:jar": b"one"})
    maven.delay_s = 0.2
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),)))
    threads = [threading.Thread(target=fetch, args=("x",)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert maven.downloads == ["g:a:1:jar"]


def test_what_a_killed_process_left_is_no_bundle(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    wanted = Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"),))
    script = (
        "import os, signal, sys\n"
        "from millrace.local import artifacts\n"
        "from millrace.local.artifacts import Bundle, Pin\n"
        "def resolve(pin, context):\n"
        "    context.repo_cache.mkdir(parents=True)\n"
        "    (context.repo_cache / 'half').write_bytes(b'o')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "Pin.resolve = resolve\n"
        f"artifacts.bundle = lambda name: artifacts.{wanted}\n"
        "artifacts.fetch('x')\n"
    )
    killed = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True)
    assert killed.returncode == -9
    assert list((cache / "artifacts").glob(".x-*/repository/half"))
    FakeMaven(monkeypatch, {"g:a:1:jar": b"one"})
    use(monkeypatch, wanted)
    folder = fetch("x")
    names = {folder.name, f"{folder.name}.lock", f"{folder.name}.files"}
    assert {path.name for path in folder.parent.iterdir()} == names


def two_jars(monkeypatch: pytest.MonkeyPatch) -> Path:
    FakeMaven(monkeypatch, {"g:a:1:jar": b"one", "g:b:2:jar": b"two"})
    use(monkeypatch, Bundle("x", "1", "jars", "", "", (pin("g:a:1:jar", b"one"), pin("g:b:2:jar", b"two"))))
    return fetch("x")


@pytest.mark.parametrize("what", ["altered", "added", "removed", "exchanged for a link", "list damaged"])
def test_what_was_altered_since_it_was_unpacked_is_not_run(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    folder = two_jars(monkeypatch)
    first, second = sorted(folder.iterdir())
    status = first.stat()
    if what == "altered":
        first.write_bytes(b"0ne")
        os.utime(first, ns=(status.st_atime_ns, status.st_mtime_ns))
    elif what == "added":
        (folder / "zzz.jar").write_bytes(b"more")
    elif what == "list damaged":
        artifacts._list_of(folder).write_text("no JSON")
    else:
        first.unlink()
        if what == "exchanged for a link":
            first.symlink_to(second)
    with pytest.raises(LocalError, match="of the cache is not as it was unpacked"):
        fetch("x")
    shutil.rmtree(folder)
    assert fetch("x") == folder
    assert first.read_bytes() == b"one"


def test_what_was_touched_alone_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a cache was copied: the digests are compared once, and noted with the new times."""
    folder = two_jars(monkeypatch)
    for path in folder.iterdir():
        os.utime(path, ns=(1, 1))
    assert fetch("x") == folder
    monkeypatch.setattr(artifacts, "sha256", lambda path: pytest.fail(f"{path} is read again"))
    assert fetch("x") == folder


def test_what_an_earlier_version_has_unpacked_is_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    folder = two_jars(monkeypatch)
    artifacts._list_of(folder).unlink()
    assert fetch("x") == folder
    assert artifacts._list_of(folder).stat().st_mode & 0o077 == 0
