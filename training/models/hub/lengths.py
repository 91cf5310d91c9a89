"""Documents of a row apart by variable lengths: attention within each document alone, in place of a mask of L x L.

A mask hides the pairs of tokens of two documents, but all L x L of them are computed, in local layers, too. Kernels for
variable lengths take the borders of the documents in the rows of a batch, laid end to end, and compute the pairs within
each (of local layers those within the window). torch has one for GPUs of compute capability 8.0 and newer, in half
precision and without dropout; the package flash-attn has dropout, too.
"""

import inspect
import logging
from typing import Any

import torch
from torch import Tensor
from transformers.utils import is_flash_attn_2_available

from reread.preprocessing.errors import UserError

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch before 2.10
    varlen_attn = None  # type: ignore[assignment]

log = logging.getLogger("reread")

TORCH, PACKAGE = "reread_lengths", "flash_attention_2"
"""Names of attention in transformers' table: torch's by lengths, made here, and the package's."""


def arguments(borders: Tensor, length: int, config: Any) -> dict[str, Any]:
    """The arguments of an encoder by which rows of `length` tokens are read apart at `borders` [n + 1]."""
    at, longest = borders.int(), length  # the longest of a batch would be another number each time, to compile for
    given = {"cu_seq_lens_q": at, "cu_seq_lens_k": at, "max_length_q": longest, "max_length_k": longest}
    both = {"full_attention": None, "sliding_attention": None}
    return {**given, "attention_mask": both if hasattr(config, "local_attention") else None}


def attend(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor | None = None,
    max_length_q: int = 0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attention of query, key and value [B, H, L, D] within documents, [B, L, H, D], and no weights, as transformers'
    table has it; torch's own where no borders are given."""
    if cu_seq_lens_q is None:
        from transformers.integrations.sdpa_attention import sdpa_attention_forward

        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    at, rows = cu_seq_lens_q, [one.transpose(1, 2).flatten(0, 1) for one in (query, key, value)]
    reach = -1 if sliding_window is None else sliding_window - 1  # transformers counts the token itself
    found: Any = varlen_attn(*rows, at, at, max_length_q, max_length_q, scale=scaling, window_size=(reach, reach))
    return found.unflatten(0, (query.shape[0], query.shape[2])), None


def _register() -> None:
    """Put torch's kernel into transformers' tables, which its first versions do not have."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    ALL_ATTENTION_FUNCTIONS.register(TORCH, attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register(TORCH, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])


def choose(model: Any, stated: str | None, device: torch.device, dtype: torch.dtype) -> None:
    """Let `model`, which computes in `dtype` on `device`, read documents apart by lengths where that can be; one line
    says how they are. `stated`: attention that the recipe names. Raises `UserError` for the package where it cannot be.
    """
    config = model.config
    if stated is None:
        faults = {TORCH: of_torch(config, device, dtype), PACKAGE: of_package(device, dtype)}
    elif stated == PACKAGE:
        faults = {PACKAGE: of_package(device, dtype)}
        if faults[PACKAGE]:
            raise UserError(f"train.model.attn_implementation: {stated}, but {faults[PACKAGE]}; leave it out")
    else:
        faults = {TORCH: f"train.model.attn_implementation is {stated}"}
    chosen = next((name for name, fault in faults.items() if not fault), None)
    if chosen is None:
        why = "; ".join(dict.fromkeys(faults.values()))
        log.info("documents of a row: apart by a mask, which computes all pairs of the row's tokens, since %s", why)
        return
    _register()
    config._attn_implementation, model.by_lengths = chosen, True
    which = "torch's kernel" if chosen == TORCH else "the package flash-attn"
    log.info("documents of a row: apart by variable lengths (%s), which computes no pair of two documents", which)


def of_torch(config: Any, device: torch.device, dtype: torch.dtype) -> str:
    """Why torch's kernel cannot be used; empty if it can."""
    if fault := of_package(device, dtype, installed=True):
        return fault
    if varlen_attn is None or "window_size" not in inspect.signature(varlen_attn).parameters:
        return f"torch {torch.__version__} has no such attention"
    names = ("attention_probs_dropout_prob", "attention_dropout")
    name = next((one for one in names if getattr(config, one, 0)), None)
    return f"model.{name} is {getattr(config, name)}, and torch's kernel has no dropout" if name else ""


def of_package(device: torch.device, dtype: torch.dtype, installed: bool | None = None) -> str:
    """Why flash-attn cannot be used; empty if it can."""
    if device.type != "cuda" or torch.version.hip is not None:
        return "there is no GPU of NVIDIA"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "the GPU is older than compute capability 8.0"
    if dtype not in (torch.float16, torch.bfloat16):
        return "kernels for lengths compute in half precision alone"
    there = is_flash_attn_2_available() if installed is None else installed
    return "" if there else "flash-attn is not installed"
