"""``ecokv analyze``: the geometry of dumped keys and values, as tables; docs/columns.md explains every column."""

from ecokv_cli.studies.analyze.geometry import GEOMETRY
from ecokv_cli.studies.analyze.settings import AnalyzeSettings
from ecokv_cli.studies.analyze.study import Analysis, analyze

__all__ = ["GEOMETRY", "Analysis", "AnalyzeSettings", "analyze"]
