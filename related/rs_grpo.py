"""RS-GRPO, Reward-Scoped GRPO (EVisRAG, arXiv 2510.09733): a reward reaches only the tokens that it speaks about.

A question about k pages is answered in four stages: <observe> which page bears on it, <evidence> what each page says, <think>
what follows, <answer>. Three rewards look at such a response, and each teaches the stages that earn it: right evidence is
not blamed for a wrong answer, nor a wrong record praised for a lucky one.

    symbol      code name           shape     meaning
                stages              (G, T)    the stage of each token: 1 … 4; 0 before the first tag
    R_format    well_formed         (G,)      1 if the four stages stand in their order, each tag once, else 0
    R_perception  perception_reward (G,)      Σ w_i 1[e_i = gold_i] / Σ w_i over pages; w_i = 3 where there is evidence, else 1
    R_derivation  Judgement.r_ans   (G,)      word F1 of the answer; gold is to abstain where the pages do not tell
    M(t)        scopes              (S, M)    Eq. 7: which of the M channels each of the S = 5 stages listens to
    R̄_t         scoped_rewards      (S, G)    Eq. 8: the mean of a stage's channels
    Â_t         token_advantages    (G, T)    Eq. 9: normalised over the group, a stage at a time
    L           grpo.grpo_loss      ()        Eq. 10: clip 0.2 / 0.28, the mean over all tokens of the group, no KL

    G responses of a group · T tokens · M channels · S stages

Printed "at t", Eq. 9 would compare tokens of different stages of responses of different lengths; a stage at a time is what is
meant. Controls put one advantage on all tokens: `mixed` (the same three rewards), `outcome` (no evidence), `step` (StepGRPO of
R1-VL, arXiv 2503.12937: answer + 0.1 · share of the key steps + validity; numbers of its released code). `ced_rewards` needs no
gold evidence: the perception channel is the gate g(m) of the *evidence's* tokens. g(m) pays for dependence, not for truth, so
the derivation channel speaks on the same tokens.

The released code (github.com/OpenBMB/VisRAG, src/rsgrpo) is not the paper:
* six channels (answer × 3, evidence × 3, format, length, two penalties), each normalised over the group alone (sample std,
  ε = 1e-6) and never averaged, so that the weights × 3 cancel; each has its own loss, and their sum is divided by how many are
  not 0.
* a span begins where `encode("<think>")` is found among the ids. A token that straddles a tag hides it, and then evidence and
  answer both cover the whole response. Here prefixes of the sampled ids are decoded.
* the evidence channel is F1 of words for gold of five words or more: "3 stars" for "2 stars" would earn half.
* its dynamic sampling keeps a group of equal middling rewards, which teaches nothing; here none is dropped.
* one update a batch, so the clip never acts; dual clip 3, temperature 1.0 (paper: 1.2).
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import answers
import ced
import data
import grpo
from config import Config
from models import Policy
from rollout import Group, Judgement

STAGES = ("observe", "evidence", "think", "answer")
LONG = 5  # words from which gold evidence is no phrase to be repeated (the released code's)
NOTHING = "no relevant information"  # the record of a page that says nothing about the question
FORMAT = re.compile(r"\s*".join(rf"<{tag}>(?:(?!</?(?:{'|'.join(STAGES)})>).)*</{tag}>" for tag in STAGES), re.DOTALL)
CHANNELS = ("format", "perception", "derivation")
SCOPES = torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 1, 0], [1, 0, 1], [1, 0, 1]])  # Eq. 7: stages 0 … 4 by channel
HELD_TRUE = torch.tensor([[1.0, 0, 0], [1, 1, 1], [1, 1, 1], [1, 0, 1], [1, 0, 1]])  # Eq. 7 where perception is g(m)


class Scoped(NamedTuple):
    """Rewards that speak about some tokens each."""

    rewards: Tensor  # (M, G)
    scopes: Tensor  # (S, M)

    def mean(self) -> Tensor:
        """One number a response, (G,), for the log."""
        return self.rewards.mean(0)


# ── a response of four stages ───────────────────────────────────────────────────────────────────────────────────────
def stages_of(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[int]:
    """The stage of each token, 0 … 4: that whose opening tag came last, counting each tag where it first stands.

    The token that carries the tag's first character belongs to the new stage; what follows the answer, to the answer.
    """
    text, stages = decode(ids), [0] * len(ids)
    places = sorted((at, stage) for stage, tag in enumerate(STAGES, start=1) if (at := text.find(f"<{tag}>")) >= 0)
    for at, stage in places:
        first = answers.token_of(ids, decode, at)
        stages[first:] = [stage] * (len(ids) - first)
    return stages


def well_formed(text: str) -> bool:
    """R_format: the four stages in their order, each tag once, nothing but blanks and an end token around them."""
    return FORMAT.fullmatch(re.sub(r"(\s*<\|\w+\|>)*\s*$", "", text).strip()) is not None


def read_evidence(text: str, k: int) -> list[str | None]:
    """What a response records of each of k pages, by `[i]:`; None for a page that it names twice or never, and for all if a
    tag is missing."""
    found = re.search(r"<evidence>(.*?)</evidence>", text, re.DOTALL)
    lines: list[str | None] = [None] * k
    if found:
        _, *pairs = re.split(r"\[(\d+)\]:", found[1])
        numbers = [int(number) for number in pairs[::2]]
        for number, line in zip(numbers, pairs[1::2]):
            if 1 <= number <= k and numbers.count(number) == 1:
                lines[number - 1] = " ".join(line.split())
    return lines


# ── the channels ────────────────────────────────────────────────────────────────────────────────────────────────────
def exact(said: str, gold: str) -> float:
    """1 if a record says the gold words and no other, else 0."""
    return float(answers.normalize_word(said) == answers.normalize_word(gold))


def contained(said: str, gold: str) -> float:
    """How well a record of a reader's own words agrees with the gold: 1 if it holds the gold's words, of which there are fewer
    than LONG; else their word F1. Of a page without evidence, and of one of which no words are known, whether it says so."""
    if gold in (NOTHING, data.SOMETHING):
        return float(exact(said, NOTHING) == (gold == NOTHING))
    words, found = (answers.normalize_word(text) for text in (gold, said))
    return float(f" {words} " in f" {found} ") if len(words.split()) < LONG else answers.word_f1(said, gold)


def perception_reward(
    said: Sequence[str | None], gold: Sequence[str], weight: float, agree: Callable[[str, str], float] = exact
) -> float:
    """R_perception: the weighted share of pages whose record is right; pages with evidence count `weight`, others 1."""
    weights = [1.0 if line == NOTHING else weight for line in gold]
    right = sum(w * agree(a, b) for w, a, b in zip(weights, said, gold) if a is not None)
    return right / sum(weights)


def perception(group: Group, weight: float) -> Tensor:
    """R_perception of a group's responses, (G,). Where gold evidence is not known it is 0 for all, which teaches nothing."""
    sample = group.sample
    if not sample.gold:
        return torch.zeros(len(group.texts))
    gold, agree = [page.evidence or NOTHING for page in sample.pages], {"exact": exact, "contained": contained}[sample.gold]
    return torch.tensor([perception_reward(read_evidence(t, len(gold)), gold, weight, agree) for t in group.texts])


def format_of(group: Group) -> Tensor:
    """R_format of a group's responses, (G,)."""
    return torch.tensor([float(well_formed(text)) for text in group.texts])


# ── Eqs. 7–9 ────────────────────────────────────────────────────────────────────────────────────────────────────────
def scoped_rewards(rewards: Tensor, scopes: Tensor) -> Tensor:
    """Eq. 8: R̄ of every stage, the mean of the channels in its scope, (M, G), (S, M) → (S, G)."""
    return (scopes[:, :, None] * rewards).sum(1) / scopes.sum(-1, keepdim=True)  # Eq. 8


def token_advantages(rewards: Tensor, stages: Tensor, scopes: Tensor, eps_adv: float) -> Tensor:
    """Eq. 9: (M, G), stages (G, T), (S, M) → (G, T). Exactly 0 for all tokens of a stage whose R̄ is equal in the group."""
    by_stage = torch.stack([grpo.group_advantages(r, eps_adv) for r in scoped_rewards(rewards, scopes)])  # Eq. 9: (S, G)
    return by_stage.T.gather(1, stages)  # (G, T)


def advantages(policy: Policy, group: Group, rewards: Scoped, eps_adv: float) -> Tensor:
    """The token advantages (G, T) of a group; what stands after a response's end counts nothing."""
    ids, mask = group.responses.ids, group.responses.mask
    stages = torch.zeros_like(ids, device="cpu")
    for row, own, length in zip(stages, ids.tolist(), mask.sum(-1).tolist()):
        row[:length] = torch.tensor(stages_of(own[:length], policy.decode))
    return token_advantages(rewards.rewards, stages, rewards.scopes, eps_adv)


# ── rows of methods.METHODS ─────────────────────────────────────────────────────────────────────────────────────────
def rewards(judgement: Judgement, config: Config) -> Scoped:
    """RS-GRPO: format on all tokens, perception on what looks, derivation on what concludes."""
    group = judgement.group
    return Scoped(torch.stack([format_of(group), perception(group, config.evidence_weight), judgement.r_ans]), SCOPES)


def ced_rewards(judgement: Judgement, config: Config) -> Scoped:
    """RS-GRPO without gold evidence: perception is g(m). What has no evidence stage to audit earns none of it."""
    gate = ced.evidence_gate(judgement.m, config.tau_g) * judgement.audited
    return Scoped(torch.stack([format_of(judgement.group), gate, judgement.r_ans]), HELD_TRUE)


def mixed(judgement: Judgement, config: Config) -> Tensor:
    """The same three rewards, one advantage on all tokens: (f + p + d) / 3, (G,)."""
    return rewards(judgement, config).mean()


def outcome(judgement: Judgement, config: Config) -> Tensor:
    """No evidence: (f + d) / 2, (G,)."""
    return (format_of(judgement.group) + judgement.r_ans) / 2


def step(judgement: Judgement, config: Config) -> Tensor:
    """StepGRPO: d + α · share of pages recorded right + f, (G,)."""
    return judgement.r_ans + config.step_weight * perception(judgement.group, 1.0) + format_of(judgement.group)
