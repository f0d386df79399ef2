"""What is claimed of solvers, and what came of it case by case."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One comparison: where, at how many evaluations, the figures by their names, and whether the statement held.

    clear: whether what decides it differs by more than twice its standard error, the errors of the two figures taken as
    independent; None where that is not known. close: the figures that are not told apart from what they are compared
    with, though the case is decided by that.
    """

    where: str
    nfe: int
    figures: Mapping[str, float]
    held: bool
    clear: bool | None = None
    close: tuple[str, ...] = ()


@dataclass(frozen=True)
class Statement:
    """A claim, where the paper makes it, the cases in which it was checked, and how many were not measured."""

    claim: str
    label: str
    cases: tuple[Case, ...]
    missing: int = 0

    @property
    def held(self) -> int:
        """In how many cases."""
        return sum(case.held for case in self.cases)

    @property
    def decisive(self) -> list[Case]:
        """The cases that the verdict rests on: all where it held, else those that failed."""
        return [case for case in self.cases if case.held is (self.held == len(self.cases))]

    @property
    def verdict(self) -> str:
        """`held`, `held as far as measured`, `did not hold`, or `not measured`."""
        if not self.cases:
            return "not measured"
        if self.held < len(self.cases):
            return "did not hold"
        return "held as far as measured" if self.missing else "held"
