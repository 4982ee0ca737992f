"""What the Python interface has beyond the package's own parts: runs by path, whole studies, data frames."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ecokv_cli.dump.layers import choose_layers
from ecokv_cli.dump.runs import find_run, parse_range
from ecokv_cli.errors import UsageError
from ecokv_cli.eviction.spec import DEFAULT_METHODS, parse_methods, parse_single
from ecokv_cli.studies.analyze import AnalyzeSettings
from ecokv_cli.studies.analyze import analyze as _analyze
from ecokv_cli.studies.evict import EvictSettings
from ecokv_cli.studies.evict import evict as _evict
from ecokv_cli.studies.tables import Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from ecokv_cli.dump.reader import Dump
    from ecokv_cli.dump.runs import Run
    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.method import Method
    from ecokv_cli.eviction.route import Route


def open_run(path: str | Path | None = None) -> Run:
    """The run at `path` (its folder, its ``dump`` folder or one sample's), or the latest under ``./ecokv-runs``.

    Raises
    ------
    DumpError
        If there is no run there.
    """
    return find_run(None if path is None else Path(path))


def analyze(
    samples: Sequence[Dump],
    *,
    layers: str | Sequence[int] = "all",
    heads: str | Sequence[int] = "all",
    booster: str | Method = "snapkv+ecokv",
    pairs: int = 20_000,
    seed: int = 0,
    pca: Sequence[tuple[int, int]] = (),
) -> dict[str, Table]:
    """Geometry of keys and values, as ``ecokv analyze`` measures it; one layer in memory at a time.

    Parameters
    ----------
    samples
        Dumps of one model, from ``Run.samples()``.
    layers, heads
        ``all``, a list as it is written, such as ``0-3,7,-1``, or numbers.
    booster
        The ecokv method, as it is written or from `parse_method`, whose importance, diversity and lambda are analysed.
    pairs, seed
        Size and seed of the sample of key pairs, where a prompt is too long to count all.
    pca
        (layer, KV head) pairs whose keys are projected.

    Returns
    -------
    dict of str to Table
        By name; docs/columns.md explains the columns.

    Raises
    ------
    EcokvError
        One line, as on the command line.
    """
    settings = AnalyzeSettings(
        *_chosen(samples, layers, heads), parse_single(_written(booster)), pairs, seed, tuple(pca)
    )
    return {table.name: table for table in _analyze(samples, settings).tables}


def evict(
    samples: Sequence[Dump],
    methods: Sequence[str | Method | Route] = DEFAULT_METHODS,
    budgets: Sequence[Budget] = (64,),
    *,
    window: int | None = None,
    layers: str | Sequence[int] = "all",
    heads: str | Sequence[int] = "all",
) -> dict[str, Table]:
    """Simulated eviction, as ``ecokv evict`` does it; one layer in memory at a time.

    Parameters
    ----------
    samples
        Dumps of one model, from ``Run.samples()``.
    methods, budgets
        Every method (as it is written, or from `parse_method`) at every budget, per KV head and layer and the window
        included: an int of tokens, or a float 0 < r < 1, the share of each sample's own prompt.
    window
        One window for all methods; by default each has its own.
    layers, heads
        ``all``, a list as it is written, such as ``0-3,7,-1``, or numbers.

    Returns
    -------
    dict of str to Table
        By name; docs/columns.md explains the columns.

    Raises
    ------
    EcokvError
        One line, as on the command line.
    """
    chosen, chosen_heads = _chosen(samples, layers, heads)
    rules = tuple(parse_methods(map(_written, methods), window))
    settings = EvictSettings(rules, tuple(budgets), chosen, chosen_heads, (chosen[0], chosen_heads[0]))
    return {table.name: table for table in _evict(samples, settings).tables}


def frame(table: Table) -> pd.DataFrame:
    """A table as a pandas data frame; undefined numbers are missing values.

    Raises
    ------
    UsageError
        If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError:
        raise UsageError('data frames need pandas; pip install "ecokv-cli[pandas]"') from None
    return pd.DataFrame(table.rows, columns=list(table.columns))


def _written(method: str | Method | Route) -> str:
    return method if isinstance(method, str) else method.name


def _chosen(
    samples: Sequence[Dump], layers: str | Sequence[int], heads: str | Sequence[int]
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Numbers of layers and heads, as written for the first sample."""
    if not samples:
        raise UsageError("no samples given; open_run(FOLDER).samples() lists those of a run")
    first = samples[0]
    wanted, wanted_heads = (each if isinstance(each, str) else ",".join(map(str, each)) for each in (layers, heads))
    return tuple(choose_layers(wanted, first)), tuple(parse_range(wanted_heads, first.manifest.model.kv_heads, "heads"))
