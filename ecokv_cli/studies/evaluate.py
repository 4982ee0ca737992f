"""Real decoding on evicted caches: one prefill per sample, then an answer for every method, budget and window."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from ecokv_cli.errors import MethodError
from ecokv_cli.eviction.method import Method
from ecokv_cli.studies.measuring import clock, decoding_peak
from ecokv_cli.studies.selecting import capture_for, layers_of, require_budgets, select_arms
from ecokv_cli.studies.tables import Table, Value

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import torch
    from PIL.Image import Image

    from ecokv_cli.dump.schema import BoxInfo
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.route import Route
    from ecokv_cli.eviction.selection import Selection
    from ecokv_cli.models.capture import Captured
    from ecokv_cli.models.evicted import Evicted
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.studies.metrics import Metric

ANSWERS = (
    "model", "sample", "method", "budget", "window", "tokens", "kept", "prediction", "answers", "score",
    "ledger_bytes", "cache_bytes", "cache_ratio", "peak_bytes", "peak_source", "prefill_seconds", "scoring_seconds",
    "decode_seconds", "decoded",
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
    boxes
        Places on the images worth knowing, as fractions of them; the answer does not depend on these.
    """

    id: str
    images: tuple[Image, ...]
    prompt: str
    answers: tuple[str, ...]
    identity: str = ""
    boxes: tuple[BoxInfo, ...] = ()


@dataclass(frozen=True)
class Arm:
    """A method at a budget; for a method that never evicts the budget is None."""

    method: Method | Route
    budget: Budget | None

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
    methods: Sequence[Method | Route], budgets: Sequence[Budget], windows: Sequence[int] | None = None
) -> tuple[Arm, ...]:
    """Every method at every budget with every window (its own if none are given), each once, the full cache first.

    Budgets that cannot hold what a method protects are left out, see `unfit`; of a share that is known only once there
    is a prompt.

    Raises
    ------
    MethodError
        If no budget is large enough for a method, or it sees the answer it is judged by.
    """
    arms: dict[tuple[str, Budget | None], Arm] = {}
    for method in methods:
        if "decode_queries" in getattr(getattr(method, "host", None), "needs", ()):
            raise MethodError(f"{method.name}: sees the queries of the answer, so its accuracy would mean nothing")
        refused = unfit([method], budgets, windows)
        fitting = [
            Arm(sized, budget)
            for sized in _with_windows(method, windows)
            for budget in ([None] if sized.keeps_all else budgets)
            if (sized.name, budget) not in refused
        ]
        if not fitting:
            raise next(iter(refused.values()))
        arms |= {(arm.method.name, arm.budget): arm for arm in fitting}
    return tuple(sorted(arms.values(), key=lambda arm: arm.budget is not None))


def unfit(
    methods: Sequence[Method | Route], budgets: Sequence[Budget], windows: Sequence[int] | None = None
) -> dict[tuple[str, Budget | None], MethodError]:
    """Methods and budgets that do not go together, with the reason: the budget cannot hold window and sinks."""
    refused: dict[tuple[str, Budget | None], MethodError] = {}
    for method in methods:
        for sized in _with_windows(method, windows):
            for budget in budgets:
                try:
                    sized.require_budget(budget)
                except MethodError as error:
                    refused[sized.name, budget] = error
    return refused


def _with_windows(method: Method | Route, windows: Sequence[int] | None) -> list[Method | Route]:
    return [method.with_window(window) for window in windows] if windows else [method]


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
        ``answers``: one row per arm. `kept` is the mean over layers and heads. `ledger_bytes` is what the kept entries
        take by count, `cache_bytes` what the compacted prompt cache really occupies (padding of ragged heads, masks and
        memories included) and `cache_ratio` its share of the full one; `peak_bytes` the most that decoding holds, see
        `decoding_peak`. `scoring_seconds` is the time to score and select, each arm as if it were run alone;
        `decode_seconds` that of all forward passes for `decoded` tokens. `score` is empty until `graded`.

    Raises
    ------
    MethodError
        If the budget of an arm, as a share of this prompt, cannot hold what the method protects.
    """
    from ecokv_cli.models.evicted import decode_evicted
    from ecokv_cli.models.prompting import prepare

    prepared = prepare(loaded, question.images, question.prompt, template=settings.template)
    tokens = prepared.inputs["input_ids"].shape[1]
    require_budgets(question.id, tokens, ((arm.method, arm.budget) for arm in settings.arms))
    began = clock(loaded.model.device)
    captured = capture_for(loaded, prepared.inputs, settings, decode=0)
    prefill = clock(loaded.model.device) - began
    chosen, seconds = _select(loaded, captured, settings)
    full = sum(layer.keys.nbytes + layer.values.nbytes for layer in captured.cache.layers)
    places = len(chosen[0]) * loaded.info.kv_heads
    table = Table("answers", ANSWERS)
    for number, arm in enumerate(settings.arms):
        # Compacted only now, so that the caches of other arms take no memory.
        cache = _compacted(loaded, captured, chosen[number])
        decode = partial(decode_evicted, loaded, captured, cache, settings.steps)
        decoded, peak, source = decoding_peak(loaded.model.device, cache, decode)
        prediction = loaded.tokenizer.decode(decoded.ids, skip_special_tokens=True).strip()
        table.add(
            model=loaded.info.id,
            sample=question.id,
            method=arm.method.name,
            budget=arm.budget,
            window=arm.window,
            tokens=tokens,
            kept=sum(int(selection.counts.sum()) for selection in chosen[number].values()) / places,
            prediction=prediction,
            answers=" | ".join(question.answers),
            score=None,
            ledger_bytes=_ledger_bytes(captured, chosen[number], cache),
            cache_bytes=decoded.cache_bytes,
            cache_ratio=decoded.cache_bytes / full,
            peak_bytes=peak,
            peak_source=source,
            prefill_seconds=prefill,
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


def _select(
    loaded: LoadedModel, captured: Captured, settings: EvaluateSettings
) -> tuple[list[dict[int, Selection]], list[float]]:
    """Per arm the selection of every layer that evicts, and the time of all layers."""
    chosen: list[dict[int, Selection]] = [{} for _ in settings.arms]
    seconds = [0.0] * len(settings.arms)
    for layer in layers_of(loaded, captured, settings):
        selections, times = select_arms(layer, settings.arms)
        for number, (selection, time) in enumerate(zip(selections, times, strict=True)):
            chosen[number][layer.index] = selection
            seconds[number] += time
    return chosen, seconds


def _compacted(loaded: LoadedModel, captured: Captured, chosen: Mapping[int, Selection]) -> list[Evicted]:
    from ecokv_cli.models.evicted import compact, untouched

    return [
        compact(captured, index, chosen[index]) if index in chosen else untouched(captured, index)
        for index in range(loaded.info.layers)
    ]


def _ledger_bytes(captured: Captured, chosen: Mapping[int, Selection], cache: Sequence[Evicted]) -> int:
    """Kept entries, and those of the budget that pay for a memory, times the bytes of an entry."""
    total = sum(layer.bytes for layer in cache if layer.sliding)
    for index, selection in chosen.items():
        keys, values = captured.cache.layers[index].keys, captured.cache.layers[index].values
        entry = keys[0, 0, 0].nbytes + values[0, 0, 0].nbytes
        total += entry * (int(selection.counts.sum()) + selection.state * len(selection.mask))
    return total
