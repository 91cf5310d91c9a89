"""Books, on which the encoder goes on with masked words: by the recipe `continue-encoder` and by a plain loop over
transformers' model, which scores both on held-out words."""

from typing import Any

from benchmarks.harness import overrides
from benchmarks.minilm.job import Figures, Found, Job
from benchmarks.training.from_scratch import of_masked_words


def by_ours(job: Job) -> Found:
    from transformers.models.bert import BertForMaskedLM

    from reread.pipeline.commands.train import train
    from reread.pipeline.run_folder.export import export
    from reread.training.run.files import RUNS

    train("continue-encoder", book_overrides(job))
    yield "", 0, _held_out(job, BertForMaskedLM.from_pretrained(export(RUNS / job.run["name"], None)))


def by_loop(job: Job, tokens: bool = False) -> Found:
    """On our rows; with `tokens` masked by transformers' collator."""
    import numpy as np
    import torch
    from transformers import AutoTokenizer, DataCollatorForLanguageModeling, get_linear_schedule_with_warmup
    from transformers.models.bert import BertForMaskedLM

    sizes, device = job.sizes, _device()
    torch.manual_seed(0)
    model = BertForMaskedLM.from_pretrained(job.encoder).to(device)
    if not tokens:
        yield "before", 0, _held_out(job, model)
    # An optimiser and a schedule as ours
    parameters = list(model.parameters())
    groups = [
        {"params": [one for one in parameters if one.ndim > 1], "weight_decay": 0.01},
        {"params": [one for one in parameters if one.ndim == 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=sizes.book_rate, betas=(0.9, 0.98), eps=1e-6, fused=device != "cpu")
    schedule = get_linear_schedule_with_warmup(optimizer, sizes.book_steps // 10, sizes.book_steps)
    # The steps
    collator = DataCollatorForLanguageModeling(AutoTokenizer.from_pretrained(job.encoder), mlm_probability=0.15)
    data = book_rows(job, "train")
    model.train()
    for step in range(sizes.book_steps):
        rows = data.rows(np.arange(step * sizes.book_rows, (step + 1) * sizes.book_rows))
        if tokens:
            plain = np.where(rows["labels"] == -100, rows["input_ids"], rows["labels"]).tolist()
            batch = collator([{"input_ids": one, "attention_mask": [1] * len(one)} for one in plain])
        else:
            names = ("input_ids", "attention_mask", "labels")
            batch = {name: torch.from_numpy(rows[name]).long() for name in names}
        with torch.autocast(device, torch.bfloat16, enabled=device != "cpu"):
            loss = model(**{name: values.to(device, non_blocking=True) for name, values in batch.items()}).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    yield "", 0, _held_out(job, model)


def book_overrides(job: Job) -> list[str]:
    values = {
        **job.run,
        "init": job.encoder,
        "data.corpus": job.unpacked / "corpus",
        "data.sequence_length": job.sizes.book_tokens,
        "data.separate_documents": "false",
        "steps": job.sizes.book_steps,
        "global_batch": job.sizes.book_rows,
        "micro_batch": job.sizes.book_rows,
        "optimizer.learning_rate": job.sizes.book_rate,
        "schedule.warmup_steps": job.sizes.book_steps // 10,
    }
    return overrides(values)


def book_rows(job: Job, split: str) -> Any:
    """The rows of a split, by their positions in the stream that our run reads."""
    from reread.pipeline.recipe.load import load_recipe
    from reread.pipeline.recipe.schema import train_section
    from reread.training.data.kinds import open_dataset

    settings = train_section(load_recipe("continue-encoder", book_overrides(job), "train"))
    return open_dataset(settings.data, settings.seed, split)


def _held_out(job: Job, model: Any) -> Figures:
    device = _device()
    return of_masked_words(
        model.float().to(device).eval(), book_rows(job, "validation"), job.sizes.held_out_rows, device
    )


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
