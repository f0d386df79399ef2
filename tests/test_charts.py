"""Where the charts of a report put what they are given, in a real browser."""

import re

import pytest

from bespoke_solvers import report
from bespoke_solvers.report import Cell, Chart, Curves, Learned, Viewer


@pytest.fixture
def drawn(opened, tmp_path):
    """Opens a page of one section."""

    def page_of(section):
        (tmp_path / "report.html").write_text(report.page("Charts", [section]))
        return opened(tmp_path / "report.html")

    return page_of


def curve(page):
    """Its points in pixels."""
    path = page.js("document.querySelector('.curve').getAttribute('d')")
    return [tuple(map(float, point.split())) for point in re.split("[ML]", path)[1:]]


@pytest.mark.parametrize(("log", "values"), [(False, [1.0, 2.0, 4.0]), (True, [0.01, 0.1, 10.0])])
def test_equal_steps_are_equally_far_and_more_is_higher(drawn, log, values):
    """On a logarithmic scale, equal ratios."""
    points = [[x, y] for x, y in zip([2, 4, 8], values, strict=True)]
    found = curve(drawn(Curves("Curves", "", [Chart("RMSE", "NFE", {"own": points}, log=log)])))
    (x0, y0), (x1, y1), (x2, y2) = found
    assert x0 < x1 < x2
    assert x2 - x1 == pytest.approx(2 * (x1 - x0), abs=0.3)
    assert y0 > y1 > y2, "pixels are counted from the top"
    assert y1 - y2 == pytest.approx(2 * (y0 - y1), abs=0.3)


def test_slopes_are_those_of_the_curve(drawn):
    """A line through each point, as steep as the curve is drawn where it is straight."""
    straight = Chart("t", "r", {"t": [[0, 0.0], [0.5, 1.0], [1, 2.0]]}, slopes=[[0.5, 1.0, 2.0]])
    page = drawn(Learned("Learned", "", {"own": {"charts": [straight]}}))
    (x0, y0), (x1, y1), _ = curve(page)
    a, b, c, d = page.js(
        "['x1', 'y1', 'x2', 'y2'].map(end => Number(document.querySelector('.slope').getAttribute(end)))"
    )
    assert ((a + c) / 2, (b + d) / 2) == pytest.approx((x1, y1), abs=0.1)
    assert (d - b) / (c - a) == pytest.approx((y1 - y0) / (x1 - x0), rel=0.01)


def test_weights_have_their_colours_and_places(drawn):
    """Blue is negative, red is positive, and the paler the smaller; row k stands below row k - 1."""
    matrix = [[0.0, 0.0], [-1.0, 0.0], [0.5, 1.0]]
    page = drawn(Learned("Learned", "", {"own": {"charts": [], "weights": matrix}}))
    cells = page.js(
        "[...document.querySelectorAll('.weights rect')].map(cell => [Number(cell.getAttribute('x')), "
        "Number(cell.getAttribute('y')), getComputedStyle(cell).fill.match(/[0-9.]+/g).slice(0, 3).map(Number)])"
    )
    (x0, y0, least), (x1, y1, half), (x2, y2, most) = cells
    assert (x0, y0) < (x0, y1) == (x1, y1)
    assert (x1, y1) < (x2, y2)
    red, _, blue = range(3)
    assert least[blue] > least[red]
    assert most[red] > most[blue]
    assert most[blue] < half[blue]


def test_points_lie_where_they_are_and_join_their_own(drawn):
    """The second coordinate upwards."""
    exact, found = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], [[0.1, 0.0], [0.9, 0.1], [0.0, 0.8]]
    page = drawn(Viewer("Samples", "", exact, [Cell("own", 4, found, "")], 3, 3, "own"))

    def numbers(selector, *names):
        told = f"[{', '.join(map(repr, names))}].map(name => Number(each.getAttribute(name)))"
        return page.js(f"[...document.querySelectorAll('.scatter {selector}')].map(each => {told})")

    origin, right, up = numbers(".exact", "cx", "cy")
    assert right[0] > origin[0] == up[0]
    assert up[1] < origin[1] == right[1]
    ends = numbers("line", "x1", "y1", "x2", "y2")
    dots = zip(numbers(".exact", "cx", "cy"), numbers(".found", "cx", "cy"), strict=True)
    assert ends == [[*one, *other] for one, other in dots]
