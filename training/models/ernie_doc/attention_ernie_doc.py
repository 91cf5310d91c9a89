"""ERNIE-Doc's attention: to a segment and its memory, by content, relative position and the key's type.

Copied beside exported weights.

Shapes: B rows, T tokens of a segment, M slots of memory, S = M + T keys, D hidden size, N heads, h = D / N head size,
P = M + 2T distances between a query and a key, the last of them unused.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..blocks import at_least_float32, chosen_first, exporting
from .configuration_ernie_doc import ErnieDocConfig

# Added to masked scores. Half of float16's range, so that the sum with a score is finite in every type and a row of
# nothing but padding does not divide zero by zero.
MASKED = -32768.0

# The authors' constant. All keys of padding are masked by it, so padding attends by scores that float32 has rounded to
# multiples of 8, and official memory holds the results.
OFFICIAL_MASKED = -1e8

# Queries that are multiplied with the table of distances at a time
BLOCK = 64


class _Block(NamedTuple):
    """Queries start..end - 1, c of them, and the S + c rows of the table of distances that they meet.

    Row p of the table [P, N, h] is for distance M + T - 1 - p, so query i and key j meet in row T - 1 - i + j. In a
    block's product with its rows, [c, S + c], row i begins c - 1 - i columns later: the relative shift (Dai et al.
    2019, appendix B) is a view whose rows are one element shorter than the product's.
    """

    start: int
    end: int
    rows: slice

    @classmethod
    def all(cls, length: int, keys: int) -> Iterator["_Block"]:
        for start in range(0, length, BLOCK):
            end = min(start + BLOCK, length)
            yield cls(start, end, slice(length - end, length - start + keys))

    def of(self, q: Tensor) -> Tensor:
        """[B, T, N, h] -> [N, B * c, h]."""
        return q[:, self.start : self.end].permute(2, 0, 1, 3).flatten(1, 2)

    def product(self, q: Tensor, table: Tensor) -> Tensor:
        """[N, B, c, S + c]."""
        product = torch.bmm(self.of(q), table[self.rows].permute(1, 2, 0))
        return product.view(len(product), len(q), self.end - self.start, -1)

    def shifted(self, product: Tensor) -> Tensor:
        """The view [B, N, c, S] of a product."""
        heads, batch, count, width = product.shape
        strides = count * width, batch * count * width, width - 1, 1
        return product.as_strided((batch, heads, count, width - count), strides, count - 1)

    def backward(self, gradient: Tensor, q: Tensor, table: Tensor, d_q: Tensor, d_table: Tensor) -> None:
        """Fill this block of d_q [B, T, N, h] and add to d_table [N, P, h], from the product's gradient."""
        batch, _, heads, size = q.shape
        flat = gradient.flatten(1, 2)
        by_head = torch.bmm(flat, table[self.rows].transpose(0, 1)).view(heads, batch, -1, size)
        d_q[:, self.start : self.end] = by_head.permute(1, 2, 0, 3)
        d_table[:, self.rows] += torch.bmm(flat.transpose(1, 2), self.of(q))


def _relative_bias(q: Tensor, table: Tensor, added: Tensor | None, *far: Tensor) -> Tensor:
    """q [B, T, N, h], table [P, N, h], added [B, N or 1, 1, S] -> [B, N, T, S]: q_i r_ij + added_j.

    far: none, or what the last query [B, N, S] and the last key [B, N, T] get in addition (`without_gap`).
    """
    batch, length, heads, _ = q.shape
    keys = table.shape[0] - length
    if exporting():
        bias = _shifted(torch.einsum("bqnh,pnh->bnqp", q, table))
        return bias if added is None else bias + added
    # Rows begin at multiples of 16 elements, as the memory-efficient kernel wants it
    bias = q.new_empty(batch, heads, length, -(-keys // 16) * 16)[..., :keys]
    for block in _Block.all(length, keys):
        part = bias[:, :, block.start : block.end]
        shifted = block.shifted(block.product(q, table))
        if added is None:
            part.copy_(shifted)
        else:
            torch.add(shifted, added, out=part)
    if far:
        bias[:, :, -1] += far[0]
        bias[..., -1] += far[1]
    return bias


def _shifted(product: Tensor) -> Tensor:
    """The relative shift of all queries' product with the table [B, N, T, S + T] -> [B, N, T, S], in operations that
    torch.export records for any T: without the first T - 1 elements, rows that are one shorter."""
    length, width = product.shape[2:]
    behind = product.flatten(2)[..., length - 1 : length - 1 + length * (width - 1)]
    return behind.unflatten(-1, (length, width - 1))[..., : width - length]


def without_gap(q: Tensor, r: Tensor, gap: int) -> tuple[Tensor, ...]:
    """The table of distances between T tokens and, if `gap` columns before the last of them were left out, what the
    products of the last query and of the last key lack in it.

    q [B, T, N, h]; r [P, N, h] for T + gap tokens. In the table, rows gap to P - gap of r, the last query meets key j
    in row j, and query i the last key in the row i + 2 from its end. Both are `gap` further apart: in r the rows are
    the same.
    """
    if not gap:
        return (r,)
    table, last = r[gap : len(r) - gap], q.shape[1] - 1
    keys = len(table) - last - 2  # but the last
    query = torch.einsum("bnh,jnh->bnj", q[:, -1], r[:keys] - table[:keys])
    beyond = r[len(r) - 1 - last : -1] - table[len(table) - 1 - last : -1]
    key = torch.einsum("binh,inh->bni", q[:, :-1], beyond.flip(0))
    return table, F.pad(query, (0, 1)), F.pad(key, (0, 1))


class _RelativeBias(torch.autograd.Function):
    """`_relative_bias` with a backward pass that needs the memory of one block beside the gradients."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, table: Tensor, added: Tensor | None, *far: Tensor) -> Tensor:
        ctx.save_for_backward(q, table)
        ctx.added, ctx.far = None if added is None else added.shape, bool(far)
        return _relative_bias(q, table, added, *far)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        gradient = gradients[0]
        q, table = ctx.saved_tensors
        d_q, d_table = torch.empty_like(q), torch.zeros_like(table.transpose(0, 1))
        batch, length, heads, _ = q.shape
        keys = len(table) - length
        for block in _Block.all(length, keys):
            count = block.end - block.start
            product = q.new_zeros(heads, batch, count, keys + count)
            block.shifted(product).copy_(gradient[:, :, block.start : block.end])
            block.backward(product, q, table, d_q, d_table)
        d_added = gradient.sum_to_size(ctx.added) if ctx.needs_input_grad[2] else None
        d_far = (gradient[:, :, -1], gradient[..., -1]) if ctx.far else ()
        return d_q, d_table.transpose(0, 1), d_added, *d_far


def fused(q: Tensor, k: Tensor, v: Tensor, bias: Tensor, dropout: float = 0.0) -> Tensor:
    """q, k, v [B, ., N, h], q scaled; bias [B, N, T, S] -> [B, N, T, h]."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout, scale=1.0)


class _Attention(torch.autograd.Function):
    """softmax(content k + `_relative_bias`) v, for CPUs, whose fused kernel has no dropout and no gradient of a bias.

    The forward pass runs that kernel; the backward pass recomputes the probabilities, a block of queries at a time.
    content, q [B, T, N, h], both scaled; k, v [B, S, N, h]; table and added as above.
    """

    @staticmethod
    def forward(
        ctx: Any, content: Tensor, q: Tensor, k: Tensor, v: Tensor, table: Tensor, added: Tensor | None, *far: Tensor
    ) -> Tensor:
        z = fused(content, k, v, _relative_bias(q, table, added, *far))
        ctx.save_for_backward(content, q, k, v, table, added, z, *far)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        content, q, k, v, table, added, z, *far = ctx.saved_tensors
        content, k, v = (x.transpose(1, 2).flatten(0, 1) for x in (content, k, v))  # [B * N, ., h]
        batch, length, heads, _ = q.shape
        d_z, means = gradients[0].flatten(0, 1), (gradients[0] * z).sum(-1, keepdim=True).flatten(0, 1)
        d_content, d_k, d_v = torch.empty_like(content), torch.zeros_like(k), torch.zeros_like(v)
        d_q, d_table = torch.empty_like(q), torch.zeros_like(table.transpose(0, 1))
        d_added = torch.zeros_like(added) if ctx.needs_input_grad[5] else None
        d_far = [torch.empty_like(one) for one in far]
        for block in _Block.all(length, k.shape[1]):
            # The block's scores and probabilities, as in the forward pass
            part = slice(block.start, block.end)
            product = block.product(q, table)
            shifted = block.shifted(product)
            scores = torch.bmm(content[:, part], k.transpose(1, 2))
            by_position = scores.view(shifted.shape)
            by_position += shifted
            if added is not None:
                by_position += added
            if far:
                by_position[..., -1] += far[1][:, :, part]
                if block.end == length:
                    by_position[:, :, -1] += far[0]
            a = scores.softmax(-1)
            # The gradient of the values, and of the scores, which it overwrites
            d_v.baddbmm_(a.transpose(1, 2), d_z[:, part])
            torch.bmm(d_z[:, part], v.transpose(1, 2), out=scores)
            scores.sub_(means[:, part]).mul_(a)
            del a
            # From there to everything that the scores are made of
            d_content[:, part] = torch.bmm(scores, k)
            d_k.baddbmm_(scores.transpose(1, 2), content[:, part])
            if d_added is not None:
                d_added += by_position.sum_to_size(d_added.shape)
            if far:
                d_far[1][:, :, part] = by_position[..., -1]
                if block.end == length:
                    d_far[0].copy_(by_position[:, :, -1])
            product.zero_()
            shifted.copy_(by_position)
            block.backward(product, q, table, d_q, d_table)
        d_content, d_k, d_v = (x.unflatten(0, (batch, heads)).transpose(1, 2) for x in (d_content, d_k, d_v))
        return d_content, d_q, d_k, d_v, d_table.transpose(0, 1), d_added, *d_far


def relative_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    term: Tensor | None,
    mask: Tensor | None,
    *,
    dropout: float,
    official: bool = False,
    gap: int = 0,
) -> Tensor:
    """Transformer-XL's attention with its second product as the additive bias of scaled_dot_product_attention:

        z_i = sum_j a_ij v_j    a_ij = softmax_j(((q_i + u) k_j + (q_i + w) r_ij) / sqrt(h) + term_j + mask_ij)

    q [B, T, N, h]; k, v [B, S, N, h]; r [P, N, h], the farthest key to the left first; biases u and w [N, h];
    term [B, N, 1, S]; mask [B, 1, T or 1, S]. Returns z [B, T, N, h]. `gap`: columns left out before the last token,
    for which r has rows.
    """
    scale = q.shape[-1] ** -0.5
    content, q = (((q + bias) * scale).to(v.dtype) for bias in biases)  # under autocast, a bias makes it float32
    table, *far = without_gap(q, r, gap)
    added = term if mask is None or official else mask if term is None else mask + term
    if official and mask is not None:  # added to the sum of all terms, since its rounding matters
        scores = content.transpose(1, 2) @ k.permute(0, 2, 3, 1) + _RelativeBias.apply(q, table, added)
        a = (at_least_float32(scores) + mask).softmax(-1).to(v.dtype)
        z = F.dropout(a, dropout) @ v.transpose(1, 2)
    elif q.device.type == "cpu" and not dropout and q.dtype in (torch.float32, torch.float64):
        z = _Attention.apply(content, q, k, v, table, added, *far)
    else:
        z = fused(content, k, v, _RelativeBias.apply(q, table, added, *far), dropout)
    return z.transpose(1, 2)


def relative_scores(
    q: Tensor,
    k: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    term: Tensor | None,
    mask: Tensor | None,
    gap: int = 0,
) -> Tensor:
    """The scores of `relative_attention` [B, N, T, S], whose softmax a_ij is, at least float32."""
    content, q = (((q + bias) * q.shape[-1] ** -0.5).to(k.dtype) for bias in biases)
    table, *far = without_gap(q, r, gap)
    scores = content.transpose(1, 2) @ k.permute(0, 2, 3, 1) + _RelativeBias.apply(q, table, term, *far)
    scores = at_least_float32(scores)
    return scores if mask is None else scores + mask


def skimmed_scores(
    q: Tensor,
    k: Tensor,
    r: Tensor,
    biases: tuple[Tensor, Tensor],
    term: Tensor | None,
    mask: Tensor,
    rows: Tensor,
) -> Tensor:
    """As `relative_scores` [B, N, T, H], of keys k [B, H, N, h] at any place: layers of K each, which stand at the same
    places, mask [B, 1, 1, K]. r [R, N, h] is the whole table, rows [B, T, K] the row that a query and a key of each
    layer meet in."""
    content, q = (((q + bias) * q.shape[-1] ** -0.5).to(k.dtype).transpose(1, 2) for bias in biases)  # [B, N, T, h]
    by_row = q @ r.permute(1, 2, 0)  # [B, N, T, R]
    by_place = at_least_float32(by_row.gather(3, rows[:, None].expand(-1, q.shape[1], -1, -1))) + mask
    scores = (content @ k.permute(0, 2, 3, 1)).unflatten(3, (-1, rows.shape[2])) + by_place[:, :, :, None]
    return scores.flatten(3) if term is None else scores.flatten(3) + term


def moved(weights: Tensor, positions: Tensor) -> Tensor:
    """a_ij [B, N, T, M + T] with the queries, and the keys behind the memory, that stand at `positions` [B, T]."""
    slots = weights.shape[3] - weights.shape[2]
    memory = torch.arange(slots, device=positions.device).expand(positions.shape[0], -1)
    keys = torch.cat([memory, positions + slots], dim=1)
    return weights.take_along_dim(positions[:, None, :, None], dim=2).take_along_dim(keys[:, None, None], dim=3)


class Update(NamedTuple):
    """Selects the states of [memory; segment] to remember: the last valid ones, with zeros before them if too few."""

    positions: Tensor
    """[B, slots, 1]."""
    empty: Tensor
    """[B, slots, 1], True where a slot stays empty."""

    @classmethod
    def of(cls, valid: Tensor, slots: int) -> "Update":
        order = chosen_first(~valid)[:, -slots:]
        lacking = slots - order.shape[1]
        empty = F.pad(~valid.gather(1, order), (lacking, 0), value=True)
        return cls(F.pad(order, (lacking, 0))[..., None], empty[..., None])

    @torch.no_grad()
    def __call__(self, memory: Tensor | None, states: Tensor) -> Tensor:
        """memory [B, M, D], states [B, T, D] -> new memory [B, slots, D]."""
        states = states if memory is None else torch.cat([memory, states], dim=1)
        return states.gather(1, self.positions.expand(-1, -1, states.shape[2])).masked_fill_(self.empty, 0)


class Surroundings(NamedTuple):
    """Inputs that all layers share."""

    positions: Tensor
    """[P, D], a row for each distance, the farthest key to the left first; P = M + 2 (T + gap)."""
    types: Tensor | None
    """[types, D]; None if all keys have one type, whose term the softmax cancels."""
    key_types: Tensor | None
    """[B, S, types], 1 at a key's type."""
    mask: Tensor | None
    """[B, 1, T or 1, S], added to scores."""
    gap: int = 0
    """Columns of padding that were left out before the last token."""
    skimmed: Tensor | None = None
    """[B, H, D], the states of all layers of the skim, which "full" attends to before memory: H = layers * K."""
    table: Tensor | None = None
    """[R, D], all rows of the table of positions, of which a query and a state of the skim meet in one, `rows`."""
    rows: Tensor | None = None
    """[B, T, K]."""
    skimmed_mask: Tensor | None = None
    """[B, 1, 1, K], as `mask`."""


def _context(*states: Tensor | None) -> Tensor:
    """What is attended to: the states of the skim if there are some, the memory and the segment, [B, H + S, D]."""
    parts = [one for one in states if one is not None]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class ErnieDocSelfAttention(nn.Module):
    """Attention whose only randomness is dropout of probabilities, which differs between split heads."""

    attend = staticmethod(relative_attention)

    def __init__(self, config: ErnieDocConfig) -> None:
        super().__init__()
        self.head_size = config.hidden_size // config.num_attention_heads
        self.dropout = config.attention_probs_dropout_prob
        self.official = config.official_memory
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)
        self.position = nn.Linear(config.hidden_size, config.hidden_size)
        self.token_type = nn.Linear(config.hidden_size, config.hidden_size)
        self.content_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.position_bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.token_type_bias = nn.Parameter(torch.zeros(config.hidden_size))

    def forward(
        self,
        hidden: Tensor,
        memory: Tensor | None,
        positions: Tensor,
        types: Tensor | None,
        key_types: Tensor | None,
        mask: Tensor | None,
        gap: int = 0,
        *skim: Tensor | None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """hidden [B, T, D], memory [B, M, D], the rest as in `Surroundings` -> [B, T, D], or this device's heads of it.

            z_i = sum_j a_ij v_j    a_ij = softmax_j(((q_i + u) k_j + (q_i + w) r_ij + (q_i + s) t_j) / sqrt(h) + mask)

        u, w, s are content_bias, position_bias, token_type_bias. The first and the last product together are
        (q_i + u) (k_j + t_j) + (s - u) t_j; all but the first product is the kernel's additive bias.

        With `weights`, which `probabilities` returns for the same arguments, no fused kernel computes them again. With
        the states of a skim there is none that could.
        """
        around = Surroundings(positions, types, key_types, mask, gap, *skim)
        dropout = self.dropout if self.training else 0.0
        if around.skimmed is not None and weights is None:
            weights = self.probabilities(hidden, memory, around)
        if weights is not None:
            v = self._heads(self.value(_context(around.skimmed, memory, hidden))).transpose(1, 2)
            return (F.dropout(weights.to(v.dtype), dropout) @ v).transpose(1, 2).flatten(2)
        q, k, v = map(self._heads, self.project(hidden, memory))
        k, r, biases, term = self._terms(k, positions, types, key_types)
        z = self.attend(q, k, v, r, biases, term, mask, dropout=dropout, official=self.official, gap=gap)
        return z.flatten(2)

    def probabilities(self, hidden: Tensor, memory: Tensor | None, around: Surroundings) -> Tensor:
        """a_ij [B, N, T, S], or H + S keys, without dropout, for the arguments of `forward`, whose fused kernels do not
        return them."""
        context = _context(around.skimmed, memory, hidden)
        q, k = self._heads(self.query(hidden)), self._heads(self.key(context))
        k, r, biases, term = self._terms(k, around.positions, around.types, around.key_types)
        if around.skimmed is None or around.table is None:
            return relative_scores(q, k, r, biases, term, around.mask, around.gap).softmax(-1)
        assert around.rows is not None and around.skimmed_mask is not None
        cut = [around.skimmed.shape[1], context.shape[1] - around.skimmed.shape[1]]
        terms = (None, None) if term is None else term.split(cut, dim=3)
        theirs, ours = k.split(cut, dim=1)
        table = self._heads(self.position(around.table))
        far = skimmed_scores(q, theirs, table, biases, terms[0], around.skimmed_mask, around.rows)
        near = relative_scores(q, ours, r, biases, terms[1], around.mask)
        return torch.cat([far, near], dim=3).softmax(-1)

    def project(self, hidden: Tensor, memory: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """hidden [B, T, D], memory [B, M, D] -> queries [B, T, D], keys and values [B, S, D]."""
        context = _context(memory, hidden)
        return self.query(hidden), self.key(context), self.value(context)

    def _terms(
        self, k: Tensor, positions: Tensor, types: Tensor | None, key_types: Tensor | None
    ) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor], Tensor | None]:
        """k + t [B, S, N, h], r [P, N, h], u and w, and the term of the keys' types."""
        u, w, s = (self._heads(bias) for bias in (self.content_bias, self.position_bias, self.token_type_bias))
        term = None
        if types is not None and key_types is not None:
            t = self._heads(self.token_type(types))
            k = k + torch.einsum("bjt,tnh->bjnh", key_types, t)
            term = (t * (s - u)).sum(-1) * self.head_size**-0.5
            term = (key_types @ term).transpose(1, 2).unsqueeze(2)
        return k, self._heads(self.position(positions)), (u, w), term

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_size))
