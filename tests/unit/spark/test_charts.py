"""Charts: well-formed SVG, round scales, columns that hold everything."""

from xml.etree import ElementTree as ET

import pytest

from spark_jobs.common.charts import (
    Series,
    column_width,
    columns,
    duration,
    fill,
    legend,
    ranked,
    short_size,
    size,
    ticks,
    times,
    usual_span,
)

MINUTE, HOUR, DAY = 60, 3600, 86_400


@pytest.mark.parametrize(
    ("highest", "expected"),
    [
        (0, [0, 1]),
        (1, [0, 1]),
        (4, [0, 1, 2, 3, 4]),
        (9, [0, 2, 4, 6, 8, 10]),
        (17, [0, 5, 10, 15, 20]),
        (2100, [0, 500, 1000, 1500, 2000, 2500]),
    ],
)
def test_ticks_are_round_and_reach_the_highest(highest: int, expected: list[int]) -> None:
    assert ticks(highest) == expected


@pytest.mark.parametrize("highest", [*range(300), 999, 1000, 1001, 12_345_678, 2**40])
def test_ticks_are_few(highest: int) -> None:
    found = ticks(highest)
    assert found[0] == 0
    assert found[-1] >= highest
    assert len(found) <= 6


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0 bytes"), (999, "999 bytes"), (1000, "1.0 kB"), (2_345_678, "2.3 MB"), (7e15, "7,000.0 TB")],
)
def test_sizes_in_words(value: float, text: str) -> None:
    assert size(value) == text


@pytest.mark.parametrize(
    ("first", "last", "width"),
    [
        (0, 0, 1), (1000, 1119, 1), (0, 120, 2), (0, 3_599, 30), (0, 2 * 3600 - 1, 60), (0, DAY - 1, 15 * 60),
        (0, 50 * DAY, 12 * 3600), (0, 119 * DAY, DAY), (0, 120 * DAY, 2 * DAY),
    ],
)  # fmt: skip
def test_columns_are_of_round_width(first: int, last: int, width: int) -> None:
    assert column_width(first, last) == width


@pytest.mark.parametrize(
    ("seconds", "text"), [(2, "2 s"), (90, "90 s"), (300, "5 min"), (7200, "2 h"), (2 * DAY, "2 d")]
)
def test_the_width_of_columns_in_words(seconds: int, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize("last", [1, 4711, 10**6, 10**9, 2**32 - 1])
def test_columns_are_few(last: int) -> None:
    width = column_width(7, last)
    assert last // width - 7 // width < 120


def test_gaps_are_filled() -> None:
    assert fill({600: {"a": 1}, 720: {"a": 2, "b": 5}}, MINUTE) == (
        [600, 660, 720],
        {"a": [1, 0, 2], "b": [0, 0, 5]},
    )


def test_nothing_to_show() -> None:
    assert fill({}, MINUTE) == ([], {})
    ET.fromstring(columns("none", [], 1, []))


def test_times_say_the_day_only_where_it_matters() -> None:
    assert times([0, 3600], 3600) == (
        ["00:00", "01:00"],
        ["1970-01-01 00:00, 1 h", "1970-01-01 01:00, 1 h"],
    )
    assert times([0, 15], 15)[0] == ["00:00:00", "00:00:15"]
    assert times([0, DAY], 720 * MINUTE)[0] == ["01-01 00:00", "01-02 00:00"]
    assert times([0, DAY], DAY) == (["1970-01-01", "1970-01-02"], ["1970-01-01, 1 d", "1970-01-02, 1 d"])


def test_columns_stack_to_their_total() -> None:
    chart = columns("x", [10 * HOUR], MINUTE, [Series("a<b", [3]), Series("c", [1])])
    marks = list(ET.fromstring(chart).iter("rect"))
    heights = [float(mark.attrib["height"]) for mark in marks]
    assert heights[0] == pytest.approx(3 * heights[1], rel=0.01)
    assert float(marks[0].attrib["y"]) == pytest.approx(float(marks[1].attrib["y"]) + heights[1], abs=0.2)
    assert marks[0].findtext("title") == "1970-01-01 10:00, 1 min: a<b 3"


def test_more_series_than_colours() -> None:
    names = [f"series {n}" for n in range(12)]
    ET.fromstring(legend(names))
    ET.fromstring(columns("x", [0], 1, [Series(name, [1]) for name in names]))


@pytest.mark.parametrize(
    ("first", "number", "step", "labels"),
    [
        (16 * MINUTE, 60, MINUTE, "00:20 00:30 00:40 00:50 01:00 01:10 00:30 00:45 01:00 01:15"),
        (0, 2, 1, "00:00:00 00:00:01 00:00:00 00:00:01"),
        (0, 60, 2, "00:00:00 00:00:30 00:01:00 00:01:30 00:00:00 00:00:30 00:01:00 00:01:30"),
        (0, 25, DAY, ("1970-01-01 1970-01-04 1970-01-07 1970-01-10 1970-01-13 1970-01-16 1970-01-19 "
        "1970-01-22 1970-01-25 1970-01-01 1970-01-08 1970-01-15 1970-01-22")),
    ],
)  # fmt: skip
def test_labels_are_at_round_times(first: int, number: int, step: int, labels: str) -> None:
    """In the wide form and in the narrow one."""
    starts = range(first, first + number * step, step)
    chart = ET.fromstring(columns("x", starts, step, [Series("a", [1] * number)]))
    assert " ".join(str(text.text) for text in chart.iter("text") if len(str(text.text)) > 1) == labels


def test_the_last_label_lies_within_the_chart() -> None:
    starts = range(0, 485, 5)
    for chart in ET.fromstring(columns("x", starts, 5, [Series("a", [1] * len(starts))])):
        across = float(chart.attrib["viewBox"].split()[2])
        labels = [one for one in chart.iter("text") if one.attrib["text-anchor"] == "middle"]
        assert all(float(one.attrib["x"]) + 3.5 * len(one.text or "") <= across for one in labels)


def test_an_axis_of_bytes_has_their_unit() -> None:
    chart = ET.fromstring(columns("x", [0], 1, [Series("a", [2_000_000])], short_size))
    assert [text.text for text in chart[0].iter("text")][:3] == ["0 B", "500 kB", "1 MB"]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({}, (0, 0)),
        ({5 * HOUR: 1}, (5 * HOUR, 5 * HOUR)),
        # One in the year 2106 among many of an afternoon, and one of 1970.
        (
            {0: 1, 500_000 * HOUR: 900, 500_001 * HOUR: 800, 1_193_046 * HOUR: 1},
            (500_000 * HOUR, 500_001 * HOUR),
        ),
        # A quiet month before a busy hour is no mistake.
        ({hour * HOUR: 1 for hour in range(720)} | {720 * HOUR: 100_000}, (0, 720 * HOUR)),
        # Nor are two busy days a year apart.
        ({0: 500, 8760 * HOUR: 400}, (0, 8760 * HOUR)),
        # Two events alone say nothing about each other.
        ({0: 1, 8760 * HOUR: 1}, (0, 8760 * HOUR)),
        ({HOUR * n * n * 1000: 1 for n in range(1, 6)} | {0: 10_000}, (0, 0)),
    ],
)
def test_a_few_absurd_times_do_not_flatten_the_axis(
    counts: dict[int, int], expected: tuple[int, int]
) -> None:
    assert usual_span(counts, HOUR) == expected


def test_ranked_bars_tell_names_in_full() -> None:
    database, table = "a_database_with_a_long_name", "a_table_with_quite_a_long_name_too & <more>"
    rows = [Series("inserted", [3, 1]), Series("deleted", [1, 0])]
    chart = ET.fromstring(ranked("x", [(database, table), ("other", table)], rows))
    items = list(chart.iter("li"))
    assert ["".join(item.find("span").itertext()) for item in items] == [  # type: ignore[union-attr]
        f"{database}.{table}",
        f"other.{table}",
    ]
    marks = [mark.attrib["style"].split(";")[0] for mark in chart.iter("i")]
    assert marks == ["width:75.00%", "width:25.00%", "width:25.00%"]
    assert ranked("none", [], []) == '<ol class="bars" aria-label="none"></ol>'
