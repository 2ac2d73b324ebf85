"""Benchmarks from files to scores with a random Qwen2.5-VL: real rows and images, resume, wrong input, Table 2."""

import json
import re
from pathlib import Path

import pytest
import torch
from helpers import random_policy
from PIL import Image
from test_tasks import ASKABLE, RAW, SAMPLES, needs_samples

import evaluate
from benchmarks import harness, tasks
from benchmarks.harness import Asking
from benchmarks.tasks import BENCHMARKS, continuations, find_rows, to_rows
from config import Config, InputError
from models import Policy
from support.checkpoint import claim

QUICK = Asking(source=SAMPLES, max_new_tokens=2, batch_size=8)


def blind_source(source: Path) -> Path:
    """A source with six questions of VLMsAreBlind, each with an image of its own."""
    folder = source / "vlmsareblind"
    (folder / "images").mkdir(parents=True)
    for i in range(6):
        Image.new("RGB", (40 + 8 * i, 40), (40 * i, 0, 0)).save(folder / "images" / f"{i}.png")
    changes = [{"image": f"images/{i}.png", "prompt": "how many " + "squares " * i} for i in range(6)]
    write(folder, [RAW["vlmsareblind"] | change for change in changes])
    return source


@pytest.fixture
def blind(tmp_path) -> Path:
    return blind_source(tmp_path / "source")


def write(folder: Path, rows: list[dict]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def lines(out: Path, name: str) -> list[dict]:
    return [json.loads(line) for line in (out / "benchmarks" / f"{name}.jsonl").read_text().splitlines()]


# ── end to end ──
@needs_samples
@pytest.mark.parametrize("name", BENCHMARKS)
def test_real_rows_end_to_end(name, policy, tmp_path):
    result = harness.evaluate(policy, name, tmp_path, QUICK, "random")
    (_, rows, asked) = ASKABLE[name]
    assert len(result["items"]) == asked and result["not_asked"] == rows - asked and result["revision"] == "local files"
    replies = lines(tmp_path, name)
    assert [r["id"] for r in replies] == [item["id"] for item in result["items"]]
    assert [r["correct"] for r in replies] == [item["correct"] for item in result["items"]]
    (tmp_path / "replies.jsonl").write_text("".join(json.dumps({k: r[k] for k in ("response", "id")}) + "\n" for r in replies))
    again = harness.score_file(tmp_path / "replies.jsonl", name, QUICK)  # anybody's replies are scored in the same way
    assert again["metrics"] == result["metrics"]


@needs_samples
def test_the_command_prints_scores_with_all_that_qualifies_them(backbone, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    flags = ["--backbone", str(backbone), "--source", str(SAMPLES), "--max-new-tokens", "2", "--limit", "3"]
    assert evaluate.main([*flags, "--benchmarks", "arc_easy", "countbench"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == harness.HEADER.splitlines() and all(line.startswith("| arc_easy |") for line in out[2:5])
    assert "rows not asked, being incomplete: 1" in out[4]
    assert re.search(r"\| countbench \| accuracy \| .* \| (\d) \| 491 \| \1 \| number \| test \| local files \|", out[5])
    assert evaluate.main([*flags, "--benchmarks", "countbench", "--json"]) == 0
    n = json.loads(capsys.readouterr().out)["countbench"]["n"]
    assert 0 < n <= 3 and len(lines(tmp_path / "runs" / "random-base", "countbench")) == n


def test_a_higher_limit_keeps_the_questions_of_a_lower_one():
    rows = to_rows("mmbench", [RAW["mmbench"] | {"index": i + 1_000_000 * k} for k in range(2) for i in range(20)])
    five, nine = harness.choose(rows, 5), harness.choose(rows, 9)
    assert len(five) == 10 and len(nine) == 18 and {r.id for r in five} < {r.id for r in nine}
    assert len({r.group for r in five}) == 5 and harness.choose(rows, 0) == rows


def test_reasoning_that_is_cut_off_is_no_answer():
    """Where the prompt opens <think>, the reply is kept with it; one that never closes it is all reasoning."""
    policy = random_policy("qwen2_5_vl")
    rows = to_rows("vlmsareblind", [RAW["vlmsareblind"] | {"image": Image.new("RGB", (32, 32))}])
    policy.tokenizer.chat_template += "<think>\n"
    (thought,) = harness.respond(policy, rows, Asking(max_new_tokens=3))
    spoken = policy.sample(policy.read_batch([harness.prompt_of(policy, rows[0], Asking())]), 1, 3, 0.0, ()).ids[0]
    assert thought == "<think>" + policy.decode(spoken)
    assert tasks.judge(BENCHMARKS["vlmsareblind"], rows[0], "<think>4")["value"] is None


def test_the_instruction_of_training_can_be_added(policy):
    rows = to_rows("vlmsareblind", [RAW["vlmsareblind"] | {"image": Image.new("RGB", (32, 32))}])
    (plain, _), (added, _) = (harness.prompt_of(policy, rows[0], Asking(instruction=flag)) for flag in (False, True))
    assert "inside <answer> </answer>" in policy.decode(added) and "<answer>" not in policy.decode(plain)


# ── resume ──
def test_a_killed_evaluation_goes_on_where_it_stopped(policy, blind, tmp_path, monkeypatch):
    asking, asked, respond = Asking(source=blind, max_new_tokens=3, batch_size=2), [], harness.respond
    whole = harness.evaluate(policy, "vlmsareblind", tmp_path / "whole", asking, "random")

    def killed(policy, rows, asking):
        asked.append([row.id for row in rows])
        if len(asked) == 2:
            raise KeyboardInterrupt
        return respond(policy, rows, asking)

    monkeypatch.setattr(harness, "respond", killed)
    with pytest.raises(KeyboardInterrupt):
        harness.evaluate(policy, "vlmsareblind", tmp_path / "cut", asking, "random")
    assert [reply["id"] for reply in lines(tmp_path / "cut", "vlmsareblind")] == ["0", "1"]
    path = tmp_path / "cut" / "benchmarks" / "vlmsareblind.jsonl"
    path.write_bytes(path.read_bytes()[:-9])  # half of a line
    result = harness.evaluate(policy, "vlmsareblind", tmp_path / "cut", asking, "random")
    assert asked[2:] == [["1", "2"], ["3", "4"], ["5"]] and result == whole
    assert lines(tmp_path / "cut", "vlmsareblind") == lines(tmp_path / "whole", "vlmsareblind")
    harness.evaluate(policy, "vlmsareblind", tmp_path / "cut", asking, "random")
    assert len(asked) == 5


def test_replies_that_were_asked_otherwise_are_not_mixed(policy, blind, tmp_path):
    harness.evaluate(policy, "vlmsareblind", tmp_path, Asking(source=blind, max_new_tokens=1), "random")
    with pytest.raises(InputError, match="asked otherwise .max_new_tokens 1, not 2; model 'random', not 'other'.; move"):
        harness.evaluate(policy, "vlmsareblind", tmp_path, Asking(source=blind, max_new_tokens=2), "other")
    with (tmp_path / "benchmarks" / "vlmsareblind.jsonl").open("a") as file:
        file.write("[]\n")
    with pytest.raises(InputError, match="vlmsareblind.jsonl, line 7: expected a reply"):
        harness.evaluate(policy, "vlmsareblind", tmp_path, Asking(source=blind, max_new_tokens=1), "random")


# ── wrong input ──
def spoil(source: Path, what: str) -> None:
    """Makes the six questions of VLMsAreBlind wrong in one way."""
    folder = source / "vlmsareblind"
    rows = [json.loads(line) for line in (folder / "rows.jsonl").open()]
    if what == "column":
        del rows[4]["groundtruth"]
    elif what == "image":
        (folder / "images" / "4.png").write_bytes(b"no image")
    elif what == "shape":
        Image.new("RGB", (3000, 10)).save(folder / "images" / "4.png")
    elif what == "images":
        rows = [row | {"image": None} for row in rows]
    write(folder, [] if what == "empty" else rows)


@pytest.mark.parametrize("what, message, kept", [
    ("column", "vlmsareblind, row 4: column 'groundtruth' is missing; found task, image, prompt", 0),
    ("image", "row 4, image 1: the image does not decode", 4), ("shape", "row 4: absolute aspect ratio must be", 4),
    ("images", "vlmsareblind: no row can be asked; row 0 is without its image", 0), ("empty", "rows.jsonl: expected rows", 0),
])
def test_wrong_rows_end_with_two_and_keep_replies(backbone, blind, monkeypatch, tmp_path, capsys, what, message, kept):
    monkeypatch.chdir(tmp_path)
    spoil(blind, what)
    write(blind / "piqa", [RAW["piqa"]])
    flags = ["--backbone", str(backbone), "--source", str(blind), "--batch-size", "2", "--max-new-tokens", "1"]
    assert evaluate.main([*flags, "--benchmarks", "piqa", "vlmsareblind"]) == 2
    printed = capsys.readouterr()
    assert message in printed.err and "| piqa | acc |" in printed.out
    run = tmp_path / "runs" / "random-base"
    assert len(lines(run, "piqa")) == 1
    assert kept == (len(lines(run, "vlmsareblind")) if (run / "benchmarks" / "vlmsareblind.jsonl").is_file() else 0)


@pytest.mark.parametrize("flags, message", [
    (["--backbone", "tiny", "--benchmarks", "mathvistas"], "unknown benchmark 'mathvistas'; expected one of countbench"),
    (["--backbone", "tiny"], "--backbone: expected --benchmarks"),
    (["--score", "x.jsonl"], "--score: expected --benchmark NAME"),
    (["--backbone", "tiny", "--benchmarks", "piqa", "--batch-size", "0"], "--batch-size: expected at least 1; found 0"),
    (["--backbone", "nowhere", "--benchmarks", "piqa"], "--backbone: expected one of tiny"),
    (["--run", "nowhere", "--benchmarks", "piqa"], "nowhere/config.json: expected the configuration of a run"),
    (["--score", "x.jsonl", "--benchmark", "piqa", "--source", "nowhere"], "nowhere: found no piqa.jsonl"),
])
def test_wrong_flags_end_with_two(flags, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert evaluate.main(flags) == 2 and message in capsys.readouterr().err


def test_the_hub_is_asked_for_the_split_alone(monkeypatch, tmp_path):
    import huggingface_hub

    calls = []
    download = lambda hub, **rest: calls.append((hub, rest)) or tmp_path / "abc1"  # noqa: E731
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert harness.fetch("hallusionbench") == (tmp_path / "abc1", "abc1")
    assert calls[0][0] == "lmms-lab-encoder/HallusionBench"
    assert calls[0][1]["allow_patterns"] == ["*/image-*.parquet", "*/non_image-*.parquet"]

    def offline(*_, **__):
        raise huggingface_hub.errors.OfflineModeIsEnabled("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(InputError, match="piqa: baber/piqa cannot be downloaded; --source takes local files: no network"):
        harness.load_rows("piqa", Asking())


# ── anybody's replies ──
def test_replies_are_scored_without_a_model(blind, tmp_path, capsys):
    path = tmp_path / "replies.jsonl"
    flags = ["--score", str(path), "--benchmark", "vlmsareblind", "--source", str(blind)]
    replies = [{"id": str(i), "response": "{4}" if i < 3 else "unsure"} for i in (3, 0, 5, 1, 2, 4)]

    def score(replies) -> int:
        path.write_text("".join(json.dumps(reply) + "\n" for reply in replies))
        return evaluate.main(flags)

    assert score(replies) == 0
    assert "| vlmsareblind | accuracy | 50.00 | 18.76–81.24 | 6 | 8016 | 3 |" in capsys.readouterr().out
    for wrong, message in [(replies[1:], "1 rows without a reply: 3"), (replies + replies[:1], "reply 7: row 3 has one"),
                           ([*replies, {"id": "9", "response": ""}], "1 replies without a row: 9"), ([], "expected rows"),
                           ([*replies[:5], {"id": "4", "response": None}], "row 4: expected a text")]:  # fmt: skip
        assert score(wrong) == 2 and message in capsys.readouterr().err


# ── Table 2 ──
def finished(run: Path, name: str, units: list[float], asked: str = "x", **more) -> None:
    value = sum(units) / len(units)
    result = {"value": value, "n": len(units), "units": units, "asked": asked, "metric": "accuracy", **more}
    (run / "benchmarks").mkdir(parents=True, exist_ok=True)
    (run / "benchmarks" / f"{name}.json").write_text(json.dumps(result))


def test_compare_prints_gains_over_the_base(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    base, ours = Path("runs/base"), Path("runs/ours")
    finished(base, "mmmu", [0.0, 1.0] * 50)
    finished(ours, "mmmu", [1.0, 1.0] * 25 + [0.0, 1.0] * 25)
    finished(base, "countbench", [0.5] * 10)
    finished(ours, "countbench", [0.75] * 10)
    finished(ours, "piqa", [1.0] * 3)
    assert evaluate.main(["--compare", str(base), str(ours)]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "| run | countbench | mmmu | piqa | average of 2 |" and out[2] == "| N | 10 | 100 | 3 |  |"
    assert out[3] == "| runs/base | 50.00 | 50.00 | – | 50.00 |" and out[4] == "| runs/ours | 75.00 | 75.00 | 100.00 | 75.00 |"
    assert out[5].startswith("| Δ | +25.00 [+25.00, +25.00] | +25.00 [+1") and out[5].count("[+") == 3

    finished(ours, "mmmu", [1.0] * 100, asked="y")
    assert evaluate.main(["--compare", str(base), str(ours)]) == 2
    assert "mmmu: the runs were asked different questions (100 and 100)" in capsys.readouterr().err


def test_a_run_is_compared_with_its_frozen_base(policy, backbone, blind, tmp_path, monkeypatch, capsys):
    """The three commands of docs/benchmarks.md: the adapter speaks, and its gain over the base has an interval."""
    monkeypatch.chdir(tmp_path)
    write(blind / "piqa", [RAW["piqa"] | {"goal": goal, "sol2": "yes red"} for goal in ("red", "star", "left")])
    ours, base = tmp_path / "runs" / "x", tmp_path / "runs" / "random-base"
    claim(ours, Config(backbone=str(backbone)))
    adapted = Policy.load(str(backbone))
    for p in adapted.add_lora(2, 4, 8):
        torch.nn.init.normal_(p, std=0.5)
    adapted.adapter.save_pretrained(ours / "adapter")
    asked = ["--benchmarks", "piqa", "--source", str(blind)]
    assert evaluate.main(["--backbone", str(backbone), *asked]) == evaluate.main(["--run", str(ours), *asked]) == 0
    before, after = (lines(run, "piqa")[0]["response"] for run in (base, ours))
    assert before == pytest.approx(policy.likelihoods(continuations(to_rows("piqa", find_rows("piqa", blind))[0])), abs=1e-4)
    assert max(abs(a - b) for a, b in zip(before, after)) > 1e-2
    capsys.readouterr()
    assert evaluate.main(["--compare", str(base), str(ours)]) == 0
    printed = capsys.readouterr().out
    assert "| piqa | average of 1 |" in printed and "\n| Δ | " in printed
