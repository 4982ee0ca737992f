"""Which prompt positions are image tokens, and where in the image they look."""

from ecokv_cli.models.layout.adapters import ADAPTERS
from ecokv_cli.models.layout.scene import Piece, Scene
from ecokv_cli.models.layout.tokens import describe_tokens

__all__ = ["ADAPTERS", "Piece", "Scene", "describe_tokens"]
