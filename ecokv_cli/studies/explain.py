"""Why a method wins or loses on one sample: what each head kept of what the full cache's own answer looks at."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, cast

import torch

from ecokv_cli.errors import ModelError
from ecokv_cli.eviction.budget import tokens_of
from ecokv_cli.eviction.fidelity import HeldOut
from ecokv_cli.studies.headscores import positions_of
from ecokv_cli.studies.selecting import capture_for, layers_of, select_arms
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ecokv_cli.dump.schema import BoxInfo, ImageGrid, Tokens
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.layer import Layer
    from ecokv_cli.eviction.selection import Selection
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.studies.evaluate import EvaluateSettings, Question
    from ecokv_cli.studies.tables import Value

ARM = ("model", "sample", "method", "budget", "window", "score")
FIDELITY = (*ARM, "layer", "kv_head", "kept", "mass", "output_error", "output_cosine")
REGION = (*ARM, "region", "layer", "kv_head", "tokens", "kept", "kept_share", "attention", "lost")
METHODS = (
    *ARM, "prediction", "kept", "mass", "output_error", "region_kept", "region_attention", "region_lost",
)  # fmt: skip
POSITIONS = ("sample", "method", "budget", "layer", "kv_head", "position", "role", "image", "row", "col", "kept")
ANSWER, OTHER = "answer", "other"
"""Regions: cells that a box of an accepted answer overlaps, and cells of the sample's further boxes alone."""


@dataclass(frozen=True)
class Explanation:
    """One sample looked at closely.

    Attributes
    ----------
    question
        The sample.
    full
        The answer on the full cache, whose queries judge.
    fidelity, region, positions
        ``explain_fidelity`` and ``explain_region`` have a row per arm, layer and KV head (and region);
        ``explain_positions`` the share of layers and heads that keep each prompt position, and what the head of
        `focus` keeps.
    answers
        Graded rows of the sample.
    grids
        How image tokens lie on the images.
    focus
        (layer, KV head) that looks most at the answer's region on the full cache; None without a region.
    note
        What is missing and why; empty if nothing is.
    """

    question: Question
    full: str
    answers: Table
    fidelity: Table
    region: Table
    positions: Table
    grids: tuple[ImageGrid, ...]
    focus: tuple[int, int] | None
    note: str

    @property
    def methods(self) -> Table:
        """``explain_methods``: one row per arm, means over layers and KV heads beside the answer."""
        means = {c: self.fidelity.aggregate(("method", "budget"), c, fmean) for c in ("kept", "mass", "output_error")}
        inside = self.region.where(region=ANSWER)
        parts = {c: inside.aggregate(("method", "budget"), c, fmean) for c in ("kept_share", "attention", "lost")}
        table = Table("explain_methods", METHODS)
        for row in self.answers:
            key = (row["method"], row["budget"])
            table.add(
                **{c: row[c] for c in ARM}, prediction=row["prediction"], **{c: means[c][key] for c in means},
                region_kept=parts["kept_share"].get(key), region_attention=parts["attention"].get(key),
                region_lost=parts["lost"].get(key),
            )  # fmt: skip
        return table

    @property
    def heads(self) -> Table:
        """``explain_heads``: heads by what they lose at the smallest budget, mean over methods, the worst first.

        A column per method holds the attention it loses: on the answer's region, or on all positions without one.
        `attention` is what there is to lose.
        """
        budgets = [cast("Budget", budget) for budget in self.fidelity.distinct("budget") if budget is not None]
        tokens = cast("int", self.answers.rows[0]["tokens"])
        smallest = min(budgets, key=lambda budget: tokens_of(budget, tokens), default=None)
        rows = (self.region.where(region=ANSWER) if self.focus else self.fidelity).where(budget=smallest)
        methods = [str(method) for method in rows.distinct("method")]
        heads: dict[tuple[Value, Value], dict[str, Value]] = defaultdict(dict)
        for row in rows:
            lost = row["lost"] if self.focus else 1 - float(str(row["mass"]))
            line = heads[row["layer"], row["kv_head"]]
            line |= {"attention": row["attention"] if self.focus else 1.0, str(row["method"]): lost}
        table = Table("explain_heads", ("sample", "budget", "layer", "kv_head", "attention", *methods))
        ranked = sorted(heads.items(), key=lambda item: -fmean(float(str(item[1][method])) for method in methods))
        for (layer, head), line in ranked:
            table.add(sample=self.question.id, budget=smallest, layer=layer, kv_head=head, **line)
        return table

    @property
    def boxes(self) -> list[tuple[BoxInfo, bool]]:
        """The sample's boxes, each with whether it is of the answer."""
        mine, others = split_boxes(self.question)
        return [(box, True) for box in mine] + [(box, False) for box in others]

    @property
    def tables(self) -> list[Table]:
        """All tables."""
        return [self.methods, self.heads, self.fidelity, self.region, self.positions]


@dataclass
class _Tally:
    """What is gathered layer by layer."""

    fidelity: Table = field(default_factory=lambda: Table("explain_fidelity", FIDELITY))
    region: Table = field(default_factory=lambda: Table("explain_region", REGION))
    masks: dict[int, list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    layers: list[int] = field(default_factory=list)
    reads: dict[tuple[int, int], float] = field(default_factory=dict)


def explain(loaded: LoadedModel, question: Question, settings: EvaluateSettings, answers: Table) -> Explanation:
    """Look at what every arm keeps of a sample with the queries of the answer that the full cache gives.

    With ``P[h, j]`` the attention of these queries on prompt position j on the full cache, mean over queries and the
    query heads of KV head h, a region R has the ``attention`` ``sum_{j in R} P[h, j]``, and an arm has ``lost`` the
    part of it that falls on what it evicted. Each layer is judged with the full cache in all others.

    Parameters
    ----------
    loaded
        The model.
    question
        The sample; its boxes may be empty.
    settings
        Arms and limits.
    answers
        Graded rows of this sample, one per arm in the order of the arms.

    Returns
    -------
    Explanation
        The tables, and what figures of them need.

    Raises
    ------
    ModelError
        If the answer on the full cache ends at once, so that there is no query to judge by.
    """
    from ecokv_cli.models.layout import describe_tokens
    from ecokv_cli.models.prompting import prepare

    prepared = prepare(loaded, question.images, question.prompt, template=settings.template)
    tokens, grids = describe_tokens(loaded, prepared.inputs, [image.size for image in question.images])
    captured = capture_for(loaded, prepared.inputs, settings, decode=settings.steps)
    if not captured.steps:
        raise ModelError(
            f"sample {question.id}: {loaded.info.id} ends its answer at once, so no query of an answer can judge what "
            f"was evicted; choose another sample"
        )
    regions = regions_of(question, grids)
    tally = _Tally()
    for layer in layers_of(loaded, captured, settings):
        _explain_layer(tally, layer, settings, answers, regions)
    focus = max(tally.reads, key=lambda head: tally.reads[head]) if tally.reads else None
    return Explanation(
        question, loaded.tokenizer.decode(captured.answer, skip_special_tokens=True).strip(), answers,
        tally.fidelity, tally.region, _positions(tally, tokens, answers, focus), grids, focus,
        _what_is_missing(question, grids, regions),
    )  # fmt: skip


def split_boxes(question: Question) -> tuple[list[BoxInfo], list[BoxInfo]]:
    """Boxes whose text is an accepted answer, or all if there is none such, and the others."""
    right = {answer.strip().casefold() for answer in question.answers}
    mine = [box for box in question.boxes if box.text.strip().casefold() in right] or list(question.boxes)
    return mine, [box for box in question.boxes if box not in mine]


def regions_of(question: Question, grids: Sequence[ImageGrid]) -> dict[str, list[int]]:
    """Prompt positions of `ANSWER` and `OTHER`, ascending, each position in one of them; empty regions are left out."""
    mine, others = (
        {position for box in boxes for position in positions_of(box, grids)} for boxes in split_boxes(question)
    )
    found = {ANSWER: sorted(mine), OTHER: sorted(others - mine)}
    return {name: positions for name, positions in found.items() if positions}


def _explain_layer(
    tally: _Tally, layer: Layer, settings: EvaluateSettings, answers: Table, regions: dict[str, list[int]]
) -> None:
    held_out = HeldOut(layer)
    attention = layer.held_out_logits.softmax(-1)[..., : layer.tokens].double().mean(1)
    tally.layers.append(layer.index)
    if ANSWER in regions:
        reads = attention[:, regions[ANSWER]].sum(-1).tolist()
        tally.reads |= {(layer.index, head): share for head, share in enumerate(reads)}
    for number, selection in enumerate(select_arms(layer, settings.arms)[0]):
        arm = {column: answers.rows[number][column] for column in ARM}
        tally.masks[number].append(selection.mask.cpu())
        fidelity = held_out.judge(selection)
        for head in range(layer.kv_heads):
            where = {**arm, "layer": layer.index, "kv_head": head}
            tally.fidelity.add(
                **where, kept=int(selection.counts[head]), mass=float(fidelity.mass[head]),
                output_error=float(fidelity.error[head]), output_cosine=float(fidelity.cosine[head]),
            )  # fmt: skip
            for name, positions in regions.items():
                tally.region.add(**where, region=name, **_lost(attention[head], selection, head, positions))


def _lost(attention: torch.Tensor, selection: Selection, head: int, positions: list[int]) -> dict[str, Value]:
    """What one head keeps and loses of a region."""
    kept, share = selection.mask[head, positions], attention[positions]
    count = int(kept.sum())
    return {
        "tokens": len(positions), "kept": count, "kept_share": count / len(positions), "attention": float(share.sum()),
        "lost": float(share[~kept].sum()),
    }  # fmt: skip


def _positions(tally: _Tally, tokens: Tokens, answers: Table, focus: tuple[int, int] | None) -> Table:
    """Kept share of every prompt position over all layers and heads, and in the head of `focus`."""
    table = Table("explain_positions", POSITIONS)
    for number, row in enumerate(answers):
        masks = torch.stack(tally.masks[number])
        shares: dict[tuple[Value, Value], list[float]] = {("all", "all"): masks.double().mean((0, 1)).tolist()}
        if focus:
            shares[focus] = masks[tally.layers.index(focus[0]), focus[1]].double().tolist()
        for (layer, head), kept in shares.items():
            columns = zip(tokens.roles, tokens.image, tokens.row, tokens.col, kept, strict=True)
            for position, (role, image, cell_row, col, share) in enumerate(columns):
                table.add(
                    sample=row["sample"], method=row["method"], budget=row["budget"], layer=layer, kv_head=head,
                    position=position, role=role, image=image, row=cell_row, col=col, kept=share,
                )  # fmt: skip
    return table


def _what_is_missing(question: Question, grids: Sequence[ImageGrid], regions: dict[str, list[int]]) -> str:
    if ANSWER in regions:
        return ""
    sample = f"sample {question.id}"
    if not question.boxes:
        return f"{sample} has no boxes, so what is lost of the answer's region is not known; the rest is"
    if not grids:
        return f"{sample}: how image tokens of this model lie on the image is not known, so its boxes cannot be used"
    return f"{sample}: no image token lies in its boxes"
