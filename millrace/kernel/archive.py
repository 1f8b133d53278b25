"""The kernel where Millrace is a zip, as on workers of Spark: Python loads no library out of one.

The libraries are unpacked once, beside the archive, into a folder that is named by their content. One that
is not as the archive has it is unpacked again.
"""

import secrets
import zipfile
import zlib
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Final

_INSIDE: Final = "millrace/kernel/"


def unpack(archive: str) -> list[str]:
    """Unpack the libraries of an archive; give the folder where they are, none where that cannot be."""
    try:
        with zipfile.ZipFile(archive) as packed:
            libraries = [
                one
                for one in packed.infolist()
                if one.filename.startswith(_INSIDE) and one.filename.endswith(tuple(EXTENSION_SUFFIXES))
            ]
            content = zlib.crc32(repr([(one.filename, one.CRC) for one in libraries]).encode())
            folder = Path(f"{archive}.{content:08x}")
            folder.mkdir(exist_ok=True)
            for one in libraries:
                place = folder / one.filename.rpartition("/")[2]
                if not place.exists() or zlib.crc32(place.read_bytes()) != one.CRC:
                    whole = folder / f".{secrets.token_hex(8)}"  # other workers do the same at the same time
                    whole.write_bytes(packed.read(one))
                    whole.replace(place)
    except OSError:
        return []
    return [str(folder)]
