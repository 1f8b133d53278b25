"""Keys of encrypted logs from a file, a line each: ``id;hexadecimal key``.

The form is that of MariaDB's ``file_key_management``, which ignores what follows a key on its line: see
``parse_line`` in ``plugin/file_key_management/parser.cc``. For MySQL the id is the key's name in the keyring.
"""

import re
from pathlib import Path
from typing import Final

from millrace.binlog.encryption import KeyId, LogKeys, MariadbCipher
from millrace.runtime.errors import UserError
from millrace.runtime.exit_codes import ExitCode

_KEY_LINE: Final = re.compile(
    rb"\s*(?P<id>[^#;\s]+)\s*;\s*(?P<key>(?:[0-9A-Fa-f]{64}|[0-9A-Fa-f]{48}|[0-9A-Fa-f]{32})(?![0-9A-Fa-f]))"
)
_NO_KEY_LINE: Final = re.compile(rb"\s*(#.*)?")
_ENCRYPTED_KEYS: Final = b"Salted__"


def read_keys(name: str, cipher: MariadbCipher | None) -> LogKeys:
    """Read a key file; raises UserError. ``cipher`` is MariaDB's, None to have it found out."""
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise UserError(f"{name} cannot be read: {error.strerror}", ExitCode.SETTINGS) from error
    if content.startswith(_ENCRYPTED_KEYS):
        raise UserError(
            f"{name} is encrypted itself (file_key_management_filekey): decrypt it before, "
            "openssl enc -d -aes-256-cbc -md sha1",
            ExitCode.SETTINGS,
        )
    keys: dict[KeyId, bytes] = {}
    for number, line in enumerate(content.split(b"\n"), 1):
        found = _KEY_LINE.match(line)
        if found is not None:
            key_id = found["id"].decode("utf-8", "surrogateescape")
            keys[int(key_id) if key_id.isdecimal() else key_id] = bytes.fromhex(found["key"].decode("ascii"))
        elif _NO_KEY_LINE.fullmatch(line.rstrip()) is None:
            raise UserError(
                f"{name}, line {number}: expected is a key's id, a semicolon and 32, 48 or 64 hexadecimal "
                "digits",
                ExitCode.SETTINGS,
            )
    return LogKeys(keys, cipher)
