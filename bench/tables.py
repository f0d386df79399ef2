"""Tables and pictures from the stores of the benchmarks: python -m bench.tables --help."""

import argparse
import json
import re
from collections.abc import Callable
from math import inf
from pathlib import Path
from statistics import mean
from typing import Any

from bench.fid import EXACT
from bench.frontier import ADAM, DEFAULT, GAUSS_NEWTON, LEARNED, REFINED, TRANSFERRED
from bench.models import HALF
from bench.store import KEY, Store
from bespoke_solvers import pictures
from bespoke_solvers.dedicated import NAMES

ORDER = [EXACT, *NAMES, *LEARNED, TRANSFERRED, REFINED]
IN_SHORT = {  # kinds of solvers, of each of which the best is shown
    "RK2 (midpoint)": ["midpoint"],
    "the best that is not fitted": list(NAMES),
    "RK2-Bespoke, the paper's bound": ["rk2-bespoke, bound"],
    "RK2-Bespoke, end point": ["rk2-bespoke, end point"],
    "the default": [DEFAULT],
}
FINE, CLOSE = 50, 0.005  # evaluations from which on a solver is shown in no column, and how close an FID is the same
COLOURS = 256  # of a picture, which is a third as large for it


def table(records: list[dict[str, Any]]) -> str:
    """RMSE / PSNR against NFE in Markdown, the best of each column bold; (4) where a method had only 4."""
    columns = sorted({record["nfe"] for record in records})
    best = {nfe: min(r["rmse"] for r in records if r["nfe"] == nfe and r["rmse"] is not None) for nfe in columns}
    lines = ["| method | budget | " + " | ".join(f"{nfe} NFE" for nfe in columns) + " |"]
    lines.append("|---" * (2 + len(columns)) + "|")
    for method, budget in dict.fromkeys((record["method"], record["budget"]) for record in records):
        cells = []
        for nfe in columns:
            found = [r for r in records if (r["method"], r["budget"], r["nfe"]) == (method, budget, nfe)]
            text = _figures(found[0]) if found else ""
            if found and (used := found[0].get("used", nfe)) != nfe:
                text += f" ({used})"
            cells.append(f"**{text}**" if found and found[0]["rmse"] == best[nfe] else text)
        lines.append(f"| {method} | {budget} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _figures(record: dict[str, Any]) -> str:
    if record["rmse"] is None:
        return "astray"
    spread = " ({:.4f} to {:.4f})".format(*record["range"]) if "range" in record else ""
    return f"{record['rmse']:.4f}{spread} / {record['psnr']:.1f}"


def in_short(records: list[dict[str, Any]], figure: str, told: Callable[[dict[str, Any]], str]) -> str:
    """Of each kind of solver the one that is best at each NFE, in Markdown, by name where the kind has several.

    FID was measured of few methods that are not fitted: there is no best of them.
    """
    columns = sorted({r["nfe"] for r in records if r["method"] == DEFAULT})
    lines = ["| | " + " | ".join(f"{nfe} NFE" for nfe in columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for kind, methods in IN_SHORT.items():
        if figure == "fid" and len(methods) > 1:
            continue
        cells = []
        for nfe in columns:
            found = [r for r in records if r["method"] in methods and r["nfe"] == r.get("used", nfe) == nfe]
            best = min(found, key=lambda r: r[figure] or inf, default=None)
            name = f" ({best['method']})" if best and len(methods) > 1 else ""
            cells.append(told(best) + name if best else "")
        bold = "**" if methods == [DEFAULT] else ""
        lines.append("| " + " | ".join(f"{bold}{cell}{bold}" for cell in (kind, *cells)) + " |")
    return "\n".join(lines)


def over_seeds(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each cell once: where it was measured with several seeds, by the means, and the range of RMSE beside them."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(tuple(record[name] for name in KEY if name != "seed"), []).append(record)
    found = []
    for group in groups.values():
        errors, ratios = ([record.get(name) for record in group] for name in ("rmse", "psnr"))
        if len(group) > 1 and None not in errors:
            means = {"rmse": mean(errors), "psnr": mean(ratios), "range": (min(errors), max(errors))}
            found.append(group[0] | means)
        else:
            found += group
    return found


def _solver(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[name] for name in ("model", "method", "nfe", "budget"))


def fid_table(records: list[dict[str, Any]]) -> str:
    """FID against NFE in Markdown, in percent of the exact solution's on as many samples.

    Where it was not solved, the solver nearest to it stands for it whose FID was seen to be the same on fewer samples,
    and has no percentage of its own.
    """
    exact = {r["samples"]: r["fid"] for r in records if r["method"] == EXACT}
    others = [r for r in records if r["method"] != EXACT]
    close = {_solver(r) for r in others if r["samples"] in exact and abs(r["fid"] / exact[r["samples"]] - 1) <= CLOSE}
    stand_ins = sorted((r for r in others if _solver(r) in close), key=lambda r: -r["rmse"])
    exact = {r["samples"]: r["fid"] for r in stand_ins} | exact  # the best of them, where it was not solved
    records = [r for r in others if r["nfe"] < FINE]
    columns = sorted({record["nfe"] for record in records})
    lines = ["| method | budget | samples | exact | " + " | ".join(f"{nfe} NFE" for nfe in columns) + " |"]
    lines.append("|---" * (4 + len(columns)) + "|")
    for row in dict.fromkeys((record["method"], record["budget"], record["samples"]) for record in records):
        method, budget, samples = row
        of, cells = exact.get(samples), dict.fromkeys(columns, "")
        for record in records:
            if (record["method"], record["budget"], record["samples"]) == row:
                share = f" ({record['fid'] / of:.1%})" if of and record["fid"] != of else ""
                cells[record["nfe"]] = f"{record['fid']:.2f}" + share
        shown = [f"{of:.2f}" if of else "", *cells.values()]
        lines.append(f"| {method} | {budget} | {samples:,} | " + " | ".join(shown) + " |")
    return "\n".join(lines)


def costs(records: list[dict[str, Any]], nfe: int) -> str:
    """Evaluations (a backward pass counts as two more) and seconds of the fits at one NFE."""
    lines = ["| fit | reference | forward | backward | in all | seconds | RMSE |", "|---" * 7 + "|"]
    for record in records:
        if record["nfe"] == nfe and "cost" in record:
            spent = record["evaluations"]
            counts = [spent["reference"], spent["forward"], spent["backward"], record["cost"]]
            cells = " | ".join(f"{count:,}" for count in counts)
            name = f"{record['method']}, {record['budget']}"
            lines.append(f"| {name} | {cells} | {record['seconds']:.0f} | {record['rmse']:.4f} |")
    return "\n".join(lines)


def statements(results: dict[str, Any]) -> str:
    """What the results.json of `bespoke paper` says of the paper's statements, and of ours."""
    lines = ["| statement | in the paper | here |", "|---|---|---|"]
    checked = [each for each in results["statements"] if each["cases"]]
    lines += [f"| {each['claim']} | {each['label']} | {each['in_short']} |" for each in checked]
    return "\n".join(lines)


def beside_the_paper(table: dict[str, Any]) -> str:
    """A table of the results.json of `bespoke paper` in which the paper's own figures stand beside ours."""
    columns = table["columns"]
    lines = ["| " + " | ".join(name for name, *_ in columns) + " |", "|---" * len(columns) + "|"]
    for row in table["rows"]:
        cells = (lacking if x is None else f"{x:{form}}" for x, (_, form, lacking) in zip(row, columns, strict=True))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def all_figures(results: dict[str, Any], model: str) -> str:
    """RMSE, and FID where it was measured, of all that `bespoke paper` measured of a model against NFE."""
    figures = {"error": "rmse", "fid": "fid"}
    cells = [cell for cell in results["cells"] if cell["model"] == model and cell["measured"] in figures]
    found = {(c["method"], c["nfe"], c["measured"]): c[figures[c["measured"]]] for c in cells}
    columns = sorted({nfe for _, nfe, _ in found if nfe})  # not that of the exact samples, 0
    lines = ["| | " + " | ".join(f"{nfe} NFE" for nfe in columns) + " |", "|---" * (1 + len(columns)) + "|"]
    for method in sorted({cell["method"] for cell in cells if cell["nfe"]}):
        shown = []
        for nfe in columns:
            rmse, fid = (found.get((method, nfe, measured)) for measured in figures)
            told = "" if (method, nfe, "error") not in found else "astray" if rmse is None else f"{rmse:.4f}"
            shown.append(told + (f", {fid:.1f}" if fid is not None else ""))
        lines.append(f"| {method} | {' | '.join(shown)} |")
    return "\n".join(lines)


def into(page: Path, printed: dict[str, str]) -> None:
    """Replace the table after each mark by the one that was printed.

    A mark is <!-- table toy:digits --> or, for the store `paths`, <!-- table toy:digits paths -->.
    """

    def replaced(found: re.Match[str]) -> str:
        return found[1] + (f"{printed[found[2]]}\n" if found[2] in printed else found[3])

    page.write_text(re.sub(r"(<!-- (.*?) -->\n\n)((?:\|.*\n)*)", replaced, page.read_text()))


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", nargs="*", help="by default all")
    parser.add_argument("--store", type=Path, default=Path("bench/results/frontier"))
    parser.add_argument("--cost-at", type=int, default=10, help="show what the fits cost at that NFE")
    parser.add_argument("--seed", type=int, help="one alone; by default the mean over those that were measured")
    parser.add_argument(
        "--into", type=Path, nargs="+", default=[], help="put the tables into these pages, at their marks"
    )
    parser.add_argument("--paper", type=Path, help="the results.json of `bespoke paper`: its statements and tables")
    parser.add_argument("--pictures", type=Path, help="draw RMSE and PSNR against NFE there, and fits")
    return parser


def main() -> None:
    options = arguments().parse_args()
    store, printed = Store(options.store), dict[str, str]()
    for model in options.model or dict.fromkeys(key[0] for key in store.records):
        records = over_seeds([record for record in store.of(model) if options.seed in (None, record["seed"])])
        records.sort(key=lambda record: (*ORDER, record["method"]).index(record["method"]))
        if not records:
            raise SystemExit(f"the store {options.store} has no records of {model}")
        name = model if options.store.name == "frontier" else f"{model} {options.store.name}"
        if "fid" in records[0]:
            # the exact solution in half precision may stand for that of the network in float32
            half = [record for precision in HALF for record in store.of(f"{model}@{precision}")]
            records = [r for r in half if r["nfe"] >= FINE and options.seed in (None, r["seed"])] + records
            printed[f"table {name}"] = fid_table(records)
            if exact := next((record for record in records if record["method"] == EXACT), None):
                comparable = [record for record in records if record["samples"] == exact["samples"]]
                printed[f"in short {name}"] = in_short(
                    comparable, "fid", lambda r, of=exact["fid"]: f"{r['fid'] / of:.1%}"
                )
            print(f"\n{model}: FID\n\n{printed[f'table {name}']}")
            continue
        samples = ", ".join(str(count) for count in sorted({record["samples"] for record in records}))
        error = max(record["reference_error"] for record in records)
        print(f"\n{model}: RMSE / PSNR on {samples} samples, exact to {error:.0e}\n")
        printed |= {f"table {name}": table(records), f"costs {name}": costs(records, options.cost_at)}
        printed[f"in short {name}"] = in_short(records, "rmse", _figures)
        print(printed[f"table {name}"])
        if any("cost" in record for record in records):
            print(f"\nCost of the fits at {options.cost_at} NFE, in evaluations of the model:\n")
            print(printed[f"costs {name}"])
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
            best = {(r["method"], r["nfe"]): r for r in sorted(records, key=lambda r: r["rmse"] or inf, reverse=True)}
            lines = [r | {"nfe": r.get("used", r["nfe"])} for r in records if r in best.values()]
            file = re.sub("[: @]", "-", name)  # with the store's name, unless it is the frontier
            pictures.save(
                pictures.errors_against_nfe(lines, DEFAULT), options.pictures / f"{file}.png", colours=COLOURS
            )
            for nfe in sorted({8, options.cost_at}):
                rivals = [r for r in records if r["method"] in (*ADAM, *GAUSS_NEWTON) and r["nfe"] == nfe]
                longest = {r["method"]: r for r in sorted(rivals, key=lambda r: r["history"][-1][0])}
                if rivals:
                    shown = [r for r in rivals if r in longest.values()]
                    figure = pictures.errors_against_iterations({f"{r['method']}, {r['budget']}": r for r in shown})
                    pictures.save(figure, options.pictures / f"{file}-fits-{nfe}.png", colours=COLOURS)
    if options.paper:
        results = json.loads(options.paper.read_text())
        of_paper = {"statements": statements(results)}
        of_paper |= {each["title"]: beside_the_paper(each) for each in results["tables"]}
        of_paper |= {f"figures {model}": all_figures(results, model) for model in results["models"]}
        print(*(f"\n{text}" for text in of_paper.values()))
        printed |= of_paper
    for page in options.into:
        into(page, printed)


if __name__ == "__main__":
    main()
