"""What a run keeps: its directory, interruptions, resumed runs, damaged checkpoints."""

import json
import os
import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers import SMALL, fresh, trained

import train
from config import TINY_RECIPE, InputError, flag
from support.checkpoint import claim


def test_an_out_that_holds_a_run_is_refused(tmp_path, monkeypatch, capsys, small_world):
    monkeypatch.chdir(tmp_path)
    claim(Path("runs/x"), replace(SMALL, out="runs/x", seed=5))
    flags = [part for name, value in asdict(replace(SMALL, out="runs/x")).items()
             if not isinstance(value, bool) for part in (flag(name), str(value))]  # fmt: skip
    assert train.main(flags) == 2
    assert "seed 5, not 0" in capsys.readouterr().err
    assert [p.name for p in Path("runs/x").iterdir()] == ["config.json"]


def test_a_resumed_run_equals_an_uninterrupted_one(samples, tmp_path):
    whole = trained(replace(SMALL, steps=4), samples, tmp_path / "whole")
    trained(replace(SMALL, steps=2), samples, tmp_path / "halves")
    assert torch.equal(whole, trained(replace(SMALL, steps=4), samples, tmp_path / "halves"))
    assert len((tmp_path / "halves" / "log.jsonl").read_text().splitlines()) == 4


def test_stop_after_is_an_interruption_that_resume_continues_bit_for_bit(tmp_path, monkeypatch, capsys, small_world):
    monkeypatch.chdir(tmp_path)
    for picture in ("learning_curves", "audit_sheet"):  # drawn elsewhere, and slowly
        monkeypatch.setattr(train.pictures, picture, lambda *_: None)
    flags = ["--steps", "3", "--eval-prompts", "1", "--eval-group", "2", "--group-size", "4", "--prompts-per-step", "2"]
    assert train.main([*flags, "--out", "whole"]) == 0
    assert train.main([*flags, "--out", "halves", "--stop-after", "2"]) == 0
    assert "stopped; continue with --resume halves" in capsys.readouterr().out
    assert not Path("halves/adapter").exists()
    assert train.main(["--resume", "halves"]) == 0
    states = [torch.load(f"{run}/state.pt", weights_only=True) for run in ("whole", "halves")]
    assert all(torch.equal(states[0]["adapter"][n], states[1]["adapter"][n]) for n in states[0]["adapter"])
    assert json.loads(Path("whole/results.json").read_text()) == json.loads(Path("halves/results.json").read_text())
    assert train.main(["--resume", "halves", "--lr", "0.5", "--seed", "0"]) == 2
    error = capsys.readouterr().err
    assert f"the run has its own configuration: lr {TINY_RECIPE['lr']}, not 0.5" in error and "seed" not in error


def test_sigterm_finishes_the_step_and_saves(samples, tmp_path, monkeypatch):
    policy, _ = fresh(SMALL)
    step = train.train_step

    def interrupted(*args):
        os.kill(os.getpid(), signal.SIGTERM)
        return step(*args)

    monkeypatch.setattr(train, "train_step", interrupted)
    assert train.train(policy, samples, SMALL, tmp_path) is False
    assert torch.load(tmp_path / "state.pt", weights_only=True)["step"] == 1
    assert len((tmp_path / "log.jsonl").read_text().splitlines()) == 1


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(samples, tmp_path):
    config = replace(SMALL, save_every=1)
    trained(config, samples, tmp_path)
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(
        InputError, match=r"state.pt: the checkpoint is damaged .*remove it to continue from .*state.previous.pt"
    ):
        trained(config, samples, tmp_path)
    state.unlink()
    assert torch.equal(trained(config, samples, tmp_path), trained(config, samples, tmp_path / "again"))
