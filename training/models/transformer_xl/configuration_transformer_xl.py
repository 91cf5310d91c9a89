"""Configuration of Transformer-XL; copied beside exported weights, so it only imports transformers."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, ClassVar

from transformers import PretrainedConfig

RECURRENCES = ("enhanced", "enhanced-above-first", "shifted", "none")
POSITIONS = ("token", "segatron-exact", "segatron-official")
INITIAL_MEMORIES = ("empty", "zeros")
ACTIVATIONS = ("relu", "gelu")


class TransformerXLConfig(PretrainedConfig):
    """Sizes, memory and positions; the defaults are Transformer-XL base on WikiText-103 with a plain softmax.

    cutoffs: ids below the first are the softmax's shortlist, those between two are a cluster of rarer words, those
        from the last on another; () is a plain softmax. The vocabulary is sorted by falling frequency.
    d_embed: width of the shortlist's embeddings; None is `d_model`. Cluster c has `d_embed // div_val ** c`.
    tie_projs: per cluster, shortlist first, whether the softmax projects by the embedding's matrix; None is all but
        the first, as the authors train on WikiText-103. No effect if div_val is 1 and d_embed is d_model.
    mem_len: slots of memory a layer hands on.
    recurrence: the memory of layer n is its input of the past ("shifted", Transformer-XL), its output ("enhanced",
        ERNIE-Doc section 3.3), or there is none. "enhanced-above-first": the first layer remembers its input, the
        others their output (not in the paper, see docs/claims.md).
    initial_memory: how a text's memory begins: "empty", or as "zeros" that are attended to, which is `official_memory`.
    official_memory: attend to empty slots, zero vectors, as transformers' code does at a text's beginning. False
        masks them, which is the authors' memory that begins with no slots at all.
    clamp_len: the distance of two tokens counts at most this much; None is no limit. Distances of sentences and
        paragraphs are never clamped.
    same_length: every token sees `mem_len` tokens, itself included, whatever its position in the segment. This and
        clamp_len apply in evaluation mode only: the authors set both for evaluation and neither in training.
    positions: "token"; or Segatron's (Bai et al. 2021), which add distances in sentences and in paragraphs:
        "segatron-exact" between the two tokens, "segatron-official" as the released code computes them, by the
        token that lies as far from the segment's last one as the key from the query. Equal for the last query.
    attention_window: tokens before it that a token sees, beside itself, one number or one a layer; None: all of the
        segment and the memory. Time and memory then grow with the length and not with its square (Longformer,
        Beltagy et al. 2020, section 4).
    attention_dilation: how far apart the tokens of a window are: 1 without gaps, 2 every second token; one number, or
        one a layer. attention_window stays the number of tokens, so a window reaches as many times further.
    dilated_heads: how many heads of each layer, the first ones, have dilated windows; None: all.
    norm_first: layer norm before attention and feed-forward, and one after the last layer (Xiong et al. 2020), and not
        after each residual sum.
    hidden_act: activation of the feed-forward, "relu" or "gelu".

    Raises ValueError for values that contradict each other.
    """

    model_type = "reread_transformer_xl"
    keys_to_ignore_at_inference = ["mems"]
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "d_model",
        "num_attention_heads": "n_head",
        "num_hidden_layers": "n_layer",
    }

    def __init__(
        self,
        *,
        vocab_size: int = 267735,
        cutoffs: Sequence[int] = (),
        d_model: int = 410,
        d_embed: int | None = None,
        n_head: int = 10,
        d_head: int = 41,
        d_inner: int = 2100,
        n_layer: int = 16,
        div_val: int = 1,
        tie_projs: Sequence[bool] | None = None,
        mem_len: int = 150,
        recurrence: str = "shifted",
        initial_memory: str = "empty",
        official_memory: bool = False,
        clamp_len: int | None = None,
        same_length: bool = False,
        positions: str = "token",
        attention_window: int | list[int] | None = None,
        attention_dilation: int | list[int] = 1,
        dilated_heads: int | None = None,
        norm_first: bool = False,
        hidden_act: str = "relu",
        dropout: float = 0.1,
        dropatt: float = 0.0,
        initializer_range: float = 0.02,
        proj_initializer_range: float = 0.01,
        layer_norm_epsilon: float = 1e-5,
        eos_token_id: int | None = 0,
        **kwargs: Any,
    ) -> None:
        d_embed = d_model if d_embed is None else d_embed
        cutoffs = list(cutoffs)
        tie_projs = [False] + [True] * len(cutoffs) if tie_projs is None else list(tie_projs)
        self.vocab_size = vocab_size
        self.cutoffs = cutoffs
        self.d_model = d_model
        self.d_embed = d_embed
        self.n_head = n_head
        self.d_head = d_head
        self.d_inner = d_inner
        self.n_layer = n_layer
        self.div_val = div_val
        self.tie_projs = tie_projs
        self.mem_len = mem_len
        self.recurrence = recurrence
        self.official_memory = official_memory or initial_memory == "zeros"
        self.clamp_len = clamp_len
        self.same_length = same_length
        self.positions = positions
        self.attention_window = attention_window
        self.attention_dilation = attention_dilation
        self.dilated_heads = dilated_heads
        self.norm_first = norm_first
        self.hidden_act = hidden_act
        self.dropout = dropout
        self.dropatt = dropatt
        self.initializer_range = initializer_range
        self.proj_initializer_range = proj_initializer_range
        self.layer_norm_epsilon = layer_norm_epsilon
        self._check(initial_memory)
        kwargs.update(eos_token_id=eos_token_id)
        super().__init__(**kwargs)

    def _check(self, initial_memory: str) -> None:
        cutoffs, width = self.cutoffs, self.d_embed
        if any(start >= end for start, end in self.clusters):
            raise ValueError(f"cutoffs rise and lie between 0 and vocab_size {self.vocab_size}, unlike {cutoffs}")
        if self.div_val < 1 or width // self.div_val ** len(cutoffs) < 1:
            raise ValueError(f"div_val {self.div_val} leaves no width for {len(cutoffs)} clusters of d_embed {width}")
        if len(self.tie_projs) != len(cutoffs) + 1:
            raise ValueError(
                f"tie_projs has {len(self.tie_projs)} values for {len(cutoffs)} cutoffs; it needs one more"
            )
        if self.recurrence not in RECURRENCES:
            raise ValueError(f"recurrence is one of {', '.join(RECURRENCES)}, not {self.recurrence!r}")
        if initial_memory not in INITIAL_MEMORIES:
            raise ValueError(f"initial_memory is one of {', '.join(INITIAL_MEMORIES)}, not {initial_memory!r}")
        if self.positions not in POSITIONS:
            raise ValueError(f"positions is one of {', '.join(POSITIONS)}, not {self.positions!r}")
        if self.d_model % 2 or (self.positions != "token" and self.d_model < 6):
            raise ValueError(
                f"positions {self.positions} need an even d_model, 6 or more for Segatron's, not {self.d_model}"
            )
        if self.mem_len < 0 or (self.clamp_len is not None and self.clamp_len < 1):
            raise ValueError(f"mem_len {self.mem_len} is 0 or more and clamp_len {self.clamp_len} 1 or more, or None")
        if self.same_length and self.mem_len == 0:
            raise ValueError("same_length lets a token see mem_len tokens, so mem_len is 1 or more")
        if self.hidden_act not in ACTIVATIONS:
            raise ValueError(f"hidden_act is {' or '.join(ACTIVATIONS)}, not {self.hidden_act!r}")
        self._check_windows()

    def _check_windows(self) -> None:
        if self.attention_window is None:
            if self.attention_dilation != 1:
                raise ValueError("attention_dilation is of windows, so give attention_window, too")
        elif self.positions != "token" or self.same_length:
            raise ValueError("attention_window needs positions token, and no same_length: a window says what is seen")
        if self.dilated_heads is not None and not 0 <= self.dilated_heads <= self.n_head:
            raise ValueError(f"dilated_heads is at most n_head {self.n_head}, not {self.dilated_heads}")
        _ = self.windows  # raises for lists that do not fit

    @property
    def windows(self) -> list[tuple[int, int, int]] | None:
        """(tokens before, dilation, number of dilated heads) of each layer's window; None where there are none."""
        if self.attention_window is None:
            return None
        heads = self.n_head if self.dilated_heads is None else self.dilated_heads
        windows, gaps = (self._of_layers(name) for name in ("attention_window", "attention_dilation"))
        return [(window, gap, heads * (gap > 1)) for window, gap in zip(windows, gaps, strict=True)]

    def _of_layers(self, name: str) -> list[int]:
        stated = getattr(self, name)
        values = [stated] * self.n_layer if isinstance(stated, int) else list(stated)
        if len(values) != self.n_layer:
            raise ValueError(f"{name} has {len(values)} numbers for {self.n_layer} layers; give one, or one a layer")
        if any(value < 1 for value in values):
            raise ValueError(f"{name} is 1 or more, not {stated}")
        return values

    @property
    def longest(self) -> int | None:
        """Tokens a row may have: positions do not end."""
        return None

    @property
    def clusters(self) -> list[tuple[int, int]]:
        """First id and the one after the last, of the shortlist and of each cluster."""
        return list(pairwise([0, *self.cutoffs, self.vocab_size]))

    @property
    def widths(self) -> tuple[int, ...]:
        """Width of the sinusoids of each stream of positions: tokens; or tokens, sentences and paragraphs."""
        if self.positions == "token":
            return (self.d_model,)
        third = self.d_model // 3 + self.d_model // 3 % 2
        return third, third, self.d_model - 2 * third
