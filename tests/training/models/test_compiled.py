"""`train.compile`: compiled layers compute what others do."""

from functools import partialmethod
from typing import Any

import pytest
import torch
from torch import nn

from reread.preprocessing.errors import UserError
from reread.training.assembly import compile_layers
from reread.training.models import model_spec
from reread.training.models.nezha import NezhaConfig, NezhaModel
from reread.training.parallel.mesh import Mesh
from tests.conftest import rarer


def nezha() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    none = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return NezhaModel(NezhaConfig(vocab_size=40, max_relative_position=None, **sizes, **none))


@pytest.mark.slow
@pytest.mark.parametrize("checkpointing", [rarer(False), True])
def test_compiled_layers_give_the_same_outputs_and_gradients(
    monkeypatch: pytest.MonkeyPatch, checkpointing: bool
) -> None:
    """Traced by the compiler but run by torch's own kernels, since generated ones need a C++ compiler."""
    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend="aot_eager", fullgraph=True))
    torch.compiler.reset()
    ids = torch.randint(1, 40, (3, 24), generator=torch.Generator().manual_seed(0))
    results = []
    for compiled in (False, True):
        model = nezha().double()
        if compiled:
            compile_layers(model, model_spec("nezha"), Mesh())
            assert sum(layer._compiled_call_impl is not None for layer in model.modules()) == 2
            if checkpointing:
                model.gradient_checkpointing_enable({"use_reentrant": False})
        output = model(ids).last_hidden_state
        output.square().sum().backward()
        results.append([output, *(p.grad for p in model.parameters() if p.grad is not None)])
    for plain, compiled in zip(*results, strict=True):
        torch.testing.assert_close(compiled, plain, rtol=1e-10, atol=1e-12)


@pytest.mark.long
@pytest.mark.slow
def test_few_graphs_serve_rows_of_all_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a mask and without: one graph of the first shape and one of all others. `fullgraph` refuses breaks."""
    graphs = []

    def noted(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    monkeypatch.setattr(nn.Module, "compile", partialmethod(nn.Module.compile, backend=noted, fullgraph=True))
    torch.compiler.reset()
    model = nezha().train()
    compile_layers(model, model_spec("nezha"), Mesh())
    for rows in range(2, 14):
        ids = torch.ones(rows, 8 * rows, dtype=torch.long)
        for mask in (None, torch.arange(8 * rows).expand(rows, -1) < 9):
            model(ids, attention_mask=mask).last_hidden_state.sum().backward()
    assert len(graphs) == 4


@pytest.mark.parametrize("name", ["ernie_doc", "longformer", "ran", "transformer_xl"])
def test_models_that_need_a_graph_for_each_shape_are_refused(name: str) -> None:
    """Else torch runs them uncompiled after a few."""
    with pytest.raises(UserError, match=rf"train\.compile: layers of {name} need a graph for each shape of rows"):
        compile_layers(nezha(), model_spec(name), Mesh())


def test_split_layers_are_not_compiled() -> None:
    with pytest.raises(UserError, match=r"train\.compile does not work with tensor parallelism"):
        compile_layers(nezha(), model_spec("nezha"), Mesh(tensor_size=2))
