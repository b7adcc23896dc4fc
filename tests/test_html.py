import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "programs"))

from pages import parsed

from zephon_core.html import Bar, bars, columns, line, page, section, stacked, table, tiles

NASTY = '<script>alert("x")</script> & "quoted"'


def everything():
    values = [Bar(NASTY, 3.0, NASTY), Bar("b", 1.0, "one", accent=True)]
    return page(
        NASTY,
        [
            tiles([(NASTY, NASTY)]),
            section(NASTY, NASTY, table(["a", NASTY], [[1, NASTY], [2, "c"]])),
            columns(values, describe=NASTY),
            bars(values, describe=NASTY),
            stacked(values, describe=NASTY),
            line([(0.0, 1.0), (1.0, 2.0)], x_label=NASTY, y_label=NASTY, describe=NASTY),
        ],
        badge=NASTY,
    )


def test_a_page_is_balanced_and_says_nasty_text_as_text():
    document = everything()
    assert "<script" not in document
    assert NASTY in parsed(document)


def test_a_page_asks_for_nothing_from_outside():
    document = everything()
    assert "http" not in document
    assert "src=" not in document


def test_charts_of_nothing_are_nothing():
    assert columns([], describe="") == bars([], describe="") == stacked([], describe="") == ""
    assert line([(0.0, 1.0)], x_label="", y_label="", describe="") == ""


def test_a_chart_of_zeros_is_drawn():
    parsed(columns([Bar("a", 0.0, "none")], describe=""))
    parsed(bars([Bar("a", 0.0, "none")], describe=""))


def test_shares_are_in_the_legend():
    assert "(75.0%)" in stacked([Bar("a", 3.0, "3 s"), Bar("b", 1.0, "1 s")], describe="")


def test_numbers_stand_to_the_right():
    cells = table(["name", "count"], [["a", 1_000], ["b", 2]])
    assert '<td class="n">1,000</td>' in cells
    assert "<td>a</td>" in cells
