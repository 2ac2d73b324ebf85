"""Config: the paper's numbers, the recipe, its flags, and wrong ones."""

import json
from dataclasses import asdict, fields, replace

import pytest

import train
from config import RECIPES, TINY_RECIPE, Config, InputError, configure, flag, load_config
from methods import METHODS


def test_every_field_of_config_is_a_flag_with_help(capsys):
    with pytest.raises(SystemExit):
        train.main(["--help"])
    text = capsys.readouterr().out
    for f in fields(Config):
        assert flag(f.name) + " " in text and f.metadata["help"]


def test_the_paper_s_numbers_are_the_defaults():
    c = Config()
    assert (c.group_size, c.steps, c.k, c.tau_g, c.eps_tie, c.lam, c.eps_margin) == (32, 2000, 3, 0.2, 0.1, 0.1, 0.1)
    assert (c.lora_rank, c.lora_alpha, c.lora_layers, c.lr, c.beta, c.temperature) == (16, 32, 4, 1e-5, 0.01, 1.0)


def test_methods_about_pages_bring_eq_10_and_flags_override_it():
    config = configure({"method": "rs-grpo", "backbone": "qwen2.5-vl-7b", "clip_high": 0.3})
    assert (config.clip_low, config.clip_high, config.average, config.temperature, config.beta) == (0.2, 0.3, "token", 1.2, 0)
    assert config.span == "evidence" and configure({"method": "answer-ced"}).span == Config().span == "answer"
    assert list(RECIPES) == [name for name, method in METHODS.items() if method.pages]


def test_tiny_brings_its_recipe_and_flags_override_it():
    config = configure({"lr": 0.5})
    assert config.lr == 0.5 and config.steps == TINY_RECIPE["steps"]
    config = configure({"backbone": "qwen2.5-vl-7b"})
    assert config.steps == 2000 and config.out == "runs/qwen2.5-vl-7b-answer-ced-0"


@pytest.mark.parametrize("name, value, expected", [
    ("papo_mask", 1.5, "at most 1"), ("vppo_ratio", 0.0, "above 0"), ("vppo_beta_min", -0.1, "at least 0"),
    ("mask_patch", 0, "at least 1"), ("papo_bound", 0.0, "above 0"),
])  # fmt: skip
def test_numbers_out_of_range_are_refused(name, value, expected):
    with pytest.raises(InputError, match=f"{flag(name)}: expected .*{expected}; found {value}"):
        replace(Config(), **{name: value}).check()


@pytest.mark.parametrize(
    "flags, message",
    [
        (["--backbone", "gpt"], "--backbone: expected one of tiny, qwen2.5-vl-3b"),
        (["--method", "sft"], "--method: expected one of correctness, additive"),
        (["--group-size", "1"], "--group-size: expected at least 2; found 1"),
        (["--k", "0"], "--k: expected at least 1; found 0"),
        (["--tau-g", "0"], "--tau-g: expected a number above 0"),
        (["--intervention", "blur"], "--intervention: expected one of mean, zero, noise"),
        (["--data", "nowhere"], "nowhere: expected a COCO folder"),
        (["--max-prompt-tokens", "40"], "--max-prompt-tokens allows 40, and an image is never cut"),
        (["--lora-layers", "9"], "--lora-layers: LoRA on the last 9 decoder layers: the model has 4"),
        (["--resume", "nowhere"], "nowhere/config.json: expected the configuration of a run"),
        (["--steps", "many"], "--steps"),
        (["--lr", "nan"], "--lr: expected a finite number; found nan"),
        (["--beta", "inf"], "--beta: expected a finite number; found inf"),
        (["--r-wrong=-inf"], "--r-wrong: expected a finite number"),
        (["--max-area", "nan"], "--max-area: expected a finite number"),
        (["--r-correct", "0"], "--r-correct: expected more than --r-wrong, 0.0; found 0.0"),
        (["--clip-low", "-0.1"], "--clip-low: expected at least 0; found -0.1"),
        (["--beta", "-1"], "--beta: expected at least 0; found -1.0"),
        (["--eval-every", "-1"], "--eval-every: expected at least 0; found -1"),
        (["--families", "counting,colour"], "--families: expected names of attribute, counting, spatial, presence, "),
        (["--eps-tie", "-1"], "--eps-tie: expected at least 0; found -1.0"),
    ],
)
def test_bad_input_ends_with_two_and_leaves_nothing(tmp_path, monkeypatch, capsys, small_world, flags, message):
    monkeypatch.chdir(tmp_path)
    try:
        code = train.main(flags)
    except SystemExit as end:  # argparse's own
        code = end.code
    assert code == 2 and message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", [f.name for f in fields(Config) if isinstance(f.default, float)])
@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_no_number_may_be_infinite(name, value):
    with pytest.raises(InputError, match=f"{flag(name)}: expected a finite number; found {value}"):
        replace(Config(), **{name: value}).check()


@pytest.mark.parametrize("text, message", [
    ("", "not JSON"), ("{", "not JSON"), ("[]", "expected an object"), ('{"lr": "fast"}', "lr: expected float; found 'fast'"),
    ('{"steps": 1.5}', "steps: expected int; found 1.5"), ('{"thinking": 1}', "thinking: expected bool"),
    ('{"steps": true}', "steps: expected int; found True"), ('{"lr": NaN}', "--lr: expected a finite number"),
    ('{"colour": 1}', "colour: expected a field"), ('{"group_size": 1}', "--group-size: expected at least 2"),
])  # fmt: skip
def test_a_damaged_configuration_is_named(tmp_path, text, message):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(InputError, match=f"config.json: .*{message}"):
        load_config(tmp_path)
    assert (tmp_path / "config.json").read_text() == text


def test_a_configuration_reads_back_as_it_was(tmp_path):
    config = replace(Config(), lr=1, seed=3, thinking=False)
    (tmp_path / "config.json").write_text(json.dumps(asdict(config)), encoding="utf-8-sig")
    assert load_config(tmp_path) == config
