"""Speed and memory of scoring and selection on synthetic layers, against kvpress and against naive per-head loops.

Run it by hand, on an otherwise idle machine: ``python tests/benchmarks/eviction_speed.py``. The kvpress columns need
``pip install kvpress``; without it they are left out. Tables come out in Markdown.

What is timed
-------------
ecokv: ``Method.select`` on a layer fresh from memory, from keys and window queries to the mask of what is kept.

kvpress: ``press.score`` and the ``topk`` of what is kept, as `ScorerPress.compress` and `PyramidKVPress.compress` do
before they gather keys and values, which is left out; `AdaKVPress.compress` as it is, since it gathers nothing. Presses
of attention project the window's hidden states to queries once more, which the model did before and a dump holds. Here
the projection has its real size and the values of an identity, and the rotation turns by nothing, so that all see
equal queries. A second ratio leaves the time of both, measured alone, out of kvpress's.

naive: what one would write in plain torch with a loop over query heads and repeated keys, up to sorted positions.

All three see the same tensors, one layer at a time. Each runs several times in a row, short calls more often than long
ones, and the fastest counts, so that all find the layer in the caches, and memory in the allocator, as far as these
go. Ratios are medians over layers of the quotient within a layer, which bears slow changes of the machine's load better
than times do. Memory is what torch allocates during one call.
"""

from __future__ import annotations

import argparse
import itertools
import math
import os
import statistics
import time
from collections import defaultdict
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from types import SimpleNamespace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from naive_eviction import NAIVE
from naive_eviction import select as naive_select
from torch.profiler import ProfilerActivity, profile

from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.spec import parse_method

if TYPE_CHECKING:
    from collections.abc import Callable

try:
    import kvpress
    from kvpress.utils import get_prerope_query_states
    from transformers.models.llama.modeling_llama import rotate_half
except ImportError:
    kvpress = None

KV_HEADS, GROUP, DIM, WINDOW, BUDGET = 4, 7, 128, 32, 1024
# 1024 is the smallest power of 2 at which kvpress's pyramid is not flat with this window.
IDENTITY = torch.eye(KV_HEADS * GROUP * DIM)

COUNTERPARTS = {
    "snapkv": 0.4, "tova": 0.4, "pyramidkv[compat=kvpress]": 0.4, "adakv[compat=kvpress]": 0.4,
    "keydiff": 0.6, "knorm": 1.0, "streaming": None,
}  # fmt: skip
"""Methods that kvpress has too, with the largest ratio that is aimed at."""

OTHERS = (
    "vnorm", "manifoldkv", "h2o", "observed", "pyramidkv", "adakv", "sparsemm", "snapkv+mixkv", "snapkv+ecokv",
    "snapkv+keydiff", "snapkv+manifold", "mmr", "retentive",
)  # fmt: skip
SMALL_BUDGETS = (64, 256)
"""Budgets of mmr, whose time grows with the number of choices."""


def random_layer(index: int, layers: int, tokens: int) -> Layer:
    """A layer of Gaussian tensors whose keys share a direction, as keys do."""
    generator = torch.Generator().manual_seed(index)

    def draw(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    empty = torch.empty(KV_HEADS, 0, DIM)
    return Layer(
        index, layers, draw(KV_HEADS, tokens, DIM).add_(draw(KV_HEADS, 1, DIM)), draw(KV_HEADS, tokens, DIM),
        draw(KV_HEADS * GROUP, WINDOW, DIM), DIM**-0.5, torch.empty(KV_HEADS * GROUP, 0, DIM), empty, empty,
        received_attention=draw(KV_HEADS * GROUP, tokens).abs_(),
        head_scores=torch.rand(layers, KV_HEADS * GROUP, generator=generator),
    )  # fmt: skip


# --- kvpress


@dataclass
class Attention:
    """What presses read of an attention module."""

    layer_idx: int
    config: SimpleNamespace
    head_dim: int = DIM
    masked_key_indices: tuple[torch.Tensor, ...] = ()

    def q_proj(self, hidden: torch.Tensor) -> torch.Tensor:
        """As long as any projection to queries, and the hidden states themselves."""
        return F.linear(hidden, IDENTITY)


def press_of(name: str, layer: Layer) -> tuple[Callable[[], torch.Tensor], Callable[[], object] | None]:
    """The press's selection on `layer`, as positions per head or as what AdaKV prunes, and how it makes queries."""
    ratio = 1 - (BUDGET + 0.25) / layer.tokens
    snapkv = kvpress.SnapKVPress(ratio, WINDOW, 5)
    press = {
        "snapkv": snapkv, "tova": kvpress.TOVAPress(ratio), "pyramidkv": kvpress.PyramidKVPress(ratio, WINDOW, 5, 20),
        "adakv": kvpress.AdaKVPress(snapkv, 0.2), "keydiff": kvpress.KeyDiffPress(ratio),
        "knorm": kvpress.KnormPress(ratio), "streaming": kvpress.StreamingLLMPress(ratio, 4),
    }[name]  # fmt: skip
    window = {"tova": 1, "snapkv": WINDOW, "pyramidkv": WINDOW, "adakv": WINDOW}.get(name, 0)
    module = Attention(
        layer.index,
        SimpleNamespace(
            num_attention_heads=KV_HEADS * GROUP, num_key_value_heads=KV_HEADS, num_hidden_layers=layer.layers,
            _attn_implementation="sdpa",
        ),
    )  # fmt: skip
    keys, values = layer.keys[None], layer.values[None]
    # Presses look at the last rows only; one more row than the window satisfies their check of the length.
    hidden = F.pad(layer.window_queries.transpose(0, 1).reshape(1, WINDOW, -1), (0, 0, 1, 0))
    cos, sin = torch.ones(1, WINDOW, DIM), torch.zeros(1, WINDOW, DIM)
    inputs = (module, hidden, keys, values, None, {"position_embeddings": (cos, sin)})

    def select() -> torch.Tensor:
        if name == "adakv":
            press.compress(*inputs)
            _, heads, positions = module.masked_key_indices
            return heads * layer.tokens + positions
        count = press.get_layer_budget(module, layer.tokens) if name == "pyramidkv" else BUDGET
        return press.score(*inputs).topk(count, dim=-1).indices[0]

    def prepare() -> None:
        queries = get_prerope_query_states(module, hidden[:, -window:])
        _ = queries * cos[:, -window:].unsqueeze(1) + rotate_half(queries) * sin[:, -window:].unsqueeze(1)

    return select, prepare if window else None


def agreement(name: str, ours: torch.Tensor, theirs: torch.Tensor) -> float:
    """Share of our kept positions that kvpress keeps too."""
    mask = torch.zeros_like(ours)
    if name == "adakv":
        mask = ~mask.flatten().index_fill(0, theirs, value=True).view_as(mask)
    else:
        mask.scatter_(1, theirs, value=True)
    return float((mask & ours).sum() / ours.sum())


# --- measuring


@dataclass
class Times:
    """Milliseconds per layer of one method at one N, and quotients to the others within a layer."""

    took: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    quotients: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))

    def add(self, took: dict[str, float]) -> None:
        """One layer."""
        for side, time_ in took.items():
            self.took[side].append(time_)
            self.quotients[side].append(took["ecokv"] / time_)

    def ratio(self, side: str) -> str:
        """Median of the quotients, or a dash."""
        return f"{statistics.median(self.quotients[side]):.2f}" if side in self.quotients else "-"


def fastest(function: Callable[[Layer], object], repeat: int, layer: Layer) -> float:
    """Milliseconds of the fastest of at least `repeat` calls that together take 20 ms or more."""
    calls, total, least = 0, 0.0, math.inf
    while calls < repeat or total < 0.02:
        # A new layer holds nothing that was computed for another call.
        fresh = replace(layer)
        start = time.perf_counter()
        function(fresh)
        took = time.perf_counter() - start
        calls, total, least = calls + 1, total + took, min(least, took)
    return 1e3 * least


def measure(spec: str, budget: int, layer: Layer, repeat: int) -> dict[str, float]:
    """Time of every side on one layer."""
    method = parse_method(spec)
    took = {"ecokv": fastest(lambda fresh: method.select(fresh, budget), repeat, layer)}
    if spec in NAIVE and sampled(layer.index):
        took["naive"] = fastest(lambda fresh: naive_select(spec, fresh, budget), repeat, layer)
    if kvpress and spec in COUNTERPARTS:
        select, prepare = press_of(spec.partition("[")[0], layer)
        took["kvpress"] = fastest(lambda _: select(), repeat, layer)
        took["scoring"] = took["kvpress"] - (fastest(lambda _: prepare(), repeat, layer) if prepare else 0)
    return took


def sampled(index: int) -> bool:
    """Whether more than the comparison with kvpress is measured on a layer."""
    return index % 7 == 0


def check(spec: str, layer: Layer) -> None:
    """Refuse to time two things that do not keep the same."""
    name = spec.partition("[")[0]
    share = agreement(name, parse_method(spec).select(layer, BUDGET).mask, press_of(name, layer)[0]())
    if share < 0.995:
        raise SystemExit(f"{spec}: only {share:.1%} of what it keeps is kept by kvpress too")


def peak_bytes(spec: str, budget: int, layer: Layer) -> int:
    """Most memory that tensors made during one selection hold at a time."""
    method, fresh = parse_method(spec), replace(layer)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        method.select(fresh, budget)
    changes = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = most = 0
    for event in sorted(changes, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


def run(tokens: list[int], layers: int, repeat: int) -> None:
    """Measure everything and print the tables."""
    times: dict[tuple[str, int], dict[int, Times]] = defaultdict(lambda: defaultdict(Times))
    memory: dict[tuple[str, int], list[int]] = defaultdict(list)
    plan = [(spec, BUDGET) for spec in (*COUNTERPARTS, *OTHERS) if spec != "mmr"]
    plan += [("mmr", budget) for budget in SMALL_BUDGETS]
    for n in tokens:
        for index in range(-1, layers):
            layer = random_layer(max(index, 0), layers, n)
            for spec, budget in plan:
                if index < 0:  # warm up, and what is counted once
                    memory[spec, budget].append(peak_bytes(spec, budget, layer))
                    if kvpress and spec in COUNTERPARTS:
                        check(spec, layer)
                elif spec in COUNTERPARTS or sampled(index):
                    times[spec, budget][n].add(measure(spec, budget, layer, repeat))
    report(tokens, times, memory)


def report(
    tokens: list[int], times: dict[tuple[str, int], dict[int, Times]], memory: dict[tuple[str, int], list[int]]
) -> None:
    """Print both tables."""
    if kvpress:
        print("\n| method | N | ecokv ms | kvpress ms | ratio | wanted | ratio without its projection |")
        print("| --- | --: | --: | --: | --: | --: | --: |")
        for spec, wanted in COUNTERPARTS.items():
            for n in tokens:
                found = times[spec, BUDGET][n]
                ours, theirs = (statistics.median(found.took[side]) for side in ("ecokv", "kvpress"))
                ratios = found.ratio("kvpress"), wanted or "-", found.ratio("scoring")
                print(f"| {spec} | {n} | {ours:.2f} | {theirs:.2f} | {' | '.join(map(str, ratios))} |")
    columns = [f"{what} at {n}" for what in ("ms", "ratio to naive", "memory") for n in tokens]
    growth = [f"growth {small} to {large}" for small, large in itertools.pairwise(tokens)]
    print("\n| method |", " | ".join([*columns, *growth]), "|\n| --- |", " --: |" * len([*columns, *growth]))
    for (spec, budget), by_tokens in times.items():
        medians = [statistics.median(by_tokens[n].took["ecokv"]) for n in tokens]
        cells = [f"{median:.2f}" for median in medians] + [by_tokens[n].ratio("naive") for n in tokens]
        cells += [f"{most / (4 * KV_HEADS * n):.0f}" for most, n in zip(memory[spec, budget], tokens, strict=True)]
        cells += [
            f"{math.log(b / a) / math.log(large / small):.2f}"
            for (a, b), (small, large) in zip(itertools.pairwise(medians), itertools.pairwise(tokens), strict=True)
        ]
        name = spec if budget == BUDGET else f"{spec}, budget {budget}"
        print(f"| {name} |", " | ".join(cells), "|")


@torch.inference_mode()  # as the studies do, and as generation does
def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tokens", default="2048,8192,32768", help="lengths N of the prompt, with commas")
    parser.add_argument(
        "--layers", type=int, default=28, help="layers to measure; every seventh for what kvpress lacks"
    )
    parser.add_argument("--repeat", type=int, default=2, help="least number of calls in a row")
    options = parser.parse_args()
    os.environ["KINETO_LOG_LEVEL"] = "99"  # torch's profiler reports its own starts and stops otherwise
    tokens = [int(n) for n in options.tokens.split(",")]
    if min(tokens) <= BUDGET:
        parser.error(f"--tokens: {min(tokens)} is not above the budget of {BUDGET}, so nothing would be evicted")
    print(
        f"{KV_HEADS} KV heads, {GROUP} query heads each, D = {DIM}, window {WINDOW}, budget {BUDGET}, fp32; "
        f"{options.layers} layers; torch {torch.__version__}, {torch.get_num_threads()} threads; "
        f"kvpress {version('kvpress') if kvpress else 'is not installed'}; load {os.getloadavg()[0]:.1f} at the start"
    )
    run(tokens, options.layers, options.repeat)
    print(f"\nload {os.getloadavg()[0]:.1f} at the end, {torch.get_num_threads()} of it ours")


if __name__ == "__main__":
    main()
