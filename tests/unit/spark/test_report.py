"""The page of a report: it parses, needs nothing from outside, and shows data as data."""

import re
from html.parser import HTMLParser

from spark_jobs.common.charts import SERIES_COLOURS, Series, columns, ranked
from spark_jobs.common.report import Bytes, Code, Report, Share

VOID = {"wbr", "meta", "br", "img", "link", "input", "hr"}
EVIL = '<script>alert("x")</script>&'


class Page(HTMLParser):
    """Checks that every element is closed, and gathers attributes and text."""

    def __init__(self, markup: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.words: list[str] = []
        self.elements: list[str] = []
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def check_self_contained(markup: str) -> Page:
    """Fail unless the page is whole and refers to nothing outside itself."""
    page = Page(markup)
    assert markup.startswith("<!doctype html>")
    assert page.open == []
    names = {name for _, name, _ in page.attributes}
    assert not names & {"src", "href", "srcset", "action", "data", "poster", "xlink:href"}
    assert not {"link", "img", "iframe", "object", "embed", "base"} & set(page.elements)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", markup)
    return page


def sample() -> str:
    report = Report(f"Title {EVIL}", [f"fact {EVIL}"])
    report.verdict(f"verdict {EVIL}", "good")
    report.tiles([("events", 1_234_567), ("log", Bytes(2_300_000)), (EVIL, EVIL)])
    report.section(f"one {EVIL}", f"text {EVIL}")
    report.chart(ranked(EVIL, [("", EVIL)], [Series(EVIL, [7])]))
    report.table(["name", EVIL, "n"], [("a", Code(EVIL), 1), (EVIL, None, 2.25)])
    report.section("two")
    report.table(["only"], [(1,)], folded=f"more {EVIL}")
    report.keys(f"keys {EVIL}", [EVIL, "1:0:mysql-bin.000001:4"])
    return report.html(f"footer {EVIL}")


def test_the_page_needs_nothing_from_outside() -> None:
    check_self_contained(sample())


def test_data_stays_data() -> None:
    page = Page(sample())
    assert page.elements.count("script") == 1
    assert "".join(page.words).count(EVIL) >= 14


def test_numbers_are_readable_and_sort_by_value() -> None:
    page = Page(sample())
    words = "".join(page.words)
    assert "1,234,567" in words
    assert "2.3 MB" in words
    values = [value for tag, name, value in page.attributes if (tag, name) == ("td", "data-value")]
    assert values == ["1", "2.25", "1"]


def test_a_name_of_a_table_is_broken_at_its_dot() -> None:
    report = Report("names", [])
    report.table(["table", "version"], [("shop.order_items", "8.0.15")])
    page = report.html("")
    assert "shop.<wbr>order_items" in page
    assert ">8.0.15<" in page


def test_a_key_is_broken_between_its_parts() -> None:
    report = Report("keys", [])
    report.table(["key"], [[Code("1:0:mysql-bin.000005:2718603")], [Code(f"x:{'y' * 64}")]])
    page = report.html("")
    assert "<code>1:<wbr>0:<wbr>mysql-bin.000005:<wbr>2718603</code>" in page
    assert '<code class="long">x:<wbr>y' in page


def test_shares_are_numbers() -> None:
    report = Report("shares", [])
    report.table(["share"], [[Share(1, 8)], [Share(0, 0)]])
    page = report.html("")
    assert re.findall(r'<td class="number" data-value="([^"]*)".*?<bdi dir="ltr">(.*?)</bdi>', page) == [
        ("0.125", "12 %"), ("0", "-"),
    ]  # fmt: skip


def test_every_colour_has_a_light_and_a_dark_form() -> None:
    markup = sample()
    for number in range(SERIES_COLOURS):
        assert markup.count(f"--s{number}:") == 2
    assert "prefers-color-scheme: dark" in markup


def test_an_empty_table_and_no_section() -> None:
    report = Report("empty", [])
    report.table(["a", "b"], [])
    check_self_contained(report.html(""))


def test_nothing_in_data_acts_on_whoever_shows_the_page() -> None:
    evil = "x\x1b[2J\x9b\u202e\udcff"
    report = Report(evil, [evil])
    report.table([evil], [[evil], [Code(evil)]])
    report.chart(ranked(evil, [(evil, evil)], [Series(evil, [1])]))
    page = report.html(evil)
    page.encode()
    assert re.findall("[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", page) == []
    assert page.count(r"x\x1b[2J\x9b\u202e\xff") >= 6


def test_names_from_right_to_left_do_not_reorder_what_is_around_them() -> None:
    table = "שלג.בגד"
    isolated = "\u2068שלג\u2069.\u2068בגד\u2069"
    sql = f"TRUNCATE TABLE {table};"
    report = Report(table, [table])
    report.verdict(f"{table} 3", "bad")
    report.notice(table)
    report.tiles([(table, table)])
    report.points([("bad", f"server-{table}'s 5 rows, and مخزن 7 of صف بعد صف-2, {table}")])
    report.facts([("tables", f"{table}, {table} → {table}")])
    report.chart(columns(table, [0], 1, [Series(table, [7])]))
    report.statement(f"On {table}: 3 rows", sql)
    report.keys("keys", [table])
    report.table([table], [[table], [Code(table)]])
    page = report.html(table)
    assert f">{isolated} 3<" in page
    assert (
        f"server-{isolated}&#x27;s 5 rows, and \u2068مخزن\u2069 7 of \u2068صف بعد صف-2\u2069, {isolated}<"
        in page
    )
    assert f"{isolated}, {isolated} → {isolated}<" in page
    assert f"00:00:00, 1 s: {isolated} 7</title>" in page
    assert isolated.replace(".", ".<wbr>") in page
    assert f">On {isolated}: 3 rows<" in page
    # What is copied has nothing that one does not see.
    assert f"<code>{sql}</code>" in page
    assert page.count(f"<code>{table}</code>") == 2
    assert page.count(table) == 3


def test_a_table_of_nothing_is_none() -> None:
    report = Report("title", [])
    report.section("Longest transactions")
    report.table(["transaction", "seconds"], [])
    page = check_self_contained(report.html("footer"))
    assert "table" not in page.elements
    assert "None." in page.words
