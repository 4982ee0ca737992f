"""Rows of tables from tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from ecokv_cli.studies.tables import Value

Row = dict[str, "Value"]


def unstack(columns: Mapping[str, torch.Tensor]) -> Iterator[Row]:
    """One row of plain numbers per entry of the ``[K]`` tensors, by column; NaN stays, tables make it None."""
    listed = {name: tensor.tolist() for name, tensor in columns.items()}
    return (dict(zip(listed, numbers, strict=True)) for numbers in zip(*listed.values(), strict=True))
