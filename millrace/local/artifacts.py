"""The pinned artifacts of the local stack: fetched once, checked, unpacked whole or not at all.

``artifacts.toml`` names every file with its SHA-256 and size. A bundle is fetched under a lock on the file
system into a folder beside its place and renamed when it is complete, so neither a killed process nor two
processes at once can leave half a bundle behind. The folder's name contains a digest of the pins: other pins
are another folder.

Beside a folder a list of its files is kept, with size, times and digest. At each use a file of another size
or time is compared with its digest.

``python -m millrace.local.pin`` resolves the roots of the bundles again and rewrites the pins.
"""

import contextlib
import fcntl
import grp
import hashlib
import json
import os
import pwd
import shutil
import ssl
import stat
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

from millrace.local.errors import LocalError

PINS = Path(__file__).with_name("artifacts.toml")
_PARALLEL_DOWNLOADS = 6
_ATTEMPTS = 3
TIMEOUT_S = 60
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True, slots=True)
class Pin:
    """A file of a Maven repository: ``group:artifact:version:packaging[:classifier]``, digest and size."""

    coordinate: str
    sha256: str
    size: int

    def resolve(self, context: Any) -> Path:
        """Return the file's path in the repository cache of a ``jgo`` context, downloaded if need be."""
        group, artifact, version, packaging, classifier = [*self.coordinate.split(":"), ""][:5]
        component = context.project(group, artifact).at_version(version)
        return Path(component.artifact(classifier=classifier, packaging=packaging).resolve())


@dataclass(frozen=True, slots=True)
class Bundle:
    """Some pinned files that are used together, and how they are laid out in the cache."""

    name: str
    version: str
    layout: str  # jars | tar | zip
    member: str  # an archive inside the zip, to be unpacked in its stead
    prefix: str  # of the members of the zip to unpack; stripped
    pins: tuple[Pin, ...]

    @property
    def size(self) -> int:
        """Bytes to download."""
        return sum(pin.size for pin in self.pins)

    @property
    def folder_name(self) -> str:
        """Name of the folder in the cache, different for different pins."""
        pins = "\n".join(f"{pin.coordinate} {pin.sha256}" for pin in self.pins)
        digest = hashlib.sha256(f"{self.layout} {self.member} {self.prefix}\n{pins}".encode()).hexdigest()
        return f"{self.name}-{self.version}-{digest[:8]}"


def cache_folder() -> Path:
    """Return the folder of all downloads: ``MILLRACE_CACHE``, else ``millrace`` in the user's cache.

    :raises LocalError: when others may write in it.
    """
    if chosen := os.environ.get("MILLRACE_CACHE"):
        return trusted(Path(chosen).expanduser().absolute())
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return trusted(Path(base).expanduser().absolute() / "millrace")


def trusted(path: Path) -> Path:
    """Return a place in the cache, from which programs are run, if nobody else can have put them there.

    :raises LocalError: when another user, root aside, owns it or may write in it, or may put another in its
        place.
    """
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        _check_owner(path, path.stat())
    for folder in path.resolve().parents:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            found = folder.stat()
            # Where the sticky bit is set, nobody renames what belongs to others.
            if not found.st_mode & stat.S_ISVTX:
                _check_owner(folder, found)
    return path


def trusted_tree(path: Path) -> Path:
    """Return a folder of the cache if :func:`trusted` does so, and the same is true of all that is in it."""
    trusted(path)
    for folder, _, files in os.walk(path):
        _check_owner(Path(folder), Path(folder).stat())
        for name in files:
            file = os.path.join(folder, name)  # noqa: PTH118 - there are thousands
            _check_owner(Path(file), os.lstat(file))
    return path


def _check_owner(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        return
    others = stat.S_IWOTH | (0 if _is_private(found.st_gid) else stat.S_IWGRP)
    if found.st_uid not in {0, os.geteuid()} or found.st_mode & others:
        raise LocalError(
            f"{path} of the cache belongs to another user, or others may write in it, and programs in it "
            f"would be run: set MILLRACE_CACHE to a folder of your own, or remove it"
        )


@cache
def _is_private(gid: int) -> bool:
    """Return whether a group is root's, or one that bears our name and that nobody else is a member of."""
    if gid == 0:
        return True
    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except KeyError:
        return False
    return gid == user.pw_gid and group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name}


def _restrict(folder: Path) -> None:
    """Take the right to write from all others, which a umask of 000 gives them."""
    for parent, _, files in os.walk(folder):
        for path in (Path(parent), *(Path(parent, name) for name in files)):
            mode = path.lstat().st_mode
            if not stat.S_ISLNK(mode) and mode & _OTHERS_WRITE:
                path.chmod(stat.S_IMODE(mode) & ~_OTHERS_WRITE)


def made_folder(path: Path) -> Path:
    """Return a folder of the cache, made where it is missing.

    :raises LocalError: when it cannot be made, or nothing can be written in it.
    """
    try:
        for folder in reversed((path, *path.parents)):
            if not folder.exists():
                folder.mkdir(mode=0o755, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            return path
    except OSError as error:
        raise LocalError(
            f"the cache {path} cannot be written: {error.strerror}; "
            "set MILLRACE_CACHE to a folder of your own"
        ) from error


def bundle(name: str) -> Bundle:
    """Return the bundle of that name as pinned in ``artifacts.toml``."""
    entry = tomllib.loads(PINS.read_text())[name]
    pins = []
    for line in entry["files"]:
        coordinate, sha256, size = line.split()
        pins.append(Pin(coordinate, sha256, int(size)))
    return Bundle(
        name=name,
        version=entry["version"],
        layout=entry["layout"],
        member=entry.get("member", ""),
        prefix=entry.get("prefix", ""),
        pins=tuple(pins),
    )


def fetch(name: str) -> Path:
    """Return the folder of a bundle in the cache, downloading and unpacking it first where needed.

    :raises LocalError: when a file cannot be had or is not the one that is pinned.
    """
    wanted = bundle(name)

    def unpack(folder: Path) -> None:
        _unpack(wanted, _download(wanted, folder.with_name("repository")), folder)

    place = cache_folder() / "artifacts" / wanted.folder_name
    return made_once(place, unpack, waiting_for=f"another process that fetches {name}")


def made_once(place: Path, make: Callable[[Path], None], *, waiting_for: str) -> Path:
    """Return a folder of the cache, which ``make`` fills where it is missing: whole, or not at all."""
    root, name = trusted(place.parent), place.name
    if place.is_dir():
        return _unaltered(trusted_tree(place))
    with locked(root / f"{name}.lock", waiting_for=waiting_for):
        if place.is_dir():
            return _unaltered(trusted_tree(place))
        for leftover in root.glob(f".{name}.*"):
            shutil.rmtree(leftover, ignore_errors=True)
        staging = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=root))
        try:
            (staging / "made").mkdir()
            make(staging / "made")
            _restrict(staging / "made")
            _list_of(place).unlink(missing_ok=True)
            (staging / "made").rename(place)
            _write_list(place, _digests(place, {}))
        finally:
            shutil.rmtree(staging, ignore_errors=True)
    return place


def _list_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.files")


def _digests(place: Path, known: Mapping[str, Sequence[Any]]) -> dict[str, list[Any]]:
    """Return size, times and digest of each file; of one whose size and times are known, the known digest."""
    found = {}
    for folder, folders, files in os.walk(place):
        links = [name for name in folders if Path(folder, name).is_symlink()]
        for name in (*files, *links):
            path = Path(folder, name)
            at, status = str(path.relative_to(place)), path.lstat()
            seen = [status.st_size, status.st_mtime_ns, status.st_ctime_ns]
            before = known.get(at)
            if before is not None and list(before[:3]) == seen:
                digest = before[3]
            else:
                digest = f"link to {path.readlink()}" if path.is_symlink() else sha256(path)
            found[at] = [*seen, digest]
    return found


def _unaltered(place: Path) -> Path:
    """Return a folder of the cache if its files are those that were made.

    :raises LocalError: when one was altered, added or removed.
    """
    noted = trusted(_list_of(place))
    try:
        known = json.loads(noted.read_text())
    except FileNotFoundError:  # an earlier version has made the folder, or its list could not be written
        known = None
    except ValueError:
        known = {}
    found = _digests(place, known or {})
    for at in sorted(found.keys() | known.keys()) if known is not None else ():
        if at not in known or at not in found or found[at][3] != known[at][3]:
            raise LocalError(
                f"{place / at} of the cache is not as it was unpacked, and would be run: find out who has "
                f"altered it, then remove {place}, which is made again"
            )
    if found != known:
        _write_list(place, found)
    return place


def _write_list(place: Path, found: Mapping[str, Sequence[Any]]) -> None:
    """Write the list of a folder's files; where that is not possible, the next use computes the digests."""
    with contextlib.suppress(OSError):
        with tempfile.NamedTemporaryFile("w", dir=place.parent, prefix=".list-", delete=False) as file:
            json.dump(found, file)
        Path(file.name).replace(_list_of(place))


@contextlib.contextmanager
def locked(path: Path, *, waiting_for: str) -> Iterator[None]:
    """Hold an exclusive lock on a file; it ends with the process at the latest."""
    with (made_folder(path.parent) / path.name).open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            Console(stderr=True).print(f"waiting for {waiting_for}", highlight=False)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _download(wanted: Bundle, repository: Path) -> list[Path]:
    """Download the files of a bundle, check each against its pin, return the paths in the pins' order."""
    from jgo.maven import MavenContext, PythonResolver  # noqa: PLC0415 - an optional dependency, slow to import

    console = Console(stderr=True)
    label = f"{wanted.name} {wanted.version}"
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        if not console.is_terminal:
            console.print(f"downloading {label} ({wanted.size / 1e6:.0f} MB)", highlight=False)
        task = progress.add_task(f"downloading {label}", total=wanted.size)
        resolver = PythonResolver(progress_callback=_reporter(progress, task))
        context = MavenContext(resolver=resolver, repo_cache=repository, timeout=TIMEOUT_S)
        _trust_like_the_machine()
        with ThreadPoolExecutor(_PARALLEL_DOWNLOADS) as pool:
            return list(pool.map(lambda pin: _download_one(pin, context, repository), wanted.pins))


def _trust_like_the_machine() -> None:
    """Let ``requests``, which knows the public CAs alone, trust those of the machine, such as a proxy's."""
    certificates = ssl.get_default_verify_paths().cafile
    if certificates is not None and "CURL_CA_BUNDLE" not in os.environ:
        os.environ.setdefault("REQUESTS_CA_BUNDLE", certificates)


def _reporter(progress: Progress, task: TaskID) -> Callable[[str, int], Any]:
    """Make what ``jgo`` calls for each file: a context manager that takes counts of bytes."""

    @contextlib.contextmanager
    def report(_filename: str, _total: int) -> Iterator[Callable[[int], None]]:
        yield lambda count: progress.advance(task, count)

    return report


def _download_one(pin: Pin, context: Any, repository: Path) -> Path:
    reason = ""
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_retry_wait_s(attempt))
        try:
            path = pin.resolve(context)
        except Exception as error:  # noqa: BLE001 - jgo raises whatever its HTTP client does, and RuntimeError
            reason = f"{type(error).__name__}: {error}"
            _remove_partial(pin, repository)
            continue
        if (found := sha256(path)) == pin.sha256:
            return path
        reason = f"its SHA-256 is {found}, expected {pin.sha256}"
        path.unlink()
    raise LocalError(
        f"cannot fetch {pin.coordinate} from Maven after {_ATTEMPTS} attempts ({reason}). "
        "Check the network and the proxy settings (HTTPS_PROXY), then run the command again."
    )


def _retry_wait_s(attempt: int) -> float:
    return 2.0 * attempt


def _remove_partial(pin: Pin, repository: Path) -> None:
    """Remove what a broken download left: jgo would take it for the file."""
    _group, artifact, version = pin.coordinate.split(":")[:3]
    for path in repository.glob(f"**/{artifact}/{version}/*"):
        path.unlink(missing_ok=True)


def sha256(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _unpack(wanted: Bundle, files: list[Path], target: Path) -> None:
    match wanted.layout:
        case "jars":
            for file in files:
                file.rename(target / file.name)
        case "tar":
            with tarfile.open(files[0]) as tar:
                untar(tar, target)
        case _:
            assert wanted.layout == "zip"
            with zipfile.ZipFile(files[0]) as archive:
                if wanted.member:
                    # Reading a tar means seeking, which a compressed member does only slowly.
                    with archive.open(wanted.member) as member, tempfile.TemporaryFile() as copy:
                        shutil.copyfileobj(member, copy)
                        copy.seek(0)
                        with tarfile.open(fileobj=copy) as tar:
                            untar(tar, target)
                else:
                    _unzip(archive, wanted.prefix, target)


def untar(tar: tarfile.TarFile, target: Path) -> None:
    """Unpack a tar; raises LocalError where it holds more than files and folders within the target."""
    _check_members(tar, target.resolve())
    if hasattr(
        tarfile, "data_filter"
    ):  # since Python 3.11.4; it also keeps the archive's owner ids out, as root
        tar.extraction_filter = tarfile.data_filter
    try:
        tar.extractall(target)  # noqa: S202 - see above
    except tarfile.TarError as error:
        raise LocalError(f"{tar.name!r} cannot be unpacked: {error}") from error


def _check_members(tar: tarfile.TarFile, target: Path) -> None:
    """Refuse what a tar may hold beside files and folders that lie in the target, and links within it."""
    for member in tar:
        path = target / member.name
        link = path.parent / member.linkname if member.issym() else target / member.linkname
        inside = all(Path(os.path.normpath(one)).is_relative_to(target) for one in (path, link))
        if not inside or not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            raise LocalError(f"{tar.name!r} cannot be unpacked: {member.name!r} would lie outside it")


def _unzip(archive: zipfile.ZipFile, prefix: str, target: Path) -> None:
    for info in archive.infolist():
        if not info.filename.startswith(prefix) or info.is_dir():
            continue
        path = target / info.filename.removeprefix(prefix)
        if not path.resolve().is_relative_to(target.resolve()):
            raise LocalError(f"{archive.filename} cannot be unpacked: {info.filename!r} would lie outside it")
        path.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(info) as source, path.open("wb") as destination:
            shutil.copyfileobj(source, destination)
        if path.parent.name in {"bin", "scripts"}:
            path.chmod(path.stat().st_mode | stat.S_IXUSR | stat.S_IXGRP | stat.S_IXOTH)
