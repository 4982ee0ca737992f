"""Answer metrics as the benchmarks define them: texts in, one number per sample out; no model, no tensors."""

from ecokv_cli.studies.metrics.registry import METRICS, Metric, find_metric

__all__ = ["METRICS", "Metric", "find_metric"]
