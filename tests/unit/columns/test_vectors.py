# ruff: noqa: RUF001 - Cyrillic letters are meant
"""Bytes that real servers wrote for values, with what SELECT showed and what becomes of them in Avro.

Taken from row images of MySQL 5.5.34, 9.7.4 and MariaDB 10.11.19, 11.8.6; the texts were compared with the
servers' own output of SELECT.
"""

from dataclasses import dataclass
from typing import Any

import pytest

from millrace.binlog.columns import COLUMNS, VARIANTS, Column, ColumnType, codec_of
from millrace.binlog.columns.column import (
    BitMetadata,
    BlobMetadata,
    DecimalMetadata,
    FractionMetadata,
    LengthMetadata,
    Metadata,
    NoMetadata,
    PackMetadata,
    RealMetadata,
)
from millrace.binlog.errors import TruncatedError
from millrace.binlog.row_images import RowImages


class Lost:
    """Stands for a value that its Avro type cannot hold."""


LOST = Lost()
MANY_SET = tuple(f"m{number}" for number in range(64))
MANY_ENUM = tuple(f"v{number}" for number in range(300))


@dataclass(frozen=True)
class Vector:
    column: Column
    payload: str
    text: str | bytes
    avro: Any


def column(column_type: ColumnType, metadata: Metadata, **more: Any) -> Column:
    return Column(0, column_type, metadata, **more)


def vectors(of: Column, *values: tuple[str, str | bytes, Any]) -> list[Vector]:
    """Values of one column: payload, text and what becomes of it in Avro."""
    return [Vector(of, *value) for value in values]


VECTORS = [
    *vectors(
        column(ColumnType.BLOB_COMPRESSED, BlobMetadata(length_bytes=2), charset="latin1"),
        ("", "", ""),
        ("0073686f7274", "short", "short"),
    ),
    *vectors(
        column(ColumnType.BLOB_COMPRESSED, BlobMetadata(length_bytes=2), charset="binary"),
        ("8a01f463601805230d0000", bytes(500), bytes(500)),
    ),
    *vectors(
        column(ColumnType.BLOB_COMPRESSED, BlobMetadata(length_bytes=2), charset="utf8mb4"),
        ("8a05dc4b494d4b1945a368148da25134bc1000", "def" * 500, "def" * 500),
    ),
    *vectors(
        column(ColumnType.VARCHAR_COMPRESSED, LengthMetadata(max_length=12001), charset="utf8mb4"),
        ("8a07d0aba81805a360148c8251300a46c1500700", "x" * 2000, "x" * 2000),
        ("0073", "s", "s"),
    ),
    *vectors(column(ColumnType.BIT, BitMetadata(bits=1)), ("00", b"\x00", b"\x00"), ("01", b"\x01", b"\x01")),
    *vectors(
        column(ColumnType.BIT, BitMetadata(bits=64)),
        ("0000000000000000", b"\x00\x00\x00\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("8000000000000001", b"\x80\x00\x00\x00\x00\x00\x00\x01", b"\x80\x00\x00\x00\x00\x00\x00\x01"),
        ("ffffffffffffffff", b"\xff\xff\xff\xff\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff\xff\xff"),
    ),
    *vectors(
        column(ColumnType.BIT, BitMetadata(bits=9)),
        ("0001", b"\x00\x01", b"\x00\x01"),
        ("0005", b"\x00\x05", b"\x00\x05"),
        ("0100", b"\x01\x00", b"\x01\x00"),
        ("01ff", b"\x01\xff", b"\x01\xff"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=1), charset="binary"),
        ("", b"", b""),
        ("deadbeef", b"\xde\xad\xbe\xef", b"\xde\xad\xbe\xef"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=1), charset="utf8mb4"),
        ("", "", ""),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs", "naïve 😀\ttab\nnl\\bs"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=2), charset="binary"),
        ("", b"", b""),
        ("00", b"\x00", b"\x00"),
        ("79", b"y", b"y"),
        ("deadbeef", b"\xde\xad\xbe\xef", b"\xde\xad\xbe\xef"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=2), charset="cp1251"),
        ("cff0e8e2e5f2", "Привет", "Привет"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=2), charset="latin1"),
        ("e9", "é", "é"),
        ("ff", "ÿ", "ÿ"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=2), charset="ucs2"), ("65e5672c", "日本", "日本")
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=2), charset="utf8mb4"),
        ("", "", ""),
        ("74", "t", "t"),
        ("7432", "t2", "t2"),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs", "naïve 😀\ttab\nnl\\bs"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=3), charset="binary"),
        ("", b"", b""),
        ("deadbeef", b"\xde\xad\xbe\xef", b"\xde\xad\xbe\xef"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=3), charset="utf8mb4"),
        ("", "", ""),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs", "naïve 😀\ttab\nnl\\bs"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=4), charset="binary"),
        ("", b"", b""),
        ("deadbeef", b"\xde\xad\xbe\xef", b"\xde\xad\xbe\xef"),
    ),
    *vectors(
        column(ColumnType.BLOB, BlobMetadata(length_bytes=4), charset="utf8mb4"),
        ("", "", ""),
        ("6e61c3af766520f09f9880097461620a6e6c5c6273", "naïve 😀\ttab\nnl\\bs", "naïve 😀\ttab\nnl\\bs"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=10), charset="binary"),
        ("", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        ("61", b"a\x00\x00\x00\x00\x00\x00\x00\x00\x00", b"a\x00\x00\x00\x00\x00\x00\x00\x00\x00"),
        (
            "00010203040506070809",
            b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\t",
            b"\x00\x01\x02\x03\x04\x05\x06\x07\x08\t",
        ),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=1020), charset="utf8mb4"),
        ("", "", ""),
        ("e697a5e69cace8aa9e", "日本語", "日本語"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="armscii8"), ("616263", "abc", "abc")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="ascii"),
        ("706c61696e", "plain", "plain"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="binary"),
        (
            "6279746573",
            b"bytes\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
            b"bytes\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00",
        ),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp1250"), ("9e9a", "žš", "žš")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp1251"),
        ("cff0e8e2e5f2", "Привет", "Привет"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp1256"), ("616263", "abc", "abc")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp1257"), ("e2fe", "āž", "āž")
    ),
    *vectors(column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp850"), ("8281", "éü", "éü")),
    *vectors(column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp852"), ("a5a9", "ąę", "ąę")),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="cp866"),
        ("8fe0a8a2a5e2", "Привет", "Привет"),
    ),
    *vectors(column(ColumnType.STRING, LengthMetadata(max_length=20), charset="dec8"), ("e9fc", "éü", "éü")),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="geostd8"), ("616263", "abc", "abc")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="greek"), ("e1e2e3", "αβγ", "αβγ")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="hebrew"),
        ("f9ece5ed", "שלום", "שלום"),
    ),
    *vectors(column(ColumnType.STRING, LengthMetadata(max_length=20), charset="hp8"), ("c5cf", "éü", "éü")),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="keybcs2"), ("91a8", "žš", "žš")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="koi8r"),
        ("f0d2c9d7c5d4", "Привет", "Привет"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="koi8u"),
        ("f0d2c9d7c5d4", "Привет", "Привет"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="latin1"),
        ("e920fc20df", "é ü ß", "é ü ß"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="latin2"), ("b1eab3", "ąęł", "ąęł")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="latin5"), ("f0fdfe", "ğış", "ğış")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="latin7"), ("e2fe", "āž", "āž")
    ),
    *vectors(column(ColumnType.STRING, LengthMetadata(max_length=20), charset="macce"), ("ece4", "žš", "žš")),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="macroman"), ("8e9f", "éü", "éü")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="swe7"), ("616263", "abc", "abc")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=20), charset="tis620"), ("e4b7c2", "ไทย", "ไทย")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="big5"), ("a4a4a4e5", "中文", "中文")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="cp932"),
        ("93fa967b8cea", "日本語", "日本語"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="euckr"),
        ("c7d1b1b9beee", "한국어", "한국어"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="gb2312"),
        ("d6d0cec4", "中文", "中文"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="gbk"), ("d6d0cec4", "中文", "中文")
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="sjis"),
        ("93fa967b8cea", "日本語", "日本語"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="ucs2"),
        ("65e5672c002000e9", "日本 é", "日本 é"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=40), charset="utf8mb4"),
        ("", "", ""),
        ("616263", "abc", "abc"),
        ("747261696c", "trail", "trail"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=60), charset="eucjpms"),
        ("c6fccbdcb8ec", "日本語", "日本語"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=60), charset="ujis"),
        ("c6fccbdcb8ec", "日本語", "日本語"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=60), charset="utf8mb3"),
        ("e697a5e69cac20c3a9", "日本 é", "日本 é"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=80), charset="gb18030"),
        ("d6d0cec49439fc36", "中文😀", "中文😀"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=80), charset="utf16"),
        ("d83dde00002000e9", "😀 é", "😀 é"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=80), charset="utf16le"),
        ("3dd800de2000e900", "😀 é", "😀 é"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=80), charset="utf32"),
        ("0001f60000000020000000e9", "😀 é", "😀 é"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=80), charset="utf8mb4"),
        ("f09f988020e697a5e69cac", "😀 日本", "😀 日本"),
    ),
    *vectors(
        column(ColumnType.DATE, NoMetadata()),
        ("000000", "0000-00-00", LOST),
        ("00d00f", "2024-00-00", LOST),
        ("21d007", "1000-01-01", -354285),
        ("9f1f4e", "9999-12-31", 2932896),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=0)),
        ("8000000000", "0000-00-00 00:00:00", LOST),
        ("8cb2420000", "1000-01-01 00:00:00", -30610224000000000),
        ("99b2443105", "2024-01-02 03:04:05", 1704164645000000),
        ("fef3ff7efb", "9999-12-31 23:59:59", 253402300799000000),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=1)),
        ("8cb24200000a", "1000-01-01 00:00:00.1", -30610223999900000),
        ("99b3bcc8b80a", "2024-06-30 12:34:56.1", 1719750896100000),
        ("fef3ff7efa5a", "9999-12-31 23:59:58.9", 253402300798900000),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=2)),
        ("8cb242000001", "1000-01-01 00:00:00.01", -30610223999990000),
        ("99b3bcc8b80c", "2024-06-30 12:34:56.12", 1719750896120000),
        ("fef3ff7efa63", "9999-12-31 23:59:58.99", 253402300798990000),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=3)),
        ("8cb2420000000a", "1000-01-01 00:00:00.001", -30610223999999000),
        ("99b3bcc8b804ce", "2024-06-30 12:34:56.123", 1719750896123000),
        ("fef3ff7efa2706", "9999-12-31 23:59:58.999", 253402300798999000),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=4)),
        ("8cb24200000001", "1000-01-01 00:00:00.0001", -30610223999999900),
        ("99b3bcc8b804d2", "2024-06-30 12:34:56.1234", 1719750896123400),
        ("fef3ff7efa270f", "9999-12-31 23:59:58.9999", 253402300798999900),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=5)),
        ("8cb242000000000a", "1000-01-01 00:00:00.00001", -30610223999999990),
        ("99b3bcc8b801e23a", "2024-06-30 12:34:56.12345", 1719750896123450),
        ("fef3ff7efa0f4236", "9999-12-31 23:59:58.99999", 253402300798999990),
    ),
    *vectors(
        column(ColumnType.DATETIME2, FractionMetadata(digits=6)),
        ("8cb2420000000001", "1000-01-01 00:00:00.000001", -30610223999999999),
        ("99b3bcc8b801e240", "2024-06-30 12:34:56.123456", 1719750896123456),
        ("fef3ff7efa0f423f", "9999-12-31 23:59:58.999999", 253402300798999999),
    ),
    *vectors(
        column(ColumnType.DATETIME, FractionMetadata(digits=0)),
        ("0000000000000000", "0000-00-00 00:00:00", LOST),
        ("40c3775418090000", "1000-01-01 00:00:00", -30610224000000000),
        ("457c178468120000", "2024-01-02 03:04:05", 1704164645000000),
        ("f77cac8b68120000", "2024-02-29 23:59:59", 1709251199000000),
    ),
    *vectors(
        column(ColumnType.DATETIME, FractionMetadata(digits=1)),
        ("00a9628a0f01", "2024-01-01 00:00:00.1", 1704067200100000),
    ),
    *vectors(
        column(ColumnType.DATETIME, FractionMetadata(digits=3)),
        ("0146e4ebd7ffff", "9999-12-31 23:59:59.999", 253402300799999000),
    ),
    *vectors(
        column(ColumnType.DATETIME, FractionMetadata(digits=6)),
        ("007fb403f9236001", "1000-01-01 00:00:00.000001", -30610223999999999),
        ("010284e07d0957f1", "2024-06-30 12:34:56.654321", 1719750896654321),
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=1), charset="cp1251", members=("Привет", "мир")),
        ("02", "мир", "мир"),
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=1), charset="cp1251", members=("Привет", "б")),
        ("02", "б", "б"),
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=1), charset="latin1", members=("é", "ü")), ("02", "ü", "ü")
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=1), charset="utf8mb4", members=("p", "q")), ("02", "q", "q")
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=1), charset="utf8mb4", members=("q", "r")), ("02", "r", "r")
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=1), charset="utf8mb4", members=("a", "b", "ccc", "é😀")),
        ("00", "", ""),
        ("01", "a", "a"),
        ("03", "ccc", "ccc"),
        ("04", "é😀", "é😀"),
    ),
    *vectors(
        column(ColumnType.ENUM, PackMetadata(size=2), charset="utf8mb4", members=MANY_ENUM),
        ("0001", "v255", "v255"),
        ("0100", "v0", "v0"),
        ("2c01", "v299", "v299"),
    ),
    *vectors(
        column(ColumnType.GEOMETRY, BlobMetadata(length_bytes=4)),
        (
            "0000000001010000000000000000001c400000000000002040",
            b"\x00\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x1c@\x00\x00\x00\x00\x00\x00 @",
            {
                "wkb": b"\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x1c@\x00\x00\x00\x00\x00\x00 @",
                "srid": 0,
            },
        ),
        (
            "000000000101000000000000000000f03f0000000000000040",
            b"\x00\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x00@",
            {
                "wkb": b"\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf0?\x00\x00\x00\x00\x00\x00\x00@",
                "srid": 0,
            },
        ),
        (
            "000000000101000000000000000000f8bf0000000000000240",
            b"\x00\x00\x00\x00\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf8\xbf\x00\x00\x00\x00\x00\x00\x02@",
            {
                "wkb": b"\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\xf8\xbf\x00\x00\x00\x00\x00\x00\x02@",
                "srid": 0,
            },
        ),
    ),
    *vectors(
        column(ColumnType.GEOMETRY, BlobMetadata(length_bytes=4)),
        (
            "e610000001010000000000000000000040000000000000f03f",
            bytes.fromhex("e610000001010000000000000000000040000000000000f03f"),
            {"wkb": bytes.fromhex("01010000000000000000000040000000000000f03f"), "srid": 4326},
        ),
        (
            "00000000010700000000000000",
            bytes.fromhex("00000000010700000000000000"),
            {"wkb": bytes.fromhex("010700000000000000"), "srid": 0},
        ),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=4), sql_type="inet4"),
        ("7f000001", "127.0.0.1", "127.0.0.1"),
        ("ffffffff", "255.255.255.255", "255.255.255.255"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=16), sql_type="inet6"),
        ("00000000000000000000000000000001", "::1", "::1"),
        ("00000000000000000000000000000002", "::2", "::2"),
        ("00000000000000000000ffffc0000280", "::ffff:192.0.2.128", "::ffff:192.0.2.128"),
        ("20010db8000000000000ff0000428329", "2001:db8::ff00:42:8329", "2001:db8::ff00:42:8329"),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=16), charset="binary", sql_type="inet6"),
        ("00000000000000000000000000000009", "::9", "::9"),
    ),
    *vectors(column(ColumnType.TINY, NoMetadata()), ("00", "0", 0), ("05", "5", 5), ("ff", "-1", -1)),
    *vectors(
        column(ColumnType.SHORT, NoMetadata()),
        ("0080", "-32768", -32768),
        ("ff7f", "32767", 32767),
        ("ffff", "-1", -1),
    ),
    *vectors(
        column(ColumnType.INT24, NoMetadata()),
        ("000080", "-8388608", -8388608),
        ("ffff7f", "8388607", 8388607),
        ("ffffff", "-1", -1),
    ),
    *vectors(
        column(ColumnType.LONG, NoMetadata()),
        ("00000080", "-2147483648", -2147483648),
        ("18000000", "24", 24),
        ("ffffffff", "-1", -1),
    ),
    *vectors(
        column(ColumnType.LONGLONG, NoMetadata()),
        ("0000000000000080", "-9223372036854775808", -9223372036854775808),
        ("ffffffffffffff7f", "9223372036854775807", 9223372036854775807),
        ("ffffffffffffffff", "-1", -1),
    ),
    *vectors(
        column(ColumnType.TINY, NoMetadata(), unsigned=True),
        ("00", "0", 0),
        ("c8", "200", 200),
        ("ff", "255", 255),
    ),
    *vectors(
        column(ColumnType.SHORT, NoMetadata(), unsigned=True),
        ("0000", "0", 0),
        ("409c", "40000", 40000),
        ("ffff", "65535", 65535),
    ),
    *vectors(
        column(ColumnType.INT24, NoMetadata(), unsigned=True),
        ("000000", "0", 0),
        ("405489", "9000000", 9000000),
        ("ffffff", "16777215", 16777215),
    ),
    *vectors(
        column(ColumnType.LONG, NoMetadata(), unsigned=True),
        ("00000000", "0", 0),
        ("005ed0b2", "3000000000", 3000000000),
        ("ffffffff", "4294967295", 4294967295),
    ),
    *vectors(
        column(ColumnType.LONGLONG, NoMetadata(), unsigned=True),
        ("0000000000000000", "0", b"\x00"),
        ("0000000000000080", "9223372036854775808", b"\x00\x80\x00\x00\x00\x00\x00\x00\x00"),
        ("ffffffffffffffff", "18446744073709551615", b"\x00\xff\xff\xff\xff\xff\xff\xff\xff"),
    ),
    *vectors(
        column(ColumnType.JSON, BlobMetadata(length_bytes=4)),
        ("0400", "null", "null"),
        ("0401", "true", "true"),
        ("0402", "false", "false"),
        ("0c00", '""', '""'),
        ("050000", "0", "0"),
        ("050080", "-32768", "-32768"),
        ("057f00", "127", "127"),
        ("05ff7f", "32767", "32767"),
        ("05ffff", "-1", "-1"),
        ("0000000400", "{}", "{}"),
        ("0200000400", "[]", "[]"),
        ("0700000080", "-2147483648", "-2147483648"),
        ("0700800000", "32768", "32768"),
        ("07ffffff7f", "2147483647", "2147483647"),
        ("0c03737472", '"str"', '"str"'),
        ("090000000000000080", "-9223372036854775808", "-9223372036854775808"),
        ("090000008000000000", "2147483648", "2147483648"),
        ("0affffffffffffff7f", "9223372036854775807", "9223372036854775807"),
        ("0affffffffffffffff", "18446744073709551615", "18446744073709551615"),
        ("0b000000000000f03f", "1.0", "1.0"),
        ("0b000000000000f83f", "1.5", "1.5"),
        ("0ba0c8eb85f3cce1ff", "-1e308", "-1e308"),
        ("0c08c3a9f09f9880000a", '"é😀\\u0000\\n"', '"é😀\\u0000\\n"'),
        ("0ff6070b02800000030e", "3.14", "3.14"),
        ("0f0c08000000000042b219", '"2024-01-01 00:00:00.000000"', '"2024-01-01 00:00:00.000000"'),
        ("0001000c000b00010005010061", '{"a": 1}', '{"a": 1}'),
        ("0001000c000b00010005020061", '{"a": 2}', '{"a": 2}'),
        ("0203000d00050100050200050300", "[1, 2, 3]", "[1, 2, 3]"),
        ("0204001000050100050200050300050400", "[1, 2, 3, 4]", "[1, 2, 3, 4]"),
        ("00010016000b000100020c006b02000a00050100050200", '{"k": [1, 2]}', '{"k": [1, 2]}'),
        ("0201002000020700010019000207000100120002070001000b0002070000000400", "[[[[[]]]]]", "[[[[[]]]]]"),
        (
            "02030025000b0d000b15000b1d009a9999999999b93f408cb5781daf1544b6f37d54346f9d41",
            "[0.1, 1e20, 123456789.123]",
            "[0.1, 1e20, 123456789.123]",
        ),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=12), sql_type="vector(3)"),
        ("00000000000000000000803f", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x80?", [0.0, 0.0, 1.0]),
        ("0000803f00002040000040c0", b"\x00\x00\x80?\x00\x00 @\x00\x00@\xc0", [1.0, 2.5, -3.0]),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=12), charset="binary", sql_type="vector(3)"),
        ("00004040000000400000803f", b"\x00\x00@@\x00\x00\x00@\x00\x00\x80?", [3.0, 2.0, 1.0]),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=10, scale=0)),
        ("76c4653600", "-9999999999", b"\xfd\xab\xf4\x1c\x01"),
        ("8000000000", "0", b"\x00"),
        ("893b9ac9ff", "9999999999", b"\x02T\x0b\xe3\xff"),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=12, scale=4)),
        ("7ffffb2de9d1", "-1234.5678", b"\xffC\x9e\xb2"),
        ("800000000001", "0.0001", b"\x01"),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=18, scale=9), unsigned=True),
        ("8000000000000000", "0.000000000", b"\x00"),
        ("8000000100000001", "1.000000001", b";\x9a\xca\x01"),
        ("875bcd153ade68b1", "123456789.987654321", b"\x01\xb6\x9bK\xe0R\xfa\xb1"),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=38, scale=10)),
        (
            "7ef204c72df8a432eaff439eb1ff439eb1f6",
            "-1234567890123456789012345678.0123456789",
            b"\xf6\xb6O\t\x0f\xfd\xcc\xec;\xb6o\xb13\x98\xba\xeb",
        ),
        ("800000000000000000000000000000000000", "0.0000000000", b"\x00"),
        ("800000000000000000000000010000000000", "1.0000000000", b"\x02T\x0b\xe4\x00"),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=5, scale=2)),
        ("7c189c", "-999.99", b"\xfeya"),
        ("7ffffe", "-0.01", b"\xff"),
        ("807b2d", "123.45", b"09"),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=65, scale=30)),
        (
            "7a0a1f00c4653600c4653600c4653600c4653600c4653600c4653600fc18",
            "-99999999999999999999999999999999999.999999999999999999999999999999",
            "-99999999999999999999999999999999999.999999999999999999999999999999",
        ),
        (
            "7fffffffffffffffffffffffffffffffe2329affffffffffffffffffffff",
            "-0.500000000000000000000000000000",
            "-0.500000000000000000000000000000",
        ),
        (
            "800000000000000000000000000000000000000000000000000000000001",
            "0.000000000000000000000000000001",
            "0.000000000000000000000000000001",
        ),
    ),
    *vectors(
        column(ColumnType.NEWDECIMAL, DecimalMetadata(precision=9, scale=9)),
        ("44653600", "-0.999999999", b"\xc4e6\x01"),
        ("80000001", "0.000000001", b"\x01"),
        ("875bcd15", "0.123456789", b"\x07[\xcd\x15"),
    ),
    *vectors(column(ColumnType.FLOAT, RealMetadata(size=4)), ("0000c03f", "1.5", 1.5)),
    *vectors(
        column(ColumnType.FLOAT, RealMetadata(size=4), sql_type="float(7,2)"),
        ("aee640c6", "-12345.67", -12345.669921875),
        ("cdcccc3d", "0.10", 0.10000000149011612),
        ("ff4fc347", "99999.99", 99999.9921875),
    ),
    *vectors(
        column(ColumnType.DOUBLE, RealMetadata(size=8)),
        ("0000000000001000", "2.2250738585072014e-308", 2.2250738585072014e-308),
        ("9a9999999999b93f", "0.1", 0.1),
        ("ffffffffffffefff", "-1.7976931348623157e308", -1.7976931348623157e308),
    ),
    *vectors(
        column(ColumnType.DOUBLE, RealMetadata(size=8), unsigned=True, sql_type="double(10,2) unsigned"),
        ("0000000000000000", "0.00", 0.0),
        ("000000000000f43f", "1.25", 1.25),
        ("52b81edd298c6741", "12345678.91", 12345678.91),
    ),
    *vectors(
        column(ColumnType.SET, PackMetadata(size=1), charset="utf8mb4", members=("x", "y", "z", "w w")),
        ("00", "", ""),
        ("02", "y", "y"),
        ("0f", "x,y,z,w w", "x,y,z,w w"),
    ),
    *vectors(
        column(ColumnType.SET, PackMetadata(size=1), charset="utf8mb4", members=("r", "s")),
        ("03", "r,s", "r,s"),
    ),
    *vectors(
        column(ColumnType.SET, PackMetadata(size=1), charset="utf8mb4", members=("日", "本")),
        ("02", "本", "本"),
        ("03", "日,本", "日,本"),
    ),
    *vectors(
        column(ColumnType.SET, PackMetadata(size=1), charset="utf8mb4", members=("m", "n")),
        ("03", "m,n", "m,n"),
    ),
    *vectors(
        column(ColumnType.SET, PackMetadata(size=8), charset="utf8mb4", members=MANY_SET),
        ("0001000000000080", "m8,m63", "m8,m63"),
        ("0100000000000000", "m0", "m0"),
        (
            "ffffffffffffffff",
            "m0,m1,m2,m3,m4,m5,m6,m7,m8,m9,m10,m11,m12,m13,m14,m15,m16,m17,m18,m19,m20,m21,m22,m23,m24,m25,m26,m27,m28,m29,m30,m31,m32,m33,m34,m35,m36,m37,m38,m39,m40,m41,m42,m43,m44,m45,m46,m47,m48,m49,m50,m51,m52,m53,m54,m55,m56,m57,m58,m59,m60,m61,m62,m63",
            "m0,m1,m2,m3,m4,m5,m6,m7,m8,m9,m10,m11,m12,m13,m14,m15,m16,m17,m18,m19,m20,m21,m22,m23,m24,m25,m26,m27,m28,m29,m30,m31,m32,m33,m34,m35,m36,m37,m38,m39,m40,m41,m42,m43,m44,m45,m46,m47,m48,m49,m50,m51,m52,m53,m54,m55,m56,m57,m58,m59,m60,m61,m62,m63",
        ),
    ),
    *vectors(
        column(ColumnType.TIME, FractionMetadata(digits=0)),
        ("010000", "00:00:01", 1000000),
        ("590a80", "-838:59:59", -3020399000000),
        ("a7f57f", "838:59:59", 3020399000000),
        ("ffffff", "-00:00:01", -1000000),
    ),
    *vectors(column(ColumnType.TIME, FractionMetadata(digits=1)), ("01cc4eee", "-01:02:03.4", -3723400000)),
    *vectors(
        column(ColumnType.TIME, FractionMetadata(digits=3)), ("01680f4aff", "838:59:59.999", 3020399999000)
    ),
    *vectors(
        column(ColumnType.TIME, FractionMetadata(digits=6)),
        ("000000000001", "-838:59:59.999999", -3020399999999),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=0)),
        ("4b9105", "-838:59:59", -3020399000000),
        ("4b9106", "-838:59:58", -3020398000000),
        ("7fffff", "-00:00:01", -1000000),
        ("b46efb", "838:59:59", 3020399000000),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=1)),
        ("4b9105a6", "-838:59:58.9", -3020398900000),
        ("7ffffff6", "-00:00:00.1", -100000),
        ("b46efa5a", "838:59:58.9", 3020398900000),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=2)),
        ("4b91059d", "-838:59:58.99", -3020398990000),
        ("7ffffff4", "-00:00:00.12", -120000),
        ("b46efa63", "838:59:58.99", 3020398990000),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=3)),
        ("4b9105d8fa", "-838:59:58.999", -3020398999000),
        ("7ffffffb32", "-00:00:00.123", -123000),
        ("b46efa2706", "838:59:58.999", 3020398999000),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=4)),
        ("4b9105d8f1", "-838:59:58.9999", -3020398999900),
        ("7ffffffb2e", "-00:00:00.1234", -123400),
        ("b46efa270f", "838:59:58.9999", 3020398999900),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=5)),
        ("4b9105f0bdca", "-838:59:58.99999", -3020398999990),
        ("7ffffffe1dc6", "-00:00:00.12345", -123450),
        ("b46efa0f4236", "838:59:58.99999", 3020398999990),
    ),
    *vectors(
        column(ColumnType.TIME2, FractionMetadata(digits=6)),
        ("4b9105f0bdc1", "-838:59:58.999999", -3020398999999),
        ("7ffffffe1dc0", "-00:00:00.123456", -123456),
        ("b46efa0f423f", "838:59:58.999999", 3020398999999),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=0)),
        ("00000000", "0000-00-00 00:00:00", LOST),
        ("00000001", "1970-01-01 00:00:01", 1000000),
        ("668150f0", "2024-06-30 12:34:56", 1719750896000000),
        ("7fffffff", "2038-01-19 03:14:07", 2147483647000000),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=1)),
        ("000000010a", "1970-01-01 00:00:01.1", 1100000),
        ("668150f00a", "2024-06-30 12:34:56.1", 1719750896100000),
        ("7ffffffe5a", "2038-01-19 03:14:06.9", 2147483646900000),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=2)),
        ("0000000101", "1970-01-01 00:00:01.01", 1010000),
        ("668150f00c", "2024-06-30 12:34:56.12", 1719750896120000),
        ("7ffffffe63", "2038-01-19 03:14:06.99", 2147483646990000),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=3)),
        ("00000001000a", "1970-01-01 00:00:01.001", 1001000),
        ("668150f004ce", "2024-06-30 12:34:56.123", 1719750896123000),
        ("7ffffffe2706", "2038-01-19 03:14:06.999", 2147483646999000),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=4)),
        ("000000010001", "1970-01-01 00:00:01.0001", 1000100),
        ("668150f004d2", "2024-06-30 12:34:56.1234", 1719750896123400),
        ("7ffffffe270f", "2038-01-19 03:14:06.9999", 2147483646999900),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=5)),
        ("0000000100000a", "1970-01-01 00:00:01.00001", 1000010),
        ("668150f001e23a", "2024-06-30 12:34:56.12345", 1719750896123450),
        ("7ffffffe0f4236", "2038-01-19 03:14:06.99999", 2147483646999990),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP2, FractionMetadata(digits=6)),
        ("00000001000001", "1970-01-01 00:00:01.000001", 1000001),
        ("6592008007a120", "2024-01-01 00:00:00.500000", 1704067200500000),
        ("668150f001e240", "2024-06-30 12:34:56.123456", 1719750896123456),
        ("7ffffffe0f423f", "2038-01-19 03:14:06.999999", 2147483646999999),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP, FractionMetadata(digits=0)),
        ("00000000", "0000-00-00 00:00:00", LOST),
        ("01000000", "1970-01-01 00:00:01", 1000000),
        ("7f1ae165", "2024-02-29 23:59:59", 1709251199000000),
        ("ffffff7f", "2038-01-19 03:14:07", 2147483647000000),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP, FractionMetadata(digits=2)),
        ("659200800c", "2024-01-01 00:00:00.12", 1704067200120000),
    ),
    *vectors(
        column(ColumnType.TIMESTAMP, FractionMetadata(digits=6)),
        ("6592008001e240", "2024-01-01 00:00:00.123456", 1704067200123456),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=16), sql_type="uuid"),
        (
            "123e4567e89b12d3a45642665544",
            "123e4567-e89b-12d3-a456-426655440000",
            "123e4567-e89b-12d3-a456-426655440000",
        ),
        (
            "f47ac10b58cc4372a5670e02b2c3d479",
            "f47ac10b-58cc-4372-a567-0e02b2c3d479",
            "f47ac10b-58cc-4372-a567-0e02b2c3d479",
        ),
    ),
    *vectors(
        column(ColumnType.STRING, LengthMetadata(max_length=16), charset="binary", sql_type="uuid"),
        (
            "00000000000010008000000000000001",
            "00000000-0000-1000-8000-000000000001",
            "00000000-0000-1000-8000-000000000001",
        ),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=1020), charset="utf8mb4"),
        ("", "", ""),
        ("f09f988020656d6f6a69", "😀 emoji", "😀 emoji"),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=1200), charset="utf8mb4"),
        ("", "", ""),
        ("66", "f", "f"),
        ("78", "x", "x"),
        ("d09fd180d0b8d0b2d0b5d182", "Привет", "Привет"),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=20), charset="binary"),
        ("", b"", b""),
        ("78", b"x", b"x"),
        ("ff", b"\xff", b"\xff"),
        ("6279746573", b"bytes", b"bytes"),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=200), charset="utf8mb4"),
        ("66312033", "f1 3", "f1 3"),
        ("70312035", "p1 5", "p1 5"),
        ("7472672039", "trg 9", "trg 9"),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=300), charset="binary"),
        ("", b"", b""),
        ("0a0d5c275c", b"\n\r\\'\\", b"\n\r\\'\\"),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=40), charset="utf8mb4"),
        ("", "", ""),
        ("61", "a", "a"),
        ("78", "x", "x"),
        ("782020", "x  ", "x  "),
        ("30313233343536373839", "0123456789", "0123456789"),
    ),
    *vectors(
        column(ColumnType.VARCHAR, LengthMetadata(max_length=80), charset="utf8mb4"),
        ("78", "x", "x"),
        ("7531", "u1", "u1"),
        ("7532", "u2", "u2"),
        ("6c61726765206f626a656374", "large object", "large object"),
    ),
    *vectors(
        column(ColumnType.VECTOR, BlobMetadata(length_bytes=4)),
        ("000000000000000000000000", b"\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00", [0.0, 0.0, 0.0]),
        ("000010410000104100001041", b"\x00\x00\x10A\x00\x00\x10A\x00\x00\x10A", [9.0, 9.0, 9.0]),
        ("0000803f00002040000040c0", b"\x00\x00\x80?\x00\x00 @\x00\x00@\xc0", [1.0, 2.5, -3.0]),
    ),
    *vectors(
        column(ColumnType.YEAR, NoMetadata(), unsigned=True),
        ("00", "0000", 0),
        ("01", "1901", 1901),
        ("7c", "2024", 2024),
        ("ff", "2155", 2155),
    ),
]


EVERY = pytest.mark.parametrize(
    "vector", VECTORS, ids=lambda vector: f"{vector.column.type.name}-{vector.payload[:24]}"
)


def image_of(vector: Vector) -> bytes:
    """One row of the one column, as it stands in a rows event."""
    raw = bytes.fromhex(vector.payload)
    length = codec_of(vector.column).length_bytes
    return b"\0" + (len(raw).to_bytes(length, "little") if length else b"") + raw


@EVERY
def test_natural_value_gives_the_bytes_back(vector: Vector) -> None:
    images = RowImages([vector.column], None, b"\x01")
    ((before, after),) = images.decode(image_of(vector))
    assert before is None
    assert images.encode([(None, after)]) == image_of(vector)
    assert codec_of(vector.column).text(after[0]) == vector.text


@EVERY
def test_avro_value(vector: Vector) -> None:
    rows = RowImages([vector.column], None, b"\x01").avro(image_of(vector))
    ((_, (value,)),) = rows.rows
    if vector.avro is LOST:
        assert value is None
        assert rows.unrepresentable == {(0, 1): {0: vector.text}}
    else:
        assert value == vector.avro
        assert type(value) is type(vector.avro)
        assert not rows.unrepresentable


@EVERY
def test_a_truncated_value_raises(vector: Vector) -> None:
    images = RowImages([vector.column], None, b"\x01")
    image = image_of(vector)
    for size in range(1, len(image)):
        for read in (images.decode, images.avro, images.count):
            with pytest.raises(TruncatedError):
                read(image[:size])


def test_every_declaration_has_vectors() -> None:
    seen = {type(codec_of(vector.column)) for vector in VECTORS}
    assert {codec.__name__ for codec in (*COLUMNS.values(), *VARIANTS.values())} == {
        codec.__name__ for codec in seen
    }
