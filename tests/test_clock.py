"""What a step costs while it runs, and an end for want of memory."""

import re

import pytest
import torch

import train
from config import Config
from support import ranks
from support.clock import Clock, less_memory, peak_memory


def test_parts_are_timed_by_name():
    clock = Clock()
    for name in ("sample", "judge"):
        with clock(name):
            pass
    assert list(clock.seconds) == ["sample", "judge"] and all(0 <= s < 1 for s in clock.seconds.values())


def test_the_part_that_runs_out_of_memory_is_named():
    with pytest.raises(torch.OutOfMemoryError) as caught, Clock()("judge"):
        raise torch.OutOfMemoryError("CUDA out of memory")
    assert re.fullmatch(r"in the part `judge` of a step, at a peak of [\d.]+ GiB", caught.value.__notes__[0])


def test_peak_memory_is_that_of_this_process():
    before = peak_memory()
    block = torch.ones(64 << 20)  # 256 MiB
    assert peak_memory() >= max(before, block.numel() * 4 / 2**30)


def test_what_to_try_halves_the_rows_that_are_set_or_all_of_them():
    said = less_memory(Config(group_size=32, k=3, audit_rows=40, out="runs/x"))
    assert "--resume runs/x --audit-rows 20 --update-rows 16 --sample-rows 64;" in said
    assert said.endswith("--group-size 16 or --max-new-tokens 64")


def test_a_run_without_enough_memory_ends_with_three_and_goes_on_with_less(
    tmp_path, monkeypatch, capsys, small_world, undrawn
):
    monkeypatch.chdir(tmp_path)
    flags = ["--steps", "2", "--eval-prompts", "1", "--eval-group", "2", "--group-size", "4", "--prompts-per-step", "1"]
    judge, calls = train.judge, []

    def greedy(policy, group, config):
        calls.append(group)
        if len(calls) > 1 and not config.audit_rows:  # the second step
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB")
        return judge(policy, group, config)

    monkeypatch.setattr(train, "judge", greedy)
    assert train.main([*flags, "--save-every", "1", "--out", "x"]) == 3
    error = capsys.readouterr().err
    assert "train.py: out of memory; in the part `judge` of a step" in error and "--resume x --audit-rows 8" in error
    assert "Traceback" not in error and torch.load("x/state.pt", weights_only=True)["step"] == 1
    assert train.main(["--resume", "x", "--audit-rows", "8"]) == 0
    assert "from here on: audit_rows 8, not 0" in capsys.readouterr().out
    assert len((tmp_path / "x" / "log.jsonl").read_text().splitlines()) == 2


def test_a_program_that_meets_it_says_one_line(capsys):
    def action():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert ranks.command("x.py", action) == 3 and capsys.readouterr().err == "x.py: out of memory\n"
    with pytest.raises(torch.OutOfMemoryError):
        ranks.command("x.py", action, debug=True)
