"""Everything that a GPU runs, in bfloat16, on a GPU that is not there (pretend_gpu.py): what meets a tensor or generator of the
wrong device raises, and how often the host waits for the device is bounded."""

import math
from dataclasses import replace

import pytest
import torch
from helpers import FAMILIES, random_image, random_policy
from pretend_gpu import DEVICE, pretend_gpu

import data
import models
import report
import rollout
import train
from benchmarks import Row, harness
from config import Config
from methods import METHODS, rewards_of
from models import Policy
from related import documents
from studies import diagnose
from studies.study import Study
from support import checkpoint

CONFIG = Config(group_size=2, max_new_tokens=2, prompts_per_step=1, k=1, lora_layers=1, eval_group=2, eval_prompts=1, steps=2)
A_STEP = 100  # waits of a whole step on one prompt; each layer of the vision tower is one of them, for every image


@pytest.fixture(scope="module")
def questions(tmp_path_factory) -> list[data.Sample]:
    """Two questions of different lengths, to be padded; the second is audited by its log-odds."""
    path = tmp_path_factory.mktemp("device") / "a.png"
    random_image(84, 84).save(path)
    asked = data.Sample("a", "1", path, (84, 84), "How many stars ?", "2", "counting", ((5.0, 5.0, 30.0, 30.0),))
    return [asked, replace(asked, id="b", question="Is there a star in the image ?", answer="yes", family="presence")]


def on_device(family: str) -> Policy:
    """A random policy of the family with as few layers as it has kinds of them, moved to the device. Within pretend_gpu()."""
    cpu = random_policy(family, layers=2 if family == "qwen3_5" else 1)
    return Policy(cpu.model.to(torch.bfloat16).to(DEVICE), cpu.tokenizer, cpu.image_processor)


def trainable(policy: Policy) -> torch.optim.Optimizer:
    return torch.optim.AdamW(policy.add_lora(CONFIG.lora_layers, 4, 8), lr=1e-2)


# ── the device itself ──
@pytest.mark.parametrize("wrong", [
    lambda gpu, cpu: gpu + cpu,
    lambda gpu, cpu: torch.where(cpu > 0, gpu, gpu),
    lambda gpu, cpu: gpu.index_select(0, torch.tensor([0])),
    lambda gpu, cpu: cpu[torch.tensor([0], device=DEVICE)],
    lambda gpu, cpu: gpu @ gpu.bfloat16(),
    lambda gpu, cpu: torch.rand(3, device=DEVICE, generator=torch.Generator()),
    lambda gpu, cpu: gpu.numpy(),
])  # fmt: skip
def test_the_pretended_gpu_refuses_what_cuda_refuses(wrong):
    with pretend_gpu():
        cpu = torch.ones(2, 2)
        with pytest.raises((RuntimeError, TypeError)):
            wrong(cpu.to(DEVICE), cpu)


def test_its_numbers_are_those_of_the_cpu(questions, tiny_policy):
    """It must not be wrong itself: the embedded backbone, loaded straight to it, in float32."""

    def log_probs(policy: Policy) -> torch.Tensor:
        vision, prompt = rollout.ask(policy, questions[0], CONFIG)
        with torch.inference_mode():
            return policy.log_probs(policy.read(prompt, vision), torch.arange(40, 44, device=policy.device)[None], 1.0).cpu()

    with pretend_gpu():
        torch.testing.assert_close(log_probs(Policy.load("tiny", DEVICE)), log_probs(tiny_policy), atol=1e-5, rtol=0)


# ── what runs on it ──
@pytest.mark.parametrize("family", FAMILIES)
def test_every_method_learns_and_a_benchmark_is_asked(family, questions):
    """Rewards are computed on the CPU: of methods that do the same on the device, one learns."""
    with pretend_gpu():
        policy = on_device(family)
        optimizer = trainable(policy)
        draws = [models.seeded(q.id, device=policy.device) for q in questions]
        groups = list(rollout.sample_groups(policy, questions, CONFIG, CONFIG.group_size, draws))
        configs = [replace(CONFIG, method=method, intervention="noise") for method in ("cot-ced", "answer-ced")]
        group, judgement = [(g, rollout.judge(policy, g, c)) for g, c in zip(groups, configs)][0]
        on_gpu = {}
        for name, method in ((n, m) for n, m in METHODS.items() if not m.pages):
            rewards = rewards_of(judgement, group.sample, replace(CONFIG, method=name))
            on_gpu[rewards.ndim, *method[1:]] = replace(CONFIG, method=name), rewards
        for update, (config, rewards) in enumerate(on_gpu.values()):
            train.learn(policy, group, judgement, rewards, config, update, n=1)
        assert len(on_gpu) >= 3 and math.isfinite(train.descend(optimizer, CONFIG.grad_clip))
        image = questions[0].image
        rows = [Row(str(n), "How many ?", "2", "count", images=(image,) * n) for n in (0, 2)]
        assert len(harness.respond(policy, rows, harness.Asking(max_new_tokens=2))) == 2
        assert len(policy.likelihoods([("how many", " stars"), ("how many", " image ?")])) == 2


def test_pages_are_retrieved_their_record_audited_and_learned_from(library, words_folder):
    """Scoped rewards and those without gold evidence: the one audits pages, and both spread over tokens by stage."""
    text = ("<observe> look [1]: </observe> <evidence> [1]: 3 stars [2]: no relevant information </evidence> "
            "<think> 3 </think> <answer> 3 </answer>")  # fmt: skip
    with pretend_gpu():
        policy = Policy.load(str(words_folder), DEVICE, torch.bfloat16)
        optimizer, read = trainable(policy), documents.read_document(library, data.Counter())
        assert len(documents.retrieved(policy, read, 2, quiet=True)[0]) == 2
        sample = documents.sample_of(read.questions[0], read, [0, 1])
        for method in ("rs-ced", "rs-grpo"):
            config = replace(CONFIG, method=method, span="evidence")
            group = rollout.given_group(policy, sample, [text, text.replace("3", "2")], config)
            judgement = rollout.judge(policy, group, config)
            assert judgement.audited.all() and (judgement.s != 0).any()
            train.learn(policy, group, judgement, rewards_of(judgement, sample, config), config, update=1, n=1)
        assert 0 < train.descend(optimizer, CONFIG.grad_clip) < math.inf


def test_a_run_is_stopped_resumed_measured_diagnosed_and_merged(questions, tmp_path, monkeypatch):
    """And a resumed step waits no oftener than one of a run that was never stopped."""
    config, waits, step = replace(CONFIG, out=str(tmp_path)), [], train.train_step
    with pretend_gpu() as gpu:

        def watched(*args):
            before = gpu.waits.total()
            row = step(*args)
            waits.append(gpu.waits.total() - before)
            return row

        monkeypatch.setattr(train, "train_step", watched)
        for stop_after in (1, 2):
            policy = Policy.load("tiny", DEVICE, torch.bfloat16)
            policy.add_lora(config.lora_layers, config.lora_rank, config.lora_alpha)
            assert train.train(policy, questions[:1], config, tmp_path, stop_after) == (stop_after == 2)
        assert waits[1] <= waits[0] <= A_STEP
        _, figure = diagnose.audit(Study("audit", policy, config, questions[:1], ""))
        diagnose.pictures.plt.close(figure)
        policy.adapter.save_pretrained(tmp_path / "adapter")
        policy.load_adapter(tmp_path / "adapter")
        report.measure(policy, {"val": questions[:1]}, config, "after")
    (tmp_path / "config.json").write_text(checkpoint.as_json({"backbone": "tiny"}))
    models.merge(tmp_path, tmp_path / "merged")


def test_sampling_waits_for_the_device_less_than_once_in_ten_tokens(questions):
    """Prompts that are padded too: what grows with the number of tokens is the test of which answers have ended."""
    with pretend_gpu() as gpu:
        policy, waits = on_device("qwen2_5_vl"), []
        policy.eos_ids = torch.tensor([len(policy.tokenizer)], device=DEVICE)  # no answer ends early
        asked = [rollout.ask(policy, question, CONFIG) for question in questions]
        with torch.inference_mode():
            prefix = policy.read_batch([(prompt, visions) for visions, prompt in asked])
        assert prefix.mask is not None
        for tokens in (1, 9):
            draws = [models.seeded(q.id, device=policy.device) for q in questions]
            before = gpu.waits.total()
            policy.sample(prefix, 2, tokens, 1.0, draws)
            waits.append(gpu.waits.total() - before)
    assert waits[1] - waits[0] <= 0.1 * 2 * 2 * 8
