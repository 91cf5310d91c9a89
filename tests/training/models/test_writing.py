"""BART and LED: beside transformers' own classes, made of each other, and as runs."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.flop_counter import FlopCounterMode

from reread.preprocessing.errors import UserError
from reread.preprocessing.labelled.tasks.generate import GenerateExample
from reread.training.assembly import check_model
from reread.training.config import TrainSettings
from reread.training.exchange.convert import convert
from reread.training.models import model_spec
from reread.training.models.build import build_model, model_config
from reread.training.models.hub.encoder_decoders import ENCODER_DECODERS
from reread.training.parallel.mesh import Mesh
from reread.training.trainer import Trainer
from tests.tasks import DECODERS, SPECIAL, WORDS, number_of, objective_of, task_values, write_lines, write_tokenizer

VOCABULARY = len(SPECIAL + WORDS)
CLS, SEP = SPECIAL.index("[CLS]"), SPECIAL.index("[SEP]")
IDS = {"pad": 0, "cls": CLS, "sep": SEP}


def model_of(name: str, **values: Any) -> Any:
    """A model with random weights, in float64."""
    torch.manual_seed(0)
    spec = model_spec(name)
    given = {**DECODERS[name], "init_std": 0.3, **values}
    return spec.heads["generate"](model_config(spec, given, VOCABULARY, None, IDS)).double().eval()


def theirs_of(model: Any) -> Any:
    """transformers' own class with the same weights."""
    theirs: Any = getattr(transformers, type(model).__name__)
    assert type(model) is not theirs and isinstance(model, theirs)
    other = theirs(model.config).double().eval()
    other.load_state_dict(model.state_dict())
    return other


def sources() -> dict[str, Tensor]:
    """Two sources, longer than LED's windows, the second one with padding."""
    ids = torch.randint(5, VOCABULARY, (2, 21), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = CLS
    mask = torch.ones_like(ids)
    mask[1, 13:] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def with_global(name: str, given: dict[str, Tensor]) -> dict[str, Tensor]:
    first = torch.zeros_like(given["input_ids"])
    first[:, 0] = 1
    return {**given, "global_attention_mask": first} if name == "led" else given


@pytest.mark.parametrize("name", list(ENCODER_DECODERS))
def test_losses_gradients_and_texts_are_those_of_transformers_own_class(name: str) -> None:
    """transformers' LED has its softmax in float32, whatever its type."""
    model, given = model_of(name), sources()
    theirs, rounding = theirs_of(model), 1e-5 if name == "led" else 1e-10
    labels = torch.tensor([[CLS, 7, 8, 9, 7, SEP], [CLS, 6, SEP, -100, -100, -100]])
    expected = theirs(**with_global(name, given), labels=labels)
    expected.loss.backward()
    logits = model(**model.forced(**given, labels=labels)).logits
    torch.testing.assert_close(logits, expected.logits, rtol=0, atol=rounding)
    loss = cross_entropy(logits.flatten(0, 1), labels.flatten())
    assert loss.item() == pytest.approx(expected.loss.item(), rel=rounding)
    loss.backward()
    for (key, ours), other in zip(model.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, other.grad, rtol=rounding, atol=rounding, msg=key)
    for beams in (1, 3):
        theirs.generation_config = model.generation(6, beams, range(5))
        texts = theirs.generate(**with_global(name, given))
        found = model.write(given["input_ids"], given["attention_mask"], 6, beams, range(5))
        assert torch.equal(found, texts[:, 1:]) and set(found.flatten().tolist()) - set(range(5))
        assert (found[:, 0] == CLS).all() and found.shape[1] <= 8


def test_a_greedy_target_is_the_likeliest_token_each_time() -> None:
    """Without a cache, from the same logits that are trained."""
    model, given = model_of("led"), sources()
    found = model.write(given["input_ids"], given["attention_mask"], 5, 1, range(5))
    for row, length in enumerate((21, 13)):
        written = [SEP, CLS]
        while written[-1] != SEP and len(written) < 7:
            one = {name: values[row : row + 1, :length] for name, values in given.items()}
            logits = model(**with_global("led", one), decoder_input_ids=torch.tensor([written])).logits[0, -1]
            logits[[token for token in range(5) if token != SEP or len(written) == 2]] = -torch.inf
            written.append(int(logits.argmax()))
        expected = [*written[1:], *[SEP] * (written[-1] != SEP)]
        assert found[row, : len(expected)].tolist() == expected


def test_the_count_of_operations_is_that_of_the_products_of_a_step() -> None:
    model = theirs_of(model_of("bart", attn_implementation="eager"))
    ids, labels = torch.full((3, 17), 6), torch.full((3, 9), 7)
    with FlopCounterMode(display=False) as counter:
        model(input_ids=ids, labels=labels, use_cache=False)
    totals = {"rows": 3.0, "predicted": 27.0}
    assert model_spec("bart").flops(model.config, 17, totals) == 3 * counter.get_total_flops()
    led = model_of("led").config  # windows of 4 and 8, of 17 tokens, and the projections of a global one
    less = sum(4 * 51 * (17 - keys) * 32 for keys in (6, 10))
    more = 2 * 2 * 51 * 2 * 32 * 32
    assert model_spec("led").flops(led, 17, totals) == 3 * (counter.get_total_flops() - less + more)


def source_of(folder: Path, **values: Any) -> Any:
    """A BART of transformers in a folder, with the tokenizer of letters."""
    torch.manual_seed(1)
    given = {**DECODERS["bart"], "init_std": 0.3, "max_position_embeddings": 24, "vocab_size": VOCABULARY, **values}
    tokens = {"pad_token_id": 0, "bos_token_id": CLS, "eos_token_id": SEP, "decoder_start_token_id": SEP}
    model: Any = transformers.BartForConditionalGeneration(transformers.BartConfig(**given, **tokens)).eval()
    model.save_pretrained(write_tokenizer(folder))
    return model


def loaded(folder: Path, name: str) -> Any:
    spec = model_spec(name)
    return build_model(spec.heads["generate"], model_config(spec, {}, 1, folder), folder, 3).double().eval()


def test_a_bart_becomes_a_led_that_computes_the_same_where_windows_hold_the_text(tmp_path: Path) -> None:
    """With and without the global token, whose projections are the local ones; positions begin anew after 24."""
    bart = source_of(tmp_path / "bart").double()
    convert(tmp_path / "bart", tmp_path / "led", "led", window=48)
    led, given = loaded(tmp_path / "led", "led"), sources()
    target = {"decoder_input_ids": torch.tensor([[SEP, CLS, 9, 8], [SEP, CLS, 5, 5]])}
    for inputs in (given, with_global("led", given)):
        torch.testing.assert_close(led(**inputs, **target).logits, bart(**given, **target).logits, rtol=0, atol=1e-12)
    assert (led.config.max_encoder_position_embeddings, led.config.max_decoder_position_embeddings) == (16 * 24, 24)
    table = bart.model.encoder.embed_positions.weight  # its first two rows are of no token
    for row in (0, 23, 24, 16 * 24 - 1):
        assert torch.equal(led.led.encoder.embed_positions.weight[row], table[2 + row % 24])
    # As allenai wrote it first: two rows more of positions, windows that count one side, a model_type of BART
    first = tmp_path / "first"
    first.mkdir()
    config = json.loads((tmp_path / "led" / "config.json").read_text())
    config |= {"model_type": "bart", "attention_window": [24, 24], "attention_mode": "sliding_chunks"}
    (first / "config.json").write_text(json.dumps(config))
    weights = load_file(tmp_path / "led" / "model.safetensors")
    for part in ("encoder", "decoder"):
        key = f"led.{part}.embed_positions.weight"
        weights[key] = torch.cat([torch.zeros(2, 32), weights[key]])
    weights |= {"lm_head.weight": weights["led.shared.weight"].clone()}
    renamed = {re.sub(r"^led\.", "model.", name): one.contiguous() for name, one in weights.items()}
    torch.save(renamed, first / "pytorch_model.bin")
    convert(first, tmp_path / "again", "led", length=500)
    again = loaded(tmp_path / "again", "led")
    assert again.config.attention_window == [48, 48]
    assert torch.equal(again(**given, **target).logits, led(**given, **target).logits)
    assert torch.equal(again.led.encoder.embed_positions.weight[384 + 5], led.led.encoder.embed_positions.weight[5])


@pytest.mark.parametrize(
    ("config", "weights", "options", "message"),
    [
        ({"scale_embedding": True}, {}, {}, "scale_embedding is True; only False is supported"),
        ({"encoder_layerdrop": 0.1}, {}, {}, "encoder_layerdrop is 0.1; only 0.0 is supported"),
        ({}, {"final_logits_bias": torch.ones(1, VOCABULARY)}, {}, "final_logits_bias is not 0"),
        ({}, {"lm_head.weight": torch.ones(VOCABULARY, 32)}, {}, "lm_head.weight differs from shared.weight"),
        ({"max_position_embeddings": 20}, {}, {}, "embed_positions.weight has 26 rows, but by the configuration 20"),
        ({"encoder_layers": 3}, {}, {}, "layers.2.self_attn.longformer_self_attn.query.weight is missing"),
        ({}, {}, {"length": 9}, "the source reads 24 tokens already; give a --length of at least 24"),
        ({}, {}, {"positions": "random"}, "--positions: not for led"),
        ({"model_type": "mbart"}, {}, {}, "mbart"),
    ],
)
def test_a_source_that_is_no_bart_as_released_is_refused_in_a_line(
    config: dict[str, Any], weights: dict[str, Tensor], options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    source_of(tmp_path / "bart")
    path = tmp_path / "bart" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **config}))
    file = tmp_path / "bart" / "model.safetensors"
    save_file({**load_file(file), **weights}, file)
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        convert(tmp_path / "bart", tmp_path / "led", "led", **options)
    assert "\n" not in str(raised.value) and not (tmp_path / "led").exists()


EXAMPLES = [("a b c d e f g h i j k l", "a b"), ("c", "d e f"), ("h g f e d c b a b c d e f", "q r s t u")]


def examples() -> list[GenerateExample]:
    return [GenerateExample(str(number), f"a:{number}", *pair) for number, pair in enumerate(EXAMPLES)]


@pytest.mark.parametrize("name", list(ENCODER_DECODERS))
def test_the_loss_is_the_mean_of_the_targets_tokens_with_their_frame(name: str, tmp_path: Path) -> None:
    """Against transformers' loss of each example alone; sources and targets that are too long are cut."""
    task = {"sequence_length": 12, "target_length": 3, "long_targets": "cut"}
    learned = objective_of(task_values(name, "generate", write_tokenizer(tmp_path), **task), examples())
    batch = list(learned.dataset.step_passes(0, 3, 2, 1, 0))
    totals = {key: float(value) for key, value in learned.counts(batch).items()}
    loss = sum(one.loss for one in learned.losses(batch, totals, 0))
    theirs, summed = theirs_of(learned.model), 0.0
    for source, target in EXAMPLES:
        row = torch.tensor([[CLS, *map(number_of, source.split()[:10]), SEP]])
        labels = torch.tensor([[CLS, *map(number_of, target.split()[:3]), SEP]])
        given = with_global(name, {"input_ids": row})
        summed += theirs(**given, labels=labels).loss.item() * labels.numel()
    assert totals == {"predicted": 14.0}
    assert loss.item() == pytest.approx(summed / 14, rel=1e-6)  # type: ignore[union-attr]


def test_a_run_is_resumed_exactly(tmp_path: Path) -> None:
    """With dropout; its validation writes texts in between."""
    lines = [{"source": one, "target": other} for one, other in EXAMPLES * 3]
    file = str(write_lines(tmp_path / "some.jsonl", lines))
    task = {"train": file, "dev": file, "sequence_length": 24, "target_length": 5, "beams": 2}
    values = task_values("led", "generate", write_tokenizer(tmp_path), **task)
    values["model"] |= {"dropout": 0.1, "attention_dropout": 0.1}
    values |= {"steps": 4, "micro_batch": 2, "validate_every": 2, "checkpoint": {"every_steps": 2}, "writers": []}

    def trained(name: str, steps: int) -> Any:
        (tmp_path / name).mkdir(exist_ok=True)
        trainer = Trainer(TrainSettings.parse({**values, "steps": steps}, "test"), tmp_path / name, Mesh())
        trainer.train()
        return trainer.assembly.model

    values["schedule"] = {"decay": "constant"}
    whole = trained("whole", 4)
    trained("parts", 2)
    resumed = trained("parts", 4)
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), resumed.parameters(), strict=True))


@pytest.mark.parametrize(
    ("model", "data", "parallel", "message"),
    [
        ({}, {"target_length": 1023}, 1, "task.target_length: 1023 and 2 special tokens, but the positions of this"),
        ({}, {"sequence_length": 131}, 1, "train.data.sequence_length: 131, but this model's positions end at 130"),
        ({"attention_window": [4, 4, 4]}, {}, 1, "attention_window"),
        ({"decoder_layerdrop": 0.1}, {}, 1, "decoder_layerdrop is 0.1, but led is trained with 0.0 alone"),
        ({"hiden": 3}, {}, 1, "train.model: unknown key `hiden` for led"),
        ({}, {}, 2, "train.parallel.tensor: 2, but led is not split over processes"),
        (
            {},
            {"kind": "packed", "corpus": "c"},
            1,
            "led is not pretrained here: `reread convert --model led`",
        ),
    ],
)
def test_a_mistake_is_one_line(
    model: dict[str, Any], data: dict[str, Any], parallel: int, message: str, tmp_path: Path
) -> None:
    values = task_values("led", "generate", tmp_path, sequence_length=64)
    values["model"] |= model
    if data.get("kind") == "packed":
        values["data"] = data
    values["data"] = {**values["data"], **data}
    with pytest.raises(UserError, match=re.escape(message)) as raised:
        check_model(TrainSettings.parse({**values, "parallel": {"tensor": parallel}}, "test"))
        spec = model_spec("led")
        build_model(spec.heads["generate"], model_config(spec, values["model"], VOCABULARY, None, IDS), None, 0)
    assert "\n" not in str(raised.value)
