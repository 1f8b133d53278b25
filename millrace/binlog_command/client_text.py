r"""Whether clients read a statement as servers do.

``mysql`` and ``mariadb`` cut text into statements by a lexer of their own (``add_line`` in
``client/mysql.cc``), which knows less than that of the server (``sql/sql_lex.cc``). Where the two disagree, a
client sends something else than the server has logged, or executes a command of its own, such as ``\!``:

- after ``--`` servers take any control character for the start of a comment, clients take spaces alone;
- clients see quotes within comments that servers skip, ``/*M!999999 ' */``, and servers other than MySQL 9
  see them between ``$$``;
- clients end their input at NUL, and take ``\`` outside of strings for the start of a command, the word
  DELIMITER anywhere for one, and others at the start of a statement;
- whether ``\`` escapes depends on modes of the session, and on the version for what is between ``"``;
- in names between backquotes some servers skip as many bytes as a first byte announces, clients do not.

A statement is read alike if it consists of tokens that all of them take for the same.
"""

import re
import unicodedata
from functools import cache
from typing import Final

from millrace.binlog.columns.charsets import charset
from millrace.binlog.types import SqlMode

_COMMANDS: Final = frozenset(
    (
        *("?", "charset", "clear", "connect", "delimiter", "edit", "ego", "exit", "go", "help", "nopager"),
        *("notee", "nowarning", "pager", "print", "prompt", "query_attributes", "quit", "rehash"),
        *("resetconnection", "sandbox", "source", "ssl_session_data_print", "status", "system", "tee"),
        *("use", "warnings"),
    )
)
_UTF8: Final = frozenset(("utf8", "utf8mb3", "utf8mb4"))
_TRAILING: Final = frozenset(
    ("big5", "cp932", "eucjpms", "euckr", "gb18030", "gb2312", "gbk", "sjis", "ujis")
)
"""Character sets of several bytes per character, some of which may equal ASCII signs."""

_FIRST_WORD: Final = re.compile(r"\s*(\?|\w+)")
_DOLLAR_QUOTE: Final = re.compile(rb"(?<![\w$\x80-\xff])\$[\w\x80-\xff]*\$")
_QUOTES_ANYTHING: Final = re.compile(rb"""['"`\\#]|--|/\*""")


def reads_alike(statement: bytes, charset_name: str | None, sql_mode: int | None) -> bool:
    """Return whether all clients read a statement as the server does in a session with these settings.

    ``sql_mode`` is None where it is not known.
    """
    if b"\0" in statement:
        return False
    if not statement.isascii() and charset_name in _TRAILING:
        try:
            statement = charset(charset_name).decode(statement).encode("ascii", "replace")
        except UnicodeDecodeError:
            return False
    plain = sql_mode is None or bool(sql_mode & SqlMode.NO_BACKSLASH_ESCAPES)
    ansi = plain or bool((sql_mode or 0) & SqlMode.ANSI_QUOTES)
    token = _token(plain, ansi)
    utf8 = charset_name is None or charset_name in _UTF8
    bare, at = [], 0
    for found in token.finditer(statement):
        if found.start() != at:
            return False
        at = found.end()
        if found.lastgroup == "code":
            bare.append(found[0])
        elif found.lastgroup == "name" and utf8 and not _is_utf8(found[0]):
            return False
        else:
            bare.append(b"\x01" if found.lastgroup != "comment" else b" ")
    return at == len(statement) and _is_no_command(statement, b"".join(bare), utf8=utf8)


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_no_command(statement: bytes, bare: bytes, *, utf8: bool) -> bool:
    """Return whether clients find no command in a statement; ``bare`` has no strings and no comments."""
    if utf8 and not _is_utf8(bare):
        return False
    decomposed = unicodedata.normalize("NFKD", bare.decode("utf-8" if utf8 else "latin-1"))
    text = "".join(sign for sign in decomposed if not unicodedata.combining(sign)).casefold()
    first = _FIRST_WORD.match(text)
    if "delimiter" in text or text.lstrip().startswith("--"):
        return False
    # A line that holds the delimiter, as one of USE does, is no command.
    if first is not None and first[1] in _COMMANDS and (first[1] != "use" or b"\n" in statement):
        return False
    dollar = _DOLLAR_QUOTE.search(bare)
    return dollar is None or _QUOTES_ANYTHING.search(statement) is None


@cache
def _token(plain: bool, ansi: bool) -> re.Pattern[bytes]:
    """Make the pattern of a token; ``plain`` and ``ansi`` say that backslashes may not be escapes."""

    def string(quote: str, *, strict: bool, other: str = "") -> str:
        escaped = rf"[^\n{other}{quote if strict else ''}]"
        inner = rf"[^{quote}\\{other}]++ | \\{escaped} | {quote}{quote}"
        if other:
            inner += r" | \*(?!/) | /(?!\*)"
        return rf"{quote}(?: {inner} )*+{quote}"

    def name(other: str = "") -> str:
        inner = rf"[^`\\{other}]++ | \\(?!\n) | ``"
        if other:
            inner += r" | \*(?!/) | /(?!\*)"
        return rf"`(?: {inner} )*+`"

    # What stands between /*! and */ is SQL or a comment, as the version of the server has it.
    executed = (
        rf"/\*M?!(?: [^'\"`\\\#*/-]++ | -(?!-) | \*(?!/) | /(?!\*)"
        rf" | {string(chr(39), strict=True, other='*/')} | {string(chr(34), strict=True, other='*/')}"
        rf" | {name('*/')} )*+\*/"
    )
    null = "" if plain else r" | \\N(?![\w$\x80-\xff])"
    return re.compile(
        rf"""
          (?P<code> (?: [^'"`\\\#*/-]++ | -(?!-(?:[^!-~]|\Z)) | /(?!\*) | \*(?!/) {null} )++ )
        | (?P<comment>
            (?: \# | --(?=[\x09-\x0d\x20]|\Z) )[^\n]*+
            | /\*(?!M?!|[+/])(?: [^*/]++ | \*(?!/) | /(?!\*) )*+\*/
            | /\*\+(?: [^'"`\\\#*/-]++ | -(?!-) )*+\*/ )
        | (?P<name> {name()} )
        | (?P<executed> {executed} )
        | (?P<string> {string("'", strict=plain)} | {string('"', strict=ansi)} )
        """.encode(),
        re.VERBOSE | re.DOTALL,
    )


def as_digits(statement: bytes) -> list[bytes]:
    """Write a statement as three that cannot be misread: it is prepared from its bytes, and executed.

    The server refuses, with an error, what cannot be prepared. It is not deallocated: after a transaction
    with a GTID that would need another one.
    """
    return [
        b"SET @`millrace statement`=0x%b" % statement.rstrip(b"\n").hex().encode(),
        b"PREPARE millrace_statement FROM @`millrace statement`",
        b"EXECUTE millrace_statement",
    ]
