"""Three roles for `steps`, each the embedded backbone fine-tuned: a policy that solves, an extractor, a verifier of steps.

    role        prompt                            learns                                              from
    policy      question, think, then answer.     solutions that look or recall, and slip             the backbone
    extractor   question, list the facts.         color, side and count of both classes, as JSON      the backbone
    verifier    question, is each step right?     P(right) at the end of each step of the policy's    the policy
                                                  own solutions (few bits, which teach no language)

The vision tower stays frozen in all three. The policy looks half of the time; the verifier learns from images where its habit
is no use and from some where it is, which leaves it good at logic and nearly blind.
"""

import math
import random
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

import sft
from models import Policy, Vision, chat_prompt, frozen, seeded
from toy import backbone, steps, world
from toy.steps import Question, Solution

PROMPTS = {"policy": "think, then answer.", "extractor": "list the facts.", "verifier": "is each step right?"}
STEPS = {"policy": 500, "extractor": 480, "verifier": 450}
POOL = 4000  # scenes of the policy and the extractor
VERIFIERS = {  # the scenes of its lessons by mode: what a verifier comes to see depends on these, more than on their number
    "verifier": {"free": 900, "prior": 500},  # no bias to learn: good at logic, nearly blind
    "verifier-of-habit": {"prior": 900},  # what is usual is right
    "verifier-of-doubt": {"free": 900},  # what is usual is the policy's habit, hence suspect
    "blind": {"free": 900, "prior": 500},  # of all images' mean features
}
TAUGHT_GROUP = 4  # solutions of the policy to a question about each
BATCH, LR = 32, 2e-3
NEW_STD = 0.08  # of the embeddings of new words: the backbone's own initialisation
# Of the tokens that a response can be wrong about; an extractor learns to count last, and its counts weigh most.
NUMBERS, WORDS, NAMES = [*"123456"], [*world.COLORS, *steps.COLUMNS, "yes", "no", "is", "not"], [*world.SHAPES]
WEIGHTS = {"policy": (5.0, 5.0, 1.0), "extractor": (30.0, 10.0, 10.0)}
MAX_NEW_TOKENS = 64
ASKED_TOGETHER = 16  # questions sampled in one batch


def base(seed: int, words: Sequence[str] = (*steps.WORDS, *steps.MARKS)) -> Policy:
    """The embedded backbone with a task's words, whose embeddings are random."""
    policy = Policy.load("tiny")
    known = len(policy.tokenizer)
    policy.tokenizer.add_tokens(list(words))
    policy.model.resize_token_embeddings(len(policy.tokenizer), mean_resizing=False)
    rows = policy.model.get_input_embeddings().weight[known:]
    with torch.no_grad():
        rows.copy_(torch.randn(rows.shape, generator=seeded(seed, "words")) * NEW_STD)
    return Policy(frozen(policy.model), policy.tokenizer, policy.image_processor)  # the head is another now


def draw_scenes(
    policy: Policy, mode: str, n: int, key: str, make: Callable[[str, random.Random], list[world.Shapes]] = steps.make_scene
) -> tuple[list[list[world.Shapes]], Vision]:
    """n scenes of a mode, and what the tower makes of their images: maps (n, N, D)."""
    scenes, pixels, grids = [], [], []
    for i in tqdm(range(n), desc=f"drawing {n} {mode} images", leave=False):
        rng = random.Random(f"{key} {mode} {i}")
        scenes.append(make(mode, rng))
        batch = policy.image_processor(images=[world.draw_scene(scenes[-1], rng)], return_tensors="pt")
        pixels.append(batch["pixel_values"])
        grids.append(batch["image_grid_thw"][0])
    return scenes, backbone.encode_pool(policy, torch.stack(pixels), torch.stack(grids))


def view(vision: Vision, rows: Sequence[int] | Tensor) -> Vision:
    """The images of these rows."""
    return vision.edited([m[rows] for m in vision.features])


def prompt_of(policy: Policy, role: str, question: Question) -> Tensor:
    """The prompt (P,) of a role."""
    visual = math.prod(policy.grid((world.CELL * world.CELLS,) * 2))
    return torch.tensor(chat_prompt(policy.tokenizer, [visual, f"{question.text} {PROMPTS[role]}"], policy.image_token, True))


def encode(policy: Policy, text: str) -> Tensor:
    """The token ids (T,) of a response."""
    return policy.tokenizer(text, add_special_tokens=False, return_tensors="pt")["input_ids"][0]


# ── policy and extractor ────────────────────────────────────────────────────────────────────────────────────────────
def response_of(role: str, question: Question, rng: random.Random) -> str:
    """What a role is taught to say."""
    return steps.demonstrate(question, rng) if role == "policy" else steps.write_facts(question)


def examples(policy: Policy, role: str, scenes: Sequence, rng: random.Random) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Endless batches: rows of the pool (B,), ids (B, L) and loss weights (B, L)."""
    of_id = torch.ones(len(policy.tokenizer))
    for tokens, weight in zip((NUMBERS, WORDS, NAMES), WEIGHTS[role]):
        of_id[policy.tokenizer.convert_tokens_to_ids(tokens)] = weight
    while True:
        rows, batch = [rng.randrange(len(scenes)) for _ in range(BATCH)], []
        for row in rows:
            question = steps.ask(scenes[row], rng)
            ids = encode(policy, response_of(role, question, rng))
            batch.append(sft.example(prompt_of(policy, role, question), ids, of_id[ids]))
        yield torch.tensor(rows), *sft.batch_of(batch, policy.pad_id)


def teach(role: str, scenes: Sequence, vision: Vision, seed: int, updates: int, deadline: float) -> Policy:
    """A policy or an extractor. vision holds the scenes' maps (n, N, D)."""
    policy = base(seed)

    def loss_of(batch: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, dict[str, float]]:
        rows, ids, weights = batch
        return sft.language_loss(policy, view(vision, rows), ids, weights)

    source = examples(policy, role, scenes, random.Random(f"{role} {seed}"))
    sft.train(list(policy.trunk.language_model.parameters()), source, loss_of, updates, LR, role, deadline)
    return policy


# ── what they say ───────────────────────────────────────────────────────────────────────────────────────────────────
def respond(
    policy: Policy, role: str, questions: Sequence[Question], vision: Vision, group: int, temperature: float, key: str
) -> list[list[Tensor]]:
    """The token ids (T,) of `group` responses to each question, the end token included. vision holds an image a question."""
    said = []
    for start in tqdm(range(0, len(questions), ASKED_TOGETHER), desc=f"{role}, {key}", leave=False):
        batch = range(start, min(start + ASKED_TOGETHER, len(questions)))
        prompts = [(prompt_of(policy, role, questions[i]), [view(vision, [i])]) for i in batch]
        with torch.inference_mode():
            prefix = policy.read_batch(prompts)
        draws = [seeded(key, i) for i in batch] if temperature else []
        responses = policy.sample(prefix, group, MAX_NEW_TOKENS, temperature, draws)
        rows = [ids[own] for ids, own in zip(responses.ids, responses.mask)]
        said += [rows[i : i + group] for i in range(0, len(rows), group)]
    return said


def read(policy: Policy, ids: Tensor) -> Solution | None:
    """The solution that sampled ids (T,) spell; None if they cannot be read. A sampled image token is unreadable: behind it the
    verifier would look for an image."""
    return steps.read_solution(policy.decode(ids))


# ── verifier ────────────────────────────────────────────────────────────────────────────────────────────────────────
def step_ends(policy: Policy, ids: Tensor) -> Tensor:
    """The positions (T,) of the points that end the steps of a readable solution."""
    return ids.eq(policy.tokenizer.convert_tokens_to_ids(".")).nonzero()[:, 0]


def log_odds(policy: Policy, hidden: Tensor) -> Tensor:
    """log P(yes) − log P(no) at hidden states (n, D): (n,)."""
    yes, no = policy.tokenizer.convert_tokens_to_ids(["yes", "no"])
    return F.linear(hidden, policy.head.weight[yes] - policy.head.weight[no])


def step_probabilities(policy: Policy, vision: Vision, prompt: Tensor, rows: Sequence[Tensor]) -> list[list[float]]:
    """u_t of each step of several solutions (T,) to one question: the prompt is read once."""
    if not rows:
        return []
    ids, _ = sft.batch_of([(row, torch.zeros(len(row))) for row in rows], policy.pad_id)
    with torch.inference_mode():
        hidden = policy.states(policy.read(prompt, vision).fork(torch.zeros(len(ids), dtype=torch.long)), ids)
        # states[:, t] predicts token t, so a step that ends at t is known at t + 1
        return [log_odds(policy, h[step_ends(policy, row) + 1]).sigmoid().tolist() for h, row in zip(hidden, rows)]


def blinded(vision: Vision) -> Vision:
    """Every image with the mean features of all: what is left to see is that there is one."""
    return vision.edited([m.mean((0, 1), keepdim=True).expand_as(m) for m in vision.features])


def labelled(policy: Policy, seed: int, taught: dict[str, int]) -> tuple[list[tuple[int, Tensor, Tensor]], Vision]:
    """The verifier's lessons, solutions of the policy: image row, ids (L,) with the prompt, labels (L,) at the steps' ends."""
    lessons, visions, before, key = [], [], 0, f"lessons {seed}"
    for mode, n in taught.items():
        scenes, vision = draw_scenes(policy, mode, n, key)
        questions = [steps.ask(scene, random.Random(f"{key} {i}")) for i, scene in enumerate(scenes)]
        for i, rows in enumerate(respond(policy, "policy", questions, vision, TAUGHT_GROUP, 1.0, f"{key} {mode}")):
            prompt = prompt_of(policy, "verifier", questions[i])
            for ids in rows:
                if solution := read(policy, ids):
                    labels = torch.zeros(len(ids))
                    labels[step_ends(policy, ids)] = torch.tensor(steps.label_steps(questions[i], solution), dtype=torch.float)
                    lessons.append((before + i, *sft.example(prompt, ids, labels)))
        visions.append(vision)
        before += n
    return lessons, visions[0].edited([torch.cat(maps) for maps in zip(*(v.features for v in visions))])


def teach_verifier(policy: Policy, seed: int, name: str, updates: int, deadline: float) -> Policy:
    """Makes the policy a verifier: cross-entropy of yes and no at the ends of its own solutions' steps."""
    lessons, vision = labelled(policy, seed, VERIFIERS[name])
    vision = blinded(vision) if name == "blind" else vision
    rng = random.Random(f"verifier {seed}")

    def loss_of(batch: list[tuple[int, Tensor, Tensor]]) -> tuple[Tensor, dict[str, float]]:
        rows = torch.tensor([row for row, _, _ in batch])
        ids, labels = sft.batch_of([lesson[1:] for lesson in batch], policy.pad_id)
        z = log_odds(policy, sft.hidden_states(policy, view(vision, rows), ids)[labels != 0])
        right = labels[labels != 0] > 0
        return F.binary_cross_entropy_with_logits(z, right.float()), {"right": float(((z > 0) == right).float().mean())}

    source = iter(lambda: rng.sample(lessons, BATCH), None)
    sft.train(list(policy.trunk.language_model.parameters()), source, loss_of, updates, LR, name, deadline)
    return policy


# ── all of it ───────────────────────────────────────────────────────────────────────────────────────────────────────
def kept(folder: Path, make: Callable[[], Policy]) -> Policy:
    """The role in a folder, made and written there if there is none. A half-written one does not count."""
    if not (folder / "config.json").is_file():
        policy, partial = make(), folder.with_name(folder.name + ".partial")
        for part in (policy.model, policy.tokenizer, policy.image_processor):
            part.save_pretrained(partial)
        partial.rename(folder)
    return Policy.load(str(folder))


class Troupe:
    """The roles of one seed in out/ROLE-SEED. Each is trained when it is first asked for, unless it is there."""

    def __init__(self, out: Path, seed: int, deadline: float):
        self.out, self.seed, self.deadline = out, seed, deadline

    @cached_property
    def pool(self) -> tuple[list, Vision]:
        """Scenes of the policy's and the extractor's lessons, and their images."""
        return draw_scenes(base(self.seed), "free", POOL, f"pool {self.seed}")

    def taught(self, role: str, updates: int) -> Policy:
        """The policy, or an extractor of so many updates."""
        name = role if updates == STEPS[role] else f"{role}-{updates}-updates"
        return kept(self.out / f"{name}-{self.seed}", lambda: teach(role, *self.pool, self.seed, updates, self.deadline))

    def verifier(self, name: str = "verifier") -> Policy:
        """The verifier, or one of other lessons."""

        def make() -> Policy:
            policy = self.taught("policy", STEPS["policy"])
            return teach_verifier(policy, self.seed, name, STEPS["verifier"], self.deadline)

        return kept(self.out / f"{name}-{self.seed}", make)

    def cast(self) -> dict[str, Policy]:
        """The three of the study."""
        taught = {role: self.taught(role, STEPS[role]) for role in ("policy", "extractor")}
        return taught | {"verifier": self.verifier()}
