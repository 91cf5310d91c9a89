"""The shares of the weights that data-parallel processes update: how equal they are, and where they begin."""

import itertools
import math

import pytest
import torch
from torch import nn

from reread.pipeline.recipe.load import load_recipe
from reread.preprocessing.errors import UserError
from reread.training.assembly import resolve
from reread.training.models.build import build_model
from reread.training.parallel.gradients import BLOCK, flat_offsets
from reread.training.parallel.layout import Slice
from reread.training.parallel.mesh import Mesh
from reread.training.parallel.shares import Shares, shares_of


def model_of(recipe: str, vocab_size: int) -> nn.Module:
    train = load_recipe(recipe, ["train.init=null"], "train").train
    assert train is not None
    resolved = resolve(train, vocab_size)
    with torch.device("meta"):
        return build_model(resolved.head, resolved.config, None, 0)


@pytest.mark.parametrize(("recipe", "vocab_size"), [("nezha-large", 21128), ("longformer-large", 50265)])
def test_shares_of_large_models_are_equal_to_a_thousandth(recipe: str, vocab_size: int) -> None:
    """Of up to 16 processes: a block of rows is up to 4,096 elements; and each begins at a row and at a block."""
    model = model_of(recipe, vocab_size)
    offsets, size = flat_offsets(model.parameters())
    for ranks in (2, 3, 8, 16, 64):
        shares = Shares(offsets, size, ranks, Mesh(world=ranks, data_size=ranks))
        sizes = [end - begin for begin, end in itertools.pairwise(shares.cuts)]
        assert sum(sizes) == size
        assert max(sizes) < 1.001 * min(sizes) or (ranks == 64 and max(sizes) < 1.002 * min(sizes))
        assert all(cut % BLOCK == 0 for cut in shares.cuts)
        divided = 0
        for parameter, offset in offsets.items():
            rows = shares.rows(parameter)
            assert (rows[0], rows[-1]) == (0, len(parameter)) and list(rows) == sorted(rows)
            row = parameter[0].numel()
            inside = [cut for cut in shares.cuts if offset < cut < offset + parameter.numel()]
            assert [offset + one * row for one in rows if 0 < one < len(parameter)] == inside
            divided += len(inside)
        assert divided >= ranks // 2  # at least half of them begin inside a tensor


def test_tensors_that_are_updated_whole_are_not_cut() -> None:
    """Those of seven processes would be, of matrices of eight blocks."""
    model = nn.Sequential(*(nn.Linear(128, 64) for _ in range(20)))
    offsets, size = flat_offsets(model.parameters())
    whole = {parameter for parameter in model.parameters() if parameter.dim() == 2}
    inside = []
    for kept in (set(), whole):
        shares = Shares(offsets, size, 7, Mesh(world=7, data_size=7), kept)
        rows = [shares.rows(parameter) for parameter in whole]
        inside.append(sum(0 < row < 64 for one in rows for row in one))
    assert inside[0] >= 4 and inside[1] == 0


def test_parts_of_a_divided_tensor_are_the_whole_one_at_every_split() -> None:
    """9 rows of 4 columns, padded to 6 rows a tensor rank where they are split by rows."""
    weights = nn.Parameter(torch.zeros(6, 4))
    for dim, length in ((None, 0), (0, 6), (1, 4)):
        parts = []
        for tensor_rank, data_rank in itertools.product(range(2 if dim is not None else 1), range(3)):
            mesh = Mesh(world=6, tensor_rank=tensor_rank, tensor_size=2, data_rank=data_rank, data_size=3)
            shares = Shares({nn.Parameter(torch.zeros(3, BLOCK)): 0}, 3 * BLOCK, 3, mesh)
            shares.rows = lambda parameter: (0, 1, 4, 6)  # type: ignore[method-assign]
            shape = {None: (6, 4), 0: (9, 4), 1: (6, 8)}[dim]
            part = Slice(shape, dim, () if dim is None else (0, length, 2 * length), tensor_rank)
            parts.append(shares.slice_of(weights, part).region())
        counted = torch.zeros(shape)
        for region in parts:
            counted[region] += 1
        assert (counted == 1).all()


def test_rows_before_the_first_that_learns_are_in_no_share_of_the_moments() -> None:
    parameter = nn.Parameter(torch.zeros(4, BLOCK))
    parts = []
    for rank in range(2):
        shares = Shares({parameter: 0}, 4 * BLOCK, 2, Mesh(world=2, data_rank=rank, data_size=2))
        assert shares.rows(parameter) == (0, 2, 4)
        parts.append(shares.slice_of(parameter, Slice((1, BLOCK)), first_row=3).region()[0])
    assert parts == [slice(0, 0), slice(0, 1)]


def test_what_cannot_be_divided_is_said_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    parameters = [nn.Parameter(torch.zeros(3, BLOCK + 1)), nn.Parameter(torch.zeros(5))]
    with caplog.at_level("INFO", "reread"):
        assert shares_of(parameters, Mesh(), 1) is None
        assert shares_of(parameters, Mesh(world=2, data_size=2), 2) is not None
    alone, divided = caplog.messages
    assert alone == "optimizer state: nothing to divide with one data-parallel process"
    assert divided.startswith("optimizer state: divided over 2 data-parallel processes, 2,560 of 5,120 elements each; ")
    with pytest.raises(UserError, match=r"train\.parallel\.shard_state: 2 tensors .* over 4 .*; set it to false"):
        shares_of(parameters, Mesh(world=4, data_size=4), 4)
    with pytest.raises(UserError, match=r"train\.parallel\.shard_state: .* no dimension .* set it to false"):
        shares_of([*parameters, nn.Parameter(torch.tensor(1.0))], Mesh(world=2, data_size=2), 2)
    assert math.lcm(BLOCK, BLOCK + 1) > parameters[0].numel()  # so it is held whole
