"""What a run keeps: its directory, interruptions, resumed runs, damaged checkpoints."""

import os
import shutil
import signal
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from helpers import SMALL, fresh, trained

import train
from config import TINY_RECIPE, InputError, flag
from support.checkpoint import claim, read_results


def test_an_out_that_holds_a_run_is_refused(tmp_path, monkeypatch, capsys, small_world):
    monkeypatch.chdir(tmp_path)
    claim(Path("runs/x"), replace(SMALL, out="runs/x", seed=5))
    flags = [part for name, value in asdict(replace(SMALL, out="runs/x")).items()
             if not isinstance(value, bool) for part in (flag(name), str(value))]  # fmt: skip
    assert train.main(flags) == 2
    assert "seed 5, not 0" in capsys.readouterr().err
    assert [p.name for p in Path("runs/x").iterdir()] == ["config.json"]


def test_a_run_that_was_stopped_or_grew_is_that_which_was_not(tmp_path, monkeypatch, capsys, small_world, undrawn):
    """Bit for bit: one run is stopped after its first step, ends with its second and grows by a third. What is free may change
    on the way, and nothing else; a run never shrinks."""
    monkeypatch.chdir(tmp_path)
    flags = ["--eval-prompts", "1", "--eval-group", "2", "--group-size", "4", "--prompts-per-step", "2"]
    assert train.main([*flags, "--steps", "3", "--out", "whole"]) == 0
    assert train.main([*flags, "--steps", "2", "--out", "parts", "--stop-after", "1"]) == 0
    assert "stopped; continue with --resume parts" in capsys.readouterr().out
    assert not Path("parts/adapter").exists()
    assert train.main(["--resume", "parts"]) == 0 and read_results(Path("parts"))["after"]
    assert train.main(["--resume", "parts", "--steps", "3", "--save-every", "1"]) == 0
    assert "from here on: steps 3, not 2; save_every 1, not 50" in capsys.readouterr().out
    states = [torch.load(f"{run}/state.pt", weights_only=True)["adapter"] for run in ("whole", "parts")]
    assert all(torch.equal(states[0][name], state) for name, state in states[1].items())
    assert read_results(Path("whole")) == read_results(Path("parts"))
    assert len(Path("parts/log.jsonl").read_text().splitlines()) == 3
    assert train.main(["--resume", "parts", "--lr", "0.5", "--seed", "0", "--steps", "2"]) == 2
    error = capsys.readouterr().err
    assert f"the run has its own configuration: steps 3, not 2; lr {TINY_RECIPE['lr']}, not 0.5" in error
    assert "seed" not in error


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


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_offered(samples, plain_run, tmp_path, undrawn):
    config = replace(SMALL, save_every=1)
    trained(config, samples, tmp_path)
    state = tmp_path / "state.pt"
    state.write_bytes(state.read_bytes()[:1000])
    with pytest.raises(
        InputError, match=r"state.pt: the checkpoint is damaged .*remove it to continue from .*state.previous.pt"
    ):
        trained(config, samples, tmp_path)
    state.unlink()
    assert torch.equal(trained(config, samples, tmp_path), plain_run[1])  # which has saved once, at its end


DAMAGES = {
    "cut": lambda path: path.write_bytes(path.read_bytes()[:1000]),
    "empty": lambda path: path.write_bytes(b""),
    "a text": lambda path: path.write_text("version https://git-lfs.github.com/spec/v1"),
    "no object": lambda path: torch.save([1], path),
    "fields are missing": lambda path: torch.save({"step": 1}, path),
    "a field of another type": lambda path: torch.save(torch.load(path) | {"step": "one"}, path),
    "another optimizer": lambda path: torch.save(torch.load(path) | {"optimizer": {"state": {}, "param_groups": []}}, path),
    "a weight is missing": lambda path: torch.save(torch.load(path) | {"adapter": {}}, path),
}


@pytest.fixture(scope="module")
def one_step(samples, tmp_path_factory) -> Path:
    """A run of one step. Tests must leave it as it is."""
    run = tmp_path_factory.mktemp("one_step")
    trained(replace(SMALL, steps=1), samples, run)
    return run


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_checkpoint_that_does_not_fit_is_one_line_and_stays(samples, one_step, tmp_path, damage):
    shutil.copytree(one_step, tmp_path, dirs_exist_ok=True)
    DAMAGES[damage](tmp_path / "state.pt")
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    with pytest.raises(InputError, match="state.pt") as error:
        trained(SMALL, samples, tmp_path)
    assert "\n" not in str(error.value) and {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before


@pytest.mark.parametrize("change, said", [
    ({"lora_rank": 4}, "lora_rank 16, not 4"), ({"lora_alpha": 8, "seed": 3}, "seed 0, not 3; lora_alpha 32, not 8"),
    ({"method": "papo"}, "method 'answer-ced', not 'papo'"),
    ({"families": "counting"}, "families 'attribute.*, not 'counting'"),
])  # fmt: skip
def test_a_checkpoint_of_another_run_is_refused(samples, one_step, tmp_path, change, said):
    shutil.copy(one_step / "state.pt", tmp_path)
    with pytest.raises(InputError, match=f"state.pt: the checkpoint is that of another run: {said}$"):
        trained(replace(SMALL, **change), samples, tmp_path)


@pytest.mark.parametrize("change", [{"lora_rank": 4}, {"lora_layers": 2}])
def test_a_checkpoint_of_another_adapter_is_refused(samples, one_step, tmp_path, change):
    """One that does not say whose it is."""
    state = torch.load(one_step / "state.pt", weights_only=True)
    torch.save({name: value for name, value in state.items() if name != "config"}, tmp_path / "state.pt")
    with pytest.raises(InputError, match="that of another adapter: .*: expected the shape .*; found"):
        trained(replace(SMALL, **change), samples, tmp_path)


def test_an_out_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "x").write_text("mine")
    with pytest.raises(InputError, match="--out .*x: expected a folder that is there or can be made"):
        claim(tmp_path / "x", SMALL)
    assert (tmp_path / "x").read_text() == "mine"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"before": {}}', '{"before": {}, "after": 3}', "\x00"])
def test_damaged_results_are_named(tmp_path, text):
    (tmp_path / "results.json").write_text(text)
    with pytest.raises(InputError, match="results.json: "):
        read_results(tmp_path)
    assert (tmp_path / "results.json").read_text() == text
