import dataclasses
import json
import re
from pathlib import Path

import pytest
import torch

from bespoke_solvers import Solver, comparison, eval_report, report, toy
from bespoke_solvers.bank import Bank
from bespoke_solvers.comparison import Comparison
from bespoke_solvers.families import Bespoke
from bespoke_solvers.generic import MIDPOINT, baseline
from bespoke_solvers.report import Cell, Chart, Column, Curves, Headline, Learned, Note, Provenance, Table, Viewer
from viewers import shown

ROOT = Path(__file__).parent.parent
HOSTILE = "</script><script>fail()</script><img src=x onerror=fail()>&\"'$title\u2028"


def solver_of(base, n):
    """A Bespoke solver as if fitted: the base method on a warped time."""
    family = Bespoke(n, base)
    with torch.no_grad():
        family.theta_t[0] *= 0.8
    theta = {name: value.tolist() for name, value in family.state_dict().items()}
    fit = {"objective": "bound", "seed": 0, "evaluations": {"reference": 1234}, "bespoke_solvers": "0.1.0"}
    return Solver(family().detach(), family.name, theta, fit=fit)


def written(folder, model, solvers, methods="euler,midpoint", nfe=(4, 6, 8), judged=False):
    bank = Bank(model, batch_size=8)
    tables, _ = comparison.methods(solvers, methods.split(","), nfe, model)
    result = comparison.compare(bank, tables, seed=3, samples=20)
    if judged:
        rows = [row | {"fid": 100 * row["rmse"], "kid": row["rmse"]} for row in result.rows]
        result = dataclasses.replace(result, rows=rows, exact={"fid": 2.5, "kid": 0.001}, judged=5000)
    eval_report.write(folder / "report.html", result, bank, solvers, "own:model", "bespoke eval own:model")
    return folder / "report.html", result


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    solvers = [solver_of(MIDPOINT, n) for n in (2, 4)]
    return written(tmp_path_factory.mktemp("digits"), toy.digits(centres=20), solvers, judged=True)


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    plain = Solver(baseline("heun", 6), "ns")
    return written(tmp_path_factory.mktemp("points"), toy.checkerboard(), [plain])[0]


PICTURE = "document.querySelector('canvas').toDataURL()"


def painted(page):
    """The three pictures of the viewer, as soon as they are there."""
    page.until("document.querySelector('canvas').hasAttribute('aria-label')")
    return page.js("[...document.querySelectorAll('canvas')].map(canvas => canvas.toDataURL())")


def column(page, number):
    return page.js(f"[...document.querySelectorAll('.sortable tbody tr')].map(row => row.cells[{number}].textContent)")


def test_the_slider_changes_the_picture(opened, digits):
    page = opened(digits[0])
    own, difference, exact = painted(page)
    assert len({own, difference, exact}) == 3
    page.js("document.querySelector('.viewer input').focus()")
    page.press("ArrowLeft")
    page.until(f"{PICTURE} !== {json.dumps(own)}")
    assert "rk2-bespoke with 4 evaluations" in page.js("document.querySelector('.viewer .readout').textContent")
    now = painted(page)
    assert now[1] != difference
    assert now[2] == exact
    page.press("ArrowRight")
    page.until(f"{PICTURE} === {json.dumps(own)}")


def test_another_solver_and_a_sample_alone(opened, digits):
    page = opened(digits[0])
    own, _, exact = painted(page)
    page.js("document.querySelector('.viewer select').focus()")
    page.press("ArrowDown", 2)
    page.until("document.querySelector('.viewer .readout').textContent.startsWith('midpoint with 8')")
    page.until(f"{PICTURE} !== {json.dumps(own)}")
    assert painted(page)[2] == exact
    page.pointer("canvas", 0.9, 0.1, click=True)
    page.until("document.querySelector('canvas').width === 8")
    assert page.js("document.querySelectorAll('.viewer select')[1].value") == "3"
    assert "sample 4 by midpoint" in page.js("document.querySelector('canvas').getAttribute('aria-label')")


def test_the_difference_is_that_of_the_pictures(opened, digits):
    page = opened(digits[0])
    painted(page)
    page.js(
        "(() => { const gain = document.querySelectorAll('.viewer select')[2]; gain.value = 1;"
        "gain.dispatchEvent(new Event('change')); })()"
    )
    page.until("document.querySelectorAll('figcaption')[1].textContent === 'Difference \u00d7 1'")
    own, difference, exact = (
        torch.tensor(
            page.js(f"[...document.querySelectorAll('canvas')[{i}].getContext('2d').getImageData(0,0,8,8).data]")
        )
        for i in range(3)
    )
    colours = torch.arange(len(own)) % 4 != 3
    assert torch.equal(difference[colours], (own - exact).abs()[colours])
    assert difference[colours].any()


def test_the_table_sorts_by_click_and_by_key(opened, digits):
    page, rows = opened(digits[0]), digits[1].rows
    assert column(page, 1) == sorted(column(page, 1), key=int)
    page.pointer(".sortable th:nth-child(4) button", click=True)
    errors = [float(text) for text in column(page, 3)]
    assert errors == sorted(errors)
    assert len(errors) == len(rows)
    page.press("Enter")
    assert [float(text) for text in column(page, 3)] == sorted(errors, reverse=True)
    assert page.js("document.querySelector('.sortable th:nth-child(4)').ariaSort") == "descending"
    page.js("document.querySelector('.sortable th button').focus()")
    page.press(" ")
    assert column(page, 0) == sorted(column(page, 0))
    assert page.js("document.querySelectorAll('[aria-sort=none]').length") == 7


def test_the_curves_answer_to_pointer_and_key(opened, digits):
    page = opened(digits[0])
    read = "document.querySelector('.curves label b').textContent"
    values = "[...document.querySelector('.legend tbody tr').cells].slice(1).map(cell => cell.textContent)"
    rows = {row["nfe"]: row for row in digits[1].rows if row["method"] == "rk2-bespoke"}
    assert page.js(read) == "8"
    page.pointer(".curves svg", 0.15, 0.5)
    page.until(f"{read} === '4'")
    assert page.js(values) == [f"{rows[4]['rmse']:.3g}", f"{rows[4]['psnr']:.1f}", f"{rows[4]['fid']:.2f}"]
    assert page.js("document.querySelector('.curves .tag').textContent").split(": ")[0] in (
        "euler",
        "midpoint",
        "rk2-bespoke",
    )
    page.js("document.querySelector('.curves input').focus()")
    page.press("ArrowRight")
    page.until(f"{read} === '6'")
    fewer = [f"{rows[4]['rmse']:.3g}", f"{rows[4]['psnr']:.1f}", f"{rows[4]['fid']:.2f}"]
    assert page.js(values) == [f"{figure} (at 4)" for figure in fewer], "it has none with 6"
    assert page.js("document.querySelector('.legend th').textContent") == "Method, at 6", "paper has no slider"
    curves = "document.querySelectorAll('.curves .charts .curve').length"
    assert page.js(curves) == 9
    page.pointer(".legend tbody button", click=True)
    assert page.js(curves) == 6


def test_a_chart_that_does_not_reach_the_chosen_place_has_no_line_there(opened, tmp_path):
    """FID may have been measured with fewer evaluations than RMSE."""
    rmse, fid = {"one": [[n, 1 / n] for n in (6, 8, 20)]}, {"one": [[8, 3], [10, 2]]}
    both = Curves("Errors", "", [Chart("RMSE", "NFE", rmse), Chart("FID", "NFE", fid)])
    (tmp_path / "report.html").write_text(report.page("few", [both]))
    page = opened(tmp_path / "report.html")
    lines = "[...document.querySelectorAll('.chart')].map(chart => chart.querySelectorAll('.cursor').length)"
    assert page.js(lines) == [1, 0]
    page.js("document.querySelector('.curves input').focus()")
    for found in ([1, 1], [1, 1], [1, 0]):  # 10, 8, 6
        page.press("ArrowLeft")
        assert page.js(lines) == found


def test_what_was_learned(opened, digits):
    page = opened(digits[0])
    assert page.js("document.querySelectorAll('.learned .part:not([hidden]) .slope').length") == 8 + 8
    assert page.js("document.querySelectorAll('.part:not([hidden]) .weights rect').length") == 8 * 9 / 2, (
        "of the headline's solver"
    )
    page.js("document.querySelector('.learned select').focus()")
    page.press("ArrowDown")
    page.until("document.querySelectorAll('.part:not([hidden]) .weights rect').length === 4 * 5 / 2")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1200])
def test_nothing_is_cut_off_and_all_can_be_read(opened, digits, points, width, scheme):
    for path in (digits[0], points):
        page = opened(path, width=width, scheme=scheme)
        page.js("document.querySelectorAll('details').forEach(each => each.open = true)")
        assert page.js("document.documentElement.scrollWidth") == width
        assert page.cut_off() == []
        contrasts = page.contrasts()
        assert len(contrasts) > 50
        assert [found for found in contrasts if found[0] < found[1]] == []


@pytest.mark.parametrize("width", [390, 1200])
def test_figures_stand_below_their_heads(opened, tmp_path, width):
    """Also where a narrow screen does without the time grid that some methods have."""
    rows = [
        {"method": "euler", "nfe": 4, "rmse": 0.5, "psnr": 20.0},
        {"method": "unipc", "nfe": 4, "rmse": 0.25, "psnr": 30.0, "grid": "karras"},
    ]
    table = eval_report.table(Comparison(rows, 4, 0, 20.0, 0.0), [])
    (tmp_path / "report.html").write_text(report.page("Figures", [table]))
    page = opened(tmp_path / "report.html", width=width)
    seen = "[...row.cells].filter(cell => cell.checkVisibility()).map(cell => cell.textContent)"
    found = page.js(f"[...document.querySelector('.sortable').rows].map(row => {seen})")
    assert found == (
        [["Method", "NFE", "RMSE", "PSNR"], ["unipc", "4", "0.250", "30.0"], ["euler", "4", "0.500", "20.0"]]
        if width == 390
        else [
            ["Method", "NFE", "Times fewer", "Time grid", "RMSE", "PSNR"],
            ["unipc", "4", "5.0", "karras", "0.250", "30.0"],
            ["euler", "4", "5.0", "", "0.500", "20.0"],
        ]
    )


def test_every_control_and_picture_has_a_name(opened, digits):
    page = opened(digits[0])
    painted(page)
    nodes = page.call("Accessibility.getFullAXTree")["nodes"]
    named = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in nodes
        if not node["ignored"] and node["role"]["value"] in ("image", "slider", "combobox", "button", "table", "link")
    ]
    assert {"image", "slider", "combobox", "button", "table", "link"} == {role for role, _ in named}
    assert [role for role, name in named if not name] == []


def test_paper_has_no_hints_for_hands(opened, digits):
    page = opened(digits[0])
    hints = "[...document.querySelectorAll('.hint')]"
    viewer, table = page.js(f"{hints}.map(hint => hint.textContent)")
    assert "touch a sample" in viewer
    assert "sorts" in table
    assert page.js(f"{hints}.every(hint => hint.checkVisibility())")
    assert not page.printed(f"{hints}.some(hint => hint.checkVisibility())")
    assert not re.search("you choose|sorts|touch", page.printed("document.querySelector('main').innerText"))


def test_it_prints_on_white(opened, digits):
    page = opened(digits[0], scheme="dark")
    page.js("addEventListener('beforeprint', () => { window.wasTold = true; })")
    page.call("Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert page.js("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.js("document.querySelector('.controls').checkVisibility()") is False
    assert len(page.call("Page.printToPDF")["data"]) > 10_000
    assert page.js("wasTold")


def test_paper_shows_every_solver_unfolded(opened, digits):
    page = opened(digits[0])
    seen = (
        "['.name', '.weights', 'details pre'].map(part => [...document.querySelectorAll(`.learned > .part ${part}`)]"
        ".filter(each => each.checkVisibility({ contentVisibilityAuto: true })).length)"
    )
    assert page.js(seen) == [0, 1, 0]
    assert page.printed(seen) == [2, 2, 2]
    page.until(f"{seen}.join() === '0,1,0'")


@pytest.mark.parametrize("width", [390, 1200])
def test_letters_on_paper_have_their_size(opened, digits, width):
    """Whatever the window, also in charts that were not to be seen there; and heads of tables are repeated."""
    page = opened(digits[0], width=width)
    drawn = "[...document.querySelectorAll('.chart > svg[role]:not(.weights)')]"
    told = f"addEventListener('beforeprint', () => {{ onPaper = {drawn}.map(each => each.viewBox.baseVal.width); }})"
    page.js(f"(window.onPaper = null, {told})")  # for what width; nothing is drawn again once styles are paper's
    widths = page.printed(f"{drawn}.map(each => each.getBoundingClientRect().width)")
    found = [width / intended for width, intended in zip(widths, page.js("onPaper"), strict=True)]
    assert len(found) == page.js("document.querySelectorAll('.curves .chart, .learned .chart:has(.curve)').length") > 5
    assert all(0.95 < size < 1.05 for size in found), found
    assert page.printed("getComputedStyle(document.querySelector('thead button')).display") == "contents"


def test_paper_leaves_out_what_is_long(opened, tmp_path):
    """The numbers of many solvers, and many commands, but for those that a reader has unfolded."""
    plots = {"charts": [Chart("t", "r", {"t": [[0, 0.0], [1, 1.0]]})], "numbers": "0 1"}
    sections = [
        Learned("Learned", "", {f"solver {i}": plots for i in range(9)}),
        Provenance("Provenance", [f"bespoke eval {i}" for i in range(4)], {}),
    ]
    (tmp_path / "report.html").write_text(report.page("Long", sections))
    page = opened(tmp_path / "report.html")
    seen = "[...document.querySelectorAll('summary')].filter(each => each.checkVisibility()).map(e => e.textContent)"
    assert page.js(seen) == ["All numbers of this solver", "The 4 commands"]
    assert page.printed(seen) == ["The 4 commands"], "which are said to be in the page"
    assert not page.printed("document.querySelector('pre').checkVisibility()")
    page.pointer(".provenance summary", click=True)
    assert page.printed("document.querySelector('.provenance pre').checkVisibility()")
    assert page.printed(seen) == ["The 4 commands"]


def test_pictures_that_were_not_chosen_are_there_to_print(opened, tmp_path):
    """They are painted when the page is opened: a browser does not wait for pictures when it prints."""
    several = report.Choice("Samples", {name: shown(toy.digits(centres=20)) for name in ("one", "other")})
    (tmp_path / "report.html").write_text(report.page("Two", [several]))
    page = opened(tmp_path / "report.html")
    page.until("[...document.querySelectorAll('canvas')].every(each => each.hasAttribute('aria-label'))")
    painted = page.printed(
        "[...document.querySelectorAll('canvas')].map(each => each.checkVisibility() && each.toDataURL())"
    )
    assert len(painted) == 6
    assert painted[:3] == painted[3:]
    assert len(set(painted)) == 3


def test_points_of_the_plane_are_scattered(opened, points):
    page = opened(points)
    assert page.js("document.querySelectorAll('.scatter .exact').length") == 20
    where = "[...document.querySelectorAll('.scatter .found')].map(dot => dot.getAttribute('cx')).join()"
    before = page.js(where)
    page.js("document.querySelector('.viewer select').focus()")
    page.press("ArrowDown")
    page.until(f"{where} !== {json.dumps(before)}")
    assert page.js("document.querySelector('.viewer input').disabled") is False


def test_text_of_others_stays_text(opened, tmp_path):
    chart = Chart(HOSTILE, HOSTILE, {HOSTILE: [[1, 1.0], [2, 0.5]]}, {HOSTILE: [[1, 1], [2, 2]]})
    sections = [
        Headline(HOSTILE, HOSTILE, HOSTILE, [HOSTILE]),
        Note(HOSTILE, HOSTILE),
        Table(
            HOSTILE, HOSTILE, [Column(HOSTILE), Column("x", missing=HOSTILE)], [[HOSTILE, None], ["b", 2]], [HOSTILE]
        ),
        Curves(HOSTILE, HOSTILE, [chart], [HOSTILE]),
        Viewer(HOSTILE, HOSTILE, [[0, 0], [1, 1]], [Cell(HOSTILE, 2, [[0, 1], []], HOSTILE)], 2, 1, HOSTILE),
        Learned(HOSTILE, HOSTILE, {HOSTILE: {"charts": [chart], "weights": [[0.0], [0.5]], "numbers": HOSTILE}}),
        Provenance(HOSTILE, [HOSTILE], {HOSTILE: {HOSTILE: HOSTILE}}),
    ]
    (tmp_path / "report.html").write_text(report.page(HOSTILE, sections))
    page = opened(tmp_path / "report.html", width=390)
    assert page.js("document.querySelectorAll('img').length + document.scripts.length") == 2
    assert page.js("document.title") == HOSTILE
    assert page.js("document.querySelector('.viewer option').textContent") == HOSTILE


def test_long_names_fit_on_a_phone(opened, tmp_path):
    """And what does not fit is noticed, though a phone's window grows with it."""
    name = "a_package.models_of_mine:" + "a_function_with_a_long_name_" * 3
    chart = Chart("RMSE", "NFE", {name: [[1, 1.0], [2, 0.5]]})
    columns = [Column("Method"), Column("NFE", "d"), Column("RMSE"), Column("Time grid")]
    sections = [
        Headline("In short", "2 times", name, [name]),
        Table("Table", name, columns, [[name, 8, 0.5, name]]),
        Curves("Curves", name, [chart], [name]),
        Viewer("Samples", name, [[0, 0], [1, 1]], [Cell(name, 2, [[0, 1], []], name)], 2, 1, name),
        Learned("Learned", name, {name: {"charts": [chart]}}),
        Provenance("Provenance", [f"bespoke eval {name}"], {"Measured": {"model": name}}),
    ]
    text = report.page(name, sections)
    (tmp_path / "report.html").write_text(text)
    page = opened(tmp_path / "report.html", width=390)
    assert page.cut_off() == []
    assert page.js("document.documentElement.scrollWidth") == 390
    (tmp_path / "wide.html").write_text(text.replace("</style>", "table { min-width: 700px; }</style>"))
    page = opened(tmp_path / "wide.html", width=390)
    assert any(element.startswith("<table") for element in page.cut_off())
    assert page.js("document.documentElement.scrollWidth") > 390


def test_provenance_tells_what_fits_share_once(digits):
    text = digits[0].read_text()
    assert text.count("<dt>objective</dt><dd>bound</dd>") == 1
    assert "<pre>bespoke eval own:model</pre>" in text
    assert "20 from noise that no fit and no choice has seen, seed 3" in text
