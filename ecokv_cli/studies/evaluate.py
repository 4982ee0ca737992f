"""Real decoding on evicted caches: one prefill per sample, then an answer for every method, budget and window."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.method import Method
from ecokv_cli.geometry.similarity import working
from ecokv_cli.studies.tables import Table, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from PIL.Image import Image

    from ecokv_cli.eviction.route import Route
    from ecokv_cli.models.capture import Captured
    from ecokv_cli.models.evicted import Evicted
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.studies.metrics import Metric

ANSWERS = (
    "model", "sample", "method", "budget", "window", "tokens", "kept", "prediction", "answers", "score",
    "cache_bytes", "cache_ratio", "prefill_seconds", "scoring_seconds", "decode_seconds", "decoded",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """One sample of a task.

    Attributes
    ----------
    id
        Name, unique in the task.
    images, prompt
        What the model is given.
    answers
        What counts as right.
    identity
        Whatever else the answer depends on, for resuming.
    """

    id: str
    images: tuple[Image, ...]
    prompt: str
    answers: tuple[str, ...]
    identity: str = ""


@dataclass(frozen=True)
class Arm:
    """A method at a budget; for a method that never evicts the budget is None."""

    method: Method | Route
    budget: int | None

    @property
    def window(self) -> int:
        """Its protected window."""
        return self.method.keep_window


@dataclass(frozen=True)
class EvaluateSettings:
    """What to compare.

    Attributes
    ----------
    arms
        Methods with budgets, from `arms_of`.
    steps
        Most tokens of an answer.
    template
        Whether the chat template is used.
    head_scores
        ``[L, H_q]`` visual-head scores of this model, for methods that need them.
    """

    arms: tuple[Arm, ...]
    steps: int = 32
    template: bool = True
    head_scores: torch.Tensor | None = None


def arms_of(
    methods: Sequence[Method | Route], budgets: Sequence[int], windows: Sequence[int] | None = None
) -> tuple[Arm, ...]:
    """Every method at every budget with every window (its own if none are given), each once, the full cache first.

    Raises
    ------
    MethodError
        If a budget is too small for a window, or a method sees the answer it is judged by.
    """
    arms: dict[tuple[str, int | None], Arm] = {}
    for method in methods:
        if "decode_queries" in getattr(getattr(method, "host", None), "needs", ()):
            raise MethodError(f"{method.name}: sees the queries of the answer, so its accuracy would mean nothing")
        for sized in [method.with_window(window) for window in windows] if windows else [method]:
            for budget in [None] if sized.keeps_all else budgets:
                if budget is not None:
                    sized.require_budget(budget)
                arms[sized.name, budget] = Arm(sized, budget)
    return tuple(sorted(arms.values(), key=lambda arm: arm.budget is not None))


def hosts_of(arms: Sequence[Arm]) -> dict[str, tuple[str, ...]]:
    """For each boosted method its host with the same window, and its host with the window it has by default."""
    found: dict[str, tuple[str, ...]] = {}
    for arm in arms:
        method = arm.method
        if isinstance(method, Method) and method.booster:
            host = replace(method, booster=None, booster_name="")
            found[method.name] = (host.name, host.with_window(host.default_window).name)
    return found


def answer(loaded: LoadedModel, question: Question, settings: EvaluateSettings) -> Table:
    """One prefill, then one greedy answer per arm on its evicted cache.

    Parameters
    ----------
    loaded
        The model.
    question
        The sample.
    settings
        Arms and limits.

    Returns
    -------
    Table
        ``answers``: one row per arm. `kept` is the mean over layers and heads; `cache_bytes` what the compacted
        prompt cache really occupies and `cache_ratio` its share of the full one; `scoring_seconds` the time to score
        and select; `decode_seconds` that of all forward passes for `decoded` tokens. `score` is empty until `graded`.
    """
    from ecokv_cli.models.capture import capture
    from ecokv_cli.models.evicted import decode_evicted
    from ecokv_cli.models.prompting import prepare

    prepared = prepare(loaded, question.images, question.prompt, template=settings.template)
    singles = [part for arm in settings.arms for part in _parts(arm.method)]
    captured = capture(
        loaded,
        prepared.inputs,
        window=max((part.obs_window for part in singles), default=1) or 1,
        decode=0,
        received=any("received_attention" in part.host.needs for part in singles),
    )
    caches, kept, seconds = _evict(loaded, captured, settings)
    full = sum(layer.keys.nbytes + layer.values.nbytes for layer in captured.cache.layers)
    table = Table("answers", ANSWERS)
    for number, arm in enumerate(settings.arms):
        decoded = decode_evicted(loaded, captured, caches[number], settings.steps)
        prediction = loaded.tokenizer.decode(decoded.ids, skip_special_tokens=True).strip()
        table.add(
            model=loaded.info.id,
            sample=question.id,
            method=arm.method.name,
            budget=arm.budget,
            window=arm.window,
            tokens=captured.prompt_tokens,
            kept=kept[number] / ((loaded.info.layers - len(captured.sliding)) * loaded.info.kv_heads),
            prediction=prediction,
            answers=" | ".join(question.answers),
            score=None,
            cache_bytes=decoded.cache_bytes,
            cache_ratio=decoded.cache_bytes / full,
            prefill_seconds=captured.seconds["prefill"],
            scoring_seconds=seconds[number],
            decode_seconds=decoded.seconds,
            decoded=len(decoded.ids),
        )
    return table


def graded(answers: Table, right: Mapping[str, Sequence[str]], metric: Metric) -> Table:
    """The same rows with the metric's score of every prediction; each arm is a corpus of its own.

    Parameters
    ----------
    answers
        Rows of all samples.
    right
        Accepted answers by sample.
    metric
        Gives one number per prediction.
    """
    rows = [dict(row) for row in answers]
    arms: dict[tuple[Value, ...], list[dict[str, Value]]] = {}
    for row in rows:
        arms.setdefault((row["method"], row["budget"], row["window"]), []).append(row)
    for arm in arms.values():
        wanted = [right[str(row["sample"])] for row in arm]
        for row, score in zip(arm, metric.function([str(row["prediction"]) for row in arm], wanted), strict=True):
            row["score"] = score
    return Table(answers.name, answers.columns, rows)


def _parts(method: Method | Route) -> list[Method]:
    """The single methods of a route, or the method itself."""
    return [method] if isinstance(method, Method) else [span.method for span in method.spans]


def _evict(
    loaded: LoadedModel, captured: Captured, settings: EvaluateSettings
) -> tuple[list[list[Evicted]], list[int], list[float]]:
    """Compacted caches, kept positions and scoring time of every arm; scores are shared between budgets.

    Sliding-window layers stay as they are and are not counted.
    """
    from ecokv_cli.models.evicted import compact, untouched

    arms = settings.arms
    caches: list[list[Evicted]] = [[] for _ in arms]
    kept, seconds = [0] * len(arms), [0.0] * len(arms)
    largest = max((arm.budget for arm in arms if arm.budget is not None), default=1)
    for index in range(loaded.info.layers):
        if index in captured.sliding:
            for cache in caches:
                cache.append(untouched(captured, index))
            continue
        tensors, scaling = captured.layer(index)
        parts = {name: working(tensor) for name, tensor in tensors.items()}
        layer = Layer(
            index=index, layers=loaded.info.layers, scaling=scaling, head_scores=settings.head_scores, **parts
        ).require_finite()
        scored = {}
        for number, arm in enumerate(arms):
            began = time.monotonic()
            if arm.method.name not in scored:
                scored[arm.method.name] = (
                    None if arm.method.keeps_all else arm.method.scores(layer, min(largest, layer.tokens))
                )
            selection = arm.method.select(layer, arm.budget or layer.tokens, scored[arm.method.name])
            seconds[number] += time.monotonic() - began
            kept[number] += int(selection.counts.sum())
            caches[number].append(compact(captured, index, selection))
    return caches, kept, seconds
