"""Layer-wise routing: profile every method in every layer on some dumps, fix the best route, judge it on others."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from ecokv_cli.errors import DumpError, MethodError
from ecokv_cli.eviction.budget import require_budget
from ecokv_cli.eviction.fidelity import HeldOut
from ecokv_cli.eviction.route import Route
from ecokv_cli.studies.selecting import require_budgets
from ecokv_cli.studies.tables import Table
from ecokv_cli.studies.twins import marks_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.method import Method

ROUTE_METHODS = ("snapkv", "keydiff", "manifoldkv", "knorm", "vnorm", "snapkv+mixkv", "snapkv+ecokv")
"""Candidates unless others are named."""


@dataclass(frozen=True)
class RouteSettings:
    """What to route between.

    Attributes
    ----------
    methods
        Candidates; of equal errors the earlier one wins.
    budgets
        A route is made for each: an int of tokens, or a float 0 < r < 1, the share of each sample's own prompt.
    assignments, seed
        How many random routes with the same method counts it is compared with, and the seed of their draw.
    """

    methods: tuple[Method, ...]
    budgets: tuple[Budget, ...]
    assignments: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if len(self.methods) < 2:
            raise MethodError("a route chooses between methods; name at least two")
        for method in self.methods:
            if method.keeps_all or "decode_queries" in method.needs:
                raise MethodError(
                    f"{method.name}: no candidate for a route, it "
                    + ("keeps everything" if method.keeps_all else "sees the queries that judge it")
                )
            Route.of([method])
            for budget in self.budgets:
                require_budget(budget)
                method.require_budget(budget)

    def require_fit(self, dump: Dump) -> None:
        """Refuse a sample of which a share can hold neither the whole prompt nor what a method protects.

        Raises
        ------
        MethodError
            Naming the sample.
        """
        require_budgets(dump.manifest.sample, len(dump.manifest.tokens.ids), product(self.methods, self.budgets))


@dataclass(frozen=True)
class Routing:
    """Result tables, and the profiled route of each budget.

    `profile` has the calibration error of each method in each layer; `routes` the error on the evaluation dumps of
    the profiled route and of each method everywhere; `random` that of the random routes.
    """

    profile: Table
    routes: Table
    random: Table
    chosen: dict[Budget, Route] = field(default_factory=dict)

    @property
    def tables(self) -> list[Table]:
        """All tables."""
        return [self.routes, self.profile, self.random]


def route_study(
    calibration: Sequence[Dump],
    evaluation: Sequence[Dump],
    settings: RouteSettings,
    progress: Callable[[int, int], None] = lambda *_: None,
) -> Routing:
    """Choose each layer's method by its mean error on the calibration dumps and judge the route on the others.

    The error is ``||o - o'|| / ||o||`` on held-out queries, mean over samples and KV heads. Every layer is judged
    with the full cache upstream, so what one layer's eviction does to the next stays invisible, and the error of a
    route is the mean of its layers' errors.

    Sliding-window layers evict nothing: they have no rows, and a route names there what it takes in the layer before.

    Parameters
    ----------
    calibration, evaluation
        Dumps of one model, no sample in both.
    settings
        Candidates, budgets, controls.
    progress
        Called with layers done and layers in all.

    Returns
    -------
    Routing
        `routes.rank` is the place of the profiled route among the random ones with the same method counts (1 =
        better than all of them); None where all its layers have the same method.

    Raises
    ------
    DumpError
        If a sample is in both sets (see `marks_of`), or the models differ.
    MethodError
        If a share of a sample's prompt cannot hold what a method protects.

    Notes
    -----
    After the abstract of arXiv 2606.15157.
    """
    _require_apart(calibration, evaluation)
    for dump in (*calibration, *evaluation):
        settings.require_fit(dump)
    total = len(calibration) + len(evaluation)
    first = calibration[0].opened()
    model, windows = first.manifest.model, first.windows
    layers = [layer for layer in range(model.layers) if layer not in windows]
    done = 0

    def errors(samples: Sequence[Dump]) -> np.ndarray:
        nonlocal done
        found = np.zeros((len(settings.budgets), len(layers), len(settings.methods)))
        for dump in samples:
            found += _errors(dump.opened(), layers, settings)
            done += 1
            progress(done, total)
        return found / len(samples)

    profiled, judged = errors(calibration), errors(evaluation)
    result = Routing(
        Table("profile", ("model", "budget", "layer", "method", "error", "samples", "chosen")),
        Table("routes", ("model", "budget", "kind", "route", "error", "samples", "rank", "random_routes")),
        Table("random", ("model", "budget", "assignment", "error")),
    )
    for b, budget in enumerate(settings.budgets):
        mean, unseen = profiled[b], judged[b]
        best = mean.argmin(axis=1)
        result.chosen[budget] = _route([settings.methods[m] for m in best], layers, model.layers)
        for layer, row, chosen in zip(layers, mean, best, strict=True):
            for m, method in enumerate(settings.methods):
                result.profile.add(
                    model=model.id, budget=budget, layer=layer, method=method.name, error=float(row[m]),
                    samples=len(calibration), chosen=bool(chosen == m),
                )  # fmt: skip
        _judge(result, model.id, budget, settings, best, unseen, len(evaluation))
    return result


def _route(methods: Sequence[Method], layers: Sequence[int], total: int) -> Route:
    """The route with ``methods[i]`` in ``layers[i]``, and in others of the `total` layers what the one before has."""
    return Route.of([methods[max(bisect_right(layers, layer) - 1, 0)] for layer in range(total)])


def _judge(
    result: Routing,
    model: str,
    budget: Budget,
    settings: RouteSettings,
    best: np.ndarray,
    unseen: np.ndarray,
    samples: int,
) -> None:
    """The profiled route, each method everywhere, and random routes, on errors ``[layers, methods]``."""
    layers = np.arange(len(best))
    own = float(unseen[layers, best].mean())
    generator = np.random.default_rng(settings.seed)
    drawn = [float(unseen[layers, generator.permutation(best)].mean()) for _ in range(settings.assignments)]
    mixed = len(set(best.tolist())) > 1
    rows = [("profiled", result.chosen[budget].name, own)]
    rows += [("homogeneous", method.name, float(unseen[:, m].mean())) for m, method in enumerate(settings.methods)]
    for kind, name, error in rows:
        ranked = kind == "profiled" and mixed
        result.routes.add(
            model=model, budget=budget, kind=kind, route=name, error=error, samples=samples,
            rank=1 + sum(d < own for d in drawn) if ranked else None, random_routes=len(drawn) if ranked else None,
        )  # fmt: skip
    for number, error in enumerate(drawn if mixed else ()):
        result.random.add(model=model, budget=budget, assignment=number, error=error)


def _errors(dump: Dump, layers: Sequence[int], settings: RouteSettings) -> np.ndarray:
    """Mean error over KV heads, ``[budgets, layers, methods]``."""
    errors = np.empty((len(settings.budgets), len(layers), len(settings.methods)))
    for place, layer in enumerate(dump.layers(layers)):
        held_out = HeldOut(layer)
        for m, method in enumerate(settings.methods):
            scores = method.shared_scores(layer, settings.budgets)
            for b, budget in enumerate(settings.budgets):
                judged = held_out.judge(method.select(layer, budget, scores))
                errors[b, place, m] = float(judged.error.mean())
    return errors


def _require_apart(calibration: Sequence[Dump], evaluation: Sequence[Dump]) -> None:
    if not calibration or not evaluation:
        raise DumpError(
            f"{len(calibration)} calibration and {len(evaluation)} evaluation samples: both need at least one; "
            f"dump more samples, or name another run with --evaluate"
        )
    model = calibration[0].manifest.model.identity
    seen: dict[str, Path] = {}
    for number, dump in enumerate((*calibration, *evaluation)):
        marks = marks_of(dump)
        twin = next((seen[mark] for mark in marks if mark in seen), None)
        if number < len(calibration):
            seen |= dict.fromkeys(marks, dump.folder)
        elif twin:
            raise DumpError(
                f"{dump.folder} is the same sample as {twin}, which the route is made from; "
                f"a route must be judged on other samples"
            )
        differing = model.told_apart(dump.manifest.model.identity)
        if differing:
            raise DumpError(f"{dump.folder}: a dump of {differing[1]}, the first is of {differing[0]}; one at a time")
