"""Figures that the documentation tells of benchmarks are those of their stores."""

import re

from bench.frontier import DEFAULT, PRINTED
from bench.store import Store

from benchmarks import ROOT, lines, run
from bespoke_solvers import dedicated


def test_the_tables_in_the_documentation_are_those_of_the_store(tmp_path):
    pages = {tmp_path / page.name: page.read_text() for page in (ROOT / "docs").glob("results*.md")}
    for copy, text in pages.items():
        copy.write_text(re.sub(r"(<!-- .* -->\n\n)(?:\|.*\n)+", r"\1| out of date |\n", text))
    for store in ("frontier", "alone", "paths", "many", "schedulers", "fid"):
        paper = ["--paper", ROOT / "bench" / "results" / "paper" / "results.json"]
        run("bench.tables", "--store", ROOT / "bench" / "results" / store, *paper, "--into", *pages)
    for copy, text in pages.items():
        assert text.count("<!-- ") > 3
        assert copy.read_text() == text


def test_the_papers_results_are_a_few_hundred_kilobytes():
    """The figures that pages show, and results.json; the rest is drawn from the cells."""
    pages = "".join(page.read_text() for page in (ROOT / "docs").glob("*.md"))
    folder = ROOT / "bench" / "results" / "paper"
    shown = {folder / name for name in re.findall(r"bench/results/paper/([\w-]+\.png)", pages)}
    assert len(shown) >= 10
    assert sum(file.stat().st_size for file in (*shown, folder / "results.json")) < 450_000


def test_the_default_costs_a_twentieth_of_the_papers_procedure():
    """And is closer to the exact samples, the same ones; what is said of both is what they took."""
    told = (ROOT / "docs" / "results-digits.md").read_text().replace("\n", " ")
    shares = []
    for name in ("toy:digits", "toy:digits-fm-v-cs", "toy:digits-vp"):
        frontier, many = (Store(ROOT / "bench" / "results" / each) for each in ("frontier", "many"))
        (paper,) = (record for record in frontier.of(name) if record["method"] == PRINTED)
        (ours,) = (
            record
            for record in many.of(name)
            if (record["method"], record["nfe"], record["seed"]) == (DEFAULT, 10, 0) and "512" in record["budget"]
        )
        same = ("nfe", "seed", "samples", "tolerance", "choose")
        assert [paper[field] for field in same] == [ours[field] for field in same]
        assert paper["cost"] > 20 * ours["cost"]
        assert paper["rmse"] > ours["rmse"]
        assert all(f"{record['cost']:,}" in told and f"{record['rmse']:.4f}" in told for record in (paper, ours))
        shares.append([paper["cost"] / ours["cost"], paper["cost"] / ours["cost"] * paper["best_iteration"] / 2000])
    for each in zip(*shares, strict=True):
        assert "1/{:.0f}, 1/{:.0f} and 1/{:.0f}".format(*each) in told


def test_the_statements_about_the_zoo_are_those_of_its_results(tmp_path):
    page, copy = ROOT / "docs" / "zoo.md", tmp_path / "zoo.md"
    copy.write_text(page.read_text().replace("held", "?"))
    results = ROOT / "bench" / "results" / "zoo" / "results.json"
    run("bench.tables", "--paper", results, "--store", tmp_path / "none", "--into", copy)
    told = copy.read_text().partition("<!-- statements -->\n\n")[2].split("\n\n")[0]
    assert len(told.splitlines()) > 5
    assert told in page.read_text()


def test_the_table_in_the_readme_is_that_of_the_stores():
    """The network's: each row is the best that the methods it stands for have in a store, rounded as there."""
    rows = [line.strip("| ").split("|") for line in (ROOT / "README.md").read_text().splitlines() if line[:2] == "| "]
    start = next(i for i, row in enumerate(rows) if row[0].startswith("RK2 (midpoint)") and len(row) > 2)
    shown = {row[0].strip(" *"): [cell.strip(" *") for cell in row[1:]] for row in rows[start : start + 7]}
    records = lines(ROOT / "bench" / "results" / "frontier" / "cifar10-fm-ot.jsonl")
    judged = lines(ROOT / "bench" / "results" / "fid" / "cifar10-fm-ot.jsonl")
    (exact,) = (record["fid"] for record in judged if record["method"] == "dopri5")

    def best(methods, nfe, store=records, figure="rmse"):
        found = [r for r in store if r["method"] in methods and r["nfe"] == r.get("used", nfe) == nfe]
        return min((r for r in found if r.get("samples") != 50_000), key=lambda r: r[figure], default=None)

    def error(methods, nfe):
        found = best(methods, nfe)
        return f"{found['rmse']:.3f} / {found['psnr']:.1f}" if found else ""

    def share(method, nfe):
        found = best([method], nfe, judged, "fid")
        return f"{100 * found['fid'] / exact:.1f}" if found else ""

    columns = (4, 5, 6, 8, 10)
    assert shown == {
        "RK2 (midpoint)": [error(["midpoint"], nfe) for nfe in columns],
        "the best of the others": [error(dedicated.NAMES, nfe) for nfe in columns],
        "RK2-Bespoke, as in the paper": [error(["rk2-bespoke, bound"], nfe) for nfe in columns],
        "Bespoke": [error(["ns, default"], nfe) for nfe in columns],
        f"FID of RK2's samples, in percent of the exact samples' ({exact:.2f})": [
            share("midpoint", n) for n in columns
        ],
        "FID of Bespoke's": [share("ns, default", nfe) for nfe in columns],
        "evaluations of the whole fit, exact paths included": [
            f"{best(['ns, default'], nfe)['cost']:,}" for nfe in columns
        ],
    }
