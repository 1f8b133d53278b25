from millrace.binlog_command.hexdump import HexdumpLayout, hexdump

# A QUERY event of a real server: BEGIN in database `test`, at 642 of its log.
EVENT = bytes.fromhex(
    "4ef3d56502010000004b000000cd0200000800"
    "09000000000000000400001d000000000000012000a04500000000060373746404ff00ff00ff0012ff007465737400"
    "424547494e5deb56b9"
)


def test_mysql() -> None:
    assert hexdump(EVENT, 642, HexdumpLayout.MYSQL, has_fields=True).decode() == (
        "# Position  Timestamp   Type   Source ID        Size      Source Pos    Flags \n"
        "# 00000282 4e f3 d5 65   02   01 00 00 00   4b 00 00 00   cd 02 00 00   08 00\n"
        "# 00000295 09 00 00 00 00 00 00 00  04 00 00 1d 00 00 00 00 |................|\n"
        "# 000002a5 00 00 01 20 00 a0 45 00  00 00 00 06 03 73 74 64 |......E......std|\n"
        "# 000002b5 04 ff 00 ff 00 ff 00 12  ff 00 74 65 73 74 00 42 |..........test.B|\n"
        "# 000002c5 45 47 49 4e 5d eb 56 b9                          |EGIN..V.|\n"
    )


def test_mysql_before_8_0() -> None:
    lines = hexdump(EVENT, 642, HexdumpLayout.MYSQL_OLD, has_fields=True).decode().splitlines()
    assert lines[0] == "# Position  Timestamp   Type   Master ID        Size      Master Pos    Flags "
    assert lines[1] == "#      282 4e f3 d5 65   02   01 00 00 00   4b 00 00 00   cd 02 00 00   08 00"
    assert lines[-1] == "#      2c5 45 47 49 4e 5d eb 56 b9                          |EGIN..V.|"


def test_mariadb() -> None:
    assert hexdump(EVENT, 642, HexdumpLayout.MARIADB, has_fields=True).decode() == (
        "# Position\n"
        "#           |Timestamp   |Type |Master ID   |Size        |Master Pos  |Flags\n"
        "#      282  |4e f3 d5 65 |02   |01 00 00 00 |4b 00 00 00 |cd 02 00 00 |08 00\n"
        "#\n"
        "#      295  09 00 00 00 00 00 00 00  04 00 00 1d 00 00 00 00  |................|\n"
        "#      2a5  00 00 01 20 00 a0 45 00  00 00 00 06 03 73 74 64  |... ..E......std|\n"
        "#      2b5  04 ff 00 ff 00 ff 00 12  ff 00 74 65 73 74 00 42  |..........test.B|\n"
        "#      2c5  45 47 49 4e 5d eb 56 b9                           |EGIN].V.|\n"
        "#\n"
    )


def test_a_log_before_version_4_has_no_line_for_the_header() -> None:
    text = hexdump(EVENT[:20], 4, HexdumpLayout.MYSQL_OLD, has_fields=False).decode()
    assert text == (
        "#        4 4e f3 d5 65 02 01 00 00  00 4b 00 00 00 cd 02 00 |N..e.....K......|\n"
        "#       14 00 08 00 09                                      |....|\n"
    )


def test_an_event_of_nothing_but_its_header() -> None:
    for layout in HexdumpLayout:
        lines = hexdump(EVENT[:19], 4, layout, has_fields=True).decode().splitlines()
        assert "4e f3 d5 65" in lines[-1] or lines[-1] == "#"
