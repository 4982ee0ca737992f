"""Many samples with one model, here or by workers elsewhere; what is already there is passed over."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from ecokv_cli.dump.reader import open_dump
from ecokv_cli.dump.runs import clear_leftovers
from ecokv_cli.errors import EcokvError, InputError, OutputError, UsageError
from ecokv_cli.models.dumping import stored_dtype, write_dump
from ecokv_cli.models.resume import State, state_of
from ecokv_cli.models.source import ModelFacts, require_alike
from ecokv_cli.sample.images import load_image

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from ecokv_cli.dump.schema import Manifest
    from ecokv_cli.engines.workers import Tell, Workers
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
    workers: Workers,
    samples: Sequence[Sample],
    settings: DumpSettings,
    folder: Path,
    *,
    command: str = "",
    force: bool = False,
    keep_going: bool = False,
    hooks: Hooks | None = None,
) -> Outcome:
    """Dump samples, each into the folder of its id, one at a time in the memory of a worker.

    Before the first is run, those that are complete and would come out the same are found; they are passed over. A
    sample appears in `folder` only when complete, so a run that was ended at any point goes on with the unfinished
    ones.

    Parameters
    ----------
    workers
        Each has the model for its context.
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
        Before anything is run, if a sample is there that was made from other input or with other settings; after a
        sample, if what a worker wrote did not arrive in the folder.
    UsageError
        If a setting is wrong.
    EcokvError
        Naming the first sample that fails, unless `keep_going`; the ones before it are kept.
    """
    hooks = hooks or Hooks()
    workers.ask(partial(stored_dtype, settings.store_dtype))
    facts = workers.ask(ModelFacts.of)
    clear_leftovers(folder, [sample.id for sample in samples])
    states = {} if force else _states(workers, samples, settings, folder, hooks)
    left = {
        sample.id: (sample, folder / sample.id, force or states.get(sample.id) is State.DAMAGED)
        for sample in samples
        if states.get(sample.id) is not State.COMPLETE
    }
    skipped = len(samples) - len(left)
    if skipped:
        hooks.note(f"{skipped} of {len(samples)} already there")
    hooks.progress("samples", skipped, len(samples))
    failed: dict[str, Failure] = {}
    done = size = 0
    work = partial(_dump_one, facts=facts, settings=settings, command=command)
    for outcome in workers.run(work, left):
        if outcome.error is not None:
            if not keep_going:
                raise _named(outcome.name, samples, outcome.error) from outcome.error
            failed[outcome.name] = Failure(outcome.name, str(outcome.error))
            hooks.note(f"sample {outcome.name} failed: {outcome.error}")
        else:
            manifest = _arrived(folder / outcome.name)
            done += 1
            size += manifest.bytes
            hooks.written(manifest)
        hooks.progress("samples", skipped + done + len(failed), len(samples))
    return Outcome(done, skipped, tuple(failed[sample.id] for sample in samples if sample.id in failed), size)


def _states(
    workers: Workers, samples: Sequence[Sample], settings: DumpSettings, folder: Path, hooks: Hooks
) -> dict[str, State]:
    """What the run has of each sample of which it has anything."""
    there = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    items = {sample.id: (sample, folder / sample.id) for sample in samples if sample.id in there}
    states = {}
    for number, outcome in enumerate(workers.run(partial(_state, settings=settings), items)):
        hooks.progress("look for samples already there", number, len(items))
        if isinstance(outcome.error, InputError):
            continue  # it fails when its turn comes, and is reported then
        states[outcome.name] = outcome.get()
    hooks.progress("look for samples already there", len(items), len(items))
    return states


def _state(loaded: LoadedModel, item: tuple[Sample, Path], _: Tell, *, settings: DumpSettings) -> State:
    return state_of(loaded, item[0], settings, item[1])


def _dump_one(
    loaded: LoadedModel,
    item: tuple[Sample, Path, bool],
    tell: Tell,
    *,
    facts: ModelFacts,
    settings: DumpSettings,
    command: str,
) -> None:
    """Dump one sample, unless a worker that was lost had just done so."""
    sample, folder, replace = item
    require_alike(loaded, facts)
    if not replace and state_of(loaded, sample, settings, folder) is State.COMPLETE:
        return
    images = [load_image(source, max_pixels=settings.max_pixels) for source in sample.images]
    for image in images:
        for text in image.notes:
            tell.note(f"{sample.id}: {image.source}: {text}")
    write_dump(loaded, sample, images, settings, folder, command=command, force=replace, progress=tell.progress)


def _arrived(folder: Path) -> Manifest:
    """The manifest of what a worker wrote."""
    # Listed, as a network file system may remember for a while that the single name was not there.
    if not folder.is_dir() and folder.name not in {path.name for path in folder.parent.iterdir()}:
        raise OutputError(
            f"{folder}: a worker wrote it, but it is not to be seen here; "
            f"name a folder with --output that all machines share"
        )
    return open_dump(folder).manifest


def _named(name: str, samples: Sequence[Sample], error: EcokvError) -> EcokvError:
    """The error with the sample's id; a manifest's content is data, so none of it is an error of usage."""
    kind = InputError if isinstance(error, UsageError) else type(error)
    number = [sample.id for sample in samples].index(name) + 1
    return kind(f"sample {name} (number {number} of {len(samples)}): {error}")
