"""What every booster shares."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    import torch

    from ecokv_cli.eviction.diversity import Boosted
    from ecokv_cli.eviction.layer import Layer


@dataclass(frozen=True)
class Booster:
    """Base of all boosters: options are the fields of a subclass, facts about the method its class variables.

    Attributes
    ----------
    default_window
        Window that the booster brings along; 0 keeps the host's own.
    formula, needs, source, deviations
        As for hosts.
    """

    default_window: ClassVar[int] = 0
    formula: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("keys",)
    source: ClassVar[str]
    deviations: ClassVar[str] = "none known"

    @property
    def allocates(self) -> bool:
        """Whether heads share the budget by the boosted score instead of the host's."""
        return False

    def mix(self, attention: torch.Tensor, layer: Layer) -> Boosted:
        """Combine host scores ``[H, M]`` with the layer's diversity."""
        raise NotImplementedError
