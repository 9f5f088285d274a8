"""Splits that are read when they are needed, in this process or in worker processes of a torch DataLoader.

Workers are started by a fork server. Forking the node itself is not safe: gRPC and the trainer have threads, and a
forked process inherits the locks that they hold. The workers of a node serve all of its splits, stay alive between
rounds and end with the node.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Hashable, Iterable, Iterator, Mapping
from multiprocessing.connection import wait
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import structlog
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from pfl_node import plugin
from pfl_node.errors import TaskError
from pfl_node.learning.rows import Failed, Rows
from pfl_node.learning.samples import Batch, Index, channels_last, each_leaf
from pfl_node.learning.script_workers import for_workers
from pfl_node.learning.seeding import same_generators
from pfl_node.seeds import seed_from
from pfl_node.settings import DataSettings

log = structlog.get_logger(__name__)

SERVER_IMPORTS = ["pfl_node.learning.lazy_samples"]  # imported once, in the fork server; workers share the memory


class Request(NamedTuple):
    """One batch: positions in a split, and the seed of its transforms; None: each sample has its own."""

    split: str
    positions: list[int]
    seed: int | None


class Reader:
    """Reads the batches of all splits, in this process or in a worker."""

    def __init__(self, splits: Mapping[str, Rows]) -> None:
        self.splits = splits

    def __getitem__(self, request: Request) -> Batch | Failed:
        with same_generators():
            return self.splits[request.split].read(request.positions, request.seed)

    def __getstate__(self) -> tuple[dict[str, str], bytes]:
        return plugin.loaded_files(), bytes(ForkingPickler.dumps(self.splits))

    def __setstate__(self, state: tuple[dict[str, str], bytes]) -> None:
        """The classes of the data may be defined in a file of the user."""
        files, data = state
        sys.meta_path.append(plugin.FileFinder(files))
        self.splits = ForkingPickler.loads(data)


class Loader:
    """The batches that a reader reads, in the order of the requests."""

    def __init__(self, splits: Mapping[str, Rows], settings: DataSettings, device: torch.device) -> None:
        self._reader, self._settings = Reader(splits), settings
        self._where = next((rows.where for rows in splits.values()), "")
        self._pin = settings.pin and device.type == "cuda"
        self._workers = settings.workers
        self._loader: DataLoader[Batch] | None = None
        self._requests: Iterator[Request] = iter(())
        self._pending: deque[Request] = deque()  # sent to the workers
        self._busy = False

    def read(self, requests: Iterator[Request]) -> Iterator[Batch]:
        """While the workers read for a training, a score that interrupts it is read in this process. So is the
        rest if a worker dies; the bytes are the same."""
        if self._workers and not self._busy:
            self._busy = True
            try:
                yield from self._from_workers(requests)
            finally:
                self._busy = False
        for request in requests:
            yield _usable(self._reader[request])

    def close(self) -> None:
        """End the workers now: the traceback of an error may keep their iterator alive."""
        iterator = getattr(self._loader, "_iterator", None)  # torch has no public interface for this
        self._loader = None
        if iterator is not None:
            iterator._shutdown_workers()

    def _from_workers(self, requests: Iterator[Request]) -> Iterator[Batch]:
        self._requests, self._pending = requests, deque()
        batches = self._start()
        while True:
            try:
                batch = next(batches, None)
            except (RuntimeError, OSError, EOFError) as error:  # a worker died
                log.warning("a data worker died, reading without workers", error=plugin.in_a_line(error))
                self._workers = 0
                self.close()
                yield from (_usable(self._reader[request]) for request in self._pending)
                return
            if batch is None:
                return
            self._pending.popleft()
            yield _usable(batch)

    def _start(self) -> Iterator[Batch | Failed]:
        if self._loader is None:
            self._loader = self._made()
        try:
            with warnings.catch_warnings(action="ignore"), for_workers(self._reader.splits):
                return iter(self._loader)  # torch's warning would repeat the error below
        except TaskError as error:
            self._loader = None
            raise TaskError(f"{self._where} {error}") from None
        except Exception as error:  # the data cannot be pickled, or no process can be started
            self._loader = None
            raise TaskError(
                f"{self._where} cannot be read by data.workers = {self._workers}: {_why(error)}; define classes "
                "and functions at the top level of a file, or set data.workers = 0"
            ) from error

    def _made(self) -> DataLoader[Batch]:
        context = multiprocessing.get_context("forkserver" if sys.platform == "linux" else "spawn")
        context.set_forkserver_preload(SERVER_IMPORTS)
        return DataLoader(
            self._reader,  # type: ignore[arg-type]
            batch_size=None,
            sampler=_Sent(self),
            num_workers=self._workers,
            prefetch_factor=self._settings.prefetch,
            persistent_workers=True,
            pin_memory=self._pin,
            collate_fn=_same,
            worker_init_fn=_in_worker,
            multiprocessing_context=context,
            generator=torch.Generator(),  # not the generator that layers use
        )

    def sent(self) -> Iterator[Request]:
        """The requests of the current reading, as they are sent to the workers."""
        for request in self._requests:
            self._pending.append(request)
            yield request


class _Sent:
    """A sampler whose iterations follow the loader's current requests."""

    def __init__(self, loader: Loader) -> None:
        self._loader = weakref.ref(loader)

    def __iter__(self) -> Iterator[Request]:
        loader = self._loader()
        return iter(()) if loader is None else loader.sent()


def _usable(batch: Batch | Failed) -> Batch:
    if isinstance(batch, Failed):
        raise TaskError(batch.text)
    return batch


def _same(batch: Any) -> Any:
    return batch


def _why(error: BaseException) -> str:
    while error.__cause__ is not None:  # torch's advice does not apply here
        error = error.__cause__
    return plugin.in_a_line(error)


def _in_worker(_: int) -> None:
    """An interrupt from the terminal reaches all processes: the node decides when its workers end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """torch watches the process that forked the worker, which is the fork server and not the node."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


class LazySamples:
    """One split of a loader."""

    labels = None

    def __init__(self, loader: Loader, split: str, rows: Rows, device: torch.device, *, images: bool) -> None:
        self._loader, self._split, self._rows = loader, split, rows
        self._device, self._images = device, images

    @property
    def n(self) -> int:
        return len(self._rows)

    @property
    def identity(self) -> tuple[Hashable, ...]:
        return tuple(map(id, (self._rows.source, self._rows.index, self._rows.collate, self._rows.columns)))

    def batches(self, order: Iterable[Index], seed: int | None = None) -> Iterator[Batch]:
        for batch in self._loader.read(self._requests(order, seed)):
            yield Batch(each_leaf(batch.x, self._placed), each_leaf(batch.y, self._moved), batch.n)

    def close(self) -> None:
        """End the workers; they start again if they are needed."""
        self._loader.close()

    def _requests(self, order: Iterable[Index], seed: int | None) -> Iterator[Request]:
        """In training every batch has a new seed; in evaluation every sample has its own."""
        for number, index in enumerate(order):
            positions = range(self.n)[index] if isinstance(index, slice) else index.tolist()
            yield Request(self._split, list(positions), None if seed is None else seed_from(seed, number))

    def _moved(self, tensor: Tensor) -> Tensor:
        return tensor.to(self._device, non_blocking=True)

    def _placed(self, tensor: Tensor) -> Tensor:
        return channels_last(self._moved(tensor)) if self._images else self._moved(tensor)
