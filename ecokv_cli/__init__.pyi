from ecokv_cli.api import analyze, evict, frame, open_run
from ecokv_cli.dump.reader import Dump
from ecokv_cli.dump.runs import Run
from ecokv_cli.errors import EcokvError
from ecokv_cli.eviction.fidelity import Fidelity, HeldOut, jaccard
from ecokv_cli.eviction.layer import Layer
from ecokv_cli.eviction.method import Method, Scores
from ecokv_cli.eviction.selection import Selection
from ecokv_cli.eviction.spec import parse_method
from ecokv_cli.studies.tables import Table

__version__: str

__all__ = [
    "Dump",
    "EcokvError",
    "Fidelity",
    "HeldOut",
    "Layer",
    "Method",
    "Run",
    "Scores",
    "Selection",
    "Table",
    "analyze",
    "evict",
    "frame",
    "jaccard",
    "open_run",
    "parse_method",
]
