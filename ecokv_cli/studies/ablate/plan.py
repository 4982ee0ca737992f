"""The experiments by name, and the methods each compares."""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from ecokv_cli.errors import UsageError
from ecokv_cli.eviction.boosters import EcoKV

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ecokv_cli.eviction.method import Method
    from ecokv_cli.studies.tables import Value


@dataclass(frozen=True)
class Variant:
    """One setting within an experiment: its name there, the method, and the levels of what is varied."""

    name: str
    method: Method
    levels: Mapping[str, Value]


@dataclass(frozen=True)
class Experiment:
    """Variants to compare.

    Attributes
    ----------
    name
        See `EXPERIMENTS`.
    variants
        What is compared, in the order of tables.
    reference
        The method with its options as given, which differences are taken to. Always decoded; for a grid it need not be
        one of its cells.
    """

    name: str
    variants: tuple[Variant, ...]
    reference: Method

    @property
    def methods(self) -> list[Method]:
        """Every method to decode, each once."""
        found = [*(variant.method for variant in self.variants), self.reference]
        return list({method.name: method for method in found}.values())


@dataclass(frozen=True)
class Ranges:
    """What is varied.

    Attributes
    ----------
    windows
        The two windows of the factorial; all other experiments use the second. A window sets the queries that score
        and the positions that are protected alike.
    alphas, betas
        Values of the grid.
    temperatures
        Of the std variant; 0 stands for sqrt(D).
    """

    windows: tuple[int, int] = (32, 4)
    alphas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    betas: tuple[float, ...] = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    temperatures: tuple[float, ...] = (0.0, 4.0, 16.0)


def plan(names: Sequence[str], base: Method, ranges: Ranges) -> list[Experiment]:
    """The experiments of the given names around one boosted method.

    Parameters
    ----------
    names
        From `EXPERIMENTS`; empty for all that the booster allows.
    base
        A host with a booster, windows at their defaults.
    ranges
        What is varied.

    Raises
    ------
    UsageError
        For an unknown name, a method without a booster or with a window of its own, equal windows, or an experiment
        on options that the booster lacks.
    """
    for name in names:
        if name not in EXPERIMENTS:
            near = difflib.get_close_matches(name, EXPERIMENTS, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--only '{name}': no such experiment; {guess}choose from {', '.join(EXPERIMENTS)}")
    if {base.keep_window, base.obs_window} != {base.default_window}:
        raise UsageError(f"{base.name}: has a window of its own; ablate sets windows itself, give --window instead")
    if ranges.windows[0] == ranges.windows[1]:
        raise UsageError(f"--window {ranges.windows[0]}: give two different windows, such as 32,4")
    if not isinstance(base.booster, EcoKV):
        asked = [name for name in names if name != "factorial"]
        if asked:
            raise UsageError(
                f"--only {asked[0]}: varies options of ecokv, which {base.name} has not; "
                "use --booster ecokv, or --only factorial"
            )
        names = ["factorial"]
    chosen = [name for name in EXPERIMENTS if not names or name in names]
    return [EXPERIMENTS[name](base, ranges) for name in chosen]


def _with(base: Method, ranges: Ranges, **options: Any) -> Method:
    """The booster's options changed, at the second window."""
    if base.booster is None:
        raise UsageError(f"{base.name}: has no booster to vary")
    return replace(base, booster=replace(base.booster, **options)).with_window(ranges.windows[1])


def _factorial(base: Method, ranges: Ranges) -> Experiment:
    host = replace(base, booster=None, booster_name="")
    cells = [(window, method) for window in ranges.windows for method in (host, base)]
    variants = [
        Variant(sized.name, sized, {"window": window, "booster": sized.booster_name or "none"})
        for window, sized in ((window, method.with_window(window)) for window, method in cells)
    ]
    return Experiment("factorial", tuple(variants), variants[0].method)


def _grid(base: Method, ranges: Ranges) -> Experiment:
    variants = [
        Variant(f"alpha={alpha:g}, beta={beta:g}", _with(base, ranges, alpha=alpha, beta=beta),
                {"alpha": alpha, "beta": beta})
        for alpha in ranges.alphas for beta in ranges.betas
    ]  # fmt: skip
    return Experiment("grid", tuple(variants), _with(base, ranges))


def _choices(option: str, name: str) -> Callable[[Method, Ranges], Experiment]:
    """An experiment that compares every choice of one option."""

    def make(base: Method, ranges: Ranges) -> Experiment:
        choices = get_args(get_type_hints(EcoKV)[option])
        variants = [Variant(choice, _with(base, ranges, **{option: choice}), {option: choice}) for choice in choices]
        return Experiment(name, tuple(variants), _with(base, ranges))

    return make


def _std(base: Method, ranges: Ranges) -> Experiment:
    variants = [Variant("mix", _with(base, ranges, std=False), {"std": False})]
    for tau in ranges.temperatures:
        named = f"std, tau={tau:g}" if tau else "std, tau=sqrt(D)"
        variants.append(Variant(named, _with(base, ranges, std=True, temperature=tau), {"std": True}))
    return Experiment("std", tuple(variants), _with(base, ranges))


EXPERIMENTS: dict[str, Callable[[Method, Ranges], Experiment]] = {
    "factorial": _factorial,
    "grid": _grid,
    "normalisation": _choices("normalisation", "normalisation"),
    "std": _std,
    "averaging": _choices("avg_domain", "averaging"),
    "redundancy-map": _choices("redundancy_map", "redundancy-map"),
}
"""Every experiment by name, in the order of tables and figures."""
