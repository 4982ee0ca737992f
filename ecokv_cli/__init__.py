"""Offline analysis of KV-cache geometry and eviction in multimodal language models."""

__version__ = "0.1.0"
