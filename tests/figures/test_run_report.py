"""Tables of the report: the rows themselves for one sample, means with intervals for several."""

from __future__ import annotations

import numpy as np
import pytest

from ecokv_cli.figures.run_report import LAYER_CAPTION, LAYER_MEASURES, _view
from ecokv_cli.studies.results import Results
from ecokv_cli.studies.statistics import over_samples
from ecokv_cli.studies.tables import Table


def view(folder, samples):
    table = Table("layers", ("model", "sample", "layer", *LAYER_MEASURES))
    for i in range(samples):
        for layer in range(3):
            numbers = dict.fromkeys(LAYER_MEASURES, i + 10.0 * layer)
            numbers |= {"spearman": None if layer == 1 else 0.1 * i}
            table.add(model="m", sample=f"s{i}", layer=layer, **numbers)
    table.write_csv(folder)
    over_samples(table, ("model", "layer"), LAYER_MEASURES).write_csv(folder)
    return _view(Results(folder, {}), "layers", LAYER_CAPTION, ("layer",), LAYER_MEASURES)


def test_one_sample_is_shown_as_it_is(tmp_path):
    shown = view(tmp_path, 1)
    assert shown.columns == ("layer", *LAYER_MEASURES)
    assert shown.table.numbers("cos_mean") == [0, 10, 20]
    assert shown.caption == LAYER_CAPTION


def test_several_samples_are_means_with_intervals(tmp_path):
    shown = view(tmp_path, 5)
    assert shown.table.numbers("layer") == [0, 1, 2]
    row = shown.table.rows[2]
    assert row["cos_mean"] == pytest.approx(np.mean([20, 21, 22, 23, 24]))
    assert 20 <= row["cos_mean_low"] < 22 < row["cos_mean_high"] <= 24
    assert "dist_mean_low" not in shown.table.columns
    assert shown.table.rows[1]["spearman"] is None, "undefined in every sample"
    assert "Means over 5 samples" in shown.caption
