"""Any `generate` call of a transformers model, with its cache evicted once the prompt is in it."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import torch
from transformers import DynamicCache, PreTrainedModel
from transformers.cache_utils import DynamicLayer

from ecokv_cli.errors import MethodError, ModelError, UsageError
from ecokv_cli.eviction.budget import require_budget
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.method import Method
from ecokv_cli.eviction.route import Route
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.geometry.similarity import working
from ecokv_cli.models.attention import BACKENDS, recording, switch_attention, use_backend
from ecokv_cli.models.evicted import Evicted, gathered, reading, use_evicted
from ecokv_cli.models.recording import PrefillRecorder
from ecokv_cli.models.support import require_supported, require_supported_config

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ecokv_cli.eviction.budget import Budget
    from ecokv_cli.eviction.memory import Memory

_inside: WeakSet[Any] = WeakSet()
"""Models that are inside a block now."""


@contextmanager
def evicted(model: Any, spec: str, budget: Budget, head_scores: torch.Tensor | None = None) -> Iterator[None]:
    """Inside the block every `generate` call of `model` decodes on a cache evicted by one method.

    Each call is a prefill of its own: while the prompt goes through a layer, the method selects from that layer's keys,
    and the layer's cache is cut down at once, so that the cache is never whole. Greedy search and sampling work, a
    streamer and `generate` in a thread too. Tokens keep their original positions, M-RoPE included.

    Parameters
    ----------
    model
        A transformers model that attends with ``sdpa`` or ``eager``. Sliding-window layers stay as they are.
    spec
        Method, such as ``snapkv+ecokv`` or ``route[0-5=snapkv,6-=keydiff]``.
    budget
        Tokens per KV head, or a share 0 < r < 1 of each prompt, on average over the heads and layers that the method
        shares it among; the protected window is part of it. A budget of the prompt's length or more evicts nothing.
    head_scores
        ``[L, H_q]`` visual-head scores of this model, for methods that need them.

    Raises
    ------
    MethodError
        If the method is unknown, cannot honour the budget, or needs what a running model does not have; from inside
        `generate` for a share that is too small for the prompt.
    ModelError
        If the model's cache cannot be evicted.
    UsageError
        For another attention back-end or a second block around the same model; from inside `generate` for a batch of
        more than one sequence (beams included), padding, a static, quantised or offloaded cache or none, a prompt in
        chunks, assisted decoding, and a cache that was filled before.

    Notes
    -----
    What it saves: after the prompt a layer's cache holds as many positions as its longest head keeps, and every step
    reads those only. What it does not save: each layer's keys and values are whole while that layer attends to the
    prompt; shorter heads are padded to the longest; decoded tokens are all kept; methods that need received attention
    (``h2o``, ``observed``) take time quadratic in the prompt.

    A last chunk of a single token, if a prompt is given in chunks, cannot be told from a decoded token and is taken
    for one.
    """
    if not isinstance(model, PreTrainedModel):
        raise UsageError(f"{type(model).__name__}: is no transformers model; unwrap it first")
    if model in _inside:
        raise UsageError(f"{type(model).__name__}: is inside evicted(...) already; leave that block first")
    generation = _Generation(model, spec, budget, head_scores)
    _inside.add(model)
    try:
        with generation.attached():
            yield
    finally:
        _inside.discard(model)


class EvictedLayer(DynamicLayer):  # type: ignore[misc]
    """A cache layer that holds fewer positions than it has seen and still counts all of them.

    transformers makes positions and masks from that count, so both stay those of the whole prompt.

    Attributes
    ----------
    gone
        Positions seen and no longer held; None until something was selected.
    valid, memory
        As in `Evicted`.
    """

    keys: torch.Tensor
    values: torch.Tensor
    gone: int | None = None
    valid: torch.Tensor | None = None
    memory: Memory | None = None

    def cut(self, kept: Evicted) -> None:
        """Hold only what is kept."""
        self.gone = self.keys.shape[2] - kept.keys.shape[2]
        self.keys, self.values, self.valid, self.memory = kept.keys, kept.values, kept.valid, kept.memory

    def get_seq_length(self) -> int:
        """Positions seen."""
        return int(super().get_seq_length()) + (self.gone or 0)


class _Untouched:
    """A sliding-window layer: nothing padded, nothing remembered."""

    valid = memory = None


class _Generation:
    """Watches the forward passes of one model: the first on an empty cache is a prompt, all others decode."""

    def __init__(self, model: Any, spec: str, budget: Budget, head_scores: torch.Tensor | None) -> None:
        require_supported_config(model.config)
        require_supported(model)
        self.model, self.name = model, type(model).__name__
        text = model.config.get_text_config(decoder=True)
        self.attends = text._attn_implementation  # noqa: SLF001
        self.backend = self.attends.removeprefix("ecokv_")
        if self.backend not in BACKENDS:
            raise UsageError(
                f"{self.name}: attends with {self.attends}; load it with attn_implementation='sdpa', or 'eager'"
            )
        self.method: Method | Route = parse_method(spec)
        self.budget, self.head_scores = budget, head_scores
        shape = (text.num_hidden_layers, text.num_attention_heads)
        self.singles = _usable(self.method, budget, head_scores, shape)
        self.window = max(single.obs_window for single in self.singles) or 1
        self.received = any("received_attention" in single.needs for single in self.singles)
        self.step = ExitStack()
        self.running = self.prefilling = False
        self.limit: int | None = None
        self.layers: list[Any] = []

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Watch the model inside the block, and leave it as it was."""
        with ExitStack() as undo:
            undo.callback(switch_attention, self.model, self.attends)
            undo.callback(self._after)
            undo.callback(self.model.register_forward_pre_hook(self._before, with_kwargs=True).remove)
            undo.callback(self.model.register_forward_hook(self._after, always_call=True).remove)
            undo.callback(self.model.get_decoder().register_forward_pre_hook(self._require_watched).remove)
            yield

    def _before(self, _: Any, __: Any, options: dict[str, Any]) -> None:
        """Look at what a forward pass is given, and let its attention record or read the cache accordingly."""
        cache = options.get("cache", options.get("past_key_values"))
        if cache is None or type(cache) is not DynamicCache or cache.offloading:
            found = "no cache" if cache is None else f"an offloaded or other cache ({type(cache).__name__})"
            raise UsageError(f"{self.name}: {found}; evicted(...) works on the dynamic cache that generate() makes")
        given = options.get("inputs_embeds")
        batch, tokens = (options["input_ids"] if given is None else given).shape[:2]
        if batch > 1:
            raise UsageError(
                f"{self.name}: a batch of {batch} sequences (samples, beams or num_return_sequences); "
                f"evicted(...) takes one at a time"
            )
        held = cache.get_seq_length()
        if held:
            self._decode(cache, held, tokens)
        else:
            self._prefill(cache, options)
        self._require_within(held + tokens)
        self.running = True

    def _after(self, *_: Any) -> None:
        """The forward pass is over."""
        self.step.close()
        self.running, self.layers = False, []

    def _require_watched(self, *_: Any) -> None:
        if not self.running:
            raise ModelError(
                f"{self.name}: runs its language model without its own forward pass; "
                f"give evicted(...) the part whose generate() it calls"
            )

    def _prefill(self, cache: Any, options: dict[str, Any]) -> None:
        mask = options.get("attention_mask")
        if isinstance(mask, torch.Tensor) and mask.dim() == 2 and not mask.all():
            raise UsageError(
                f"{self.name}: the attention mask hides {int((mask == 0).sum())} positions of the prompt; "
                f"evicted(...) takes one prompt without padding"
            )
        made = DynamicCache(config=self.model.config).layers
        windows = {i: layer.sliding_window for i, layer in enumerate(made) if layer.is_sliding}
        self.limit = None
        if len(windows) == len(made):
            # As long as everything fits in the windows, they are full attention.
            self.limit, windows = min(windows.values()), {}
        cache.layers[:] = self.layers = [layer if i in windows else EvictedLayer() for i, layer in enumerate(made)]
        self.recorder = PrefillRecorder(self.window, windows, received=self.received)
        self.prefilling = True
        use_backend(self.model, self.backend)
        self.step.enter_context(recording(self))

    def _decode(self, cache: Any, held: int, tokens: int) -> None:
        full = {i: layer for i, layer in enumerate(cache.layers) if isinstance(layer, EvictedLayer)}
        if not full or tokens > 1:
            raise UsageError(
                f"{self.name}: {tokens} more tokens on a cache of {held}; evicted(...) takes a prompt in one piece on "
                f"an empty cache and then token by token, so no chunks, no assistant and no cache filled before"
            )
        missing = [index for index, layer in full.items() if layer.gone is None]
        if missing:
            raise ModelError(
                f"{self.name}: layers {missing} do not use transformers' attention interface; "
                f"their cache cannot be evicted"
            )
        if self.prefilling:
            self.prefilling = False
            use_evicted(self.model, self.backend)
        self.step.enter_context(reading([full.get(i, _Untouched()) for i in range(len(cache.layers))]))

    def _require_within(self, tokens: int) -> None:
        if self.limit is not None and tokens >= self.limit:
            raise ModelError(
                f"{self.name}: every layer is a sliding window of {self.limit}, and prompt and answer have {tokens} "
                f"tokens, so no layer keeps the whole prompt; shorten them, or choose a model with full attention"
            )

    @torch.no_grad()
    def see(self, module: Any, query: torch.Tensor, key: torch.Tensor, mask: Any, options: dict[str, Any]) -> None:
        """Select from the layer that attends to the prompt now, and cut its cache; this call still sees all of it."""
        index = module.layer_idx
        cached = self.layers[index]
        if not isinstance(cached, EvictedLayer):
            return
        self.recorder.see(module, query, key, mask, options)
        record = self.recorder.layers[index]
        queries = working(record.window_queries)
        none = queries.new_zeros(len(queries), 0, queries.shape[-1])
        keys, values = working(cached.keys[0]), working(cached.values[0])
        layer = Layer(
            index=index, layers=len(self.layers), keys=keys, values=values, window_queries=queries,
            scaling=record.scaling, decode_queries=none, decode_keys=keys[:, :0], decode_values=values[:, :0],
            window_mask=record.window_mask, received_attention=record.received, head_scores=self.head_scores,
            full=tuple(i for i, each in enumerate(self.layers) if isinstance(each, EvictedLayer)),
        )  # fmt: skip
        selection = self.method.select(layer.require_finite(), self.budget)
        cached.cut(gathered(cached.keys, cached.values, selection))
        # The queries of a layer are needed no longer; the entry stays, so that a second call is noticed.
        record.window_queries, record.received = none, None


def _usable(
    method: Method | Route, budget: Budget, head_scores: torch.Tensor | None, shape: tuple[int, int]
) -> list[Method]:
    """The single methods of a method, refused where a running model cannot give what they need."""
    require_budget(budget)
    method.require_budget(budget)
    if isinstance(method, Route):
        method.require_layers(shape[0])
    singles = [method] if isinstance(method, Method) else [span.method for span in method.spans]
    needs = {need for single in singles for need in single.needs}
    if "decode_queries" in needs:
        raise MethodError(
            f"{method.name}: sees the queries of the answer, which is not there yet; choose another method"
        )
    if "prerope_keys" in needs:
        raise MethodError(
            f"{method.name}: takes the geometry of keys before rotary embedding, which the cache does not hold; "
            f"write rope=post"
        )
    if "head_scores" in needs and head_scores is None:
        raise MethodError(f"{method.name}: needs head_scores={list(shape)}, a table that `ecokv headscores` makes")
    if head_scores is not None and tuple(head_scores.shape) != shape:
        raise UsageError(
            f"head_scores: found {list(head_scores.shape)}, this model has [layers, query heads] {list(shape)}"
        )
    return singles
