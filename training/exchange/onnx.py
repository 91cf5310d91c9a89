"""Writes a model as ONNX graphs, which onnxruntime runs without torch and without us.

A graph takes rows [B, L] of any number and length, and is refused unless it computes what torch does at shapes other
than those that it was recorded at: torch.export may freeze a dimension without a word.
"""

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from reread.preprocessing.errors import UserError
from reread.training.exchange.tokenizer import INPUTS
from reread.training.models.blocks import mean_state
from reread.training.models.spec import ModelSpec

log = logging.getLogger("reread")

FOLDER = "onnx"
"""In an export, where sentence-transformers and text-embeddings-inference look for graphs."""
OPSET = 20
TOLERANCE = 1e-4
"""How far a graph's outputs may lie from torch's, as a share of the greatest output where that is above 1."""
PACKAGES = ("onnx", "onnxscript", "onnxruntime")
SHORT = 9
"""Tokens of the shortest rows that a graph is checked with."""
UNSUPPORTED = {
    "causal_lm": "a model of the next word is used word by word",
    "generate": "its texts are decoded word by word",
    "coreference": "it keeps as many spans as each text has words, and reads one text at a time",
}
"""Objective -> why its head is no graph."""


def check_onnx(spec: ModelSpec, objective: str, config: Any) -> None:
    """Raises `UserError` for a model that is no graph, and without the packages that write and run one."""
    reason = UNSUPPORTED.get(objective)
    if getattr(config, "recurrence", None) == "full":
        reason = "recurrence full keeps the states of all segments; enhanced has the same weights"
    if getattr(config, "window_handover", False):
        reason = "with window_handover each window waits for all layers of the one before"
    if reason:
        raise UserError(f"--onnx: {spec.name} with the head of {objective} cannot be exported: {reason}")
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        raise UserError(f"--onnx: needs {' and '.join(missing)}; pip install 'reread[onnx]'")


class Graph(nn.Module):
    """A model as a function of named tensors, which returns named tensors."""

    def __init__(self, name: str, model: PreTrainedModel, inputs: Sequence[str], outputs: Sequence[str]) -> None:
        super().__init__()
        self.name, self.model = name, model
        self.inputs, self.outputs = list(inputs), list(outputs)
        self.memories = sum(name.startswith("mems_") for name in inputs)
        self.has_options = model.__class__.__name__.endswith("ForMultipleChoice") and not _joined(model)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, tensors, strict=True))
        mems = tuple(given.pop(f"mems_{number}") for number in range(self.memories))
        output = self.model(**given, **({"mems": mems} if mems else {}), return_dict=True)
        return (*self.computed(output, given), *(output.mems if mems else ()))

    def computed(self, output: Any, given: Mapping[str, Tensor]) -> list[Tensor]:
        """The outputs but memory."""
        return [getattr(output, name) for name in self.outputs if not name.startswith("new_mems_")]


class Vectors(Graph):
    """An encoder: the states of all tokens, and one vector of each row, as `reread embed` computes it."""

    def __init__(self, model: Any, inputs: Sequence[str], outputs: Sequence[str], special: Sequence[int]) -> None:
        super().__init__("model", model, inputs, outputs)
        self.special = sorted(special)

    def computed(self, output: Any, given: Mapping[str, Tensor]) -> list[Tensor]:
        text = given["attention_mask"] != 0
        for number in self.special:
            text = text & (given["input_ids"] != number)
        pooled = [output.pooler_output] if "pooler_output" in self.outputs else []
        return [output.last_hidden_state, mean_state(output.last_hidden_state, text), *pooled]


def graphs(
    model: Any, spec: ModelSpec, objective: str, special: Sequence[int], trained_pooler: bool = False
) -> list[Graph]:
    """The graphs of a model in evaluation mode: that of its head for a task, or else the encoder and masked words.

    Inputs are those that the exported tokenizer returns and, of ERNIE-Doc, the memory: `mems_0`, ... [B, slots, D], and
    as outputs `new_mems_0`, .... `special` are the ids of tokens that a row's vector leaves out.
    """
    parameters = inspect.signature(type(model.base_model).forward).parameters
    inputs = [name for name in ("input_ids", "attention_mask", "token_type_ids") if name in parameters]
    if spec.one_token_type and "token_type_ids" in inputs:
        inputs.remove("token_type_ids")
    assert set(inputs) <= set(INPUTS)
    memories = len(model.empty_mems(1)) if spec.frame == "segments" else 0
    mems = [f"mems_{number}" for number in range(memories)]
    new = [f"new_{name}" for name in mems]
    if objective in ("masked_lm", "documents"):
        pooler = ["pooler_output"] if trained_pooler and _has_pooler(model.base_model) else []
        states = ["last_hidden_state", "sentence_embedding", *pooler]
        return [
            Vectors(model.base_model, [*inputs, *mems], [*states, *new], special),
            Graph("masked_lm", model, [*inputs, *mems], ["logits", *new]),
        ]
    outputs = ["logits"]
    if objective == "answer":
        outputs = ["start_logits", "end_logits", *(("mark_logits", "kind_logits") if _kinds(model) else ())]
    if objective == "phrases":
        inputs.append("word_starts")
    if getattr(model.config, "character_filters", 0):
        inputs.append("characters")
    return [Graph("model", model, [*inputs, *mems], [*outputs, *new])]


def _joined(model: Any) -> bool:
    return bool(getattr(model.config, "joined", False))


def _kinds(model: Any) -> int:
    return int(getattr(model.config, "answer_kinds", 0))


def _has_pooler(body: Any) -> bool:
    return getattr(body, "pooler", None) is not None


class Written(NamedTuple):
    """A graph's file, and how it was checked."""

    path: Path
    graph: Graph
    difference: float
    """The largest between an output and torch's."""
    shapes: list[tuple[int, int]]
    """Rows and tokens that it was checked with."""


def write_graph(folder: Path, graph: Graph, spec: ModelSpec, metadata: Mapping[str, str]) -> Written:
    """Write `graph` to FOLDER/NAME.onnx, with weights beside it in NAME.onnx.data if they are above 2 GB, and check it.

    Raises `UserError` where torch.export cannot record the model, and where onnxruntime computes anything else than
    torch at shapes other than those that were recorded; OSError of a disk.
    """
    config, path = graph.model.config, folder / f"{graph.name}.onnx"
    longest = spec.longest(config)
    recorded = min(longest or 10**9, max(150, 2 * _window(config) + 22))
    folder.mkdir(exist_ok=True)
    with _as_given(config), torch.no_grad():
        example = rows_for(graph, 2, recorded)
        program = _recorded(graph, example)
        program.model.metadata_props.update({**metadata, "opset": str(OPSET)})
        program.model.producer_name = "reread"
        for part in (program.model.graph, *program.model.functions.values()):
            for node in part.all_nodes():
                node.metadata_props.clear()  # where in the code it was recorded
        program.save(path)
        del program
        shapes = [(5, min(longest or 10**9, 2 * recorded - 7)), (3, 2 * recorded // 3), (1, SHORT)]
        shapes = [(rows, length - (length == recorded)) for rows, length in shapes]
        difference = max(_difference(path, graph, *shape) for shape in shapes)
    return Written(path, graph, difference, shapes)


def _window(config: Any) -> int:
    """The widest window of attention, beyond which a row is cut into several."""
    widths = getattr(config, "attention_window", None) or getattr(config, "window_size", None) or 0
    return int(max(widths) if isinstance(widths, list | tuple) else widths)


@contextmanager
def _as_given(config: Any) -> Iterator[None]:
    """Within it rows are read as they are given, not in windows, and attention runs on a CPU."""
    names = [name for name in ("reading", "_attn_implementation") if getattr(config, name, None)]
    kept = {name: getattr(config, name) for name in names}
    if "reading" in kept:
        config.reading = None
    if kept.get("_attn_implementation") == "flash_attention_2":
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        for name, value in kept.items():
            setattr(config, name, value)


def rows_for(graph: Graph, rows: int, length: int) -> dict[str, Tensor]:
    """Random inputs: rows of `length` tokens and shorter ones, two options each where a row has options."""
    config, options = graph.model.config, 2 if graph.has_options else 1
    draw = torch.Generator().manual_seed(1000 * rows + length)
    special = [getattr(config, f"{name}_token_id", None) for name in ("cls", "sep", "pad")]
    cls, sep, pad = special
    ordinary = torch.tensor([number for number in range(config.vocab_size) if number not in special])
    count = rows * options
    lengths = [max(min(5, length), length - 3 * row - row * length // count) for row in range(count)]
    ids = ordinary[torch.randint(len(ordinary), (count, length), generator=draw)]
    for row, end in enumerate(lengths):
        for place, number in ((0, cls), (end // 2, sep), (end - 1, sep)):
            ids[row, place] = ids[row, place] if number is None else number
        ids[row, end:] = pad or 0
    place = torch.arange(length)
    mask = (place < torch.tensor(lengths)[:, None]).long()
    given = {"input_ids": ids, "attention_mask": mask, "word_starts": (place % 3 != 0) * mask}
    given["token_type_ids"] = (place > length // 2) * mask
    given["characters"] = torch.randint(1, 100, (count, length, 7), generator=draw)
    if graph.has_options:
        given = {name: tensor.unflatten(0, (rows, options)) for name, tensor in given.items()}
    if graph.memories:
        for number, empty in enumerate(_memory(graph, count)):
            given[f"mems_{number}"] = torch.randn(empty.shape, generator=draw)
            given[f"mems_{number}"][0] = 0  # a document that begins
    return {name: given[name] for name in graph.inputs}


def _memory(graph: Graph, rows: int) -> tuple[Tensor, ...]:
    model: Any = graph.model
    return tuple(model.empty_mems(rows))


def _axes(graph: Graph, name: str) -> dict[int, str]:
    """The names of an input's dimensions that are of any size."""
    if name.startswith("mems_"):
        return {0: "batch"} if not graph.has_options else {0: "batch_options"}
    axes = ["batch", "options", "sequence"] if graph.has_options else ["batch", "sequence"]
    return dict(enumerate([*axes, "characters"] if name == "characters" else axes))


def _recorded(graph: Graph, example: Mapping[str, Tensor]) -> Any:
    """torch's ONNX program. Raises `UserError` if it cannot be made."""
    try:
        with warnings.catch_warnings(), _quiet():
            warnings.simplefilter("ignore")
            return torch.onnx.export(
                graph,
                tuple(example.values()),
                dynamo=True,
                opset_version=OPSET,
                dynamic_shapes=(tuple(_axes(graph, name) for name in example),),
                input_names=list(example),
                output_names=graph.outputs,
                verbose=False,
            )
    except (torch.onnx.OnnxExporterError, RuntimeError, ValueError) as error:
        lines = [line for line in str(error).splitlines() if line.startswith(("<class", "- Received"))]
        said = (lines or str(error).splitlines() or [type(error).__name__])[-1]
        kind = type(graph.model).__name__
        raise UserError(f"--onnx: {kind} cannot be recorded, so nothing is written: {said[:300]}", error) from None


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the exporter's own progress and advice."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir", "torch.export")]
    levels = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.ERROR)
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


def session_of(path: Path) -> Any:
    """onnxruntime's session of a file, on the CPU. Raises `UserError` if it cannot be opened."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # classes of its own, one for each kind of fault
        raise UserError(f"{path}: onnxruntime cannot open it ({str(error).splitlines()[0]})") from None


def run(session: Any, given: Mapping[str, Tensor]) -> list[Tensor]:
    """A session's outputs for the inputs that it knows of those given."""
    known = {one.name for one in session.get_inputs()}
    found = session.run(None, {name: tensor.numpy() for name, tensor in given.items() if name in known})
    return [torch.from_numpy(one) for one in found]


def _difference(path: Path, graph: Graph, rows: int, length: int) -> float:
    """The largest difference from torch. Raises `UserError` if it is above `TOLERANCE`."""
    given = rows_for(graph, rows, length)
    shape = f"{rows} rows of {length} tokens"
    try:
        found = run(session_of(path), given)
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            f"--onnx: {graph.name}.onnx does not run for {shape}, so nothing is written: a dimension is frozen "
            f"({str(error).splitlines()[0][:200]})"
        ) from None
    worst = 0.0
    for name, ours, theirs in zip(graph.outputs, graph(*given.values()), found, strict=True):
        far = difference(ours, theirs, given["attention_mask"])
        if not far <= TOLERANCE * max(1.0, float(ours.abs().max())):
            raise UserError(
                f"--onnx: {name} of {graph.name}.onnx differs from torch's by {far:.2g} for {shape}, so nothing is "
                "written"
            )
        worst = max(worst, far)
    return worst


def difference(ours: Tensor, theirs: Tensor, mask: Tensor) -> float:
    """The largest between two outputs, of tokens where mask [B, L]; infinite if their shapes differ."""
    if ours.shape != theirs.shape:
        return float("inf")
    far = (ours - theirs).abs()
    if mask.dim() == 2 and far.shape[:2] == mask.shape:
        far = far[mask != 0]
    return float(far.max())


def quantise(file: Path) -> Path:
    """Write the weights of `file`'s products in 8 bits to NAME_quantized.onnx beside it, the name that transformers.js
    looks for; activations are rounded to 8 bits while it runs (dynamic quantisation)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.shape_inference import quant_pre_process

    output, prepared = file.with_name(f"{file.stem}_quantized.onnx"), file.with_name(f"{file.stem}.prepared.onnx")
    large = file.with_name(f"{file.name}.data").exists()
    try:
        with _quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True, save_as_external_data=large)
            quantize_dynamic(str(prepared), str(output), weight_type=QuantType.QInt8, use_external_data_format=large)
    finally:
        for left in file.parent.glob(f"{prepared.name}*"):
            with suppress(OSError):
                left.unlink()
    return output
