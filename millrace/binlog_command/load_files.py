"""The files of LOAD DATA statements: put together block by block, for the statements that name them."""

import contextlib
import os
import tempfile
from pathlib import Path


class LoadFiles:
    """Writes the content of files, which comes in blocks under a number, into a folder.

    ``folder`` is by default the one for temporary files. The files stay there: the text that names them is
    loaded later. Each has a name that is new, with the number of the file in the log in it, and is for its
    owner alone: what is loaded is what tables hold.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder or Path(tempfile.gettempdir())
        self._paths: dict[int, Path] = {}
        self._numbers: dict[int, int] = {}

    def begin(self, file_id: int, block: bytes) -> None:
        """Take the first block of a file; another one under this number that nothing used is removed."""
        self.drop(file_id)
        number = self._numbers.get(file_id, 0)
        while True:
            path = self._folder / f"SQL_LOAD_MB-{file_id:x}-{number:x}"
            number += 1
            with contextlib.suppress(FileExistsError):
                _write(path, block, os.O_CREAT | os.O_EXCL)
                break
        self._paths[file_id], self._numbers[file_id] = path, number

    def append(self, file_id: int, block: bytes) -> bool:
        """Take the next block; tell whether the file was begun."""
        path = self._paths.get(file_id)
        if path is None:
            return False
        _write(path, block, os.O_APPEND)
        return True

    def take(self, file_id: int) -> Path | None:
        """Return the path of a file that is used now; None where it was not begun."""
        return self._paths.pop(file_id, None)

    def drop(self, file_id: int) -> None:
        """Remove a file that is not used."""
        path = self._paths.pop(file_id, None)
        if path is not None:
            path.unlink()

    def close(self) -> None:
        """Remove the files that nothing used."""
        for file_id in list(self._paths):
            self.drop(file_id)


def _write(path: Path, block: bytes, flags: int) -> None:
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC | flags, 0o600), "wb") as file:
        file.write(block)
