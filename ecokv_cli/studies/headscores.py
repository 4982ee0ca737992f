"""Visual-head scores of a model from dumps of pages whose words and boxes are known."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from ecokv_cli.dump.headscores import HeadScores
from ecokv_cli.errors import DumpError
from ecokv_cli.eviction.headscores import Target, head_hits
from ecokv_cli.studies.parts import Codec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.schema import BoxInfo, ImageGrid, Manifest


@dataclass(frozen=True)
class HeadScoring:
    """The table, and the samples that gave nothing, each with the reason."""

    table: HeadScores
    skipped: dict[str, str]


@dataclass(frozen=True)
class Hits:
    """What one sample gives: the score of every head ``[layer][query head]``, summed over `tokens` that count.

    Without such tokens there are no scores, and `reason` says why.
    """

    scores: tuple[tuple[float, ...], ...]
    tokens: int
    reason: str = ""


def head_scores(samples: Sequence[Dump], progress: Callable[[int, int], None] = lambda *_: None) -> HeadScoring:
    """Mean score of every query head over samples with boxes.

    Parameters
    ----------
    samples
        Dumps of one model, with boxes in their manifest.
    progress
        Called with samples done and samples in all.

    Returns
    -------
    HeadScoring
        Means over the samples that have at least one decoded token in exactly one box.

    Raises
    ------
    DumpError
        If the samples are of different models, none can be used, or no head ever looked at the right place.

    Notes
    -----
    SparseMM, arXiv 2506.05344. Tokens are compared as decoded text without surrounding blanks, and an empty one
    matches nothing; cells count if they overlap the box by more than an edge.
    """
    require_one_model(samples)

    def one_by_one() -> Iterator[Hits]:
        for done, dump in enumerate(samples, start=1):
            yield hits_of(dump)
            progress(done, len(samples))

    return combined(samples, one_by_one())


def require_one_model(samples: Sequence[Dump]) -> None:
    """Refuse dumps of different models.

    Raises
    ------
    DumpError
        Naming the first one that is not of the first one's model.
    """
    first = samples[0].manifest.model.identity
    for dump in samples:
        differing = first.told_apart(dump.manifest.model.identity)
        if differing:
            raise DumpError(f"{dump.folder}: a dump of {differing[1]}, the first is of {differing[0]}; one at a time")


def hits_of(dump: Dump) -> Hits:
    """The scores that one sample gives to every head."""
    manifest = dump.manifest
    targets = targets_of(manifest)
    if not targets:
        return Hits((), 0, _why_nothing(manifest))
    found = torch.zeros(manifest.model.layers, manifest.model.query_heads, dtype=torch.float64)
    for layer in dump.layers(index for index in range(manifest.model.layers) if index not in dump.windows):
        found[layer.index] = head_hits(layer, targets).cpu()
    return Hits(tuple(map(tuple, found.tolist())), len(targets))


def combined(samples: Sequence[Dump], hits: Iterable[Hits]) -> HeadScoring:
    """The mean over samples, whose hits are taken one at a time and in order; raises as `head_scores` does."""
    first = samples[0].manifest.model
    total = torch.zeros(first.layers, first.query_heads, dtype=torch.float64)
    used, tokens, skipped = 0, 0, {}
    for dump, found in zip(samples, hits, strict=True):
        if found.tokens:
            total += torch.tensor(found.scores, dtype=torch.float64)
            used, tokens = used + 1, tokens + found.tokens
        else:
            skipped[dump.manifest.sample] = found.reason
    if not used:
        sample, reason = next(iter(skipped.items()))
        raise DumpError(
            f"none of {len(samples)} samples can be used, {sample}: {reason}; "
            f"dump pages with boxes (`ecokv dump --manifest FILE`)"
        )
    if not total.any():
        raise DumpError(f"in {used} samples no head ever looked at the right place, so there is nothing to share by")
    rows = tuple(tuple(row) for row in (total / used).tolist())
    return HeadScoring(
        HeadScores(first.id, first.config_sha256, used, tokens, rows, first.revision, first.weights_sha256), skipped
    )


def hits_codec() -> Codec[Hits]:
    """How the hits of a sample are stored."""

    def write(folder: Path, hits: Hits) -> None:
        (folder / "hits.json").write_text(json.dumps(asdict(hits)), encoding="utf-8")

    def read(folder: Path) -> Hits:
        data = json.loads((folder / "hits.json").read_text(encoding="utf-8"))
        return Hits(tuple(map(tuple, data["scores"])), data["tokens"], data["reason"])

    return Codec(write, read)


def targets_of(manifest: Manifest) -> list[Target]:
    """Decoded tokens whose text stands in exactly one box, with the image positions of that box."""
    regions = [(box.text, positions_of(box, manifest.grids)) for box in manifest.boxes]
    # A token whose query was not fed back still counts: it was predicted.
    predicted = manifest.decoded.strings[: manifest.decoded.fed_back + 1]
    targets = []
    for step, text in enumerate(text.strip() for text in predicted):
        holding = [cells for words, cells in regions if text and text in words]
        if len(holding) == 1 and holding[0]:
            targets.append(Target(step, holding[0]))
    return targets


def positions_of(box: BoxInfo, grids: Sequence[ImageGrid]) -> tuple[int, ...]:
    """Prompt positions of the grid cells that a box overlaps, in every view of its image."""
    found: list[int] = []
    for grid in grids:
        if grid.image != box.image:
            continue
        x0, y0, x1, y1 = grid.box
        cols = _cells(box.box[0], box.box[2], x0, x1, grid.cols)
        rows = _cells(box.box[1], box.box[3], y0, y1, grid.rows)
        found += [grid.start + row * (grid.cols + grid.extra) + col for row in rows for col in cols]
    return tuple(found)


def _cells(low: float, high: float, start: float, end: float, count: int) -> range:
    """Cells of a row of `count` between `start` and `end` that the interval overlaps."""
    scale = count / (end - start)
    # A hair inside, so that an edge on a cell border does not count as overlap.
    first = math.floor((low - start) * scale + 1e-6)
    last = math.ceil((high - start) * scale - 1e-6)
    return range(max(first, 0), min(last, count))


def _why_nothing(manifest: Manifest) -> str:
    if not manifest.boxes:
        return "its manifest has no boxes"
    if not manifest.decoded.strings:
        return "nothing was decoded (dump again with --decode 32)"
    return f"no token of the answer '{manifest.decoded.text}' stands in exactly one box"
