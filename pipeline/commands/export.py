"""`reread export`: a checkpoint to a Hugging Face folder, and to the Hugging Face Hub."""

from collections.abc import Sequence
from pathlib import Path

from reread.pipeline.run_folder.export import export
from reread.preprocessing.errors import UserError
from reread.training.exchange.hub import check_push, push


def export_and_push(
    run: Path,
    given: Sequence[str],
    step: int | None,
    name: str | None,
    average: str | None = None,
    onnx: bool = False,
    int8: bool = False,
) -> None:
    """`export`, where `given` may be the folder to write and settings of the card; with `name` push it to the Hub.

    Raises `UserError` for other settings, for `int8` without `onnx`, and before any work for a name to which nothing
    can be pushed.
    """
    overrides = [one for one in given if "=" in one]
    outputs = [one for one in given if "=" not in one]
    if len(outputs) > 1:
        raise UserError(f"export: {' and '.join(outputs)} are given; one folder is written")
    if wrong := next((one for one in overrides if not one.startswith("card.")), None):
        raise UserError(f"`{wrong}`: a checkpoint is exported as it was trained; only card.KEY=VALUE can be given")
    if int8 and not onnx:
        raise UserError("--int8: weights of 8 bits are those of an ONNX file; give --onnx, too")
    target = check_push(name) if name is not None else None
    folder = export(run, Path(outputs[0]) if outputs else None, step, overrides, average, onnx=onnx, int8=int8)
    if target is not None:
        push(folder, target)
