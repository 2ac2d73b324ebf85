"""Which run goes on, who still has it, and whether all ranks mean the same one."""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from conftest import ROOT
from helpers import SMALL
from test_ranks import forked

from config import Config, InputError, configure, load_config
from support import elastic, ranks
from support.checkpoint import CHECKPOINT, changed_at, changes, claim, go_on


@pytest.fixture
def begun(tmp_path, monkeypatch):
    """A run in `x` that has come to step 3 of 6, and its flags."""
    monkeypatch.chdir(tmp_path)
    given = {"out": "x", "steps": 6, "group_size": 4}
    claim(Path("x"), configure(given))
    save_at(Path("x"), 3)
    return given


def save_at(out: Path, step: int) -> None:
    """A checkpoint of that step, without weights: none are looked at."""
    torch.save({"step": step, "cursor": 4 * step, "bad_steps": 0, "adapter": {}, "optimizer": {}}, out / CHECKPOINT)


def test_without_a_value_resume_starts_what_is_not_there_and_goes_on_with_what_is(begun, monkeypatch):
    other = begun | {"out": "y"}
    assert elastic.settle(other, elastic.HERE) == (configure(other), False)
    assert elastic.settle(begun, elastic.HERE) == (configure(begun), True)
    assert elastic.settle(begun, None) == (configure(begun), False)  # which `claim` refuses
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")  # nobody has said --resume
    assert elastic.settle(begun, None)[1] and not elastic.settle(other, None)[1]
    monkeypatch.setenv("WORLD_SIZE", "3")  # on which prompts_per_step depends, if it is nought
    monkeypatch.setattr(ranks, "start", lambda: "cpu")
    assert elastic.settle(begun, None)[1]


@pytest.mark.parametrize("change, message", [
    ({"seed": 5}, "--out x: holds a run of another configuration .seed 0, not 5"), ({"lr": 1.0}, "lr 0.001, not 1.0"),
    ({"steps": 2}, "steps 6, not 2"), ({"backbone": "qwen2.5-vl-3b"}, "backbone 'tiny', not"),
])  # fmt: skip
def test_a_directory_of_another_configuration_is_refused(begun, change, message):
    with pytest.raises(InputError, match=message):
        elastic.settle(begun | change, elastic.HERE)


@pytest.mark.parametrize("change", [
    {"audit_rows": 4}, {"update_rows": 2}, {"sample_rows": 8}, {"save_every": 1}, {"eval_prompts": 3}, {"eval_group": 3},
    {"cache": "elsewhere"}, {"steps": 3}, {"steps": 60},
])  # fmt: skip
def test_what_changes_no_trajectory_may_change_and_is_written_down_with_its_step(begun, change, capsys):
    (name, value), before = *change.items(), asdict(configure(begun))
    for resume in (Path("x"), elastic.HERE):
        config, goes_on = elastic.settle((change if resume == Path("x") else begun | change), resume)
        assert goes_on and config == replace(configure(begun), **change)
    Path("x/before.json").write_text("{}")
    Path("x/log.jsonl.partial").write_text("half")
    go_on(Path("x"), config)
    assert load_config(Path("x")) == config and changes(Path("x")) == [{"step": 3, name: [before[name], value]}]
    assert changed_at(Path("x"), 3) == {"changed": {name: [before[name], value]}} and changed_at(Path("x"), 4) == {}
    assert f"from here on: {name} {value!r}, not {before[name]!r}" in capsys.readouterr().out
    assert Path("x/before.json").is_file() == (not name.startswith("eval"))  # the base is measured in the same way
    assert not Path("x/log.jsonl.partial").exists()
    content = Path("x/config.json").read_text()
    go_on(Path("x"), config)
    assert Path("x/config.json").read_text() == content  # once


def drop(*names: str) -> None:
    """Makes the run an older one, of a time without these fields."""
    path = Path("x/config.json")
    path.write_text(json.dumps({name: value for name, value in json.loads(path.read_text()).items() if name not in names}))


def test_a_field_that_an_older_run_lacks_is_what_the_code_did_then_or_refused_by_name(begun, monkeypatch):
    drop("audit_rows")
    assert elastic.settle({}, Path("x"))[0] == configure(begun)  # free: it changes nothing
    drop("k", "tau_g")
    assert load_config(Path("x")).k == Config.k  # to be evaluated, it need not go on
    for resume in (Path("x"), elastic.HERE):
        with pytest.raises(InputError, match=r"x/config.json: k, tau_g: expected a value; found none"):
            elastic.settle(begun, resume)
    for name, value in (("k", 7), ("tau_g", 0.5)):
        field = Config.__dataclass_fields__[name]
        monkeypatch.setattr(field, "metadata", {**field.metadata, "before": value})
    config, _ = elastic.settle({}, Path("x"))
    assert (config.k, config.tau_g) == (7, 0.5)


def test_the_first_rank_takes_the_run_over_from_the_host_that_is_furthest(tmp_path, monkeypatch):
    """Rank 1's host has come to step 3, rank 0's to step 1 of the same; rank 2's has another run, further still."""
    given = {"out": "x", "steps": 6, "group_size": 4, "prompts_per_step": 4}
    for name, step, change in (("0", 1, {}), ("1", 3, {}), ("2", 5, {"seed": 9})):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        claim(Path("x"), configure(given | change))
        save_at(Path("x"), step)
    Path("../1/x/log.jsonl").write_text("{}\n{}\n{}\n")

    def body(rank: int) -> int:
        os.chdir(tmp_path / str(rank))
        os.environ["LOCAL_RANK"] = "0"
        config, goes_on = elastic.settle(given, elastic.HERE)
        return 0 if goes_on and config.seed == 0 else 1

    assert forked(3, tmp_path, body) == [0, 0, 0]
    for name in ("config.json", "state.pt", "log.jsonl"):
        assert (tmp_path / "0" / "x" / name).read_bytes() == (tmp_path / "1" / "x" / name).read_bytes()
    assert load_config(tmp_path / "2" / "x").seed == 9
    content = (tmp_path / "0" / "x" / "config.json").read_bytes()

    def other(rank: int) -> int:  # rank 0 holds another run than the one that hosts 1 and 2 might both be taken for
        os.chdir(tmp_path / str(rank))
        os.environ["LOCAL_RANK"] = "0"
        return ranks.command("x.py", lambda: elastic.settle(given | {"seed": 9}, elastic.HERE) and 0)

    assert forked(3, tmp_path, other) == [2, 2, 2] and (tmp_path / "0" / "x" / "config.json").read_bytes() == content
    assert "x.py: --out x: holds a run of another configuration (seed 0, not 9)" in (tmp_path / "0.err").read_text()


DIFFER = {
    "configuration": (["seed 0", "lr 0.1"], ["seed 0", "lr 0.2"], "expected what rank 0 has, lr 0.1; found lr 0.2"),
    "data": (["a", "b"], ["a"], "expected what rank 0 has, b; found nothing more"),
    "versions": (["torch 2"], ["torch 2", "x"], "expected what rank 0 has, nothing more; found x"),
}


@pytest.mark.parametrize("part", DIFFER)
def test_a_rank_that_differs_is_named(tmp_path, part):
    ours, theirs, said = DIFFER[part]

    def body(rank: int) -> int:
        parts = {"first": ["same"], part: theirs if rank else ours, "last": ["same"]}
        return ranks.command("x.py", lambda: elastic.compare(parts))

    assert forked(2, tmp_path, body) == [2, 2]
    assert f"x.py: rank 1 on {os.uname().nodename}: {part}: {said}" in (tmp_path / "0.err").read_text()


def test_what_is_compared(monkeypatch, samples, tiny_policy):
    """Places and rows at a time may differ, whatever else there is may not."""
    seen = []
    monkeypatch.setattr(elastic, "compare", seen.append)
    for config in (SMALL, replace(SMALL, out="y", cache="z", data="w", audit_rows=3), replace(SMALL, seed=1)):
        elastic.agree(config, tiny_policy, {"train": samples[:2]})
    assert seen[0] == seen[1] != seen[2]
    elastic.agree(SMALL, tiny_policy, {"train": [samples[0], replace(samples[1], boxes=((0.0, 0.0, 9.0, 9.0),))]})
    assert [a == b for a, b in zip(seen[0]["data"], seen[-1]["data"])] == [True, False]
    assert any("embed_tokens" in line for line in seen[0]["weights"]) and seen[0]["versions"][0].startswith("torch ")


def test_a_killed_process_leaves_a_temporary_folder_to_the_next(tmp_path, monkeypatch):
    code = f"""
import os, sys; sys.path[:0] = [{str(ROOT)!r}]
import fcntl, tempfile
from pathlib import Path
with tempfile.TemporaryDirectory(prefix={elastic.SCRATCH!r}) as folder, open(folder + "/lock", "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    os._exit(9)
"""
    subprocess.run([sys.executable, "-c", code], env=os.environ | {"TMPDIR": str(tmp_path)})
    (left,) = tmp_path.iterdir()
    monkeypatch.setattr(elastic.tempfile, "tempdir", str(tmp_path))
    with elastic.scratch() as one, elastic.scratch() as other:
        assert one.is_dir() and other.is_dir() and one != other and not left.exists()
    assert list(tmp_path.iterdir()) == []
