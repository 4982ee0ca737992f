"""What can go wrong, as one tree; every message names the thing, what was found and the way out.

* `EcokvError` -- anything ecokv refuses; exit status 1

  * `UsageError` -- the command line or a setting is off; exit status 2

    * `MethodError` -- unknown method, booster or option, or a budget a method cannot honour

  * `InputError` -- an image, prompt or manifest that cannot be used
  * `ModelError` -- a model that cannot be found, loaded or analysed
  * `DumpError` -- a run or dump that is missing, damaged or of another version

    * `NonFiniteError` -- NaN or infinity in a dumped tensor, named by layer and head

  * `OutputError` -- results cannot be written where they were asked for
"""

from __future__ import annotations


class EcokvError(Exception):
    """Base of all errors that ecokv raises on purpose; catch this to catch them all."""

    exit_status = 1


class UsageError(EcokvError):
    """The command line or a setting is off."""

    exit_status = 2


class MethodError(UsageError):
    """A method, booster or option is unknown, or a budget cannot be honoured."""


class InputError(EcokvError):
    """An image, prompt or manifest cannot be used."""


class ModelError(EcokvError):
    """A model cannot be found, loaded or analysed."""


class DumpError(EcokvError):
    """A run or dump is missing, damaged or of another version."""


class NonFiniteError(DumpError):
    """A dumped tensor holds NaN or infinity."""


class OutputError(EcokvError):
    """Results cannot be written where they were asked for."""
