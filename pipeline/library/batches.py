"""`reread.dataset`: the batches of a corpus for a training loop of somebody else's."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from reread.preprocessing.corpus import Corpus
from reread.preprocessing.errors import UserError, nearest
from reread.training.data.batch import Rows
from reread.training.data.dataset import Dataset
from reread.training.data.kinds import KINDS, open_dataset
from reread.training.data.loader import rows_by_step
from reread.training.parallel.process import this_process

Batch = dict[str, Tensor]
ROWS = ("rows", "packed")
"""The kinds of data whose rows know nothing of each other."""


def dataset(
    corpus: Corpus | str | Path,
    *,
    kind: str = "rows",
    batch_size: int,
    masking: str | Mapping[str, Any] | None = None,
    split: str = "train",
    seed: int = 0,
    rank: int | None = None,
    world_size: int | None = None,
    **settings: Any,
) -> "Batches":
    """The batches of a corpus as a torch IterableDataset, for `DataLoader(dataset, batch_size=None)`.

    corpus: from `open_corpus` or `preprocess`, a folder, or an address with `cache={...}`. kind: "rows", "packed",
    "segments" or "stream". batch_size: rows of this rank in a batch. masking: "whole-word", "token" or "span", or the
    section. rank, world_size: by default those of torch.distributed or of the launcher, else 0 of 1. Other settings are
    those of `train.data` for this kind (`reread settings data`): `sequence_length=512`, `copies=10`. Pairs of sentences
    are off, as most models' losses do not take them: `next_sentence=True` asks for them.

    Raises `UserError` for settings that cannot work, for a corpus in which they would have no effect, and as
    `open_corpus` does.

    ```python
    dataset = reread.dataset("corpora/zh", sequence_length=512, masking="whole-word", batch_size=32, seed=0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    batch = next(iter(loader))    # input_ids, attention_mask, labels: int64 [32, 512]
    ```
    """
    kinds = [name for name, row in KINDS.items() if row.task is None]
    if kind not in kinds:
        raise UserError(f"reread.dataset: kind: `{kind}` is none of a corpus; {nearest(kind, kinds)}")
    opened_from = {"corpus": str(getattr(corpus, "location", corpus)), "cache": getattr(corpus, "cache", None)}
    values = {"kind": kind, **opened_from, **settings}
    if kind == "rows":
        values.setdefault("next_sentence", False)
    if masking is not None:
        values["masking"] = dict(masking) if isinstance(masking, Mapping) else {"strategy": masking}
    for name, value, least in (("batch_size", batch_size, 1), ("seed", seed, 0)):
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise UserError(f"reread.dataset: {name}: {value!r} is no whole number from {least} on")
    if split not in ("train", "validation"):
        raise UserError(f"reread.dataset: split: `{split}`; it is train or validation")
    parsed = KINDS[kind].settings.parse(values, "reread.dataset")
    if parsed.is_masked and parsed.masking.by_step:  # type: ignore[attr-defined]
        raise UserError("reread.dataset: masking: first_probability and final_probability are for runs; leave them out")
    opened = open_dataset(parsed, seed, split)
    return Batches(opened, batch_size, *_position(rank, world_size), endless=split == "train")


def _position(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """The rank of this process and the number of all. Raises `UserError` for a rank that is not below it."""
    if (rank is None) != (world_size is None):
        raise UserError("reread.dataset: rank and world_size belong together; give both or neither")
    if rank is None or world_size is None:
        if dist.is_available() and dist.is_initialized():
            return dist.get_rank(), dist.get_world_size()
        here = this_process()
        return here.rank, here.world
    if not 0 <= rank < world_size:
        raise UserError(f"reread.dataset: rank {rank} of {world_size} processes; ranks begin at 0")
    return rank, world_size


class Batches(IterableDataset[Batch]):
    """The batches of one rank: dicts of tensors, integers int64 and flags bool, the row first.

    Batch t is a pure function of (corpus, settings, seed, batch_size * world_size, t): `step` is all that has to be
    kept, and set, to continue. The train split has no end, and another number of processes with the same
    `batch_size * world_size` reads the same rows. The validation split ends after one pass over rows in corpus order.
    With worker processes of a DataLoader each worker draws every n-th batch, and the loader puts them in order.

    Beside input_ids and labels [B, L] (-100 where nothing is predicted): rows and packed have attention_mask [B, L],
    rows with pairs token_type_ids [B, L] and next_sentence_label [B]. Segments have attention_mask, and for each row
    `begins`, `learns` and `reorder_label` [B]: the model's memory of row b is emptied where a row begins a document,
    rows that do not learn are read for their memory, and with `retrospective` there are twice `batch_size` rows, of
    which about half learn. Streams have sentence_ends, paragraph_ends and begins_word [B, L].
    """

    def __init__(
        self, data: Dataset[Any], batch_size: int, rank: int = 0, world_size: int = 1, *, endless: bool = True
    ) -> None:
        self.data: Any = data
        self.rank, self.world_size, self.endless = rank, world_size, endless
        self.global_batch = batch_size * world_size
        self._kind: str = data.settings.kind
        if not endless and self._kind not in ROWS:
            raise UserError(
                f"reread.dataset: kind {data.settings.kind}: its held-out text is read by `reread evaluate`"
            )
        self.step = 0
        """The number of the next batch."""
        self._total = data.settings.lanes(self.global_batch)
        self._lanes = range(self._total * rank // world_size, self._total * (rank + 1) // world_size)
        self._cursors: NDArray[np.int64] | None = None
        """Of segments: where each lane is, before batch `step`; None at the beginning."""
        self._by_workers = torch.zeros(1, dtype=torch.bool).share_memory_()
        """Whether worker processes draw the batches."""

    @property
    def steps_per_epoch(self) -> int:
        """Batches in one pass over the text, the last one perhaps not full; of lanes in about one."""
        size = len(self.data)
        if self._kind == "stream":
            size = -(-size // self.data.settings.sequence_length)
        return -(-size // self.global_batch)

    def __iter__(self) -> Iterator[Batch]:
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        self._by_workers |= info is not None
        first = self.step + (worker - self.step) % workers
        for number, rows in enumerate(self._rows(first, workers)):
            self.step = first + number * workers + 1
            yield {name: torch.from_numpy(_wide(values)) for name, values in rows.items()}

    def _rows(self, first: int, stride: int) -> Iterator[Rows]:
        """The rows of batches `first`, `first` + `stride`, ..."""
        if not self.endless:
            yield from self._held_out(first, stride)
        elif self._kind in ROWS:
            number, begin = divmod(first, stride)
            size = self.global_batch
            yield from rows_by_step(self.data, size * stride, self._lanes, number, begin * size)
        elif self._kind == "stream":
            lanes, length = np.arange(self._lanes.start, self._lanes.stop), self.data.settings.sequence_length
            while True:
                yield self.data.rows(self.data.start(lanes, self._total, first, length), length)
                first += stride
        else:
            yield from self._segments(first, stride)

    def _held_out(self, first: int, stride: int) -> Iterator[Rows]:
        """This rank's share of the held-out rows, `global_batch / world_size` at a time."""
        size, rows = self.global_batch // self.world_size, len(self.data)
        share = range(rows * self.rank // self.world_size, rows * (self.rank + 1) // self.world_size)
        for begin in range(share.start + first * size, share.stop, stride * size):
            yield self.data.rows(np.arange(begin, min(begin + size, share.stop)))

    def _segments(self, first: int, stride: int) -> Iterator[Rows]:
        if stride > 1:
            raise UserError("reread.dataset: segments are drawn in order; give the DataLoader num_workers of 0 or 1")
        if first and self._cursors is None:
            raise UserError("reread.dataset: segments continue by load_state_dict; a step alone does not say where")
        for rows, cursors in self.data.lanes(self._total, self._lanes, self._cursors):
            self._cursors = cursors
            yield rows

    def state_dict(self) -> dict[str, Any]:
        """What `load_state_dict` needs to continue behind the last batch that was drawn.

        Raises `UserError` where worker processes draw ahead of what is used: torchdata's StatefulDataLoader asks each
        worker; otherwise set `step` to the number of batches used.
        """
        if self._by_workers and get_worker_info() is None:
            raise UserError(
                "reread.dataset: worker processes have drawn batches ahead; keep the number of batches that were used "
                "and set `dataset.step` to it, or use torchdata's StatefulDataLoader"
            )
        return {
            "step": self.step,
            "global_batch": self.global_batch,
            "corpus": self.data.corpus_fingerprint,
            "samples": self.data.fingerprint,
            "drawn_by": self.data.drawn_by,
            "lanes": [self._lanes.start, self._lanes.stop],
            "cursors": None if self._cursors is None else self._cursors.tolist(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was called. Raises `UserError` for the state of other text or settings."""
        try:
            step, size, cursors = int(state["step"]), int(state["global_batch"]), state["cursors"]
            lanes, corpus, changes = list(state["lanes"]), state["corpus"], self.data.changes_since(state)
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"reread.dataset: not a state of state_dict ({error!r})") from None
        if corpus != self.data.corpus_fingerprint:
            raise UserError(
                f"{self.data.settings.location}: not the corpus that the state was saved with; open that one"
            )
        if changes:
            raise UserError(f"reread.dataset: the state was saved with other settings: {changes.replace('train.', '')}")
        if size != self.global_batch:
            raise UserError(
                f"reread.dataset: the state was saved with {size} rows a batch over all processes, not "
                f"{self.global_batch}; set batch_size so that batch_size * world_size is {size}"
            )
        if cursors is not None and lanes != [self._lanes.start, self._lanes.stop]:
            raise UserError(
                f"reread.dataset: the state holds lanes {lanes[0]} to {lanes[1] - 1} of another process; load each "
                "process' own, with as many processes as before"
            )
        self.step = step
        self._cursors = None if cursors is None else np.array(cursors, np.int64)


def _wide(values: NDArray[Any]) -> NDArray[Any]:
    return values if values.dtype == np.bool_ else values.astype(np.int64)
