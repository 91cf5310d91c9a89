"""Configuration of ERNIE-Doc; copied beside exported weights, so it only imports transformers."""

from typing import Any

from transformers import PretrainedConfig

from ..head_options import checked_pooling, checked_reading

RECURRENCES = ("enhanced", "enhanced-above-first", "shifted", "none", "full")
ACTIVATIONS = ("gelu", "gelu_new", "relu")

MOST_SKIMMED = 8
"""Segments of a text that "full" keeps all states of."""


class ErnieDocConfig(PretrainedConfig):
    """Sizes of the encoder, and what it remembers from one segment to the next.

    max_position_embeddings: tokens of the longest segment. The table of relative positions has
        2 * max_position_embeddings + memory_length rows, and a distance's row depends on this number, so it stays as
        in training. Shorter segments are read correctly.
    memory_length: states that each layer hands on; 0 is no memory.
    recurrence: what layer n remembers. "enhanced": its own output, so that what the top layer knew reaches the next
        segment (ERNIE-Doc paper, eq. 3). "shifted": its input, as in Transformer-XL. "none": nothing.
        "enhanced-above-first": the first layer remembers its input, the others their output (not in the paper, see
        docs/claims.md). "full": "enhanced", and the second reading also attends to the states of all layers and all
        segments of the skim, as the paper derives the retrospective feed before it is made cheap (section 3.2, eq. 2):
        for texts of at most `MOST_SKIMMED` segments that are read twice. The weights are those of "enhanced".
    official_memory: as in the authors' code, memory begins as zeros that are attended to, and holds the states of
        padding. False: empty slots are masked and padding is not remembered.
    reorder_classes: classes of the segment-reordering head, the permutations of 1 to m chunks; 33 for m = 4.
    intermediate_size: None is 4 * hidden_size.
    segment_length: tokens of the segments that `ErnieDocModel.read` cuts a document into; None is the longest.
    classifier_dropout: dropout of the heads of tasks; None is hidden_dropout_prob.
    classifier_pooling: what heads of classes and options read, "cls" (the pooler's map of [CLS]) or "mean" (the mean of
        the last layer's states of all tokens, without a pooler).
    reading: how the heads read texts longer than a segment, see `checked_reading`; None: rows as they are given.
    cls_token_id, sep_token_id: the tokens that `ErnieDocModel.read` puts at a segment's end, and needs.

    Raises ValueError for values that contradict each other.
    """

    model_type = "ernie_doc"
    keys_to_ignore_at_inference = ["mems"]

    def __init__(
        self,
        *,
        vocab_size: int = 28000,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int | None = None,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        classifier_dropout: float | None = 0.1,
        classifier_pooling: str = "cls",
        reading: dict[str, Any] | None = None,
        max_position_embeddings: int = 512,
        segment_length: int | None = None,
        memory_length: int = 128,
        recurrence: str = "enhanced",
        official_memory: bool = False,
        type_vocab_size: int = 3,
        reorder_classes: int = 33,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        pad_token_id: int = 0,
        cls_token_id: int | None = None,
        sep_token_id: int | None = None,
        tie_word_embeddings: bool = True,
        **kwargs: Any,
    ) -> None:
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = 4 * hidden_size if intermediate_size is None else intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.classifier_dropout = classifier_dropout
        self.classifier_pooling = checked_pooling(classifier_pooling)
        self.max_position_embeddings = max_position_embeddings
        self.segment_length = segment_length
        self.memory_length = memory_length
        self.recurrence = recurrence
        self.official_memory = official_memory
        self.type_vocab_size = type_vocab_size
        self.reorder_classes = reorder_classes
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.reading = checked_reading(reading, self.longest)
        self._check(tie_word_embeddings)
        kwargs.update(
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,  # transformers 5 has no default: without, the decoder loads untied
        )
        super().__init__(**kwargs)
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id

    def _check(self, tied: bool) -> None:
        heads, longest, segment = self.num_attention_heads, self.max_position_embeddings, self.segment_length
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is one of {', '.join(ACTIVATIONS)}, not {self.hidden_act!r}")
        if self.recurrence not in RECURRENCES:
            raise ValueError(f"recurrence is one of {', '.join(RECURRENCES)}, not {self.recurrence!r}")
        if self.hidden_size % heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {heads}")
        if segment is not None and not 2 < segment <= longest:
            raise ValueError(f"segment_length is above 2 and at most {longest}, not {segment}")
        if self.recurrence == "full" and (self.official_memory or not self.memory_length):
            raise ValueError("recurrence full needs a memory_length, and official_memory false")
        if self.recurrence == "full" and self.reading and not self.reading["retrospective"]:
            raise ValueError("recurrence full reads a text twice: reading.retrospective is true")
        if not tied:
            raise ValueError("the masked-language-model head shares the word embeddings: tie_word_embeddings is true")
        if self.memory_length < 0:
            raise ValueError(f"memory_length is 0 or more, not {self.memory_length}")
        if longest < 1:
            raise ValueError(f"max_position_embeddings is 1 or more, not {longest}")

    @property
    def longest(self) -> int:
        """Tokens a segment may have."""
        return self.max_position_embeddings

    @property
    def slots(self) -> int:
        """States that each layer hands on to the next segment; 0 without memory."""
        return 0 if self.recurrence == "none" else self.memory_length

    @property
    def segment(self) -> int:
        """Tokens of the segments that `ErnieDocModel.read` cuts a document into."""
        return self.segment_length or self.longest

    @property
    def skimmed_length(self) -> int:
        """Tokens of each segment whose states "full" keeps: those of a window of the heads, or else of a segment."""
        return self.reading["length"] if self.reading else self.segment
