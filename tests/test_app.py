"""The page of `bespoke app`: the command itself, in a real browser."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec

import pytest

from bespoke_solvers import Solver, toy
from bespoke_solvers.app import as_html
from bespoke_solvers.cli import main
from bespoke_solvers.cli.application import _by_short_names
from bespoke_solvers.dedicated import baseline
from bespoke_solvers.description import describe
from bespoke_solvers.playground import Drawing, Panel
from bespoke_solvers.solver import save
from browser import cannot_test

MODEL, ALSO, NETWORK = "toy:checkerboard", "toy:digits", "zoo:cifar10-fm-ot"
DONE = "!!document.querySelector('.panels[aria-busy=false]')"
NAMES = "[...document.querySelectorAll('.panels strong')].map(e => e.textContent)"
CAPTIONS = "[...document.querySelectorAll('.panels figcaption')].map(e => e.innerText)"
PICTURES = "[...document.querySelectorAll('.panels img')].map(e => e.src)"


@pytest.fixture(scope="module")
def served(tmp_path_factory, browser):
    """The address of the page, with a file of two solvers of the first model."""
    if find_spec("gradio") is None:
        cannot_test("Gradio is not installed; pip install 'bespoke-solvers[app]' to test the app")
    file = tmp_path_factory.mktemp("app") / "s.json"
    model = toy.load(MODEL)
    save([Solver(baseline("unipc", nfe, model), "ns", model=describe(model)) for nfe in (5, 8)], file)
    others = ["--also", ALSO, "--also", NETWORK, "--tolerance", "1e-3"]  # a network's exact samples take long
    command = [sys.executable, "-m", "bespoke_solvers.cli", "app", MODEL, str(file), *others]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        said = ""
        while not (address := re.search(r"http://127\.0\.0\.1:\d+/", said)):
            line = process.stdout.readline()
            assert line, f"the app ended: {said}"
            said += line
        yield address[0]
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def test_files_are_named_as_briefly_as_tells_them_apart():
    assert _by_short_names(["a/b/s.json", "zoo:x", "a/c/t.json"]) == {
        "s.json": "a/b/s.json",
        "zoo:x": "zoo:x",
        "t.json": "a/c/t.json",
    }
    assert list(_by_short_names(["a/b/s.json", "a/c/s.json", "s.json"])) == ["b/s.json", "c/s.json", "s.json"]
    assert _by_short_names([]) == {}


def choose(page, name, option):
    """Click a list and one of its entries."""
    page.pointer(f"input[aria-label='{name}']", click=True)
    entry = f"[...document.querySelectorAll('[role=option]')].find(e => e.innerText.trim().endsWith({option!r}))"
    page.until(f"!!({entry})")
    page.js(f"{entry}.id = 'wanted'")
    page.pointer("#wanted", click=True)
    page.until("!document.querySelector('[role=option]')")


def fill(page, name, text):
    """Type into a field instead of what is there."""
    page.js(
        "[...document.querySelectorAll('input, textarea')]"
        f".find(e => [e.ariaLabel, e.labels?.[0]?.innerText.trim()].includes({name!r})).select()"
    )
    page.call("Input.insertText", text=text)


def draw(page, ends="!!document.querySelector('.panels[aria-busy=false]')"):
    """Press the button, wait for the end."""
    page.js("document.querySelectorAll('.panels, .error').forEach(e => e.remove())")
    page.pointer("button.primary", click=True)
    return page.until(ends, seconds=60)


def test_samples_side_by_side(served, opened):
    page = opened(served)
    page.until(DONE, seconds=60)
    assert page.js(NAMES) == ["midpoint", "ns-bespoke", "exact"], "at once, without a click"
    captions = page.js(CAPTIONS)
    assert [re.search(r"(\d+) evaluations, [\d.e-]+ s", text)[1] for text in captions[:2]] == ["6", "5"]
    assert ["RMSE" in text and "PSNR" in text for text in captions] == [True, True, False]
    assert page.js("document.querySelector('.remark').textContent") == (
        "Midpoint cannot have 5 evaluations; here it has 6."
    )
    assert "times fewer evaluations than the exact solution" in page.js("document.querySelector('.summary').innerText")
    assert page.js("[...document.querySelectorAll('.panels img')].map(e => e.alt.split(',')[0])") == [
        f"Samples by {name}" for name in ("midpoint", "ns-bespoke", "exact")
    ]
    pictures = page.js(PICTURES)
    assert len(set(pictures)) == 3
    choose(page, "NFE", "8")
    choose(page, "Baseline", "euler")
    draw(page)
    assert [re.search(r"(\d+) eval", text)[1] for text in page.js(CAPTIONS)[:2]] == ["8", "8"]
    assert page.js(NAMES)[0] == "euler"
    others = page.js(PICTURES)
    assert [mine == theirs for mine, theirs in zip(pictures, others, strict=True)] == [False, False, True]
    assert "to a tolerance of 0.001" in page.js(CAPTIONS)[2]
    fill(page, "Baseline", "ipndm@log-snr:0.05")
    page.press("Enter")
    draw(page)
    assert page.js(NAMES)[0] == "ipndm@log-snr:0.05"
    assert "on the grid log-snr:0.05" in page.js(CAPTIONS)[0]
    fill(page, "Seed", "5")
    draw(page)
    assert not set(page.js(PICTURES)) & {*pictures, *others}


def test_another_click_does_not_wait_for_the_drawing_before(served, opened):
    page = opened(served)
    page.until(DONE, seconds=60)
    fill(page, "Samples", "4000")
    for seed in ("77", "78", "79"):
        fill(page, "Seed", seed)
        page.pointer("button.primary", click=True)
    fill(page, "Samples", "3")
    choose(page, "Baseline", "rk4")
    draw(page, "[...document.querySelectorAll('.panels[aria-busy=false] strong')][0]?.textContent === 'rk4'")


def test_what_is_shown_stays_until_something_is_chosen(served, opened):
    """Though the lists are looked at, or only passed on the way to another field."""
    page = opened(served)
    page.until(DONE, seconds=60)
    fill(page, "Samples", "12")
    choose(page, "NFE", "8")
    draw(page)
    pictures = page.js(PICTURES)
    for name in ("Model", "Solver"):
        page.pointer(f"input[aria-label={name}]", click=True)
        page.until("!!document.querySelector('[role=option]')")
        page.pointer("h1", click=True)
        page.until("!document.querySelector('[role=option]')")
    page.js("document.querySelector('input[aria-label=Model]').focus()")
    page.press("Tab", 3)
    fill(page, "Guidance", "much")
    page.press("Enter")  # whose answer comes after those of the lists
    page.until("!!document.querySelector('.error')")
    fill(page, "Guidance", "")
    page.press("Enter")
    page.until("document.querySelectorAll('.panels[aria-busy=false] img').length === 3", seconds=60)
    assert page.js(PICTURES) == pictures
    assert page.js("document.querySelector('input[aria-label=Samples]').value") == "12"
    assert "8 evaluations" in page.js(CAPTIONS)[1]


def test_errors_are_said_in_the_page(served, opened):
    page = opened(served)
    page.until(DONE, seconds=60)
    error = "document.querySelector('.error')?.textContent"
    choose(page, "Model", ALSO)
    page.until("document.querySelector('input[aria-label=Samples]').value === '4'")
    assert "made for a model with shape [2] (here [1, 8, 8]); fit one for this model" in draw(page, error)
    choose(page, "Solver", "none")
    draw(page)
    assert page.js(NAMES) == ["midpoint", "exact"]
    fill(page, "Guidance", "2")
    assert draw(page, error).startswith(f"Guidance 2 is for models in diffusers' folders; {ALSO} brings its own")
    fill(page, "Guidance", "much")
    assert draw(page, error) == "Guidance is 'much'; expected a number, or nothing for the model's own."


def test_a_network_with_a_class_and_guidance(served, opened):
    page = opened(served)
    page.until(DONE, seconds=60)
    assert page.js("!document.querySelector('input[aria-label=Class]')"), "points have none"
    choose(page, "Solver", "none")
    choose(page, "Model", NETWORK)
    page.until("!!document.querySelector('input[aria-label=Class]')", seconds=60)
    fill(page, "Samples", "1")
    choose(page, "Class", "cat")
    fill(page, "Guidance", "2")
    draw(page)
    assert page.js(NAMES) == ["midpoint", "exact"]
    assert "RMSE" in page.js(CAPTIONS)[0]
    assert "4 evaluations" in page.js(CAPTIONS)[0]
    first_picture = "document.querySelector('.panels img')?.src"
    pictures = [page.js(first_picture)]
    choose(page, "Class", "dog")
    pictures.append(draw(page, first_picture))
    fill(page, "Guidance", "")
    pictures.append(draw(page, first_picture))
    assert len(set(pictures)) == 3, "both reach the model"


@pytest.mark.parametrize(("width", "scheme"), [(390, "light"), (1280, "dark")])
def test_the_page_can_be_read(served, opened, width, scheme):
    page = opened(served, width=width, scheme=scheme)
    page.until(DONE, seconds=60)
    assert page.cut_off() == []
    assert page.js("document.documentElement.scrollWidth") <= width
    assert [found for found in page.contrasts() if found[0] < found[1]] == []


def test_names_are_text_in_the_page():
    hostile = "<img src=x onerror=fail()>"
    noted = Panel("b", None, False, 1, 2.0, None, hostile)
    written = as_html(Drawing([Panel(hostile, b"", True, 3, 0.5, None), noted], [hostile], [hostile]))
    assert "<img src=x" not in written
    assert written.count("&lt;img src=x onerror=fail()&gt;") == 5
    assert "1 evaluation, 2.00 s" in written
    assert "neither pictures nor points" in written


def test_without_gradio_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(SystemExit) as end:
        main(["app", MODEL])
    assert end.value.code == 1
    assert "pip install 'bespoke-solvers[app]'" in capsys.readouterr().err


def test_a_dry_run_serves_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("bespoke_solvers.app.gradio", lambda: None)
    monkeypatch.setattr("bespoke_solvers.app.serve", lambda *arguments: pytest.fail("served"))
    save([Solver(baseline("euler", nfe, toy.load(MODEL))) for nfe in (5, 8)], tmp_path / "s.json")
    for also, code, told in [
        (ALSO, 0, f"would show {MODEL}, {ALSO} with s.json (5, 8 NFE)\nat 127.0.0.1, port from 7860 on"),
        ("toy:digit", 1, "unknown toy model 'toy:digit'"),
    ]:
        with pytest.raises(SystemExit) as end:
            main(["app", MODEL, str(tmp_path / "s.json"), "--also", also, "--dry-run"])
        assert (end.value.code or 0) == code
        printed = capsys.readouterr()
        assert told in (printed.err if code else printed.out)


@pytest.mark.parametrize(
    ("more", "host", "warned"),
    [([], "127.0.0.1", False), (["--host", "localhost"], "localhost", False), (["--host", "0.0.0.0"], "0.0.0.0", True)],
)
def test_only_this_machine_unless_told_otherwise(monkeypatch, capsys, more, host, warned):
    started = []
    monkeypatch.setattr("bespoke_solvers.app.gradio", lambda: None)
    monkeypatch.setattr("bespoke_solvers.app.serve", lambda *arguments: started.append(arguments[1:]))
    with pytest.raises(SystemExit) as end:
        main(["app", MODEL, "--port", "7999", *more])
    assert not end.value.code
    assert started == [(host, 7999)]
    assert ("without a password" in capsys.readouterr().err) == warned
