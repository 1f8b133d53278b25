"""Our text against what mysqlbinlog and mariadb-binlog printed of the same files, line by line.

The samples were printed by the program of each server's generation, the corpus by the program that its index
names, with the bytes in comments. Where we differ on purpose the difference is in one of the lists here, with
its reason; everything else is equal to the byte.
"""

import csv
import io
import json
import lzma
import re
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from millrace.binlog.file import iter_events
from millrace.binlog_command.generation import Generation
from millrace.binlog_command.records import LogDecoder, RawEvent
from millrace.binlog_command.text import TextOptions, TextOutput

from .conftest import SHARED

_PROGRAMS = {
    "mysql56": Generation.MYSQL_5_6,
    "mysql57": Generation.MYSQL_5_7,
    "mysql80": Generation.MYSQL_8_0,
    "mysql97": Generation.MYSQL_8_0,
    "mariadb118": Generation.MARIADB_10_11,
}


pytestmark = pytest.mark.usefixtures("utc")


def _text(path: Path, options: TextOptions) -> bytes:
    stream = io.BytesIO()
    output = TextOutput(stream, options)
    with path.open("rb") as log:
        raw = ([RawEvent(str(path), path.name, *event)] for event in iter_events(log, path.name))
        for record in LogDecoder(verify=False).records(raw):
            output.write(record)
    output.close()
    return stream.getvalue()


# ----------------------------------------------------------------------------------- what differs, and why


Lines = list[bytes]
Alike = Callable[[Lines], Lines]
"""Makes the lines of both texts alike in one respect."""


def _replaced(pattern: bytes, by: bytes) -> Alike:
    compiled = re.compile(pattern)
    return lambda lines: [compiled.sub(by, line) for line in lines]


def _dropped(pattern: bytes) -> Alike:
    compiled = re.compile(pattern)
    return lambda lines: [line for line in lines if not compiled.match(line)]


def _up_to(pattern: bytes) -> Alike:
    """Cut where a line matches: from there mysqlbinlog printed nothing of use, or stopped."""
    compiled = re.compile(pattern)

    def cut(lines: Lines) -> Lines:
        for number, line in enumerate(lines):
            if compiled.match(line):
                return lines[:number]
        return lines[:-1]  # what stands after the last line break

    return cut


@dataclass(frozen=True, slots=True)
class _Difference:
    """A difference with its reason: how both texts are made alike, and where it occurs."""

    reason: str
    alike: Alike
    where: Callable[[str, str], bool]


def _in(*samples: str, logs: Iterable[str] = ()) -> Callable[[str, str], bool]:
    wanted = frozenset(logs)
    return lambda sample, log: sample in samples and (not wanted or log in wanted)


_MYSQL_5 = ("mysql55", "mysql56")
_MYSQL = (
    *_MYSQL_5,
    "mysql57airlift",
    "mysql8015",
    "mysql80",
    "mysql80-nogtid",
    "mysql97",
    "mysql97-nocrc-minimal",
)
_MARIADB = ("mariadb102", "mariadb105", "mariadb1011", "mariadb118", "mariadb1011-nocrc-minimal")


def _without_rows_after_geometry(lines: Lines, *, nulls: bool = True) -> Lines:
    """Leave out the columns of a row from its first GEOMETRY on, and the further rows of the event.

    ``nulls`` says that the program does not print NULL of the type either.
    """
    kept: Lines = []
    skipping = False
    for line in lines:
        unknown = b"=!! Don't know how to handle column type=255" in line
        if unknown or (b"/* GEOMETRY meta=" in line and (nulls or b"=NULL " not in line)):
            skipping = True
            glued = line.partition(b"(0004)")[2] if unknown else b""
            if glued:  # up to 5.7 the next line follows without a line break
                kept.append(glued)
                skipping = False
            continue
        skipping = skipping and line.startswith(b"###")
        if not skipping:
            kept.append(line)
    return kept


def _user_variables_sorted_out(lines: Lines) -> Lines:
    """Leave out user variables and the change of character set around them."""
    kept: Lines = []
    inside = False
    for line in lines:
        if line.endswith(b"\tUser_var"):
            inside = True
            continue
        inside = inside and line.startswith((b"/*!\\C", b"SET @"))
        if not inside:
            kept.append(line)
    return kept


_named_alike = _replaced(rb"'[^']*SQL_LOAD_MB-\w+-\w+'", b"'SQL_LOAD'")
"""The name of the file of a LOAD DATA is made up by whoever prints the statement."""

_SAMPLE_DIFFERENCES = (
    _Difference(
        "MySQL's program does not know GEOMETRY, and stops in the middle of the event",
        _without_rows_after_geometry,
        lambda sample, _log: sample in _MYSQL and sample not in _MYSQL_5,
    ),
    _Difference(
        "up to 5.6 it prints NULL of the type",
        partial(_without_rows_after_geometry, nulls=False),
        _in(*_MYSQL_5),
    ),
    _Difference(
        "MySQL's program keeps the variables of a LOAD DATA for the next other statement",
        _user_variables_sorted_out,
        lambda sample, _log: sample in ("mysql56", "mysql57airlift", "mysql8015"),
    ),
    _Difference(
        "up to 5.6 the groups of nine digits of a DECIMAL are printed one by one",
        _replaced(rb"=(?!NULL)\S+ /\* DECIMAL", b"=? /* DECIMAL"),
        _in(*_MYSQL_5),
    ),
    _Difference(
        "up to 5.6 the type of a NULL is that of the column before it",
        _replaced(rb"NULL /\* .* meta=", b"NULL /* meta="),
        _in(*_MYSQL_5),
    ),
    _Difference(
        "5.5 reads the three bytes of a TIME as an unsigned number",
        _replaced(rb"='-?\d+:\d\d:\d\d' /\* TIME ", b"=? /* TIME "),
        _in("mysql55"),
    ),
    _Difference(
        "5.5 prints the byte after the name of a variable that is NULL",
        _replaced(rb"^(SET @`\w+)[\x00-\x1f]`:=NULL", rb"\1`:=NULL"),
        _in("mysql55"),
    ),
    _Difference(
        "5.7 prints the bytes of JSON, and takes two for its length: rubbish from a large document on",
        _dropped(rb"###"),
        _in("mysql57airlift", logs=["mysql-bin.000005"]),
    ),
    _Difference(
        "MariaDB prints compressed columns as they are stored, we their content",
        _replaced(rb"='.*' /\* (\S+ COMPRESSED)", rb"=? /* \1"),
        lambda sample, _log: sample in _MARIADB,
    ),
    _Difference(
        "the table map lacks the digits of old temporals with a fraction: mariadb-binlog stops there",
        _up_to(rb"### Rows that cannot be read|#.*\tWrite_rows: table id \d+ flags: STMT_END_F$"),
        lambda sample, log: (sample, log) in _OLD_FRACTIONS,
    ),
)
_OLD_FRACTIONS = {
    ("mariadb102", "mysql-bin.000025"),
    ("mariadb105", "mysql-bin.000029"),
    ("mariadb1011", "mysql-bin.000029"),
    ("mariadb118", "mysql-bin.000029"),
    ("mariadb1011-nocrc-minimal", "mysql-bin.000029"),
}
"""The logs with topic 22; the program's text ends in front of the first rows event."""

_HEX = rb"#[ 0-9a-f]{9}.*\|$"
_CORPUS_DIFFERENCES: dict[str, tuple[str, Alike]] = {
    "infinidb_mysql/bug47142_master-bin.000001": (
        "in logs before version 4 the program leaves out the last 19 bytes of each event",
        _dropped(_HEX),
    ),
    "webscalesql-5.6/master-bin.000001": ("as above", _dropped(_HEX)),
    "webscalesql-5.6/trunc_binlog.000001": ("as above", _dropped(_HEX)),
    "mariadb-10.0/mdev-4645-binlog_group_id_checksum.binlog": (
        "the program leaves out the extra headers of Google's 5.1",
        _dropped(_HEX),
    ),
    "rust_mysql_common/mariadb-bin.000001": (
        "mariadb-binlog prints an annotation with its table map, and its bytes at the table map's position",
        _replaced(rb"^# +[0-9a-f]+  ", b"#  "),
    ),
    "rust_mysql_common/ver_5_1-wl2325_r.001": (
        "a preview of MySQL 5.1 without metadata in its table maps: both can print no rows, we say so",
        _dropped(rb"### Rows that cannot be read"),
    ),
    "rust_mysql_common/binlog_truncated_event.000001": (
        "the file ends in the middle of an event, which the program tells on its other output",
        _dropped(rb"# This event cannot be read|# at 4$"),
    ),
    "rust_mysql_common/binlog_truncated_prev_gtid_event.000001": (
        "as above",
        _dropped(rb"# This event cannot be read|# at 120$"),
    ),
    "rust_mysql_common/bug40482-bin.000001": (
        "the program gives up at an incident of a kind that does not exist; the tail follows at once",
        _up_to(rb"# at 106$|DELIMITER ;$"),
    ),
    "rust_mysql_common/corrupt-relay-bin.000624": (
        "the program gives up at the first event that cannot be read; the tail follows at once",
        _up_to(rb"# at 91204$|DELIMITER ;$"),
    ),
}


# ------------------------------------------------------------------------------------------------- the tests


def _first_difference(ours: Lines, theirs: Lines) -> str:
    for number, (our, their) in enumerate(zip(ours, theirs, strict=False)):
        if our != their:
            return f"line {number + 1}:\n  {their[:300]!r}\n  {our[:300]!r} (ours)"
    return f"{len(theirs)} and {len(ours)} lines (ours)"


def test_samples(samples: dict[str, Path], tmp_path: Path) -> None:
    options = TextOptions(verbose=2, base64_output="decode-rows", local_load=tmp_path)
    equal = explained = lines = 0
    used: Counter[str] = Counter()
    different = []
    for sample, folder in samples.items():
        for reference in sorted(folder.glob("*.decode-rows.txt")):
            path = reference.with_name(reference.name.removesuffix(".decode-rows.txt"))
            theirs = _named_alike(reference.read_bytes().split(b"\n"))
            ours = _named_alike(_text(path, options).split(b"\n"))
            lines += len(theirs)
            if ours == theirs:
                equal += 1
                continue
            for difference in _SAMPLE_DIFFERENCES:
                if difference.where(sample, path.name):
                    before = ours, theirs
                    ours, theirs = difference.alike(ours), difference.alike(theirs)
                    used[difference.reason] += before != (ours, theirs)
            if ours == theirs:
                explained += 1
            else:
                different.append(f"{sample}/{path.name}: {_first_difference(ours, theirs)}")
    print(f"{equal} of the samples' texts are equal, {explained} as explained, {lines} lines")
    for reason, times in used.items():
        print(f"{times} times: {reason}")
    assert not different, "\n".join(different)
    assert all(used[difference.reason] for difference in _SAMPLE_DIFFERENCES)


def test_corpus(tmp_path: Path) -> None:
    folder = SHARED / "corpus"
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: set MILLRACE_SHARED to the folder that holds corpus/ and samples/")
    with (folder / "INDEX.tsv").open(encoding="utf-8", newline="") as index:
        rows = list(csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE))
    equal = explained = 0
    different = []
    for row in rows:
        if not row["ground_truth"]:
            continue
        name = row["path"]
        packed = folder / f"{name}.mysqlbinlog.txt.xz"
        theirs = _named_alike(lzma.decompress(packed.read_bytes()).split(b"\n"))
        options = TextOptions(
            verbose=2,
            base64_output="decode-rows",
            hexdump=True,
            local_load=tmp_path,
            generation=_PROGRAMS[row["ground_truth"]],
        )
        ours = _named_alike(_text(folder / name, options).split(b"\n"))
        if ours == theirs:
            assert name not in _CORPUS_DIFFERENCES
            equal += 1
            continue
        if name in _CORPUS_DIFFERENCES:
            _, alike = _CORPUS_DIFFERENCES[name]
            ours, theirs = alike(ours), alike(theirs)
        if ours == theirs:
            explained += 1
        else:
            different.append(f"{name}: {_first_difference(ours, theirs)}")
    print(f"{equal} of the corpus's texts are equal, {explained} as explained")
    assert not different, "\n".join(different)
    assert explained == len(_CORPUS_DIFFERENCES)


@pytest.mark.parametrize(
    ("sample", "table", "types"),
    [
        ("mysql55", "t01.alltypes", ("DECIMAL", "TIME ")),
        ("mysql56", "t01.alltypes", ("DECIMAL",)),
        ("mysql57airlift", "t05.j", ("JSON", "VARSTRING")),
        ("mysql80", "t04.geo", ("GEOMETRY",)),
        ("mariadb1011", "t08.cc", ("BLOB/TEXT COMPRESSED", "VARSTRING(12001) COMPRESSED")),
    ],
)
def test_values_that_the_program_prints_wrongly_are_those_of_the_tables(
    samples: dict[str, Path], sample: str, table: str, types: tuple[str, ...]
) -> None:
    folder = samples[sample]
    lines = [
        line
        for path in sorted(folder.glob("mysql-bin.[0-9]*[0-9]"))
        for line in _text(path, TextOptions(verbose=2, base64_output="decode-rows")).split(b"\n")
    ]
    expected = [
        line.split(b"\t") for line in (folder / "tables" / f"{table}.tsv").read_bytes().split(b"\n")[1:-1]
    ]

    rows = _folded(lines, table)

    assert len(rows) == len(expected)
    compared = 0
    for values in expected:
        for ordinal, (value, comment) in rows[values[0]].items():
            if comment.startswith(types):
                ours, theirs = _plain(value), _field(values[ordinal - 1])
                assert ours == theirs, (values[0], ordinal)
                compared += 1
    assert compared


_COLUMN = re.compile(rb"###   @(\d+)=(.*) /\* (.*?meta=.*) \*/$")
_ESCAPED = re.compile(rb"\\(x[0-9a-f]{2}|.)", re.DOTALL)


def _folded(lines: Lines, table: str) -> dict[bytes, dict[int, tuple[bytes, str]]]:
    """Follow the rows of a table through the text, by their first column, to what they are at the end."""
    database, name = table.encode().split(b".")
    titles = {
        verb + b" `%b`.`%b`" % (database, name)
        for verb in (b"### INSERT INTO", b"### DELETE FROM", b"### UPDATE")
    }
    rows: dict[bytes, dict[int, tuple[bytes, str]]] = {}
    images: list[dict[int, tuple[bytes, str]]] = []
    verb = b""
    for line in [*lines, b""]:
        column = _COLUMN.match(line)
        if column is not None and images:
            images[-1][int(column[1])] = column[2], column[3].decode()
        elif line in (b"### SET", b"### WHERE") and verb:
            images.append({})
        else:
            if verb and verb != b"INSERT":
                rows.pop(images[0][1][0])
            if verb and verb != b"DELETE":
                rows[images[-1][1][0]] = images[-1]
            images = []
            verb = line.split(b" ")[1] if line in titles else b""
    return rows


def _plain(value: bytes) -> bytes | None:
    """Return a value of the text without its quotes and escapes."""
    if value == b"NULL":
        return None
    if not value.startswith(b"'"):
        return value
    named = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"b": b"\b"}

    def unescaped(match: re.Match[bytes]) -> bytes:
        code = match[1]
        return bytes.fromhex(code[1:].decode()) if len(code) == 3 else named.get(code, code)

    return _ESCAPED.sub(unescaped, value[1:-1])


def _field(value: bytes) -> bytes | None:
    """Return a field of a client's batch output; a JSON document that is a string without its quotes."""
    if value == b"NULL":
        return None
    text = _ESCAPED.sub(lambda match: {b"0": b"\0", b"n": b"\n", b"t": b"\t"}.get(match[1], match[1]), value)
    if text.startswith(b'"') and text.endswith(b'"'):
        return str(json.loads(text)).encode()
    return text
