"""The files of LOAD DATA statements: put together block by block, for the statements that name them."""

import tempfile
from pathlib import Path

__all__ = ["LoadFiles"]


class LoadFiles:
    """Writes the content of files, which comes in blocks under a number, into a folder.

    ``folder`` is by default the one for temporary files. The files stay there: the text that names them is
    loaded later. Each has a name that is new, with the number of the file in the log in it.
    """

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._paths: dict[int, Path] = {}

    def begin(self, file_id: int, block: bytes) -> None:
        """Take the first block of a file."""
        folder = self._folder or Path(tempfile.gettempdir())
        number = 0
        while True:
            path = folder / f"SQL_LOAD_MB-{file_id:x}-{number:x}"
            try:
                with path.open("xb") as file:
                    file.write(block)
            except FileExistsError:
                number += 1
                continue
            self._paths[file_id] = path
            return

    def append(self, file_id: int, block: bytes) -> bool:
        """Take the next block; tell whether the file was begun."""
        path = self._paths.get(file_id)
        if path is None:
            return False
        with path.open("ab") as file:
            file.write(block)
        return True

    def take(self, file_id: int) -> Path | None:
        """Give the path of a file that is used now; None where it was not begun."""
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
