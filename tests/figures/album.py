"""Every figure of ecokv from synthetic tables, by name, model size and width."""

from __future__ import annotations

import synthetic
from PIL import Image

from ecokv_cli.figures.eviction import kept_by_age, kept_by_role, overlap_matrix
from ecokv_cli.figures.fidelity import fidelity_by_budget
from ecokv_cli.figures.geometry import cosine_distribution, geometry_by_layer, pca_scatter
from ecokv_cli.figures.overlay import GridImage, kept_over_image
from ecokv_cli.figures.redundancy import lambda_by_layer, spearman_by_layer

METHODS = synthetic.METHODS[2:6]
SIZES = ((6, 2), (28, 4), (36, 8))
LAYERED = ("cosine", "geometry", "lambda", "spearman", "fidelity")
FLAT = ("pca", "overlay", "age", "role", "overlap")


def page(prompt: synthetic.Prompt) -> GridImage:
    """A grey ramp in the shape of the prompt's image grid."""
    ramp = Image.linear_gradient("L").resize((28 * prompt.cols, 28 * prompt.rows))
    return GridImage(ramp, prompt.rows, prompt.cols)


def draw(name: str, size: tuple[int, int] = SIZES[0], width: str | float = "double"):
    """The figure of that name from fresh tables."""
    undefined = synthetic.undefine(synthetic.geometry(*size), (0, 0), (3, 1))
    makers = {
        "cosine": lambda: cosine_distribution(synthetic.cosine_histogram(*size), width),
        "geometry": lambda: geometry_by_layer(synthetic.geometry(*size), width),
        "lambda": lambda: lambda_by_layer(undefined, width),
        "spearman": lambda: spearman_by_layer(undefined, width),
        "fidelity": lambda: fidelity_by_budget(synthetic.fidelity(*size, METHODS), width),
        "pca": lambda: pca_scatter(synthetic.pca([(0, 0), (2, 1)]), width),
        "overlay": lambda: kept_over_image(
            synthetic.positions(METHODS[1:]), page(synthetic.Prompt()), budget=32, width=width
        ),
        "age": lambda: kept_by_age(synthetic.recency(METHODS, (16, 64)), width),
        "role": lambda: kept_by_role(synthetic.roles(METHODS, (16, 64)), width),
        "overlap": lambda: overlap_matrix(synthetic.overlap(METHODS, (16, 64)), width),
    }
    return makers[name]()
