"""Hosts: the rules that score candidates on their own. Listed here without importing torch."""

from __future__ import annotations

from ecokv_cli.eviction.hosts.allocating import AdaKV, PyramidKV, SparseMM
from ecokv_cli.eviction.hosts.attention import H2O, Observed, SnapKV, Tova
from ecokv_cli.eviction.hosts.base import Candidates, Host
from ecokv_cli.eviction.hosts.keys import KeyDiff, KeyNorm, ManifoldKV, ValueNorm
from ecokv_cli.eviction.hosts.plain import Full, Oracle, Random, Streaming
from ecokv_cli.eviction.hosts.research import Mmr, Retentive

HOSTS: dict[str, type[Host]] = {
    "full": Full,
    "random": Random,
    "streaming": Streaming,
    "h2o": H2O,
    "observed": Observed,
    "tova": Tova,
    "snapkv": SnapKV,
    "pyramidkv": PyramidKV,
    "adakv": AdaKV,
    "sparsemm": SparseMM,
    "knorm": KeyNorm,
    "vnorm": ValueNorm,
    "keydiff": KeyDiff,
    "manifoldkv": ManifoldKV,
    "mmr": Mmr,
    "retentive": Retentive,
    "oracle": Oracle,
}
"""Every host by name, in the order of tables."""

__all__ = ["HOSTS", "Candidates", "Host"]
