"""Expected against got, in words: the head of the report, and what came of each of the paper's statements."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from bespoke_solvers.evaluation import ENOUGH, too_rough
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.plan import NS, OWN, RK2, RK2_BESPOKE
from bespoke_solvers.paper.relations import FID_NOISE, OURS, RATIO
from bespoke_solvers.paper.results import Results
from bespoke_solvers.paper.statements import Statement
from bespoke_solvers.report import WORDS, Headline, Section, significant

NOISY = "\u2248"  # almost equal


class Figure(NamedTuple):
    """A figure of a case in words, and whether the statement held there."""

    text: str
    held: bool


@dataclass(frozen=True)
class Check:
    """A statement, where it was made, what came of it in words, and its cases.

    figures: by where the case is, the name of the figure and the evaluations.
    """

    claim: str
    source: str
    verdict: str
    figures: Mapping[str, Mapping[str, Mapping[int, Figure]]]

    def html(self) -> str:
        """The statement with its verdict, and all cases to unfold, open where it did not hold in some."""
        shown = [figure for rows in self.figures.values() for row in rows.values() for figure in row.values()]
        failed = not all(figure.held for figure in shown)
        state = "failed" if failed else "held" if shown else "unknown"
        verdict = (
            f'<h3>{escape(self.claim)}</h3><p><b class="verdict {state}">{escape(self.verdict)}</b> '
            f"<code>{escape(self.source)}</code></p>"
        )
        cases = f"<details{' open' * failed}><summary>The figures</summary>{self._table()}</details>" if shown else ""
        return f'<div class="check">{verdict}{cases}</div>'

    def _table(self) -> str:
        columns = sorted({nfe for rows in self.figures.values() for row in rows.values() for nfe in row})
        heads = "".join(f'<th scope="col">{nfe}</th>' for nfe in columns)
        body = "".join(
            f'<tbody><tr><th scope="rowgroup" colspan="{1 + len(columns)}">{escape(where)}</th></tr>'
            + "".join(
                f'<tr><th scope="row">{escape(name)}</th>{"".join(_cell(row.get(nfe)) for nfe in columns)}</tr>'
                for name, row in rows.items()
            )
            + "</tbody>"
            for where, rows in self.figures.items()
        )
        caption = f'<caption class="unseen">{escape(self.claim)}</caption>'
        return f'<table>{caption}<thead><tr><th scope="col">NFE</th>{heads}</tr></thead>{body}</table>'


def _cell(figure: Figure | None) -> str:
    if figure is None:
        return "<td></td>"
    return f"<td{'' if figure.held else ' class=failed'}>{escape(figure.text)}</td>"


@dataclass(frozen=True)
class Checks(Section):
    """Expected against got; more: what is to be known beyond that, below. unchecked: statements without a case."""

    text: str
    checks: Sequence[Check]
    more: Sequence[str] = ()
    unchecked: Sequence[str] = ()

    def html(self) -> str:
        """The whole section."""
        more = "".join(f'<p class="more">{escape(line)}</p>' for line in self.more)
        if self.unchecked:
            claims = "".join(f"<li>{escape(claim)}</li>" for claim in self.unchecked)
            more += f'<div class="more">Not checked, for want of measurements or of samples:<ul>{claims}</ul></div>'
        return f"<p>{escape(self.text)}</p>" + "".join(check.html() for check in self.checks) + more


def headline(results: Results, found: Sequence[Statement]) -> Headline:
    """How many times fewer evaluations a sample takes, at which loss, and how many statements held."""
    several = f"{len(results.models)} models" if len(results.models) > 1 else results.models[0]
    sentence = f"The paper's experiments, measured again on {several}."
    for whose, own in (("the paper's", False), ("our own", True)):
        relations = [each for each in found if each.label.startswith(OURS) is own]
        checked = [each for each in relations if each.cases]
        failed = [each for each in checked if each.held < len(each.cases)]
        counted = {
            "held in every case": sum(each.verdict == "held" for each in checked),
            "held as far as measured": sum(each.verdict == "held as far as measured" for each in checked),
            "did not hold": len(failed),
            "could not be checked": len(relations) - len(checked),
        }
        told = ", ".join(f"{count} {what}" for what, count in counted.items() if count)
        sentence += f" Of {whose} {len(relations)} statements, {told}."
        if close := [each for each in checked if any(case.clear is False for case in each.decisive)]:
            sentence += (
                f" {len(close)} of these verdicts rest{'s' * (len(close) == 1)} on differences within the noise."
            )
    shown = _shown(results)
    if shown is None:
        return Headline("In short", "No Bespoke solver was measured", sentence)
    more = [*_in_words(results, *shown), *_explained(results), *_doubts(results)]
    figure, beside = _saved(results, *shown)
    return Headline("In short", figure, f"{beside} {sentence}".strip(), more)


def _shown(results: Results) -> tuple[int, list[str]] | None:
    """The evaluations that the headline is of, 10 or the fewest that RK2-Bespoke, or else NS, can have; and the models
    of which one of the two has them."""
    possible = plan.evaluations(RK2_BESPOKE, results.counts.nfe)
    for nfe in sorted(results.counts.nfe, key=lambda nfe: (nfe not in possible, nfe != 10, nfe)):
        models = [m for m in results.models if any(results.value(m, name, nfe) is not None for name in OWN)]
        if models:
            return nfe, models
    return None


def _saved(results: Results, nfe: int, models: Sequence[str]) -> tuple[str, str]:
    """`31 to 48 times fewer evaluations at RMSE 0.0249 to 0.0371 (RK2-Bespoke)`; NS where that is all there is. And a
    sentence: what RK2 has there, and where it is as close, so that nothing is saved."""
    for method in OWN:
        errors, base = (_finite(results, name, nfe, models) for name in (method, RK2))
        if not errors:
            continue
        worse = [model for model in errors if errors[model] >= base.get(model, math.inf)]
        if len(worse) == len(errors):
            return f"{method} with {nfe} evaluations is no closer than RK2", f"That is on {', '.join(worse)}."
        better = [model for model in errors if model not in worse]
        times = _from_to([f"{results.about(model)['reference_evaluations'] / nfe:.0f}" for model in better])
        loss = _from_to([significant(errors[model]) for model in better])
        rk2 = [significant(base[model]) for model in better if model in base]
        beside = (
            f"RK2 with as many evaluations has {_from_to(rk2)}{_rk2_as_close(results, errors, better)}." if rk2 else ""
        )
        if worse:
            beside += f" On {', '.join(worse)} it is no closer than RK2."
        return f"{times} times fewer evaluations at RMSE {loss} ({method})", beside.strip()
    return "The samples of all Bespoke solvers went astray", ""


def _rk2_as_close(results: Results, errors: Mapping[str, float], models: Sequence[str]) -> str:
    """Of how many evaluations RK2 needs for the same."""
    counts = plan.evaluations(RK2, results.counts.nfe)
    needed = {
        model: next((nfe for nfe in counts if (results.value(model, RK2, nfe) or math.inf) <= errors[model]), None)
        for model in models
    }
    found = [f"{nfe}" for nfe in needed.values() if nfe is not None]
    if not found:
        return f" and does not come as close with up to {max(counts)}"
    told = f" and comes as close with {_from_to(found)}"
    if missed := len(models) - len(found):
        told += f" (on {missed} of {len(models)} models not with up to {max(counts)})"
    return told


def _finite(results: Results, method: str, nfe: int, models: Sequence[str]) -> dict[str, float]:
    """The RMSE of a method on the models on which it has one."""
    values = {model: results.value(model, method, nfe) for model in models}
    return {model: error for model, error in values.items() if error is not None and math.isfinite(error)}


def _from_to(figures: Sequence[str]) -> str:
    """The smallest and the largest, or the only one."""
    return " to ".join(dict.fromkeys((min(figures, key=float), max(figures, key=float))))


def _in_words(results: Results, nfe: int, models: Sequence[str]) -> list[str]:
    """A sentence for each model: what the solvers reach."""
    lines = []
    for model in models:
        values = {name: results.value(model, name, nfe) for name in (RK2_BESPOKE, NS, RK2)}
        told = ", ".join(f"{name} {_figure(name, value)}" for name, value in values.items() if value is not None)
        path, exact = results.parameterisation(model), results.about(model)["reference_evaluations"]
        lines.append(f"{model} ({path}), RMSE with {nfe} evaluations instead of {exact:.0f}: {told}.")
    return lines


def _doubts(results: Results) -> list[str]:
    """What speaks against the figures: exact samples too rough for the errors measured, fits that were cut short."""
    found = []
    if results.counts.samples < ENOUGH:
        found.append(f"Careful: RMSE is of {results.counts.samples} samples; one of so few can decide it (--samples).")
    for model in results.models:
        series = results.series(model, [method for each in plan.EXPERIMENTS for method in each.methods], "rmse")
        least = min((error for points in series.values() for _, error in points), default=math.inf)
        if doubt := too_rough(results.about(model)["reference_error"], least):
            found.append(f"Careful, {model}: {doubt}.")
    fits = [fit for model in results.models for name in plan.BY_ADAM for _, fit in results.fits(model, name)]
    if cut := sum(fit["best_iteration"] == fit["iterations"] for fit in fits):
        found.append(
            f"In {cut} of {len(fits)} fits with {results.counts.iterations:,} iterations the last one was the best: "
            "with more (--iterations) they would come closer."
        )
    return found


def _explained(results: Results) -> list[str]:
    """The words of the page."""
    meant = {
        "FM-OT": "flow matching on the straight path from noise to data",
        "FM/v-CS": "a flow or v on the cosine path",
        "eps-VP": "prediction of the noise on the VP path",
    }
    names = {results.parameterisation(model) for model in results.models}
    told = "; ".join(f"{name}: {text}" for name, text in meant.items() if name in names)
    if any(results.about(model)["model_is"]["guidance"] is not None for model in results.models):
        told += "; with guidance, which is classifier-free, each evaluation is two passes of the network"
    return [f"{WORDS} {told}." if told else WORDS]


def checks(found: Sequence[Statement]) -> Checks:
    """Expected against got, with the figures of every case."""
    text = (
        "What the paper says of its solvers, and whether it held here. A statement holds if it holds in every case: "
        "each model, each number of evaluations. Where it did not, the figures are bold on red."
    )
    more = [
        "What is marked as ours the paper does not say. The figures are RMSE, or FID where the statement says so. A "
        f"case is within the noise ({NOISY} beside what it is close to) if its two RMSE differ by less than twice the "
        "standard error of their difference, or by less than the exact samples' own error. The former takes their "
        "errors as independent; they are of the same noise, which as a rule makes a difference surer than that. An FID "
        f"of 10,000 samples is taken to be off by {100 * FID_NOISE:g} %; of ratios no error is known. Models of one "
        "shape and guidance that differ in path or prediction are taken to be of the same data; how far they are apart "
        "with RK2, which is not fitted to them, is given for comparison. The time of a fit is by the clock, whatever "
        "else the processor did."
    ]
    absent = [statement.claim for statement in found if not statement.cases]
    return Checks("Expected against got", text, [_check(each) for each in found if each.cases], more, absent)


def _check(statement: Statement) -> Check:
    figures: dict[str, dict[str, dict[int, Figure]]] = {}
    for case in statement.cases:
        rows = figures.setdefault(case.where, {})
        for name, value in case.figures.items():
            row = rows.setdefault(name, {})
            held = case.held and (case.nfe not in row or row[case.nfe].held)  # several cases may share a figure
            noisy = NOISY * (name in case.close)
            row[case.nfe] = Figure(noisy + _figure(name, value), held)
    return Check(statement.claim, statement.label, in_short(statement), figures)


def in_short(statement: Statement) -> str:
    """`did not hold in 2 of 9 cases, 1 within the noise`; `held in all 3 cases measured (of 9)`."""
    count, failed = len(statement.cases), len(statement.cases) - statement.held
    some, every = (f"{failed} of {count} cases", f"all {count} cases") if count > 1 else ("the one case",) * 2
    verdict = f"did not hold in {some}" if failed else f"held in {every}"
    if statement.missing:
        verdict += f" measured (of {count + statement.missing})"
    if close := sum(case.clear is False for case in statement.decisive):
        every = "all " * (len(statement.decisive) > 1) if close == len(statement.decisive) else f"{close} "
        verdict += f", {every}within the noise"
    return verdict


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if value == float("inf"):
        return "astray"
    return f"{value:.2f}" if name.startswith(RATIO) else f"{value:.1f}" if "%" in name else significant(value)
