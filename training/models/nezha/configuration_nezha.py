"""Configuration of NEZHA; copied beside exported weights, so it only imports transformers."""

from typing import Any

from transformers import PretrainedConfig

from ..head_options import checked_pooling, checked_reading

POSITION_TYPES = ("functional", "parametric_absolute", "parametric_relative")
ACTIVATIONS = ("gelu", "gelu_new", "relu")
SPAN_POSITIONS = 20
"""Rows of the span-boundary head's table of positions, as in SpanBERT's code; later tokens share the last one."""
SPAN_POSITION_SIZE = 200
"""Width of that table (SpanBERT, section 4.2)."""


class NezhaConfig(PretrainedConfig):
    """The keys of transformers 4.40's NezhaConfig, and the kind of positions.

    position_type:
        "functional": sinusoids of the distance between two tokens, added to keys and values (NEZHA paper, eq. 6-7).
        "parametric_absolute": BERT's learned table of `max_position_embeddings` rows, added to the word embeddings.
        "parametric_relative": learned tables of clipped distances, one for keys and one for values in each layer,
        shared by its heads (Shaw et al. 2018). The last two are the ablations of the paper's Table 5.
    max_relative_position: distances are clipped to plus or minus this number (64 in the released Chinese checkpoints,
        127 in nezha-en-base); None, with functional positions only, is the paper's formula, which clips nothing.
    span_boundary: whether `NezhaForPreTraining` also predicts the tokens of masked spans from the two tokens around
        them (SpanBERT, section 3.2).
    classifier_dropout: dropout of the heads of tasks; None is hidden_dropout_prob.
    classifier_pooling: what heads of classes and options read, "cls" (the pooler's map of [CLS]) or "mean" (the mean of
        the last layer's states of all tokens, without a pooler).
    reading: how the heads read texts longer than a window, see `checked_reading`; None: rows as they are given.
    cls_token_id, sep_token_id: the tokens that frame a row; a head that reads in windows needs the latter.
    hidden_act: "gelu" is the exact form; "gelu_new" the tanh form that the TensorFlow releases were trained with.

    Raises ValueError for values that contradict each other.
    """

    model_type = "nezha"

    def __init__(
        self,
        *,
        vocab_size: int = 21128,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        hidden_act: str = "gelu",
        hidden_dropout_prob: float = 0.1,
        attention_probs_dropout_prob: float = 0.1,
        max_position_embeddings: int = 512,
        max_relative_position: int | None = 64,
        position_type: str = "functional",
        span_boundary: bool = False,
        type_vocab_size: int = 2,
        initializer_range: float = 0.02,
        layer_norm_eps: float = 1e-12,
        classifier_dropout: float | None = 0.1,
        classifier_pooling: str = "cls",
        reading: dict[str, Any] | None = None,
        use_cache: bool = True,
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
        self.intermediate_size = intermediate_size
        self.hidden_act = hidden_act
        self.hidden_dropout_prob = hidden_dropout_prob
        self.attention_probs_dropout_prob = attention_probs_dropout_prob
        self.max_position_embeddings = max_position_embeddings
        self.max_relative_position = max_relative_position
        self.position_type = position_type
        self.span_boundary = span_boundary
        self.type_vocab_size = type_vocab_size
        self.initializer_range = initializer_range
        self.layer_norm_eps = layer_norm_eps
        self.classifier_dropout = classifier_dropout
        self.classifier_pooling = checked_pooling(classifier_pooling)
        self.reading = checked_reading(reading, self.longest)
        self.use_cache = use_cache
        self._check(tie_word_embeddings)
        kwargs.update(
            pad_token_id=pad_token_id,
            tie_word_embeddings=tie_word_embeddings,  # transformers 5 has no default: without, the decoder loads untied
        )
        super().__init__(**kwargs)
        self.cls_token_id = cls_token_id
        self.sep_token_id = sep_token_id

    def _check(self, tied: bool) -> None:
        heads, clip = self.num_attention_heads, self.max_relative_position
        if self.position_type not in POSITION_TYPES:
            raise ValueError(f"position_type is one of {', '.join(POSITION_TYPES)}, not {self.position_type!r}")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is one of {', '.join(ACTIVATIONS)}, not {self.hidden_act!r}")
        if self.hidden_size % heads:
            raise ValueError(f"hidden_size {self.hidden_size} is no multiple of num_attention_heads {heads}")
        if self.position_type == "functional" and self.hidden_size // heads % 2:
            raise ValueError(f"functional positions need an even head size, not {self.hidden_size // heads}")
        if not tied:
            raise ValueError("the masked-language-model head shares the word embeddings: tie_word_embeddings is true")
        if self.position_type == "parametric_relative" and clip is None:
            raise ValueError("position_type parametric_relative needs a max_relative_position, where its tables end")
        if clip is not None and clip < 1:
            raise ValueError(f"max_relative_position is 1 or more, or None, not {clip}")

    @property
    def longest(self) -> int | None:
        """Tokens a row may have; None where positions do not end."""
        return self.max_position_embeddings if self.position_type == "parametric_absolute" else None
