"""Fine-tuning: a target that is written of its source, with a prefix mask or by a decoder that reads the source."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from reread.preprocessing.errors import UserError
from reread.training.data.batch import IGNORED, Rows
from reread.training.data.tasks.generate import GenerateSettings
from reread.training.kernels.head import Undecoded
from reread.training.models.beams import beam_search
from reread.training.models.blocks import at_least_float32
from reread.training.models.hub.encoder_decoders import ENCODER_DECODERS
from reread.training.models.spec import ModelSpec
from reread.training.objectives.objective import Card, Objective
from reread.training.objectives.task import TaskObjective, WindowReader
from reread.training.parallel.tensor import whole_vocabulary


class GenerateObjective(TaskObjective[GenerateSettings]):
    """Cross entropy of each token of the target and of the [SEP] behind it, given the source and the tokens before; a
    mean over these tokens, not over texts (Dong et al. 2019, section 2.3, without its masked tokens). A decoder also
    learns the [CLS] before the target, as transformers does with `labels`."""

    name = "generate"
    has_global_tokens = False
    card = Card("AutoModelForSeq2SeqLM", "text2text-generation", "text2text-generation")

    @staticmethod
    def check(config: Any, data: GenerateSettings) -> None:
        TaskObjective.check(config, data)
        if (most := _decoder_positions(config)) is not None and data.target_length + 2 > most:
            raise UserError(
                f"task.target_length: {data.target_length} and 2 special tokens, but the positions of this model's "
                f"decoder end at {most}; lower it to at most {most - 2}"
            )

    @property
    def own_inputs(self) -> tuple[str, ...]:
        return ("token_type_ids", "predicted_at") if self.data.in_one_row else ("labels",)

    def inputs(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The head decodes the positions before the target's tokens alone."""
        if not self.data.in_one_row:
            return self.model.forced(**inputs)  # type: ignore[no-any-return, operator]
        rows, length = inputs["input_ids"].shape
        begins = torch.arange(rows, device=inputs["input_ids"].device)[:, None] * length
        inputs["masked_positions"] = (begins + inputs.pop("predicted_at")).flatten()
        inputs["segment_ids"] = inputs.pop("token_type_ids")
        return inputs

    def predicted(self, rows: Rows) -> int:
        return int((rows["labels"] != IGNORED).sum())

    def loss(self, output: Any, rows: Rows) -> tuple[Tensor, Tensor]:
        labels = self.put(rows["labels"]).flatten()
        logits = output.logits if self.data.in_one_row else output.logits.flatten(0, 1)
        losses, right = self.scored(logits, labels.clamp(min=0))
        counted = labels != IGNORED
        return (losses * counted).sum(), (right * counted).sum()

    def read(self, reader: WindowReader, rows: Rows, special: Mapping[str, int]) -> Tensor:
        """The written tokens [B, t]."""
        sources, mask = self.put(rows["input_ids"]), self.put(rows["attention_mask"])
        beams, longest, banned = self.data.beams, self.data.target_length, tuple(special.values())
        if not self.data.in_one_row:
            return self.model.write(sources, mask, longest, beams, banned)  # type: ignore[no-any-return, operator]
        return beam_search(
            *(self._logits, sources, mask), beams=beams, longest=longest, end=special["sep"], banned=banned
        )

    def _logits(self, **inputs: Tensor) -> Tensor:
        logits: Tensor | Undecoded = self.model(**inputs).logits
        if not isinstance(logits, Tensor):  # kernels compute losses alone
            logits = at_least_float32(logits.decoder(logits.features))
        return whole_vocabulary(logits, self.mesh)

    def outputs(self, output: Tensor) -> Tensor:
        return output

    def flops(self, spec: ModelSpec, config: Any, totals: Mapping[str, float]) -> float:
        return Objective.flops(self, spec, config, totals)


def _decoder_positions(config: Any) -> int | None:
    """Positions of the decoder; None for a model without one."""
    row = ENCODER_DECODERS.get(config.model_type)
    return getattr(config, row.decoder_positions) if row else None
