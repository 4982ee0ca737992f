"""What an engine offers: workers that each hold what the work needs, and samples handed to them."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

from ecokv_cli.errors import EcokvError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from contextlib import AbstractContextManager

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass(frozen=True)
class Tell:
    """Who hears what is said on the way.

    Attributes
    ----------
    progress
        Called with a phase name, how much is done and how much there is; workers elsewhere do not call it.
    note
        Called with a line the user should see.
    """

    progress: Callable[[str, int, int], None] = lambda *_: None
    note: Callable[[str], None] = lambda _: None


@dataclass(frozen=True)
class Outcome(Generic[Value]):
    """What became of one item: the value, or the error that it failed with."""

    name: str
    value: Value | None
    error: EcokvError | None

    def get(self) -> Value:
        """The value; raises the error if there is one."""
        if self.error is not None:
            raise self.error
        return self.value  # type: ignore[return-value]  # whatever the work returned, None included


@runtime_checkable
class Workers(Protocol):
    """Workers that are ready, or get ready when first needed; each has what ``setup()`` returned, its context.

    Functions and items are pickled where workers live elsewhere. Work that has a result worth keeping stores it
    itself, completely or not at all, and passes over what is stored already: an item may be begun more than once.
    """

    def ask(self, question: Callable[[Any], Value]) -> Value:
        """What one of the workers answers, given its context.

        Raises
        ------
        EcokvError
            Whatever `question` or the setup raises.
        """
        ...

    def run(self, work: Callable[[Any, Item, Tell], Value], items: Mapping[str, Item]) -> Iterator[Outcome[Value]]:
        """Outcomes of ``work(context, item, tell)`` for every named item, each as soon as it is there.

        An error of ours is an outcome; any other ends the run.

        Raises
        ------
        EcokvError
            If the setup fails, or no worker is left.
        """
        ...


class Engine(Protocol):
    """Where and by how many workers samples are worked on."""

    def workers(self, setup: Callable[[], Any], tell: Tell, *, device: bool = False) -> AbstractContextManager[Workers]:
        """Workers for as long as the block lasts; `device` says that each can make use of an accelerator.

        Raises
        ------
        UsageError
            If the engine cannot be had here.
        """
        ...


def nothing() -> None:
    """The setup of work that needs none."""


class LocalWorkers:
    """One worker, which is the process itself: items in order, one at a time; set up when first needed."""

    def __init__(self, setup: Callable[[], Any] = nothing, tell: Tell | None = None) -> None:
        self._setup = setup
        self._tell = tell or Tell()

    @cached_property
    def _context(self) -> Any:
        return self._setup()

    def ask(self, question: Callable[[Any], Value]) -> Value:
        """What `question` answers, given the context."""
        return question(self._context)

    def run(self, work: Callable[[Any, Item, Tell], Value], items: Mapping[str, Item]) -> Iterator[Outcome[Value]]:
        """Outcomes in the order of the items."""
        if items:
            _ = self._context  # an error of the setup is not one of the first item
        for name, item in items.items():
            try:
                outcome = Outcome(name, work(self._context, item, self._tell), None)
            except EcokvError as error:
                outcome = Outcome(name, None, error)
            yield outcome


class LocalEngine:
    """Everything in this process."""

    @contextmanager
    def workers(
        self,
        setup: Callable[[], Any],
        tell: Tell,
        *,
        device: bool = False,  # noqa: ARG002 - the setup takes the device it finds
    ) -> Iterator[Workers]:
        """One worker, which is this process."""
        yield LocalWorkers(setup, tell)
