"""Every figure of ecokv from synthetic tables, by name, model size, width and number of samples."""

from __future__ import annotations

import functools

import synthetic
import synthetic_answers
from PIL import Image

from ecokv_cli.figures.cosines import cosine_distribution
from ecokv_cli.figures.costs import cost_ratios
from ecokv_cli.figures.evaluation import accuracy_by_budget, accuracy_differences
from ecokv_cli.figures.eviction import kept_by_role, overlap_matrix
from ecokv_cli.figures.explain import kept_over_answer, mass_kept_by_head, region_lost_by_head
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.geometry import dimension_by_layer, geometry_by_layer, keys_and_values, rope_by_layer
from ecokv_cli.figures.overlay import GridImage, kept_over_image
from ecokv_cli.figures.planes import kept_in_plane, pca_scatter
from ecokv_cli.figures.readings import lambda_by_map, redundancy_by_head
from ecokv_cli.figures.recency import kept_by_age, kept_recent
from ecokv_cli.figures.redundancy import lambda_by_layer, spearman_by_layer
from ecokv_cli.figures.regions import image_regions
from ecokv_cli.figures.roles import cosine_by_role, variance_by_role
from ecokv_cli.figures.scale import distance_scale, norm_spread
from ecokv_cli.figures.sinks import sinks_by_layer

METHODS = synthetic.METHODS[2:6]
SIZES = ((6, 2), (28, 4), (36, 8))
PROFILES = {
    "geometry": geometry_by_layer,
    "values": keys_and_values,
    "dimension": dimension_by_layer,
    "scale": distance_scale,
    "norms": norm_spread,
}
LAYERED = (
    *("cosine", *PROFILES, "rope", "lambda", "spearman", "redundancy", "maps"),
    *("variance", "within", "regions", "sinks", "fidelity"),
)
FLAT = (
    *("pca", "plane", "overlay", "age", "recent", "role", "overlap"),
    *("accuracy", "differences", "costs", "answer", "lost", "mass"),
)
EVERY = (*LAYERED, *FLAT)


def page(prompt: synthetic.Prompt) -> GridImage:
    """A grey ramp in the shape of the prompt's image grid."""
    ramp = Image.linear_gradient("L").resize((28 * prompt.cols, 28 * prompt.rows))
    return GridImage(ramp, prompt.rows, prompt.cols)


def draw(name: str, size: tuple[int, int] = SIZES[0], width: str | float = "double", samples: int = 1):
    """The figure of that name from fresh tables."""

    def many(table):
        return synthetic.sampled(table, samples)

    def geometry(tensors=synthetic.TENSORS):
        return many(synthetic.geometry(*size, tensors=tensors))

    undefined = functools.partial(synthetic.undefine, synthetic.geometry(*size), (0, 0), (3, 1))
    rows = functools.partial(synthetic.redundancy, *size)
    explained = functools.partial(synthetic_answers.explanation, *size)
    makers = {
        "cosine": lambda: cosine_distribution(many(synthetic.cosine_histogram(*size)), width),
        "rope": lambda: rope_by_layer(geometry(("keys", "prerope_keys")), width),
        "lambda": lambda: lambda_by_layer(many(undefined()), width),
        "spearman": lambda: spearman_by_layer(many(undefined()), width),
        "redundancy": lambda: redundancy_by_head(many(rows()), geometry(), width),
        "maps": lambda: lambda_by_map(many(rows()), geometry(), width),
        "variance": lambda: variance_by_role(many(synthetic.role_table(*size)), width),
        "within": lambda: cosine_by_role(many(synthetic.role_table(*size)), width),
        "regions": lambda: image_regions(many(synthetic.regions(size[0])), width),
        "sinks": lambda: sinks_by_layer(many(synthetic.sinks(size[0])), geometry(), width),
        "fidelity": lambda: fidelity_by_budget(many(synthetic.fidelity(*size, METHODS)), width),
        "pca": lambda: pca_scatter(synthetic.pca([(0, 0), (2, 1)]), width),
        "plane": lambda: kept_in_plane(synthetic.plane(), synthetic.positions(METHODS), budget=32, width=width),
        "overlay": lambda: kept_over_image(
            synthetic.positions(METHODS[1:]), page(synthetic.Prompt()), budget=32, width=width
        ),
        "age": lambda: kept_by_age(many(synthetic.recency(METHODS, (16, 64))), width),
        "recent": lambda: kept_recent(many(synthetic.positions(METHODS, 32)), width),
        "role": lambda: kept_by_role(many(synthetic.roles(METHODS, (16, 64))), width),
        "overlap": lambda: overlap_matrix(synthetic.overlap(METHODS, (16, 64)), width),
        "accuracy": lambda: accuracy_by_budget(synthetic_answers.accuracy(), width),
        "differences": lambda: accuracy_differences(synthetic_answers.accuracy(), width),
        "costs": lambda: cost_ratios(synthetic_answers.cost(), width),
        "answer": lambda: kept_over_answer(explained().positions, explained(), width)[0],
        "lost": lambda: region_lost_by_head(explained().region, width)[0],
        "mass": lambda: mass_kept_by_head(explained().fidelity, width)[0],
    } | {name: functools.partial(maker, geometry(), width) for name, maker in PROFILES.items()}
    return makers[name]()
