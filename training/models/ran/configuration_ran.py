"""Configuration of RAN; copied beside exported weights, so it only imports transformers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import PretrainedConfig

from ..head_options import checked_reading

PROFILES: dict[str, dict[str, Any]] = {
    "rannet": {
        "min_window_size": 16,
        "cell_transform": "empty",
        "cell_activation": "swish",
        "attention_activation": "swish",
        "attention_residual": True,
        "norm_denominator": "rms",
        "cell_residual": "gated",
        "first_cell_residual": False,
        "review_cells": "raw",
        "review_activation": "swish",
        "review_output": True,
        "review_residual": True,
        "classifier": "gated",
    },
    "paper": {
        "min_window_size": 1,
        "cell_transform": "always",
        "cell_activation": "linear",
        "attention_activation": "linear",
        "attention_residual": False,
        "norm_denominator": "std",
        "cell_residual": "plain",
        "first_cell_residual": True,
        "review_cells": "residual",
        "review_activation": "linear",
        "review_output": False,
        "review_residual": False,
        "classifier": "linear",
    },
}
"""Profile -> the values of switches that are None."""

CHOICES = {
    "profile": tuple(PROFILES),
    "cell_transform": ("empty", "always"),
    "cell_activation": ("swish", "linear"),
    "attention_activation": ("swish", "linear"),
    "norm_denominator": ("rms", "std"),
    "cell_residual": ("gated", "plain", "none"),
    "review_cells": ("raw", "residual"),
    "review_activation": ("swish", "linear"),
    "classifier": ("gated", "linear"),
    "pooling": ("max", "mean"),
    "cell_pooling": ("last", "mean", "max"),
}


INHERITED = ("self", "__class__", "kwargs", "pad_token_id", "cls_token_id", "sep_token_id", "tie_word_embeddings")
"""Names in `RanConfig.__init__` that are not settings of its own."""


class RanConfig(PretrainedConfig):
    """Sizes, and a switch for each point in which the authors' code (rannet 0.3.1) differs from the paper.

    profile: "rannet" or "paper", which sets the switches that are None; config.json has the resulting values.
    head_size: width of a head, whatever hidden_size is: the paper's 96 million parameters are 12 heads of 768 each.
    window_size: tokens W that attend to each other.
    cutoffs: for a next-word model over a vocabulary of words, sorted by falling frequency: ids below the first are the
        shortlist, those between two are a cluster of rarer words, those from the last on another. Word vectors are then
        adaptive, `hidden_size // div_val ** cluster` wide, and shared, projections too, with an adaptive softmax. ()
        is one table and a plain softmax.

    Symbols: X_i the tokens of window i, G_i its cell, G_0 the one a layer begins with, G'_i what window i gives of it;
    swish(x) = x sigmoid(x); GLU(x) = (W_t x + b_t) sigmoid(W_g x + b_g); LN layer norm. Values of "rannet" come first.

    min_window_size: the end of a text, if shorter than this, is read with the window before it (16), or 1: it is a
        window of its own, as in the paper. With causal and prefix masks it always is, since the borders of windows must
        not depend on what comes after.
    cell_transform: eq. 1, where LN(a(W_c g)) replaces the cell g that is handed in: "empty", only where g is zero (it
        is then LN's bias, a learned cell); or "always" (also rannet up to 0.2.1).
    cell_activation: a in eq. 1, "swish" or "linear" (none).
    attention_activation: eq. 3, q = a(W_q z + b_q), so k, v, and the output projection; "swish" or "linear".
    attention_residual: after eq. 4, LN(attention + GLU(LN([G_{i-1}; X_i]))), or attention alone.
    norm_denominator: eq. 5, (x - mean) / d in the standard normalisation of tokens and cells and in each LN, where d
        is the root mean square of x ("rms") or the standard deviation ("std").
    cell_residual: eq. 6, "gated": G_i = LN(G'_i + GLU(G'_{i-1})), "plain": LN(G'_i + G_{i-1}); "none": G'_i.
    first_cell_residual: whether eq. 6 holds for i = 1, with G_0 before it, or G_1 is G'_1.
    review_cells: eq. 8, what memory review reads: G'_i ("raw") or G_i ("residual").
    review_activation: eq. 9, q = a(W_q o + b_q), so k, v, and the output projection if there is one.
    review_output: after eq. 9, whether there is an output projection.
    review_residual: after eq. 9, LN(review + GLU(q)), or review alone. In the paper's form a token keeps nothing of
        itself but which cells it attends to: in a text of one window all outputs are equal, and little is left to
        predict masked words from. Set it to pretrain with the paper's other equations.
    classifier: eq. 10, of the pooled tokens O and the cell G: "gated", GLU(swish(W_d G + b_d)) + W_p O + b_p, or
        "linear", W_g G + W_o O + b.

    Ablations, each one setting: memory_review false (LN of the tokens instead), cell_residual "none", rotary false (no
    positions), pooling "mean" (O in eq. 11; "max"), window_size, num_hidden_layers, and cell_handover false (each
    layer begins with an empty cell instead of the last cell of the layer below).
    window_handover: the way of the cell, which is one chain in either case. False, as in the authors' code: through the
        windows of a layer, whose last cell begins the next layer. True, as the paper words it (4.5.2): a window goes
        through all layers, each of which begins with the cell of the layer below, and the last layer's is put before
        the next window's tokens; eq. 6 takes the cell before in this chain. So a layer below the last reviews the
        cells of windows up to the token's own. Not with causal and prefix masks: a cell would show later tokens.
    zero_first_cell: whether the learned cell that a text begins with is zeros before training, as in paper and code, or
        random, as large as a cell: at zeros its gradients overflow in float16.
    cell_pooling: G in eq. 10: the "last" cell, or "mean" or "max" of G'_i.
    character_filters: filters of a convolution over the characters of each word (`RanCharacters`), whose results stand
        beside the word's vector, which is narrower by as many; 0: none. For tags alone: see `characters` there.
    classifier_dropout: dropout of the heads of tasks; None is hidden_dropout_prob.
    reading: how the heads read texts longer than a window, see `checked_reading`; None: rows as they are given.
    sep_token_id: the token between the parts of a row, such as a question and its text.
    layer_residual: from the second layer on, a layer's input is added to its output, as in the authors' examples with
        more than two layers.
    official_padding: as in rannet, windows are cut by the padded length, windows of padding alone change the cell,
        and padding is pooled. False: padding changes nothing.

    Raises ValueError for values that contradict each other.
    """

    model_type = "ran"
    keys_to_ignore_at_inference = ["mems"]

    def __init__(
        self,
        *,
        vocab_size: int = 30522,
        profile: str = "rannet",
        hidden_size: int = 768,
        num_hidden_layers: int = 2,
        num_attention_heads: int = 12,
        head_size: int = 768,
        window_size: int = 256,
        min_window_size: int | None = None,
        cell_transform: str | None = None,
        cell_activation: str | None = None,
        attention_activation: str | None = None,
        attention_residual: bool | None = None,
        norm_denominator: str | None = None,
        cell_residual: str | None = None,
        first_cell_residual: bool | None = None,
        review_cells: str | None = None,
        review_activation: str | None = None,
        review_output: bool | None = None,
        review_residual: bool | None = None,
        classifier: str | None = None,
        memory_review: bool = True,
        rotary: bool = True,
        pooling: str = "max",
        cell_pooling: str = "last",
        cell_handover: bool = True,
        window_handover: bool = False,
        zero_first_cell: bool = False,
        layer_residual: bool = False,
        official_padding: bool = False,
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        classifier_dropout: float | None = 0.1,
        reading: dict[str, Any] | None = None,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-7,
        cutoffs: Sequence[int] = (),
        div_val: int = 1,
        character_filters: int = 0,
        pad_token_id: int = 0,
        cls_token_id: int | None = None,
        sep_token_id: int | None = None,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        if profile not in PROFILES:
            raise ValueError(f"profile is one of {', '.join(PROFILES)}, not {profile!r}")
        given = {name: value for name, value in locals().items() if name not in INHERITED}
        for name, value in {**given, "cutoffs": list(cutoffs)}.items():
            setattr(self, name, PROFILES[profile].get(name) if value is None else value)
        if first_cell_residual is None and self.cell_residual == "none":
            self.first_cell_residual = False
        self.reading = checked_reading(reading)
        self._check(tie_word_embeddings)
        kwargs.update(
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,  # transformers 5 has no default: without, the decoder loads untied
        )
        super().__init__(**kwargs)
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id

    def _check(self, tied: bool) -> None:
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is one of {', '.join(choices)}, not {getattr(self, name)!r}")
        if min(self.hidden_size, self.num_hidden_layers, self.num_attention_heads, self.head_size) < 1:
            raise ValueError("hidden_size, num_hidden_layers, num_attention_heads and head_size are 1 or more")
        if not 1 <= self.min_window_size <= self.window_size:
            raise ValueError(
                f"min_window_size {self.min_window_size} is at least 1 and at most window_size {self.window_size}"
            )
        if self.rotary and self.head_size % 2:
            raise ValueError(f"rotary positions need an even head_size, not {self.head_size}")
        if self.first_cell_residual and self.cell_residual == "none":
            raise ValueError("first_cell_residual is true, but there is no residual: cell_residual is none")
        if self.window_handover and not self.cell_handover:
            raise ValueError("window_handover hands the cell on from layer to layer: cell_handover is true")
        if any(start >= end for start, end in self.clusters):
            raise ValueError(f"cutoffs rise and lie between 0 and vocab_size {self.vocab_size}, unlike {self.cutoffs}")
        if self.div_val < 1 or self.hidden_size // self.div_val ** len(self.cutoffs) < 1:
            raise ValueError(f"div_val {self.div_val} leaves no width for {len(self.cutoffs)} clusters")
        if self.character_filters >= self.hidden_size or (self.character_filters and self.cutoffs):
            raise ValueError(
                f"character_filters {self.character_filters} are fewer than hidden_size {self.hidden_size}, and not "
                "beside cutoffs"
            )
        if not tied:
            raise ValueError("the language-model head shares the word embeddings: tie_word_embeddings is true")

    @property
    def word_size(self) -> int:
        """Width of a word's vector."""
        return self.hidden_size - self.character_filters

    @property
    def clusters(self) -> list[tuple[int, int]]:
        """First id and the one after the last, of the shortlist and of each cluster."""
        return list(pairwise([0, *self.cutoffs, self.vocab_size]))

    @property
    def longest(self) -> int | None:
        """Tokens a row may have: positions are counted within a window, so they do not end."""
        return None
