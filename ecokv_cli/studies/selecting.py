"""What every arm of an evaluation keeps: the prefill that records what they need, its layers, and the selections."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.method import Method
from ecokv_cli.eviction.route import Route
from ecokv_cli.geometry.similarity import working
from ecokv_cli.studies.measuring import clock

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.selection import Selection
    from ecokv_cli.models.capture import Captured
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.studies.evaluate import Arm, EvaluateSettings


def require_budgets(sample: str, tokens: int, arms: Iterable[tuple[Method | Route, Budget | None]]) -> None:
    """Refuse a sample of which a budget can hold neither all `tokens` nor what a method protects.

    Raises
    ------
    MethodError
        Naming the sample.
    """
    for method, budget in arms:
        if budget is None:
            continue
        try:
            method.require_budget(budget, tokens)
        except MethodError as error:
            raise MethodError(f"sample {sample}: {error}") from None


def require_layers(methods: Iterable[Method | Route], layers: int) -> None:
    """Refuse a route that does not fit a model of `layers` layers; raises as `Route.require_layers` does."""
    for method in methods:
        if isinstance(method, Route):
            method.require_layers(layers)


def capture_for(loaded: LoadedModel, inputs: dict[str, Any], settings: EvaluateSettings, *, decode: int) -> Captured:
    """One prefill that records what the arms need, and a greedy answer of at most `decode` tokens on the full cache."""
    from ecokv_cli.models.capture import capture

    singles = [part for arm in settings.arms for part in _parts(arm.method)]
    return capture(
        loaded, inputs, window=max((part.obs_window for part in singles), default=1) or 1, decode=decode,
        received=any("received_attention" in part.needs for part in singles),
        prerope=any("prerope_keys" in part.needs for part in singles),
    )  # fmt: skip


def layers_of(loaded: LoadedModel, captured: Captured, settings: EvaluateSettings) -> Iterator[Layer]:
    """The layers that eviction looks at, one at a time; sliding-window layers are left out.

    Raises
    ------
    NonFiniteError
        If a tensor holds NaN or infinity.
    """
    full = tuple(index for index in range(loaded.info.layers) if index not in captured.sliding)
    for index in full:
        tensors, scaling = captured.layer(index)
        parts = {name: working(tensor) for name, tensor in tensors.items()}
        yield Layer(
            index=index,
            layers=loaded.info.layers,
            scaling=scaling,
            head_scores=settings.head_scores,
            full=full,
            **parts,
        ).require_finite()


@torch.inference_mode()
def select_arms(layer: Layer, arms: Sequence[Arm]) -> tuple[list[Selection], list[float]]:
    """What every arm keeps of one layer, and the time each would take alone; budgets of one method share its scores."""
    chosen: dict[int, Selection] = {}
    seconds = [0.0] * len(arms)
    numbers: dict[str, list[int]] = {}
    for number, arm in enumerate(arms):
        numbers.setdefault(arm.method.name, []).append(number)
    device = layer.keys.device
    for mine in numbers.values():
        method, budgets = arms[mine[0]].method, [arms[number].budget or layer.tokens for number in mine]
        own = replace(layer)  # without what other methods computed and left there, so that each pays for its own
        began = clock(device)
        scores = method.shared_scores(own, budgets)
        scoring = clock(device) - began
        for number, budget in zip(mine, budgets, strict=True):
            began = clock(device)
            chosen[number] = method.select(own, budget, scores)
            seconds[number] = scoring + clock(device) - began
    return [chosen[number] for number in range(len(arms))], seconds


def _parts(method: Method | Route) -> list[Method]:
    """The single methods of a route, or the method itself."""
    return [method] if isinstance(method, Method) else [span.method for span in method.spans]
