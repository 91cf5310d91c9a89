"""The metrics log across a kill, and the progress line."""

import json
import math
import resource
import struct
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from reread.preprocessing.errors import UserError
from reread.training.exchange.run_export import _figures
from reread.training.objectives import OBJECTIVES
from reread.training.parallel.mesh import Mesh
from reread.training.run.metrics import MetricsLog, peak_flops, progress_line, quality, read_metrics
from reread.training.run.writers import TensorBoard


def test_a_resumed_run_drops_what_lies_past_its_checkpoint_and_a_half_written_line(tmp_path) -> None:
    lines = [json.dumps({"step": step, "loss": float(step)}) for step in (1, 2, 3, 4)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"step": 5, "lo')
    log = MetricsLog(tmp_path, 3, 1, [TensorBoard(tmp_path, 3)])
    log.write(4, {"loss": 40.0})
    log.close()
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 2.0, 3.0, 40.0]
    assert list((tmp_path / "tensorboard").iterdir())


def test_a_figure_that_is_not_finite_stays_out_of_the_json(tmp_path) -> None:
    log = MetricsLog(tmp_path, 0)
    log.write(1, {"loss": 1.0, "mfu": float("nan")})
    log.close()
    line = json.loads((tmp_path / "metrics.jsonl").read_text(), parse_constant=pytest.fail)
    assert line == {"step": 1, "loss": 1.0, "time": pytest.approx(time.time(), abs=3600)}


def test_a_full_disk_is_one_line(tmp_path) -> None:
    log = MetricsLog(tmp_path, 0)
    log._file = Path("/dev/full").open("a")  # noqa: SIM115
    with pytest.raises(UserError, match=r"metrics.jsonl: cannot write step 1 \(No space left on device\)"):
        log.write(1, {"loss": 1.0})


@pytest.mark.parametrize("seed", range(20))
def test_after_many_attempts_the_file_is_what_each_kept_and_kept_lines_are_not_written_again(seed, tmp_path) -> None:
    """Each attempt begins at any step that was reached, and ends anywhere in its last line."""
    random, path, kept = Random(seed), tmp_path / "metrics.jsonl", b""
    for _ in range(random.randrange(2, 12)):
        steps = [json.loads(line)["step"] for line in kept.splitlines()]
        resumed = random.choice([0, *steps, *(step + 1 for step in steps)])
        kept = b"".join(line for line in kept.splitlines(keepends=True) if json.loads(line)["step"] <= resumed)
        log = MetricsLog(tmp_path, resumed)
        assert path.read_bytes() == kept
        for step in range(resumed + 1, resumed + random.randrange(1, 9)):
            log.write(step, {"loss": random.random(), "tokens": step * 10.0 ** random.randrange(-300, 300)})
            if random.random() < 0.3:
                log.write(step, {"validation_loss": random.random()})
        log.close()
        written = path.read_bytes()
        assert written.startswith(kept)
        ends = [end + 1 for end in range(len(kept), len(written)) if written[end : end + 1] == b"\n"]
        cut = random.randrange(len(kept), len(written) + 1)
        path.write_bytes(written[:cut] + random.choice([b"", b"\0" * 100]))
        kept = written[: max((end for end in ends if end <= cut), default=len(kept))]
        assert read_metrics(tmp_path) == [json.loads(line) for line in kept.splitlines()]


def test_a_disk_that_is_full_within_a_line_costs_that_line(tmp_path) -> None:
    log = MetricsLog(tmp_path, 0)
    log.write(1, {"loss": 1.0})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, ((tmp_path / "metrics.jsonl").stat().st_size + 9, limits[1]))
    try:
        with pytest.raises(UserError, match=r"metrics.jsonl: cannot write step 2 \(File too large\)"):
            log.write(2, {"loss": 2.0})
        with suppress(OSError):
            log._file.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (tmp_path / "metrics.jsonl").read_bytes().endswith(b'\n{"step": ')
    again = MetricsLog(tmp_path, 1)
    again.write(2, {"loss": 3.0})
    again.close()
    assert [line["loss"] for line in read_metrics(tmp_path)] == [1.0, 3.0]


WRITES_UNTIL_KILLED = """
import sys
from itertools import count
from pathlib import Path
from reread.training.run.metrics import MetricsLog
log = MetricsLog(Path(sys.argv[1]), int(sys.argv[2]))
print("begun", flush=True)
for step in count(int(sys.argv[2]) + 1):
    log.write(step, {f"figure_{number}": 1 / step for number in range(300)})
"""


def test_after_a_kill_while_lines_are_written_the_next_attempt_goes_on(tmp_path) -> None:
    for _ in range(3):
        last = max((line["step"] for line in read_metrics(tmp_path)), default=0)
        command = [sys.executable, "-c", WRITES_UNTIL_KILLED, str(tmp_path), str(last)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout and process.stdout.readline() == b"begun\n"
            size = (tmp_path / "metrics.jsonl").stat().st_size
            while (tmp_path / "metrics.jsonl").stat().st_size <= size:
                pass
            process.kill()
        steps = [line["step"] for line in read_metrics(tmp_path)]
        assert steps == list(range(1, len(steps) + 1)) and len(steps) > last


@pytest.mark.long
def test_a_long_history_is_continued_and_exported_without_being_held(tmp_path) -> None:
    """100,000 lines, of which a hundred are past the checkpoint."""
    steps = 100_000
    line = '{"step": %d, "time": 1e9, "loss": %r, "masked_lm_accuracy": 0.25, "tokens": 512.0, "mfu": 0.5}\n'
    (tmp_path / "metrics.jsonl").write_text("".join(line % (step, 1 / step) for step in range(1, steps + 1)))

    def most_bytes(of: Callable[[], Any]) -> int:
        tracemalloc.start()
        of()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert most_bytes(lambda: MetricsLog(tmp_path, steps - 100).close()) < 2**18
    assert most_bytes(lambda: _figures(tmp_path, steps)) < 2**18
    assert _figures(tmp_path, steps) == {"loss": 1 / (steps - 100), "masked_lm_accuracy": 0.25}
    assert _figures(tmp_path, 7)["loss"] == 1 / 7


def test_values_are_read_bit_for_bit_as_json_reads_them(tmp_path) -> None:
    random = Random(0)
    drawn = (struct.unpack("d", random.randbytes(8))[0] for _ in range(5000))
    lines = [json.dumps({"step": step, "x": value}) for step, value in enumerate(drawn) if math.isfinite(value)]
    lines += ['{"step": 1, "x": 1, "x": 2}', '{"step": true}', '{"step": 1, "\\ud800": 0.1}', '{"step": 1, "x": 1E3}\r']
    lines += [
        '{"step": 1, "x": 1%s}' % ("0" * 300),
        '{"step": 1, "x": 1e308, "y": 1e308}',
        '\ufeff{"step": 5, "x": -0.0}',
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="")
    assert repr(read_metrics(tmp_path)) == repr([json.loads(line.encode()) for line in lines])


def test_a_damaged_line_before_the_checkpoint_is_left_to_those_who_read_it(tmp_path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\nnull\n{"step": 3}\n{"step": 4}\n')
    MetricsLog(tmp_path, 3).close()
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\nnull\n{"step": 3}\n'
    with pytest.raises(UserError, match="line 2 is not a line of metrics"):
        read_metrics(tmp_path)


def test_losses_are_means_over_predictions_and_pairs_and_the_first_is_the_headline() -> None:
    task = OBJECTIVES["masked_lm"]
    totals = dict(zip(task.figures, [30.0, 5.0, 10.0, 4.0, 3.0, 4.0, 0.0, 0.0, 4.0, 100.0], strict=True))
    assert task.summary(totals, 7) == {
        "loss": 3.0,
        "masked_lm_loss": 3.0,
        "masked_lm_accuracy": 0.5,
        "bits_per_token": pytest.approx(3.0 / math.log(2)),
        "next_sentence_loss": 1.0,
        "next_sentence_accuracy": 0.75,
    }
    without_pairs = {name: 0.0 if "next" in name or name == "pairs" else value for name, value in totals.items()}
    assert "next_sentence_loss" not in task.summary(without_pairs, 7)
    spans = task.summary({**totals, "span_sum": 20.0, "in_spans": 10.0}, 7)
    assert (spans["loss"], spans["span_loss"]) == (3.0, 2.0)


@pytest.mark.parametrize(("rows", "ranks"), [(8, 2), (7, 3), (14400, 80), (5, 4)])
def test_every_row_belongs_to_exactly_one_rank(rows, ranks) -> None:
    lanes = [Mesh(data_rank=rank, data_size=ranks).share(rows) for rank in range(ranks)]
    assert [lane for owned in lanes for lane in owned] == list(range(rows))
    assert max(map(len, lanes)) - min(map(len, lanes)) <= 1


def test_the_peak_of_mfu_is_the_recipes_or_measured_and_is_logged(caplog) -> None:
    assert peak_flops(3.0, torch.device("cpu")) == 3e12
    with caplog.at_level("INFO", logger="reread"):
        assert peak_flops(None, torch.device("cpu")) > 0
    assert "MFU peak" in caplog.text and "measured" in caplog.text


@pytest.mark.parametrize(
    ("name", "teraflops"),
    [("AMD Instinct MI250X", 191.5), ("AMD Instinct MI300X", 1307), ("NVIDIA H100 80GB HBM3", 989), ("other", None)],
)
def test_the_peak_of_a_gpu_is_found_by_its_name(monkeypatch, caplog, name, teraflops) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    with caplog.at_level("INFO", logger="reread"):
        peak = peak_flops(None, torch.device("cuda"))
    assert peak == teraflops * 1e12 if teraflops else math.isnan(peak)
    assert ("unknown for other" in caplog.text) == (teraflops is None)


def test_the_progress_line_shows_the_loss_scale_only_in_fp16() -> None:
    values = dict.fromkeys(
        ("loss", "masked_lm_loss", "masked_lm_accuracy", "learning_rate", "gradient_norm", "tokens_per_second"), 1.0
    ) | {"mfu": float("nan"), "seconds_left": 3723.0, "loss_scale": 1.0}
    assert progress_line(5, 10, values, {}).endswith("| MFU - | 1:02:03 left")
    assert "scale" not in progress_line(5, 10, values, {})
    assert "loss 1 | lr" in progress_line(5, 10, values, {"order": "reorder_loss"})  # there was nothing to count
    assert "loss 1 order 3.5 | lr" in progress_line(5, 10, values | {"reorder_loss": 3.5}, {"order": "reorder_loss"})
    assert "loss nan |" in progress_line(5, 10, values | {"loss": float("nan")}, {})
    assert "scale 1024" in progress_line(5, 10, values | {"loss_scale": 1024.0}, {"acc": "masked_lm_accuracy"})


def test_tables_show_the_masked_tokens_loss_once() -> None:
    names = ["loss", "masked_lm_loss", "masked_lm_accuracy", "reorder_loss", "learning_rows", "validation_loss"]
    assert quality(names) == ["masked_lm_loss", "masked_lm_accuracy", "reorder_loss", "validation_loss"]
    assert quality([*names, "validation_masked_lm_loss"])[3:] == ["validation_masked_lm_loss"]
    assert quality(["loss", "perplexity"]) == ["loss", "perplexity"]


@pytest.mark.parametrize(
    "line",
    [
        b"null",
        b"{}",
        b'{"step": "1"}',
        b"\xff\xfe",
        b"[1]",
        b"{",
        b'{"step": 1, "loss": "2"}',
        b'{"step": 1, "loss": NaN}',
        b'{"step": 1, "loss": 1' + b"0" * 400 + b"}",
        b'{"step": 1' + b"0" * 400 + b"}",
    ],
)
def test_a_line_that_is_not_metrics_is_named(line: bytes, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.5}\n' + line + b'\n{"step": 2')
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not a line of metrics; remove it"):
        read_metrics(tmp_path)
    with pytest.raises(UserError, match=r"metrics\.jsonl: line 2 is not a line of metrics; remove it"):
        MetricsLog(tmp_path, 0)
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1, "loss": 2.5}\n{"step": 2')
    assert read_metrics(tmp_path) == [{"step": 1, "loss": 2.5}]
