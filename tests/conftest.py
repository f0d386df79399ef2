"""Shapes in the package's signatures are checked while the tests run."""

import sys

import pytest
import torch
from hypothesis import settings
from jaxtyping import install_import_hook

install_import_hook("bespoke_solvers", "shapecheck.typechecker")

torch.set_num_threads(1)
settings.register_profile("default", deadline=None, derandomize=True, max_examples=25)
settings.load_profile("default")

from bespoke_solvers import stages, toy  # noqa: E402, under the hook
from bespoke_solvers.bank import Bank  # noqa: E402
from bespoke_solvers.fitting import CHAIN, STEPS  # noqa: E402
from bespoke_solvers.grids import WARPS  # noqa: E402
from browser import Browser, Page, cannot_test, find  # noqa: E402
from chains import CHAINED, GRIDS, SMALL, fit  # noqa: E402
from commands import OWN, QUICK, run  # noqa: E402


def pytest_collection_modifyitems(items):
    """The zoo's tests first: the demo is the longest of all, and at the end one worker would wait for the other."""
    items.sort(key=lambda item: item.path.stem != "test_zoo")


@pytest.fixture(scope="module")
def model():
    return toy.checkerboard()


@pytest.fixture(scope="module")
def bank(model):
    return Bank(model, batch_size=16)


@pytest.fixture(scope="module")
def large(model):
    return Bank(model, batch_size=48)


@pytest.fixture(scope="module")
def few_steps():
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(STEPS, "projection", 3)
        patch.setitem(STEPS, "closed-form", GRIDS + 1)
        patch.setattr(stages, "WARPS", WARPS[:GRIDS])
        yield


@pytest.fixture(scope="module")
def chain(model, large, few_steps):
    """The solvers that each of the three objectives gives."""
    options = SMALL | {"nfe": 4, "paths": 48}
    return {name: fit(model, large, **options, objective=name) for name in CHAIN}


@pytest.fixture(scope="module")
def whole(model, bank, few_steps):
    return fit(model, bank, **CHAINED)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium."""
    executable = find()
    if executable is None:
        cannot_test("no Chromium was found; install one (Debian: apt-get install chromium) to test pages in it")
    browser = Browser(executable, tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture
def opened(browser):
    """Opens pages, which must give no cause for complaint until they are closed."""
    pages = []

    def open_page(*arguments, **options):
        pages.append(Page(browser, *arguments, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        assert page.complaints == []
        page.close()


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty folder to work in, with a module of the user's own."""
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("own", None)


@pytest.fixture(scope="module")
def solver(tmp_path_factory):
    path = tmp_path_factory.mktemp("solver") / "board.json"
    run("fit", "toy:checkerboard", "--nfe", 4, "--out", path, *QUICK)
    return path
