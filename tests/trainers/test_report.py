"""The closing page: one file that loads nothing, and says what strings say, not what they do."""

import math
import re
from xml.etree import ElementTree

from budwood.trainers.plots import bar_chart, line_chart
from budwood.trainers.report import page

HOSTILE = "<script>alert(1)</script>"


def svg_of(figure):
    return ElementTree.fromstring(re.findall(r"<svg.*?</svg>", figure)[0])


def test_a_line_goes_through_its_points_and_leaves_out_what_is_no_number():
    figure = line_chart("reward", {"mean": [(1, 0.0), (2, math.nan), (3, 1.0)]})
    (line,) = svg_of(figure).iter("polyline")
    first, last = [tuple(map(float, p.split(","))) for p in line.attrib["points"].split()]
    assert first[0] < last[0]
    assert first[1] > last[1]  # up is up
    assert len(list(svg_of(figure).iter("circle"))) == 2


def test_one_step_and_no_step_make_a_chart_too():
    assert svg_of(line_chart("loss", {"loss": [(1, 0.5)]})) is not None
    assert svg_of(line_chart("loss", {"loss": [(1, 0.0), (2, 0.0)]})) is not None
    assert "nothing was measured" in line_chart("loss", {"loss": []})
    assert "nothing was counted" in bar_chart("classes", {})


def test_bars_are_as_long_as_their_values():
    bars = list(svg_of(bar_chart("classes", {"none": 8, "engine": 2, "policy": 0})).iter("rect"))
    widths = [float(bar.attrib["width"]) for bar in bars]
    assert widths[1] * 4 == widths[0]
    assert widths[2] == 0


def test_the_page_loads_nothing_and_spells_out_what_it_is_given():
    about = {
        "kind": "grpo",
        "name": HOSTILE,
        "facts": {HOSTILE: HOSTILE, "exact share": 1.0},
        "bars": {HOSTILE: {HOSTILE: 1}},
        "left_out": {"reward_none": 2},
        "notes": [HOSTILE],
        "settings": {"model": HOSTILE, "data": {"lanes": ["main", "side"], "max_tokens": None}},
    }
    steps = [{"step": n, "reward/mean": n / 2, "ratio/mean": 1.0, "ratio/max": 2.0} for n in (1, 2)]
    html = page(about, steps)
    assert HOSTILE not in html
    assert "<script" not in html
    assert "://" not in html
    assert "src=" not in html
    assert "default-src 'none'" in html
    assert '<td>data.lanes</td><td class="n">main, side</td>' in html
    assert html.count("<svg") == 3
