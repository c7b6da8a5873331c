from __future__ import annotations

from orchestrator.report import axes
from orchestrator.report.charts import frame
from orchestrator.report.markup import element
from tests.orchestrator.report.reading import parsed, text_of


def test_a_path_goes_through_its_places_and_stops_where_there_is_none() -> None:
    assert frame.path([0, 0.5, 1], [0, 1, 0.25]) == "M0,1000L1000,0L2000,750"
    assert frame.path([0, 0.25, 0.5, 1], [0, float("nan"), 1, 1]) == "M0,1000M1000,0L2000,0"


def test_a_band_goes_there_above_and_back_below() -> None:
    assert frame.band([0, 1], [0, 0.5], [1, 0.75]) == "M0,0L2000,250L2000,500L0,1000Z"
    assert frame.band([0], [float("nan")], [1]) == ""


def test_dots_are_lines_of_no_length() -> None:
    assert frame.dots([0.5], [0.5]) == "M1000,500h0"


def test_a_plot_has_its_labels_where_its_axes_have_their_ticks() -> None:
    x, y = axes.Axis(0, 10, ((5.0, "5"),)), axes.Axis(0, 4, ((1.0, "1 ms"),))
    tree = parsed(frame.plot([], x, y, "a picture"))
    assert [(label.get("class"), label.get("style"), label.text) for label in tree.iter("span")] == [
        ("y", "top:75.00%", "1 ms"),
        ("x", "left:50.00%", "5"),
    ]
    svg = next(tree.iter("svg"))
    assert (svg.get("role"), svg.get("aria-label")) == ("img", "a picture")


def test_a_figure_has_its_title_its_note_and_its_data() -> None:
    tree = parsed(frame.figure("loss", element("i"), note="how", data=element("table")))
    caption, summary = next(tree.iter("figcaption")), next(tree.iter("summary"))
    assert (text_of(caption), text_of(summary)) == ("losshow", "Data")


def test_a_choice_shows_the_first_and_labels_every_panel() -> None:
    tree = parsed(frame.choice("which", [("a", element("p", "A")), ("b", element("p", "B"))]))
    assert [(one.get("id"), one.get("checked")) for one in tree.iter("input")] == [("which-0", ""), ("which-1", None)]
    assert [(one.get("for"), one.text) for one in tree.iter("label")] == [("which-0", "a"), ("which-1", "b")]
    assert frame.choice("which", [("a", element("p", "A"))]) == "<p>A</p>"
