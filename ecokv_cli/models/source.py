"""How a model is loaded, as a value that goes to any process, and what is known of it there; needs no torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from ecokv_cli.errors import ModelError

if TYPE_CHECKING:
    from collections.abc import Callable

    from ecokv_cli.dump.schema import ModelInfo
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.sample.templates import ChatTemplate

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class ModelSource:
    """Loads a model when called.

    Attributes
    ----------
    source
        Hub id, checkpoint folder or .gguf file; None for the shipped model.
    revision, device, dtype, attention, trust_remote_code, device_map
        As `load_model` takes them.
    template, system
        Chat template and system message in place of the model's own.
    """

    source: str | None
    revision: str | None
    device: str
    dtype: str
    attention: str
    trust_remote_code: bool
    device_map: str | None = None
    template: ChatTemplate | None = None
    system: str | None = None

    def __call__(self) -> LoadedModel:
        """The model; raises as `load_model` and `use_template` do."""
        from ecokv_cli.models.loading import load_model
        from ecokv_cli.models.templates import use_template
        from ecokv_cli.tiny import SHIPPED_MODEL

        loaded = load_model(
            self.source or str(SHIPPED_MODEL),
            revision=self.revision,
            device=self.device,
            device_map=self.device_map,
            dtype=self.dtype,
            backend=self.attention,
            trust_remote_code=self.trust_remote_code,
        )
        return use_template(loaded, self.template, self.system)


@dataclass(frozen=True)
class ModelFacts:
    """What results depend on in a loaded model besides its weights, and the device it is on."""

    info: ModelInfo
    dtype: str
    backend: str
    device: str

    @classmethod
    def of(cls, loaded: LoadedModel) -> ModelFacts:
        """Those of a loaded model."""
        return cls(loaded.info, str(loaded.model.dtype), loaded.backend, str(loaded.model.device))


def require_alike(loaded: LoadedModel, facts: ModelFacts) -> None:
    """Refuse a model that is not as it was found first, so that machines of different kinds are never mixed.

    Raises
    ------
    ModelError
        If this worker has another model, dtype or back-end.
    """
    found = ModelFacts.of(loaded)
    for name in ("info", "dtype", "backend"):
        here, first = getattr(found, name), getattr(facts, name)
        if here != first:
            raise ModelError(
                f"workers differ: {name} is {here} on {found.device} and {first} on {facts.device}; "
                f"name one with --model, --revision, --device and --dtype"
            )


def alike(loaded: LoadedModel, item: Item, *, facts: ModelFacts, work: Callable[[LoadedModel, Item], Result]) -> Result:
    """Work that is done only where `require_alike` lets it."""
    require_alike(loaded, facts)
    return work(loaded, item)
