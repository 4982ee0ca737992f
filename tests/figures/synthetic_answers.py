"""Tables of `ecokv evaluate` and of an explained sample, with made-up but plausible numbers."""

from __future__ import annotations

import itertools

import numpy as np
import synthetic
from PIL import Image

from ecokv_cli.dump.schema import BoxInfo, ImageGrid
from ecokv_cli.studies.accuracy import accuracy_table, cost_table
from ecokv_cli.studies.evaluate import ANSWERS, Question
from ecokv_cli.studies.explain import ANSWER, ARM, FIDELITY, OTHER, REGION, Explanation
from ecokv_cli.studies.tables import Table

METHODS = ("snapkv", "snapkv[window=4]", "snapkv+ecokv[window=32]", "snapkv+ecokv", "adakv")
HOSTS = {"snapkv+ecokv": ("snapkv[window=4]",), "snapkv+ecokv[window=32]": ("snapkv",)}
WINDOWS = {"full": 0, "snapkv[window=4]": 4, "snapkv+ecokv": 4}


def answers(methods=METHODS, budgets=(64, 32, 16), samples=29) -> Table:
    table = Table("answers", ANSWERS)
    arms = [("full", None), *itertools.product(methods, budgets)]
    for number, (method, budget) in itertools.product(range(samples), arms):
        size = round(211 * budget) if budget and budget < 1 else budget or 211
        rng = np.random.default_rng([number, *map(ord, method), size if budget else 0])
        table.add(
            model="m", sample=f"s{number}", method=method, budget=budget, window=WINDOWS.get(method, 32), tokens=211,
            kept=float(size), prediction="", answers="", score=float(rng.random() < size / (size + 12)),
            ledger_bytes=10 * size, cache_bytes=12 * size if method == "adakv" else 10 * size, cache_ratio=size / 211,
            peak_bytes=10 * size + 50, peak_source="counted", prefill_seconds=2.0,
            scoring_seconds=0.1 if budget else 0.0, decode_seconds=3 + rng.random(), decoded=4,
        )  # fmt: skip
    return table


def accuracy(**changes) -> Table:
    return accuracy_table(answers(**changes), HOSTS)


def cost(**changes) -> Table:
    return cost_table(answers(**changes))


def explanation(layers=6, heads=2, budget=32) -> Explanation:
    """A page whose answer stands in cells (2, 3) and (2, 4) and whose question's key in (2, 0) and (2, 1)."""
    methods = synthetic.METHODS[1:4]
    prompt = synthetic.Prompt()

    def box(text, first, last):
        return BoxInfo(text, 0, (first / prompt.cols, 2 / prompt.rows, (last + 1) / prompt.cols, 3 / prompt.rows))

    image = Image.linear_gradient("L").resize((28 * prompt.cols, 28 * prompt.rows))
    question = Question("page", (image,), "what is the total?", ("42",), "", (box("total", 0, 1), box("42", 3, 4)))
    fidelity, region, rows = Table("explain_fidelity", FIDELITY), Table("explain_region", REGION), []
    for method, size in (("full", None), *((method, budget) for method in methods)):
        arm = dict.fromkeys(ARM) | {"sample": "page", "method": method, "budget": size, "window": 0}
        arm["score"] = float(method != "random")
        rows.append({column: arm.get(column) for column in ANSWERS} | {"prediction": "42", "tokens": 165})
        for layer, head in itertools.product(range(layers), range(heads)):
            rng = np.random.default_rng([layer, head, *map(ord, method)])
            where = {**arm, "layer": layer, "kv_head": head}
            mass = float(rng.random()) if size else 1.0
            fidelity.add(**where, kept=size or 165, mass=mass, output_error=1 - mass, output_cosine=mass)
            for name, share in ((ANSWER, 0.8 if (layer, head) == (layers // 2, 0) else 0.05), (OTHER, 0.02)):
                region.add(
                    **where, region=name, tokens=2, kept=1, kept_share=0.5, attention=share, lost=(1 - mass) * share
                )
    grid = ImageGrid(0, 3, prompt.rows, prompt.cols, (0.0, 0.0, 1.0, 1.0), 0)
    positions = synthetic.positions(methods, budget, prompt)
    return Explanation(
        question, "42", Table("answers", ANSWERS, rows), fidelity, region, positions, (grid,), (layers // 2, 0), ""
    )
