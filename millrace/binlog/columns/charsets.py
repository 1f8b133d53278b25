"""The character sets of MySQL and MariaDB: what their bytes mean, and which collation id belongs to which.

The codecs of Python that bear the same names are other tables: latin1 is Windows-1252 with five codes more,
sjis has another backslash, eight of the sets have no codec at all. So the meaning of each code comes from a
server's CONVERT, kept in ``charsets.json`` (written by ``tools/generate_charsets.py``, which names the
servers in it). A codec of Python does the work only where it was found equal on every code, or after a
list of the codes in which it is not. The collations are in ``collations.tsv`` (written by
``tools/generate_collations.py``).
"""

import codecs
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from millrace.binlog.errors import UnsupportedError

__all__ = [
    "BINARY",
    "UTF8MB3_COLLATION",
    "Charset",
    "charset",
    "charset_name",
    "charset_of_collation",
    "charset_of_text",
    "collation_name",
    "collation_of_charset",
    "collation_servers",
    "current_name",
    "max_bytes_per_character",
    "names_utf8mb3",
]

BINARY = "binary"
UTF8MB3_COLLATION = 33
"""utf8mb3_general_ci, which clients are taken to use where nothing else is said."""


@dataclass(frozen=True, slots=True)
class Charset:
    """A character set under MySQL's name.

    ``decode(bytes)`` and ``encode(text)`` raise :class:`UnicodeError` for what the set does not define.
    ``injective`` says that no two codes mean the same character, so that what was decoded encodes to the same
    bytes again. ``texts`` has the UTF-8 of each code where all codes are single bytes, empty for those that
    mean nothing; it is None for all other sets.
    """

    name: str
    decode: Callable[[bytes], str]
    encode: Callable[[str], bytes]
    injective: bool = True
    texts: tuple[bytes, ...] | None = None


def _python(name: str, codec: str, *, injective: bool = True) -> Charset:
    """Take a codec of Python as it is."""
    decoder, encoder = codecs.getdecoder(codec), codecs.getencoder(codec)

    def decode(data: bytes) -> str:
        return decoder(data)[0]

    def encode(text: str) -> bytes:
        return encoder(text)[0]

    return Charset(name, decode, encode, injective=injective)


def _basic_plane(name: str, codec: str) -> Charset:
    """Take a codec of Python, but no character beyond U+FFFF."""
    decoder, encoder = codecs.getdecoder(codec), codecs.getencoder(codec)

    def decode(data: bytes) -> str:
        text = decoder(data)[0]
        if not text.isascii() and max(text) > "\uffff":
            raise UnicodeDecodeError(name, data, 0, len(data), "a character beyond U+FFFF")
        return text

    def encode(text: str) -> bytes:
        if not text.isascii() and max(text) > "\uffff":
            raise UnicodeEncodeError(name, text, 0, len(text), "a character beyond U+FFFF")
        return encoder(text)[0]

    return Charset(name, decode, encode)


def _single_byte(name: str, table: str) -> Charset:
    """Build a set of 256 codes; U+FFFE in ``table`` marks those that mean nothing."""
    encoding_map = codecs.charmap_build(table)
    defined = table.replace("\ufffe", "")

    def decode(data: bytes) -> str:
        return codecs.charmap_decode(data, "strict", table)[0]

    def encode(text: str) -> bytes:
        return codecs.charmap_encode(text, "strict", encoding_map)[0]

    texts = tuple(b"" if text == "\ufffe" else text.encode() for text in table)
    return Charset(name, decode, encode, injective=len(set(defined)) == len(defined), texts=texts)


_CODE = {
    "eucjpms": rb"\x8f[\x80-\xff]{2}|[\x80-\xff][\x80-\xff]|[\x00-\xff]",
    "ujis": rb"\x8f[\x80-\xff]{2}|[\x80-\xff][\x80-\xff]|[\x00-\xff]",
    "gb18030": rb"[\x81-\xfe][0-9][\x81-\xfe][0-9]|[\x81-\xfe][\x40-\xfe]|[\x00-\xff]",
    "cp932": rb"[\x81-\x9f\xe0-\xfc][\x40-\xfc]|[\x00-\xff]",
    "sjis": rb"[\x81-\x9f\xe0-\xfc][\x40-\xfc]|[\x00-\xff]",
}
"""How bytes divide into codes; where nothing is listed, a high byte takes the next one with it."""

_SHORT = 1 << 16
_PAIRS = rb"[\x80-\xff][\x00-\xff]|[\x00-\xff]"


class _Characters(dict[bytes, str]):
    """Code to character: the differences from a codec of Python, then what that codec says."""

    def __init__(self, codec: str, differences: dict[str, str | None]) -> None:
        super().__init__()
        self.codec = codec
        self.undefined = {bytes.fromhex(code) for code, text in differences.items() if text is None}
        self.update((bytes.fromhex(code), text) for code, text in differences.items() if text is not None)

    def __missing__(self, code: bytes) -> str:
        if code in self.undefined:
            raise KeyError(code)
        text = code.decode(self.codec)
        if len(text) != 1:
            raise KeyError(code)
        if len(code) < 4:
            self[code] = text
        return text


def _found(match: re.Match[bytes]) -> bytes:
    return match[0]


def _multi_byte(name: str, codec: str, differences: dict[str, str | None]) -> Charset:
    """Build a set of codes of one to four bytes, compatible with ASCII below 0x80."""
    if not differences:
        return _python(name, codec, injective=False)
    characters = _Characters(codec, differences)
    special = {text: code for code, text in reversed(characters.items())}
    code = re.compile(_CODE.get(name, _PAIRS), re.DOTALL)

    def decode(data: bytes) -> str:
        if data.isascii():
            return data.decode("ascii")
        # To have all codes at once is quicker, and takes many times their bytes.
        codes = code.findall(data) if len(data) <= _SHORT else map(_found, code.finditer(data))
        try:
            return "".join(map(characters.__getitem__, codes))
        except (KeyError, UnicodeDecodeError) as error:
            raise UnicodeDecodeError(name, data, 0, len(data), "a code that means nothing") from error

    def encode_one(character: str) -> bytes:
        if character.isascii():
            return character.encode("ascii")
        code = special.get(character)
        if code is not None:
            return code
        code = character.encode(codec)
        try:
            same = characters[code] == character
        except (KeyError, UnicodeDecodeError):
            same = False
        if not same:
            raise UnicodeEncodeError(name, character, 0, 1, "a character that the set does not have")
        return code

    def encode(text: str) -> bytes:
        if text.isascii():
            return text.encode("ascii")
        slices = (text[start : start + _SHORT] for start in range(0, len(text), _SHORT))
        return b"".join([b"".join(map(encode_one, piece)) for piece in slices])

    return Charset(name, decode, encode, injective=False)


_FORMULAS = {
    "utf8mb4": Charset("utf8mb4", bytes.decode, str.encode),
    "utf8mb3": _basic_plane("utf8mb3", "utf-8"),
    "ucs2": _basic_plane("ucs2", "utf-16-be"),
    "utf16": _python("utf16", "utf-16-be"),
    "utf16le": _python("utf16le", "utf-16-le"),
    "utf32": _python("utf32", "utf-32-be"),
}
"""The encodings of Unicode. Their codecs in Python are strict about surrogates, as the servers are."""


@cache
def _facts() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads(files(__package__).joinpath("charsets.json").read_text("ascii"))
    return facts


def current_name(name: str) -> str:
    """Return the name that servers have for a character set since MySQL 8.0.28: ``utf8`` is utf8mb3."""
    return "utf8mb3" if name == "utf8" else name


@cache
def charset(name: str) -> Charset:
    """Find a character set by MySQL's name, in lower case; ``utf8`` means utf8mb3.

    Raise :class:`UnsupportedError` for a name that no server of the tables has, and for ``binary``, which
    is no character set but the lack of one.
    """
    name = current_name(name)
    if name in _FORMULAS:
        return _FORMULAS[name]
    facts = _facts()
    if name in facts["single_byte"]:
        return _single_byte(name, facts["single_byte"][name])
    if name in facts["multi_byte"]:
        entry = facts["multi_byte"][name]
        return _multi_byte(name, entry["codec"], entry["differences"])
    raise UnsupportedError(f"no character set is called {name!r}")


def _of_no_meaning(data: bytes) -> str:
    raise UnicodeDecodeError("unknown", data, 0, len(data), "the character set is not known")


def _without_bytes(text: str) -> bytes:
    raise UnicodeEncodeError("unknown", text, 0, len(text), "the character set is not known")


_UNKNOWN = Charset("", _of_no_meaning, _without_bytes)


def charset_of_text(name: str | None, collation_id: int | None) -> Charset | None:
    """Find the character set of a column, by its name or else by its collation; None for bytes.

    Of one that is not known no value can be decoded; it has no name.
    """
    if name is None:
        return None if collation_id is None else _UNKNOWN
    try:
        return None if name == BINARY else charset(name)
    except UnsupportedError:
        return _UNKNOWN


@cache
def _collations() -> dict[int, str]:
    """Collation id to character set; the ids of all servers of the table, which nowhere contradict."""
    return {number: charset for number, (charset, *_) in _collation_table().items()}


def charset_of_collation(collation_id: int) -> str:
    """Return the name of the character set to which a collation belongs.

    Raise :class:`UnsupportedError` for an id that none of :func:`collation_servers` has.
    """
    name = _collations().get(collation_id)
    if name is None:
        servers = ", ".join(collation_servers())
        raise UnsupportedError(f"collation id {collation_id} is not known to {servers}")
    return name


@cache
def collation_of_charset(name: str) -> int:
    """Return the lowest id among the collations of a character set; raise as :func:`charset_of_collation`."""
    name = current_name(name)
    ids = [collation_id for collation_id, owner in _collations().items() if owner == name]
    if not ids:
        raise UnsupportedError(f"no collation of a character set {name!r} is known")
    return min(ids)


def collation_servers() -> list[str]:
    """Versions of the servers from which the collation ids were read."""
    return [line[2:] for line in _collation_lines() if line.startswith("#")]


def _collation_lines() -> list[str]:
    return files(__package__).joinpath("collations.tsv").read_text("ascii").splitlines()


@cache
def _collation_table() -> dict[int, tuple[str, str, str]]:
    """Read what collation ids are: the character set, and the names in MySQL and MariaDB, empty without."""
    rows = (line.split("\t") for line in _collation_lines() if not line.startswith("#"))
    return {int(number): (charset, mysql, mariadb) for number, charset, mysql, mariadb in rows}


def collation_name(collation_id: int, *, mariadb: bool, utf8mb3: bool) -> str | None:
    """Return the name of a collation, None where its id is not known.

    ``utf8mb3`` says that the collations of that character set bear its full name, and not that of ``utf8``:
    see :func:`names_utf8mb3`.
    """
    _, mysql_name, mariadb_name = _collation_table().get(collation_id, ("", "", ""))
    name = (mariadb_name or mysql_name) if mariadb else (mysql_name or mariadb_name)
    family, _, rest = name.partition("_")
    if family in ("utf8", "utf8mb3"):
        name = f"{'utf8mb3' if utf8mb3 else 'utf8'}_{rest}"
    return name or None


def names_utf8mb3(server_version: tuple[int, ...], *, mariadb: bool) -> bool:
    """Return whether a server names collations utf8mb3_… in full: MySQL since 8.0.30, MariaDB since 10.6."""
    return server_version >= ((10, 6) if mariadb else (8, 0, 30))


def charset_name(collation_id: int, *, utf8mb3: bool) -> str | None:
    """Return the name of a collation's character set, None where the id is not known."""
    try:
        name = charset_of_collation(collation_id)
    except UnsupportedError:
        return None
    return "utf8" if name == "utf8mb3" and not utf8mb3 else name


_MAX_BYTES_PER_CHARACTER = {
    "big5": 2,
    "cp932": 2,
    "eucjpms": 3,
    "euckr": 2,
    "gb18030": 4,
    "gb2312": 2,
    "gbk": 2,
    "sjis": 2,
    "ucs2": 2,
    "ujis": 3,
    "utf16": 4,
    "utf16le": 4,
    "utf32": 4,
    "utf8mb3": 3,
    "utf8mb4": 4,
}


def max_bytes_per_character(name: str) -> int:
    """Return the length of a set's longest code, by which the servers reckon a column's length in bytes."""
    return _MAX_BYTES_PER_CHARACTER.get(current_name(name), 1)
