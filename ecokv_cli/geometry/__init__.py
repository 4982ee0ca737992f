"""Cosine and Euclidean geometry of keys: pure functions on tensors."""
