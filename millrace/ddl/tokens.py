"""The tokens of a DDL statement as its server saw them.

What a token is depends on the session: with ``ANSI_QUOTES`` a text in double quotes is a name, with
``NO_BACKSLASH_ESCAPES`` a backslash is itself. ``/*!50100 … */`` is read by both servers and ``/*M! … */`` by
MariaDB; text that a server's version skipped was logged as a plain comment. Lexical structure: the chapter
"Language Structure" of both servers' manuals.
"""

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from millrace.binlog.names import folded
from millrace.binlog.server_version import ServerVersion
from millrace.binlog.types import SqlMode

if TYPE_CHECKING:
    from collections.abc import Callable

MAX_STATEMENT: Final = 4 << 20
"""Characters of the longest statement that is read; 4096 columns with comments take less."""


class NotUnderstoodError(Exception):
    """A statement whose effect does not follow from its text; says what is not understood."""


@dataclass(frozen=True, slots=True)
class Server(ServerVersion):
    """The server that wrote a statement, with what depends on that."""

    @property
    def logs_created_tables_only(self) -> bool:
        """Whether CREATE TABLE IF NOT EXISTS is not logged where the table was there."""
        return self.mariadb and self.version >= (10, 11)

    @property
    def shows_before_logging(self) -> bool:
        """Whether the catalogue shows what a CREATE has made before the log has the statement.

        MySQL 8 commits its dictionary after the log.
        """
        return self.mariadb or (bool(self.version) and self.version < (8,))

    @property
    def shows_widths(self) -> bool:
        """Whether the types of integers are shown with their display widths."""
        return self.mariadb or self.version < (8, 0, 19)


@dataclass(frozen=True, slots=True)
class Session:
    """What a statement's meaning depends on beside its text.

    ``database`` is the default database, ``sql_mode`` as a QUERY event has it, ``server_charset`` that of
    ``collation_server``. With ``lower_case_names`` names of databases and tables do not differ by case.
    ``timestamp_not_null`` tells whether a TIMESTAMP column without NULL is NOT NULL, None where that is not
    known. ``has_created`` says that the log tells that a CREATE has created what it names; ``failed`` that
    the statement ended with an error; ``uses_temporary`` that it may be about a temporary table.
    """

    database: str = ""
    sql_mode: int = 0
    server: Server = Server()
    server_charset: str | None = None
    lower_case_names: bool = False
    timestamp_not_null: bool | None = None
    has_created: bool = False
    failed: bool = False
    uses_temporary: bool = False

    def spelled(self, name: str) -> str:
        """Spell the name of a database or table as the server stores it."""
        return folded(name) if self.lower_case_names else name

    @property
    def real_is_float(self) -> bool:
        """Whether REAL is FLOAT."""
        return bool(self.sql_mode & SqlMode.REAL_AS_FLOAT)

    @property
    def other_types(self) -> bool:
        """Whether names of types mean others: DATE is DATETIME in Oracle's mode, TIMESTAMP in MaxDB's."""
        return self.server.mariadb and bool(self.sql_mode & (SqlMode.ORACLE | SqlMode.MAXDB))


@dataclass(frozen=True, slots=True)
class Token:
    """``kind`` is word, name (quoted), string or other; ``upper`` a word or sign in upper case."""

    kind: Literal["word", "name", "string", "other"]
    text: str
    upper: str


_TOKEN = re.compile(
    r"""
      (?P<space> [ \t-\r]+ | \#[^\n]* | --(?=[\x00-\x20\x7f]|\Z)[^\n]* )
    | (?P<comment> /\* )
    | (?P<end> \*/ )
    | (?P<name> `(?:[^`]++|``)*+` )
    | (?P<string> '(?:[^'\\]++|\\.|'')*+' | "(?:[^"\\]++|\\.|"")*+" )
    | (?P<word> (?:[\w$]|[^\x00-\x7f])+ )
    | (?P<other> := | . )
    """,
    re.VERBOSE | re.DOTALL,
)
_PLAIN_STRING = re.compile(r"""'(?:[^']++|'')*+'|"(?:[^"]++|"")*+\"""", re.DOTALL)
_ANSI_NAME = re.compile(r'"(?:[^"]++|"")*+"')
_SKIPPED = re.compile(r"/\*M?[ !]\d{5,6}")
"""The beginning of what its server's version skipped; a comment may be in it. The log has a space for "!"."""
_EXECUTED = re.compile(r"/\*(M?)!(\d{5,6}(?!\d))?")
_ESCAPED = {"0": "\0", "n": "\n", "r": "\r", "t": "\t", "b": "\b", "Z": "\x1a", "%": "\\%", "_": "\\_"}


def tokenize(text: str, session: Session) -> list[Token]:
    """Return the tokens of a statement; raise NotUnderstoodError where a quote or comment has no end."""
    if len(text) > MAX_STATEMENT:
        raise NotUnderstoodError(f"it has {len(text)} characters")
    ansi = bool(session.sql_mode & SqlMode.ANSI_QUOTES)
    plain = bool(session.sql_mode & SqlMode.NO_BACKSLASH_ESCAPES)
    tokens: list[Token] = []
    at, size, executed = 0, len(text), 0
    while at < size:
        match, kind = None, None
        if ansi and text[at] == '"':
            match, kind = _ANSI_NAME.match(text, at), "name"
        elif plain and text[at] in "'\"":
            match, kind = _PLAIN_STRING.match(text, at), "string"
        if match is None:
            match = _TOKEN.match(text, at)
            assert match is not None, "the last alternative takes anything"
            kind = match.lastgroup
        piece, at = match.group(), match.end()
        if kind == "comment":
            opening = _EXECUTED.match(text, match.start())
            if opening is not None and (session.server.mariadb or not opening[1]):
                executed, at = executed + 1, opening.end()
                continue
            at = _end_of_comment(text, match.start())
            continue
        if kind == "space" or (kind == "end" and executed):
            executed -= kind == "end"
            continue
        tokens.append(_token(kind or "", piece, plain=plain))
    return tokens


def _end_of_comment(text: str, start: int) -> int:
    """Return where a comment that is not executed ends."""
    at = start + 2
    if _SKIPPED.match(text, start):
        while 0 <= (inner := text.find("/*", at)) < text.find("*/", at):
            at = text.find("*/", inner) + 2
    end = text.find("*/", at)
    if end < 0:
        raise NotUnderstoodError("a comment is not closed")
    return end + 2


def _token(kind: str, piece: str, *, plain: bool) -> Token:
    if kind == "string":
        return Token("string", _value(piece, plain=plain), "")
    if kind == "name":
        return Token("name", piece[1:-1].replace(piece[0] * 2, piece[0]), "")
    if kind == "word":
        return Token("word", piece, piece.upper())
    if piece in "'\"`":
        raise NotUnderstoodError("a quote is not closed")
    return Token("other", piece, "=" if piece == ":=" else piece)


def _value(literal: str, *, plain: bool) -> str:
    """Return the value of a literal; a quote in it is doubled or escaped by a backslash."""
    quote, inner = literal[0], literal[1:-1]
    if plain:
        return inner.replace(quote * 2, quote)

    def meaning(match: re.Match[str]) -> str:
        return quote if match[1] is None else _ESCAPED.get(match[1], match[1])

    return re.sub(rf"\\(.)|{quote}{quote}", meaning, inner, flags=re.DOTALL)


class Tokens:
    """Tokens, read one after the other; anything unexpected raises NotUnderstoodError."""

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0

    @property
    def word(self) -> str:
        """The next token in upper case if it is a word, or itself if it is a sign; empty for all others."""
        return self._tokens[self._at].upper if self._at < len(self._tokens) else ""

    @property
    def token(self) -> Token | None:
        """The next token; None at the end."""
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def ahead(self, count: int = 1) -> str:
        """Return a token further on as :attr:`word` does."""
        token = self._peek(count)
        return "" if token is None else token.upper

    def _peek(self, count: int) -> Token | None:
        at = self._at + count
        return self._tokens[at] if at < len(self._tokens) else None

    def ends(self, count: int) -> bool:
        """Return whether the statement ends before a token further on."""
        return all(token.upper == ";" for token in self._tokens[self._at + count :])

    def advance(self) -> Token:
        """Take the next token."""
        token = self.token
        if token is None:
            raise NotUnderstoodError("it ends unexpectedly")
        self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Take the next tokens if they are these words, in this order."""
        if all(self.ahead(index) == word for index, word in enumerate(words)):
            self._at += len(words)
            return True
        return False

    def accept_one(self, *words: str) -> str:
        """Take the next token if it is one of these words; give it, or nothing."""
        word = self.word
        if word and word in words:
            self._at += 1
            return word
        return ""

    def expect(self, *words: str) -> None:
        """Take these words."""
        if not self.accept(*words):
            raise NotUnderstoodError(f"{' '.join(words)} is expected {self.here}")

    @property
    def here(self) -> str:
        """Where this is, for an error."""
        token = self.token
        return "at its end" if token is None else f"at {token.text[:40]!r}"

    def taken(self, take: "Callable[[Tokens], object]") -> list[Token]:
        """Return the tokens that a function takes."""
        at = self._at
        take(self)
        return self._tokens[at : self._at]

    def may_be_name(self, count: int) -> bool:
        """Return whether a token further on can be a name that does not begin with a digit."""
        token = self._peek(count)
        return token is not None and (
            token.kind == "name" or (token.kind == "word" and not token.text[0].isdecimal())
        )

    def ahead_is_string(self) -> bool:
        """Return whether the token after the next is a string."""
        token = self._peek(1)
        return token is not None and token.kind == "string"

    def is_name(self) -> bool:
        """Return whether the next token can be a name."""
        token = self.token
        return token is not None and token.kind in ("word", "name")

    def name(self) -> str:
        """Take a name."""
        if not self.is_name():
            raise NotUnderstoodError(f"a name is expected {self.here}")
        return self.advance().text

    def string(self) -> str:
        """Take a string, or several beside each other."""
        if self.token is None or self.token.kind != "string":
            raise NotUnderstoodError(f"a string is expected {self.here}")
        parts = []
        while self.token is not None and self.token.kind == "string":
            parts.append(self.advance().text)
        return "".join(parts)

    def number(self) -> int:
        """Take a number without sign or point."""
        if not self.word.isdecimal():
            raise NotUnderstoodError(f"a number is expected {self.here}")
        return int(self.advance().text)

    def skip_parentheses(self) -> None:
        """Skip ``( … )`` and its contents."""
        self.expect("(")
        depth = 1
        while depth:
            word = self.advance().upper
            depth += (word == "(") - (word == ")")

    def skip_value(self) -> None:
        """Step over the value of an option: a name, string, signed number or a list in parentheses."""
        self.accept("=")
        if self.word == "(":
            self.skip_parentheses()
            return
        self.accept_one("-", "+")
        string = self.advance().kind == "string"
        if not string and self.accept("."):
            self.advance()

    def at_end(self) -> bool:
        """Return whether nothing follows."""
        while self.accept(";"):
            pass
        return self.token is None
