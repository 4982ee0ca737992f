"""Many samples, one after the other, with one model; what is already there is passed over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ecokv_cli.dump.runs import clear_leftovers
from ecokv_cli.errors import EcokvError, InputError, UsageError
from ecokv_cli.models.dumping import stored_dtype, write_dump
from ecokv_cli.models.resume import State, state_of
from ecokv_cli.sample.images import load_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.schema import Manifest
    from ecokv_cli.models.loading import LoadedModel
    from ecokv_cli.models.settings import DumpSettings
    from ecokv_cli.sample.samples import Sample


@dataclass(frozen=True)
class Failure:
    """A sample that could not be dumped, and why."""

    sample: str
    reason: str


@dataclass(frozen=True)
class Outcome:
    """What became of the samples: `done` now, `skipped` because already there, `failed`; `bytes` written now."""

    done: int
    skipped: int
    failed: tuple[Failure, ...]
    bytes: int


@dataclass(frozen=True)
class Hooks:
    """Who wants to hear of the progress.

    Attributes
    ----------
    progress
        Called with a phase name, how much is done and how much there is.
    note
        Called with a line the user should see.
    written
        Called with the manifest of each sample that is complete.
    """

    progress: Callable[[str, int, int], None] = lambda *_: None
    note: Callable[[str], None] = lambda _: None
    written: Callable[[Manifest], None] = lambda _: None


def dump_many(
    loaded: LoadedModel,
    samples: Sequence[Sample],
    settings: DumpSettings,
    folder: Path,
    *,
    command: str = "",
    force: bool = False,
    keep_going: bool = False,
    hooks: Hooks | None = None,
) -> Outcome:
    """Dump samples in order, each into the folder of its id, one in memory at a time.

    Before the first is run, those that are complete and would come out the same are found; they are passed over. A
    sample appears in `folder` only when complete, so a run that was ended at any point goes on at the first unfinished
    one.

    Parameters
    ----------
    loaded
        The model, for all samples.
    samples
        Their ids name their folders.
    settings
        What to record.
    folder
        Parent of the samples' folders.
    command
        The command line, for the manifests.
    force
        Replace whatever is there, also what would come out the same.
    keep_going
        Go on after a sample that fails, and list it in the outcome.
    hooks
        Who wants to hear of the progress.

    Raises
    ------
    OutputError
        Before anything is run, if a sample is there that was made from other input or with other settings.
    UsageError
        If a setting is wrong.
    EcokvError
        Naming the first sample that fails, unless `keep_going`; the ones before it are kept.
    """
    hooks = hooks or Hooks()
    stored_dtype(settings.store_dtype, loaded)
    clear_leftovers(folder, [sample.id for sample in samples])
    states = {} if force else _states(loaded, samples, settings, folder, hooks)
    skipped = sum(state is State.COMPLETE for state in states.values())
    if skipped:
        hooks.note(f"{skipped} of {len(samples)} already there")
    failed: list[Failure] = []
    done = size = 0
    for number, sample in enumerate(samples):
        hooks.progress("samples", number, len(samples))
        state = states.get(sample.id)
        if state is State.COMPLETE:
            continue
        replace = force or state is State.DAMAGED
        try:
            manifest = _dump_one(loaded, sample, settings, folder / sample.id, command, replace, hooks)
        except EcokvError as error:
            if not keep_going:
                raise _named(sample, number, len(samples), error) from error
            failed.append(Failure(sample.id, str(error)))
            hooks.note(f"sample {sample.id} failed: {error}")
            continue
        done += 1
        size += manifest.bytes
        hooks.written(manifest)
    hooks.progress("samples", len(samples), len(samples))
    return Outcome(done, skipped, tuple(failed), size)


def _states(
    loaded: LoadedModel, samples: Sequence[Sample], settings: DumpSettings, folder: Path, hooks: Hooks
) -> dict[str, State]:
    """What the run has of each sample."""
    states = {}
    for number, sample in enumerate(samples):
        hooks.progress("look for samples already there", number, len(samples))
        try:
            states[sample.id] = state_of(loaded, sample, settings, folder / sample.id)
        except InputError:
            states[sample.id] = State.ABSENT  # it fails when its turn comes, and is reported then
    hooks.progress("look for samples already there", len(samples), len(samples))
    return states


def _dump_one(
    loaded: LoadedModel,
    sample: Sample,
    settings: DumpSettings,
    folder: Path,
    command: str,
    replace: bool,
    hooks: Hooks,
) -> Manifest:
    images = [load_image(source, max_pixels=settings.max_pixels) for source in sample.images]
    for image in images:
        for text in image.notes:
            hooks.note(f"{sample.id}: {image.source}: {text}")
    return write_dump(loaded, sample, images, settings, folder, command=command, force=replace, progress=hooks.progress)


def _named(sample: Sample, number: int, count: int, error: EcokvError) -> EcokvError:
    """The error with the sample's id; a manifest's content is data, so none of it is an error of usage."""
    kind = InputError if isinstance(error, UsageError) else type(error)
    return kind(f"sample {sample.id} (number {number + 1} of {count}): {error}")
