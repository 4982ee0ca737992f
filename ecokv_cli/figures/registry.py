"""The figures of every study by name: what each shows, the tables it reads, and which of them a user asks for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Literal

from ecokv_cli.errors import UsageError
from ecokv_cli.figures.cosines import cosine_distribution
from ecokv_cli.figures.costs import cost_ratios
from ecokv_cli.figures.evaluation import accuracy_by_budget, accuracy_differences
from ecokv_cli.figures.eviction import kept_by_role, overlap_matrix
from ecokv_cli.figures.explain import kept_over_answer, mass_kept_by_head, region_lost_by_head
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.geometry import dimension_by_layer, geometry_by_layer, keys_and_values, rope_by_layer
from ecokv_cli.figures.pages import kept_over_images
from ecokv_cli.figures.planes import kept_in_planes, pca_scatter
from ecokv_cli.figures.readings import lambda_by_map, redundancy_by_head
from ecokv_cli.figures.recency import kept_by_age, kept_recent
from ecokv_cli.figures.redundancy import lambda_by_layer, spearman_by_layer
from ecokv_cli.figures.regions import image_regions
from ecokv_cli.figures.roles import cosine_by_role, variance_by_role
from ecokv_cli.figures.scale import distance_scale, norm_spread
from ecokv_cli.figures.sinks import sinks_by_layer

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.figures.drawing import Drawing

Scope = Literal["run", "sample", "dump"]


@dataclass(frozen=True)
class FigureKind:
    """One figure that a study can draw.

    Attributes
    ----------
    shows
        One line on what it shows.
    tables
        The attributes of the study's result that it reads: the first arguments of `draw`.
    draw
        Takes the tables and ``width``.
    scope
        ``run``: drawn once over all samples. ``sample``: once per sample, with the tables of that sample. ``dump``:
        the same, and `draw` also takes the sample's dump as ``dump``.
    needs
        What a run may lack, so that nothing is drawn; empty if nothing.
    """

    shows: str
    tables: tuple[str, ...]
    draw: Callable[..., Drawing | list[Drawing | None] | None]
    scope: Scope = "run"
    needs: str = ""


_PAIRS = "at least two positions"
_IMAGE = "a sample with an image"
_EVICTS = "a method that evicts"

FIGURES: dict[str, dict[str, FigureKind]] = {
    "analysis": {
        "cosine_distribution": FigureKind(
            "distribution of key cosine per layer", ("histogram",), cosine_distribution, needs=_PAIRS
        ),
        "cosine_distribution_values": FigureKind(
            "the same for values", ("histogram",), partial(cosine_distribution, tensor="values"), needs=_PAIRS
        ),
        "geometry_by_layer": FigureKind(
            "mean cosine and mean distance to the centroid per layer", ("geometry",), geometry_by_layer
        ),
        "keys_and_values": FigureKind(
            "cosine, distance over norm and first component of keys beside values", ("geometry",), keys_and_values
        ),
        "dimension_by_layer": FigureKind(
            "effective rank and participation ratio of keys and values", ("geometry",), dimension_by_layer
        ),
        "rope_by_layer": FigureKind(
            "mean cosine and effective rank of keys before and after RoPE",
            ("geometry",),
            rope_by_layer,
            needs="keys before RoPE; dump again with --prerope-keys",
        ),
        "distance_scale": FigureKind(
            "mean distance against mean norm per layer: why distances of layers cannot be compared",
            ("geometry",),
            distance_scale,
        ),
        "norm_spread": FigureKind("mean, deviation and range of norms per layer", ("geometry",), norm_spread),
        "sinks_by_layer": FigureKind(
            "attention sinks: attention, norm, and mean cosine without them",
            ("sinks", "geometry"),
            sinks_by_layer,
            needs="attention sinks, and no position is one",
        ),
        "variance_by_role": FigureKind("share of variance over share of tokens by role", ("roles",), variance_by_role),
        "cosine_by_role": FigureKind("mean cosine within roles and between them", ("roles",), cosine_by_role),
        "image_regions": FigureKind(
            "distance and direction of keys by part of the image", ("regions",), image_regions, needs=_IMAGE
        ),
        "image_regions_values": FigureKind(
            "the same for values", ("regions",), partial(image_regions, tensor="values"), needs=_IMAGE
        ),
        "pca_scatter": FigureKind("keys of chosen heads on two principal components", ("pca",), pca_scatter, "sample"),
        "pca_scatter_values": FigureKind(
            "the same for values", ("pca",), partial(pca_scatter, tensor="values"), "sample"
        ),
        "redundancy_by_head": FigureKind(
            "cosine, Euclidean, ECOKV and std redundancy of keys over layers and heads, all against candidates",
            ("redundancy", "geometry"),
            redundancy_by_head,
        ),
        "redundancy_by_head_values": FigureKind(
            "the same for values", ("redundancy", "geometry"), partial(redundancy_by_head, tensor="values")
        ),
        "lambda_by_layer": FigureKind("diversity weight λ over layers and heads", ("geometry",), lambda_by_layer),
        "lambda_by_map": FigureKind("effect of the redundancy map on λ", ("redundancy", "geometry"), lambda_by_map),
        "spearman_by_layer": FigureKind(
            "rank correlation of importance and diversity over layers and heads", ("geometry",), spearman_by_layer
        ),
    },
    "eviction": {
        "fidelity_by_budget": FigureKind("fidelity on held-out queries", ("fidelity",), fidelity_by_budget),
        "kept_over_image": FigureKind(
            "kept image tokens over the image", ("positions",), kept_over_images, "dump", needs=_IMAGE
        ),
        "kept_in_plane": FigureKind(
            "kept keys of one head on the principal components of all", ("plane", "positions"), kept_in_planes, "sample"
        ),
        "kept_by_age": FigureKind("kept share by age over the whole prompt", ("recency",), kept_by_age),
        "kept_recent": FigureKind("kept share of each of the last 64 positions", ("positions",), kept_recent),
        "kept_by_role": FigureKind("kept share of text, image and special tokens", ("roles",), kept_by_role),
        "overlap_matrix": FigureKind(
            "agreement of the kept sets of methods", ("overlap",), overlap_matrix, needs="two methods that evict"
        ),
    },
    "evaluation": {
        "accuracy_by_budget": FigureKind(
            "accuracy against the budget, methods with the same window together",
            ("accuracy",),
            accuracy_by_budget,
            needs=_EVICTS,
        ),
        "accuracy_differences": FigureKind(
            "paired differences to the hosts",
            ("accuracy",),
            accuracy_differences,
            needs="a method that evicts, and at least two samples",
        ),
        "cost_ratios": FigureKind(
            "cache, memory and time over those of the full cache", ("cost",), cost_ratios, needs=_EVICTS
        ),
    },
    "explain": {
        "kept_over_answer": FigureKind(
            "kept image tokens over the image, with the answer's box",
            ("positions",),
            kept_over_answer,
            "dump",
            needs=_IMAGE,
        ),
        "region_lost_by_head": FigureKind(
            "attention on the answer's region that each head loses",
            ("region",),
            region_lost_by_head,
            needs="boxes, and a method that evicts",
        ),
        "mass_kept_by_head": FigureKind(
            "attention mass that each head keeps", ("fidelity",), mass_kept_by_head, needs=_EVICTS
        ),
    },
}
"""By study and name; a name is the stem of the figure's files, where no sample or budget is added to it."""


def parse_figures(text: str, kind: str) -> tuple[str, ...]:
    """Names of the figures that ``--figures`` asks for, in the order in which they are drawn.

    Parameters
    ----------
    text
        ``all``, ``none``, or names with commas between; hyphens count as underscores.
    kind
        A study, or ``run`` for analysis and eviction.

    Raises
    ------
    UsageError
        For a name that is not there, with the nearest one and the list.
    """
    studies = ("analysis", "eviction") if kind == "run" else (kind,)
    known = [name for study in studies for name in FIGURES[study]]
    asked = [part.strip().lower().replace("-", "_") for part in text.split(",")]
    if asked in (["all"], ["none"]):
        return tuple(known) if asked == ["all"] else ()
    for name in asked:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            guess = f"did you mean {near[0]}? " if near else ""
            raise UsageError(f"--figures '{name}': no such figure; {guess}choose all, none or from {', '.join(known)}")
    return tuple(name for name in known if name in asked)
