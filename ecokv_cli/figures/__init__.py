"""Figures of result tables and the report that shows them; neither knows tensors or models."""
