"""Texts of words, of which something is predicted at the first piece of each."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from reread.training.data.tasks.dataset import AnyExample, AnyTask, Member, TaskDataset
from reread.training.data.tasks.documents import TaskDocument


class WordsDataset(TaskDataset[AnyTask, AnyExample]):
    def of_words(self, texts: Sequence[Sequence[str]]) -> list[TaskDocument]:
        """The document of each text's words; `offsets` are (word, 1 for its first piece). A word without pieces, such
        as a control character, is [UNK], so that what is predicted after it stays with its words."""
        documents = []
        for words, encoding in zip(texts, self.encoder.words(texts), strict=True):
            pieces: list[list[int]] = [[] for _ in words]
            for number, word in zip(encoding.ids, encoding.word_ids, strict=True):
                if word is not None:
                    pieces[word].append(number)
            ids, offsets = [], []
            for word, found in enumerate(pieces):
                ids += found or [self.special["unk"]]
                offsets += [(word, int(piece == 0)) for piece in range(max(1, len(found)))]
            documents.append(self.document(ids, [[]], offsets))
        return documents

    def first_pieces(self, member: Member) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.bool_]]:
        """Of the words whose first piece is in the window, in order: the position of that piece in the window, the
        number of the word, and whether this window decides it, as the one of most context."""
        document = self.documents[member.example]
        window = document.window(member.window)
        words = document.offsets[window]
        positions = np.flatnonzero(words[:, 1] == 1)
        if document.windows > 1:
            decided = document.owners[window][positions] == member.window
        else:
            decided = np.ones(len(positions), bool)
        return positions, words[positions, 0], decided


def with_blanks(text: str, words: Sequence[str], starts: Sequence[int]) -> list[str]:
    """The words, each with the blank before it: to byte-level vocabularies it is part of the word."""
    pairs = zip(words, starts, strict=True)
    return [f" {word}" if start and text[start - 1].isspace() else word for word, start in pairs]
