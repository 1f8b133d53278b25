"""Names of databases, tables, columns and indexes: how they are spelt in SQL, and how servers compare them.

They compare by the lower case of utf8mb3_general_ci, which has the letters of Unicode 3.0: "É" and "é" are
one name, "straße" and "STRASSE" are two, as are "é" and "e". MySQL 8.0 and MariaDB 11.4 have one table;
``tools/generate_names.py`` reads it from a running server.
"""

import re
from typing import Final

_CAPITALS: Final = (
    "ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖØÙÚÛÜÝÞĀĂĄĆĈĊČĎĐĒĔĖĘĚĜĞĠĢĤĦĨĪĬĮĲĴĶĹĻĽĿŁŃŅŇŊŌŎŐŒŔŖŘŚŜŞŠŢŤŦŨŪŬŮŰŲŴŶŸŹ"
    "ŻŽƁƂƄƆƇƉƊƋƎƏƐƑƓƔƖƗƘƜƝƟƠƢƤƦƧƩƬƮƯƱƲƳƵƷƸƼǄǅǇǈǊǋǍǏǑǓǕǗǙǛǞǠǢǤǦǨǪǬǮǱǲǴǶǷǸǺǼǾȀȂȄȆȈȊȌȎȐȒȔȖȘȚȜȞȢȤȦȨ"
    "ȪȬȮȰȲΆΈΉΊΌΎΏΑΒΓΔΕΖΗΘΙΚΛΜΝΞΟΠΡΣΤΥΦΧΨΩΪΫϚϜϞϠϢϤϦϨϪϬϮЀЁЂЃЄЅІЇЈЉЊЋЌЍЎЏАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШ"
    "ЩЪЫЬЭЮЯѠѢѤѦѨѪѬѮѰѲѴѶѸѺѼѾҀҌҎҐҒҔҖҘҚҜҞҠҢҤҦҨҪҬҮҰҲҴҶҸҺҼҾӁӃӇӋӐӒӔӖӘӚӜӞӠӢӤӦӨӪӬӮӰӲӴӸԱԲԳԴԵԶԷԸԹԺԻԼԽԾԿՀ"
    "ՁՂՃՄՅՆՇՈՉՊՋՌՍՎՏՐՑՒՓՔՕՖḀḂḄḆḈḊḌḎḐḒḔḖḘḚḜḞḠḢḤḦḨḪḬḮḰḲḴḶḸḺḼḾṀṂṄṆṈṊṌṎṐṒṔṖṘṚṜṞṠṢṤṦṨṪṬṮṰṲṴṶṸṺṼṾẀẂẄẆ"
    "ẈẊẌẎẐẒẔẠẢẤẦẨẪẬẮẰẲẴẶẸẺẼẾỀỂỄỆỈỊỌỎỐỒỔỖỘỚỜỞỠỢỤỦỨỪỬỮỰỲỴỶỸἈἉἊἋἌἍἎἏἘἙἚἛἜἝἨἩἪἫἬἭἮἯἸἹἺἻἼἽἾἿὈὉὊὋὌὍὙὛ"
    "ὝὟὨὩὪὫὬὭὮὯᾈᾉᾊᾋᾌᾍᾎᾏᾘᾙᾚᾛᾜᾝᾞᾟᾨᾩᾪᾫᾬᾭᾮᾯᾸᾹᾺΆᾼῈΈῊΉῌῘῙῚΊῨῩῪΎῬῸΌῺΏῼΩKÅⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩⅪⅫⅬⅭⅮⅯⒶⒷⒸⒹⒺⒻⒼⒽⒾⒿⓀⓁⓂ"
    "ⓃⓄⓅⓆⓇⓈⓉⓊⓋⓌⓍⓎⓏＡＢＣＤＥＦＧＨＩＪＫＬＭＮＯＰＱＲＳＴＵＶＷＸＹＺ"
)
"""Letters beyond ASCII whose lower case is Python's as well."""

_LOWER: Final = {ord(letter): letter.lower() for letter in "ABCDEFGHIJKLMNOPQRSTUVWXYZ" + _CAPITALS} | {
    0x130: "i"
}


_TABLE: Final = re.compile(r"(?:`((?:[^`]|``)+)`|([^.`]+))\.(?:`((?:[^`]|``)+)`|([^`]+))")


def quoted_name(*names: str) -> str:
    """Spell a name in SQL, of several parts with points between them."""
    return ".".join(f"`{name.replace('`', '``')}`" for name in names)


def unquoted_name(text: str) -> str:
    """Return the name that stands between backticks."""
    return text[1:-1].replace("``", "`")


def parse_table_name(text: str) -> tuple[str, str]:
    """Read ``database.table``, with backticks around a name that has a dot; raise ValueError."""
    found = _TABLE.fullmatch(text)
    if found is None:
        raise ValueError("expected DATABASE.TABLE, as shop.orders or `a.b`.`c`")
    quoted_database, database, quoted_table, table = found.groups()
    return (
        database or quoted_database.replace("``", "`"),
        table or quoted_table.replace("``", "`"),
    )


def folded(name: str) -> str:
    """Return a name in lower case: two names are one for the server where this is the same."""
    return name.lower() if name.isascii() else name.translate(_LOWER)
