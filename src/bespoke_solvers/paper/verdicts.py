"""Expected against got, in words: the head of the report, and what came of each of the paper's statements."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from bespoke_solvers.evaluation import too_rough
from bespoke_solvers.paper import plan
from bespoke_solvers.paper.plan import NS, OWN, RK2, RK2_BESPOKE
from bespoke_solvers.paper.relations import OURS, RATIO, Relation
from bespoke_solvers.paper.results import Results
from bespoke_solvers.report import Headline, Section, significant


@dataclass(frozen=True)
class Check:
    """A statement, where it was made, what came of it in words, and the cases in which it was checked.

    held: for each row whether it held there; those where it did not stand out.
    """

    claim: str
    source: str
    verdict: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    held: Sequence[bool]

    def html(self) -> str:
        """The statement with its verdict, the cases in which it did not hold, and all of them to unfold."""
        state = "unknown" if not self.held else "held" if all(self.held) else "failed"
        verdict = (
            f'<h3>{escape(self.claim)}</h3><p><b class="verdict {state}">{escape(self.verdict)}</b> '
            f"<code>{escape(self.source)}</code></p>"
        )
        failed = [i for i, held in enumerate(self.held) if not held]
        title = f"All {len(self.rows)} cases" if len(self.rows) > 1 else "The case"
        every = f"<details><summary>{title}</summary>{self._table(range(len(self.rows)))}</details>"
        return f'<div class="check">{verdict}{self._table(failed) if failed else ""}{every if self.rows else ""}</div>'

    def _table(self, which: Sequence[int]) -> str:
        heads = "".join(f'<th scope="col">{escape(name)}</th>' for name in self.columns)
        rows = "".join(
            f"<tr{'' if self.held[i] else ' class=own'}><th scope=row>{escape(self.rows[i][0])}</th>"
            + "".join(f"<td>{escape(value)}</td>" for value in self.rows[i][1:])
            + "</tr>"
            for i in which
        )
        return (
            f'<table><caption class="unseen">{escape(self.claim)}</caption><thead><tr>{heads}</tr></thead>'
            f"<tbody>{rows}</tbody></table>"
        )


@dataclass(frozen=True)
class Checks(Section):
    """Expected against got; more: what is to be known beyond that, below."""

    text: str
    checks: Sequence[Check]
    more: Sequence[str] = ()

    def html(self) -> str:
        """The whole section."""
        more = "".join(f'<p class="more">{escape(line)}</p>' for line in self.more)
        return f"<p>{escape(self.text)}</p>" + "".join(check.html() for check in self.checks) + more


def headline(results: Results, found: Sequence[Relation]) -> Headline:
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
    more = [*_in_words(results, *shown), *_doubts(results)]
    return Headline("In short", _saved(results, *shown), sentence, more)


def _shown(results: Results) -> tuple[int, list[str]] | None:
    """The evaluations that the headline is of, 10 or the fewest, and the models of which a Bespoke solver has them."""
    for nfe in sorted(results.counts.nfe, key=lambda nfe: (nfe != 10, nfe)):
        models = [m for m in results.models if any(results.value(m, name, nfe) is not None for name in OWN)]
        if models:
            return nfe, models
    return None


def _saved(results: Results, nfe: int, models: Sequence[str]) -> str:
    """`31 to 48 times fewer evaluations at RMSE 0.0249 to 0.0371 (RK2-Bespoke)`; NS where that is all there is."""
    for method in OWN:
        values = {model: results.value(model, method, nfe) for model in models}
        errors = {model: error for model, error in values.items() if error is not None and math.isfinite(error)}
        if errors:
            times = _from_to([f"{results.about(m)['reference_evaluations'] / nfe:.0f}" for m in errors])
            return (
                f"{times} times fewer evaluations at RMSE {_from_to([*map(significant, errors.values())])} ({method})"
            )
    return "The samples of all Bespoke solvers went astray"


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
    """Of which models the exact samples are too rough for the errors that were measured."""
    found = []
    for model in results.models:
        series = results.series(model, [method for each in plan.EXPERIMENTS for method in each.methods], "rmse")
        least = min((error for points in series.values() for _, error in points), default=math.inf)
        if doubt := too_rough(results.about(model)["reference_error"], least):
            found.append(f"Careful, {model}: {doubt}.")
    return found


def checks(found: Sequence[Relation]) -> Checks:
    """Expected against got, with the figures of every case."""
    text = (
        "What the paper says of its solvers, and whether it held here. A statement holds if it holds in every case: "
        "each model, each number of evaluations."
    )
    more = [
        "What is marked as ours the paper does not say. The figures are RMSE, or FID where the statement says so. A "
        "case is within the noise if its two RMSE differ by less than twice the standard error of their difference, or "
        "by less than the exact samples' own error. The former takes their errors as independent; they are of the same "
        "noise, which as a rule makes a difference surer than that. Of FID, and of ratios, no such error is known. "
        "Models of one shape and guidance that differ in path or prediction are taken to be of the same data; how far "
        "they are apart with RK2, which is not fitted to them, is given for comparison. The time "
        "of a fit is by the clock, whatever else the processor did."
    ]
    if absent := [relation.claim for relation in found if not relation.cases]:
        more.append(f"Not checked, for want of measurements or of samples: {'; '.join(absent)}.")
    return Checks("Expected against got", text, [_check(relation) for relation in found if relation.cases], more)


def _check(relation: Relation) -> Check:
    names = list(dict.fromkeys(name for case in relation.cases for name in case.figures))
    rows = [
        [
            case.where + (" (within the noise)" if case.clear is False else ""),
            str(case.nfe),
            *(_figure(name, case.figures.get(name)) for name in names),
        ]
        for case in relation.cases
    ]
    held = [case.held for case in relation.cases]
    return Check(relation.claim, relation.label, in_short(relation), ["model", "NFE", *names], rows, held)


def in_short(relation: Relation) -> str:
    """`did not hold in 2 of 9 cases, 1 within the noise`; `held in all 3 cases measured (of 9)`."""
    count, failed = len(relation.cases), len(relation.cases) - relation.held
    some, every = (f"{failed} of {count} cases", f"all {count} cases") if count > 1 else ("the one case",) * 2
    verdict = f"did not hold in {some}" if failed else f"held in {every}"
    if relation.missing:
        verdict += f" measured (of {count + relation.missing})"
    if close := sum(case.clear is False for case in relation.decisive):
        every = "all " * (len(relation.decisive) > 1) if close == len(relation.decisive) else f"{close} "
        verdict += f", {every}within the noise"
    return verdict


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return ""
    if value == float("inf"):
        return "astray"
    return f"{value:.2f}" if name.startswith(RATIO) else f"{value:.1f}" if "%" in name else significant(value)
