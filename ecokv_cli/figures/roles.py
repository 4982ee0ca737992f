"""Image, text and special tokens: how they look in every figure, and what each has of the variance and the cosine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import numpy as np
from matplotlib.lines import Line2D

from ecokv_cli.figures.drawing import Drawing, drawn
from ecokv_cli.figures.parts import legend_above, letter, log_axis, names
from ecokv_cli.figures.profiles import (
    Stroke,
    add_profile,
    band_words,
    draw_profile,
    label_panels,
    layer_panels,
    profile,
    profile_table,
)
from ecokv_cli.figures.style import BLACK, BLUE, INK, VERMILLION, inches
from ecokv_cli.studies.reduced import prepared
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from matplotlib.figure import Figure

ROLES = ("text", "image", "special")


@dataclass(frozen=True)
class Mark:
    """Marks of one role, told apart by shape and filling as well as by colour; size and line in points."""

    marker: str
    face: str
    edge: str
    size: float
    line: float

    @property
    def handle(self) -> Line2D:
        """Its entry in a legend."""
        handle = Line2D([], [], linestyle="", marker=self.marker, markersize=1.1 * self.size, markeredgewidth=self.line)
        handle.set(markerfacecolor=self.face, markeredgecolor=self.edge)
        return handle


MARKS = {
    "image": Mark("o", "none", BLUE, size=3.0, line=0.5),
    "text": Mark("s", VERMILLION, "white", size=3.5, line=0.3),
    "special": Mark("^", BLACK, "white", size=4.2, line=0.3),
}
"""In drawing order: the many below, the few on top."""

_STROKES = {
    "text": Stroke(VERMILLION, (0, (4, 1.4)), "s"),
    "image": Stroke(BLUE, "solid", "o"),
    "special": Stroke(BLACK, (0, (1, 1)), "^"),
}

_THIN = 0.6
"""Width of the lines beside which others stand out."""


def present_roles(table: Table) -> list[str]:
    """The roles that occur, in the order in which legends list them."""
    return [role for role in ROLES if role in names(table, "role")]


@drawn
def variance_by_role(roles: Table, width: str | float = "double") -> Drawing:
    """Draw each role's share of the variance over its share of the tokens, by layer, for keys and values.

    Parameters
    ----------
    roles
        The `roles` table of the analysis.
    width
        See `style.inches`.
    """
    roles = with_ratio(roles)
    figure, data = _panels(roles, ("variance_ratio",), "variance_by_role", inches(width))
    shares = ", ".join(f"{role} {100 * share:.1f} %" for role, share in _token_shares(roles).items())
    caption = (
        "Share of the variance of (a) keys and (b) values that the tokens of a role have, divided by their share of "
        f"the tokens ({shares}), on a logarithmic axis. {band_words(roles)} "
        "1 is what tokens picked blindly would have; above it the role spreads more than the rest or lies apart from "
        "it, below it the role is a tight core. Few tokens far above 1 can still have little of the variance in all."
    )
    return Drawing("variance_by_role", "Share of variance by role", figure, data, caption)


@drawn
def cosine_by_role(roles: Table, width: str | float = "double") -> Drawing:
    """Draw the mean cosine among the tokens of each role, and with all others, by layer, for keys and values.

    Parameters
    ----------
    roles
        The `roles` table of the analysis.
    width
        See `style.inches`.
    """
    figure, data = _panels(roles, ("cos_within", "cos_rest"), "cosine_by_role", inches(width))
    caption = (
        "Mean cosine between two tokens of one role (lines with marks), by layer, for (a) keys and (b) values; thin "
        f"lines of the same kind without marks are its mean cosine with all other tokens. {band_words(roles)} "
        "A role well above its thin line is a bundle of its own; where both are close, roles share one direction. "
        "Image tokens with a high cosine among themselves are the redundancy that eviction can use."
    )
    return Drawing("cosine_by_role", "Cosine within roles and between them", figure, data, caption)


def _panels(roles: Table, columns: Sequence[str], stem: str, width: float) -> tuple[Figure, Table]:
    """One panel for keys and one for values, one line per role and column; the first column has bands and marks."""
    figure, panels = layer_panels(width, 2, tall=2.0, extra=0.2)
    data = profile_table(stem, "tensor", "role")
    present = present_roles(roles)
    log = columns == ("variance_ratio",)
    for ax, tensor in zip(panels, ("keys", "values"), strict=True):
        spans = [np.ones(1)]
        for role in present:
            rows = roles.where(tensor=tensor, role=role)
            for column in columns:
                found = profile(rows, column)
                add_profile(data, found, tensor=tensor, role=role, measure=column)
                spans += [found.heads.ravel(), found.mean, found.low, found.high]
                if column == columns[0]:
                    draw_profile(ax, found, _STROKES[role])
                else:
                    ax.plot(found.mean, color=_STROKES[role].color, linestyle=_STROKES[role].dash, linewidth=_THIN)
        ax.axhline(1 if log else 0, color=INK, linewidth=0.6, zorder=0.5)
        if log:
            log_axis(ax, np.concatenate(spans))
        ax.set_ylabel("variance share\nover token share" if log else "mean cosine")
    label_panels(panels, found.layers)
    letter(panels, ("keys", "values"))
    handles = [_STROKES[role].handle for role in present]
    if len(columns) > 1:
        handles += [Line2D([], [], color=INK), Line2D([], [], color=INK, linewidth=_THIN)]
    legend_above(figure, handles, [*present, *(("within the role", "with the rest") if len(columns) > 1 else ())])
    return figure, data


def _token_shares(roles: Table) -> dict[str, float]:
    """Mean over samples of each role's share of the tokens, which is the same in all layers."""
    first = roles.rows[0]
    shares = roles.where(layer=first["layer"], tensor=first["tensor"]).by_sample(("role",), "token_share")
    return {role: float(np.nanmean(shares[role,])) for role in present_roles(roles)}


@prepared
def with_ratio(roles: Table) -> Table:
    """The table with `token_share` and `variance_ratio`: share of the variance over share of the tokens."""
    where = ("sample", "layer", "kv_head", "tensor")
    totals = roles.aggregate(where, "tokens", sum)
    rows = []
    for row in roles:
        share, tokens = row["variance_share"], cast("float", row["tokens"])
        whole = totals[tuple(row[name] for name in where)]
        ratio = None if share is None else cast("float", share) * whole / tokens
        rows.append(row | {"token_share": tokens / whole, "variance_ratio": ratio})
    return Table(roles.name, (*roles.columns, "token_share", "variance_ratio"), rows)
