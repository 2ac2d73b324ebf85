"""Backbones by name, and `Policy`: a vision-language model that reads each prompt once.

All G answers of a group, all 1 + K audits and the policy update share one prompt. So the vision tower runs once an image,
the prompt is read once into key-value caches, and everything after that computes response tokens only:

    vision = policy.encode(image)                     N visual tokens (and DeepStack maps) of one image
    prefix = policy.read(prompt, vision)              caches of the prompt, one row a version of the image (E rows);
                                                      of several images (pages): policy.read(prompt, [vision, …])
    branch = prefix.fork(rows)                        the same caches, row i repeated wherever rows says i
    responses = policy.sample(prefix, G, …)           G answers, log π of each token recorded as it is drawn
    log_probs = policy.log_probs(prefix, ids)         (E, G, T), with gradient through the prompt if grad is on

In training there is one prompt at a time, so nothing is padded, and M-RoPE positions continue where the prompt ended. Only
benchmarks ask many different questions once each: `compose` places any number of images in a prompt, `read_batch` reads
several prompts padded on the left, and `likelihoods` scores given continuations of a text. The code is the same for
Qwen2.5-VL, Qwen3-VL, Qwen3.5 and the embedded tiny backbone (a small Qwen3-VL: toy/backbone.py).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import re
import shutil
import sys
import warnings
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
import transformers  # loads what is named of it when it is used: seconds, for which a wrong flag need not wait
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import LocalEntryNotFoundError
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import grpo
from config import INSTRUCTION, InputError, load_config
from reading import first_line, make_folder, read_object, shown

if TYPE_CHECKING:
    from peft import PeftModel
    from transformers import Cache, PreTrainedModel, PreTrainedTokenizerBase, Qwen2VLImageProcessorPil

# PEFT reads an attribute of the model under the name that transformers has given up, once for every adapter.
warnings.filterwarnings("ignore", ".*is_gradient_checkpointing", FutureWarning)

TINY = Path(__file__).parent / "assets" / "tiny"
BACKBONES = {
    "tiny": str(TINY),
    "qwen2.5-vl-3b": "Qwen/Qwen2.5-VL-3B-Instruct",
    "qwen2.5-vl-7b": "Qwen/Qwen2.5-VL-7B-Instruct",
    "qwen3-vl-8b": "Qwen/Qwen3-VL-8B-Instruct",
    "qwen3.5-9b": "Qwen/Qwen3.5-9B",
}
ARCHITECTURES = ("qwen2_5_vl", "qwen3_vl", "qwen3_5")  # by the model_type of config.json
FORM = ("*.json", "*.jinja", "*.txt")  # of a model on the hub, all but the weights
PATIENCE = 4.0  # seconds to wait for the hub
POINTER = b"version https://git-lfs"
PAGES_TEMPLATE = (
    "Answer the question from the images below, in four steps. First look at each image and say inside <observe> </observe> "
    "which of them may bear on the question. Then, inside <evidence> </evidence>, record on a line for each image what it says "
    "about the question, as [i]: what it says, or [i]: no relevant information. Then think inside <think> </think>, from the "
    "evidence that you recorded. Then give only the final answer inside <answer> </answer>; if the evidence does not tell it, "
    "answer: insufficient to answer. Question: {question}\n{pages}"
)
LOGIT_CHUNK = 256  # token positions projected to the vocabulary at a time: (256, 152k) in float32 is 0.16 GB
STOP_TEST = 4  # tokens between two tests of which answers have ended: sampling's only wait for the device


@dataclass(frozen=True)
class Vision:
    """What the language model sees of an image: E versions of each feature map (E, N, D), row 0 the original."""

    features: list[Tensor]  # merged visual tokens, then DeepStack maps where the architecture has them
    grid_thw: Tensor  # (1, 3), on the CPU: the vision tower's patch grid before merging
    grid: tuple[int, int]  # (rows, columns) of visual tokens after merging; rows · columns = N

    def edited(self, features: list[Tensor]) -> Vision:
        """The same image with other feature maps (E, N, D)."""
        return replace(self, features=features)


@dataclass(frozen=True)
class Prefix:
    """A prompt that has been read: one row a version of its image."""

    cache: Cache  # of the prompt, E rows
    hidden: Tensor  # (E, D) the last hidden state: it predicts the first response token
    position: Tensor  # (E, 1) the M-RoPE position of the first response token
    mask: Tensor | None = None  # (E, P) 0 where a prompt is padded; None if none is

    def fork(self, rows: Tensor) -> Prefix:
        """The prompt with row rows[j] as row j; this prefix stays as it is, whatever happens to the fork."""
        cache = copy.copy(self.cache)
        cache.layers = [copy.copy(layer) for layer in cache.layers]
        for layer in cache.layers:
            if hasattr(layer, "recurrent_states"):
                own_states(layer)
        cache.reorder_cache(rows)
        mask = None if self.mask is None else self.mask[rows]
        return Prefix(cache, self.hidden[rows], self.position[rows], mask)


def own_states(layer: Any) -> None:
    """Makes a copied linear-attention cache layer (Qwen3.5) independent of its original, which keeps states in dicts.

    New recurrent states are assigned, not copied into the old tensor, which autograd has saved for the backward pass.
    """
    vars(layer).update({name: dict(value) for name, value in vars(layer).items() if isinstance(value, dict)})

    def assign(states: Tensor, state_idx: int = 0, **_: Any) -> Tensor:
        layer.recurrent_states[state_idx] = states
        return states

    layer.update_recurrent_state = assign


@dataclass(frozen=True)
class Responses:
    """A group of sampled answers."""

    ids: Tensor  # (G, T) as drawn; after the first EOS, padding
    mask: Tensor  # (G, T) bool: up to and including the first EOS
    log_probs: Tensor  # (G, T) float32 log π of each token at the sampling temperature
    unit_log_probs: Tensor  # (G, T) the same at temperature 1, that of the audit

    def split(self, group_size: int) -> list[Responses]:
        """The responses of each prompt, cut after the longest of them."""
        parts = zip(*(x.split(group_size) for x in (self.ids, self.mask, self.log_probs, self.unit_log_probs)))
        longest = self.mask.sum(-1).view(-1, group_size).amax(-1).tolist()
        return [Responses(*(x[:, :n] for x in part)) for n, part in zip(longest, parts)]


# ── what is loaded ──────────────────────────────────────────────────────────────────────────────────────────────────
@contextlib.contextmanager
def door(what: str, source: object) -> Iterator[None]:
    """Within it, whatever is raised becomes one InputError: what was loaded, from where, and what is wrong.

    transformers, peft, safetensors and torch document no errors, and raise dozens: this is the one place for all of them. The
    original is the cause, and `--debug` shows it.
    """
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{what}: cannot be loaded from {source}: {type(error).__name__}: {first_line(error)}") from error


def source_of(name: str, weights: bool = True) -> str:
    """The folder that a backbone is loaded from; weights=False: it may lack them, where the hub has them.

    Raises InputError, before anything large is fetched or read, for what is no model of a known architecture.
    """
    source = BACKBONES.get(name, name)
    on_hub = not Path(source).exists() and re.fullmatch(r"\w[\w.-]*/[\w.-]+(@[\w./-]+)?", source)
    folder = fetch(source, FORM) if on_hub else Path(source)
    if not (folder / "config.json").is_file():
        raise InputError(f"--backbone: expected one of {', '.join(BACKBONES)}, org/name or org/name@revision for a model of "
                         f"the hub, or a directory with a config.json; found {name!r}")  # fmt: skip
    check_architecture(folder, name)
    if on_hub and weights:
        fetch(source, [*FORM, "*.safetensors"])
    refuse_pointers(folder)
    return str(folder)


def fetch(source: str, patterns: Sequence[str]) -> Path:
    """The folder with those files of a model `org/name` or `org/name@revision`, in huggingface_hub's cache; fetched if they are
    not there. Raises InputError with what the hub has answered, or why it has not, where the cache does not have them either.

    The hub is asked once, with a short patience: transformers would try each file six times, 23 seconds in all.
    """
    name, _, revision = source.partition("@")
    wanted = partial(snapshot_download, name, revision=revision or None, allow_patterns=list(patterns))
    try:
        with door(f"--backbone {source}", "the hub"):
            HfApi().model_info(name, revision=revision or None, timeout=PATIENCE)
    except InputError as error:
        try:
            return Path(wanted(local_files_only=True))
        except (LocalEntryNotFoundError, ValueError):
            advice = f"else give a folder, or fetch it where there is a network: `hf download {name}`"
            raise InputError(f"{error}; {advice}") from error.__cause__
    with door(f"--backbone {source}", "the hub"):
        return Path(wanted())


def check_architecture(folder: Path, name: str) -> None:
    """Raises InputError unless config.json is that of a model of a known architecture."""
    config = read_object(folder / "config.json")
    if "model_type" not in config and "backbone" in config:
        raise InputError(f"--backbone {name}: a run of {config['backbone']}, not a model; evaluate it with --run, or write a "
                         f"model with `python models.py merge {name} OUT`")  # fmt: skip
    if config.get("model_type") not in ARCHITECTURES:
        raise InputError(f"--backbone {name}: model_type in its config.json: expected one of {', '.join(ARCHITECTURES)}, "
                         f"vision-language models; found {shown(config.get('model_type'))}")  # fmt: skip


def refuse_pointers(folder: Path) -> None:
    """Raises InputError for weights that are the small text by which Git LFS stands for them."""
    for path in [*folder.glob("*.safetensors"), *folder.glob("*.bin")]:
        with path.open("rb") as file:
            if file.read(len(POINTER)) == POINTER:
                raise InputError(f"{path}: expected weights; found a pointer of Git LFS: fetch the file with `git lfs pull`")


class Policy:
    """A vision-language model with its tokenizer and image processor.

    The model stays as it is given: another trainer's keeps its gradients and its mode. `load` freezes what it loads, and sets
    eval mode, so that there is no dropout; who builds a model of his own does so himself, with `frozen`.
    """

    def __init__(
        self, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, image_processor: Qwen2VLImageProcessorPil
    ) -> None:
        self.model, self.tokenizer, self.image_processor = model, tokenizer, image_processor
        if model.lm_head.bias is not None:
            raise InputError("--backbone: expected a language head without a bias; `TokenLogProb` knows none")
        self.trunk, self.head = model.model, model.lm_head  # adapters are injected in place, so these stay valid
        self.adapter: PeftModel | None = None
        self.is_reference = False
        self.device = model.device
        self.pixels = image_processor.size["shortest_edge"], image_processor.size["longest_edge"]  # the checkpoint's limits
        self.image_token = model.config.image_token_id
        eos = model.generation_config.eos_token_id or model.config.get_text_config().eos_token_id
        eos = set(eos if isinstance(eos, list) else [eos]) | {tokenizer.eos_token_id}  # Qwen has two of them
        self.eos_ids = torch.tensor(sorted(eos - {None}), device=self.device)
        self.pad_id = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else int(self.eos_ids[0])

    @classmethod
    def load(cls, name: str, device: str = "cpu", dtype: torch.dtype | str = torch.float32) -> Policy:
        """A backbone by its name in BACKBONES, by its name on the hub, or from any local directory in transformers format.

        Raises InputError for a name that is none of these, and for whatever fails. AutoProcessor is avoided: its video half
        needs torchvision.
        """
        source = source_of(name)
        model: PreTrainedModel
        found: dict[str, Any]
        with door(f"--backbone {name}", source):
            model, found = transformers.AutoModelForImageTextToText.from_pretrained(
                source, dtype=dtype, device_map=device, output_loading_info=True
            )  # weight by weight to the device: no copy of the model in memory, of which eight ranks would have eight
            if lacking := sorted(map(str, found["missing_keys"])):
                raise InputError(f"--backbone {name}: {len(lacking)} weights are missing from {source}, as {lacking[0]}")
            tokenizer = transformers.AutoTokenizer.from_pretrained(source)
            if len(tokenizer) <= model.config.image_token_id:  # where files are missing, transformers makes an empty one
                raise InputError(f"--backbone {name}: expected the model's tokenizer at {source}; found one of "
                                 f"{len(tokenizer)} tokens, without the image token {model.config.image_token_id}")  # fmt: skip
            if not tokenizer.chat_template:
                raise InputError(f"--backbone {name}: expected a chat template at {source}: an instruction-tuned model has one")
            return cls(frozen(model), tokenizer, transformers.AutoImageProcessor.from_pretrained(source))

    # ── text and image in ──
    def prompt(self, question: str, n_visual: int, thinking: bool = True, instruction: str = INSTRUCTION) -> Tensor:
        """Token ids (P,) of the chat prompt for n_visual tokens of an image, a question, an instruction: see `chat_prompt`."""
        parts = [n_visual, f"{question} {instruction}"]
        return torch.tensor(chat_prompt(self.tokenizer, parts, self.image_token, thinking), device=self.device)

    def prompt_of_pages(self, question: str, n_visual: Sequence[int], template: str = "") -> Tensor:
        """Token ids (P,) of the chat prompt for several pages of so many visual tokens each, numbered [1]:, [2]:, …

        template says where {pages} and {question} stand; "" is PAGES_TEMPLATE. No <think> is opened in the prompt: thinking is
        the third of the four stages.
        """
        parts = page_parts(question, n_visual, template)
        return torch.tensor(chat_prompt(self.tokenizer, parts, self.image_token, thinking=False), device=self.device)

    def compose(
        self, parts: Sequence[str | Image.Image], thinking: bool = True, system: str = ""
    ) -> tuple[Tensor, list[Vision]]:
        """The chat prompt (P,) of texts and images in their order, and what the model sees of each image."""
        visions = [self.encode(part) for part in parts if not isinstance(part, str)]
        sizes = iter(v.features[0].shape[1] for v in visions)
        parts = [part if isinstance(part, str) else next(sizes) for part in parts]
        return torch.tensor(chat_prompt(self.tokenizer, parts, self.image_token, thinking, system), device=self.device), visions

    def limit_pixels(self, low: int | None, high: int | None) -> tuple[int, int]:
        """Sets how many pixels an image has at least and at most, after resizing; None: the checkpoint's limit stays."""
        low, high = low or self.pixels[0], high or self.pixels[1]
        self.image_processor.size = {"shortest_edge": low, "longest_edge": high}
        return low, high

    def grid(self, size: tuple[int, int]) -> tuple[int, int]:
        """The grid (rows, columns) of visual tokens that an image of size (width, height) gets: see `token_grid`."""
        return token_grid(self.image_processor, size)

    def encode(self, image: Image.Image) -> Vision:
        """The image's visual tokens after spatial merging, in raster order: one (1, N, D) map, and the DeepStack maps.

        No gradient: the vision tower is frozen.
        """
        batch = self.image_processor(images=[image], return_tensors="pt")
        grid_thw, merge = batch["image_grid_thw"], self.image_processor.merge_size
        with torch.no_grad():
            out = self.trunk.get_image_features(batch["pixel_values"].to(self.device), grid_thw.to(self.device))
        maps = [out.pooler_output, *(getattr(out, "deepstack_features", None) or [])]  # each a tuple, one entry an image
        rows, columns = (int(side) // merge for side in grid_thw[0, 1:])
        return Vision([m[0][None] for m in maps], grid_thw, (rows, columns))

    # ── the prompt, read once ──
    def read(self, prompt: Tensor, vision: Vision | Sequence[Vision]) -> Prefix:
        """One forward over the prompt (P,) with each of the E versions of its image, or of its pages in their order."""
        pages = [vision] if isinstance(vision, Vision) else vision
        n, visual = int((prompt == self.image_token).sum()), sum(page.features[0].shape[1] for page in pages)
        if n != visual:
            raise ValueError(f"the prompt holds {n} image tokens, the image has {visual}")
        rows = len(pages[0].features[0])
        position_ids = self.positions(prompt, pages).expand(-1, rows, -1)
        maps = zip(*(page.features for page in pages))  # of each kind of map, those of every page, (E, N, D) each
        return self._read(prompt.expand(rows, -1), position_ids, [[m[r] for r in range(rows) for m in kind] for kind in maps])

    def read_batch(self, prompts: Sequence[tuple[Tensor, list[Vision]]]) -> Prefix:
        """One forward over B different prompts, each with its images: row b is what `read` gives for prompt b alone.

        Shorter prompts are padded on the left. Padding is masked in attention, and Qwen3.5's linear attention is fed zeros
        there, which leave its state at zero. Positions are those of each prompt without its padding.
        """
        pad_left = partial(pad_sequence, batch_first=True, padding_side="left")
        ids = pad_left([ids for ids, _ in prompts], padding_value=self.pad_id)  # (B, P)
        mask = pad_left([torch.ones_like(ids) for ids, _ in prompts]) if len({len(ids) for ids, _ in prompts}) > 1 else None
        positions = [self.positions(*prompt)[:, 0].T for prompt in prompts]  # each (P_b, 3)
        position_ids = pad_left(positions).permute(2, 0, 1)  # (3, B, P)
        maps = zip(*([m[0] for m in vision.features] for _, visions in prompts for vision in visions))
        return self._read(ids, position_ids, [list(m) for m in maps], mask)

    def positions(self, prompt: Tensor, visions: Sequence[Vision]) -> Tensor:
        """M-RoPE positions (3, 1, P) of a prompt (P,) without padding, with its images in their order.

        Counted on the CPU: transformers asks for a dozen numbers one by one, each a wait for the device.
        """
        ids = prompt.cpu()[None]
        grids = torch.cat([vision.grid_thw for vision in visions]) if visions else None
        types = (ids == self.image_token).int()
        return self.trunk.get_rope_index(ids, mm_token_type_ids=types, image_grid_thw=grids)[0].to(self.device)

    def _read(self, ids: Tensor, position_ids: Tensor, maps: list[list[Tensor]], mask: Tensor | None = None) -> Prefix:
        """maps: the visual tokens of all images in row order, each (N, D); then the DeepStack maps in the same way."""
        vision = {"image": SimpleNamespace(pooler_output=maps[0], deepstack_features=maps[1:])} if maps else None
        out = self.trunk(
            input_ids=ids,
            attention_mask=mask,
            position_ids=position_ids,  # explicit: `rope_deltas` of an earlier call cannot leak in
            mm_encoder_outputs=vision,
            use_cache=True,
        )
        after = position_ids.amax((0, 2))[:, None] + 1  # (E, 1)
        return Prefix(out.cache, out.last_hidden_state[:, -1], after, mask)

    def step(self, branch: Prefix, ids: Tensor, start: int) -> Tensor:
        """Feeds response tokens ids (rows, t), the first of them at response index `start`: hidden states (rows, t, D)."""
        positions = torch.arange(start, start + ids.shape[1], device=ids.device) + branch.position  # (rows, t)
        mask = branch.mask
        if mask is not None:  # of all that is in the cache, and of the new tokens
            mask = torch.cat([mask, mask.new_ones(len(ids), start + ids.shape[1])], dim=1)
            if ids.shape[1] == 1:  # one token sees all of it; given whole, transformers does not read it, a wait a token
                mask = mask[:, None, None].bool()
        out = self.trunk(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions.expand(3, *ids.shape),
            cache=branch.cache,
            use_cache=True,
        )
        return out.last_hidden_state

    def states(self, branch: Prefix, ids: Tensor) -> Tensor:
        """The hidden states that predict each token of responses ids (rows, T) after the prompt: (rows, T, D)."""
        first = branch.hidden[:, None]  # the prompt's last state predicts token 0, and each token's state the next
        return first if ids.shape[1] == 1 else torch.cat([first, self.step(branch, ids[:, :-1], 0)], dim=1)

    def sample(
        self, prefix: Prefix, group_size: int, max_new_tokens: int, temperature: float, generators: Sequence[torch.Generator]
    ) -> Responses:
        """group_size continuations of each row, (E · group_size, T), of at most max_new_tokens; temperature 0 is greedy.

        generators: one for each of the E rows, so that what a row draws does not depend on the others; none if it is greedy.
        """
        rows = len(prefix.hidden) * group_size
        ids = torch.full((rows, max_new_tokens), self.pad_id, device=self.device)
        log_probs = torch.zeros(2, *ids.shape, device=self.device)  # at the sampling temperature, and at 1
        with torch.inference_mode():
            for t, live, token, log_p in self._draw(prefix, group_size, max_new_tokens, temperature, generators):
                ids[live, t], log_probs[:, live, t] = token, log_p
        mask = grpo.response_mask(ids, self.eos_ids)
        longest = int(mask.sum(-1).max())
        ids, log_probs = ids.where(mask, self.pad_id)[:, :longest], (log_probs * mask)[..., :longest]
        return Responses(ids, mask[:, :longest], *log_probs)

    def _draw(
        self, prefix: Prefix, group_size: int, max_new_tokens: int, temperature: float, generators: Sequence[torch.Generator]
    ) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Position by position: t, the rows that are drawn (n,), their tokens (n,), and log π of these (2, n), at temperature
        and at 1.

        A row that has ended leaves the batch at the next stop test; what it draws until then counts nothing. Every row has its
        own random numbers, so that nothing depends on who else is there.
        """
        live = torch.arange(len(prefix.hidden) * group_size, device=self.device)
        ended, branch = torch.zeros_like(live, dtype=torch.bool), prefix.fork(live // group_size)
        hidden = branch.hidden
        for t in range(max_new_tokens):
            logits = project(hidden, self.head.weight)  # (n, V)
            unit = logits.log_softmax(-1)
            log_p = unit if temperature in (0, 1) else (logits / temperature).log_softmax(-1)
            if temperature:
                u = [torch.rand(group_size, generator=generator, device=self.device) for generator in generators]
                token = draw(log_p, torch.cat(u)[live])
            else:
                token = log_p.argmax(-1)
            yield t, live, token, torch.stack([x.gather(1, token[:, None])[:, 0] for x in (log_p, unit)])
            ended = ended | torch.isin(token, self.eos_ids)
            if t + 1 == max_new_tokens:
                return
            going = (~ended).nonzero()[:, 0] if (t + 1) % STOP_TEST == 0 else live
            if not len(going):
                return
            if len(going) < len(live):
                branch, live, token, ended = branch.fork(going), live[going], token[going], ended[going]
            hidden = self.step(branch, token[:, None], t)[:, 0]

    def log_probs(
        self, prefix: Prefix, ids: Tensor, temperature: float, scored: Tensor | None = None, max_rows: int = 0
    ) -> Tensor:
        """log π of responses ids (G, T) after each of the E versions of the prompt: (E, G, T), float32.

        Identical responses are scored once and scattered back. Tokens outside scored (G, T) get 0: they are read, but not
        projected to the vocabulary. max_rows bounds how many rows go through the model at a time (0: all of them); the result
        does not depend on it.
        """
        distinct, back = ids.unique(dim=0, return_inverse=True)
        scored = torch.ones_like(ids) if scored is None else scored.to(ids)
        scored = torch.zeros_like(distinct).index_add(0, back, scored) > 0  # what any of the identical ones asks for
        versions, n = len(prefix.hidden), len(distinct)
        pairs = torch.cartesian_prod(*(torch.arange(k, device=self.device) for k in (versions, n)))  # (E · n, 2)
        parts = [
            self._log_probs(prefix.fork(row), distinct[i], temperature, scored[i])
            for row, i in (chunk.unbind(1) for chunk in pairs.split(max_rows or len(pairs)))
        ]
        return torch.cat(parts).view(versions, n, -1)[:, back]

    def _log_probs(self, branch: Prefix, ids: Tensor, temperature: float, scored: Tensor) -> Tensor:
        hidden = self.states(branch, ids)
        where = scored.nonzero(as_tuple=True)
        chunks = zip(hidden[where].split(LOGIT_CHUNK), ids[where].split(LOGIT_CHUNK))
        log_p = [TokenLogProb.apply(h, self.head.weight, y, temperature) for h, y in chunks]
        return torch.zeros(ids.shape, device=self.device).masked_scatter(scored, torch.cat(log_p))  # (rows, T)

    # ── given texts ──
    def likelihoods(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """log π of each continuation of its context, in nats, summed over the continuation's own tokens. No chat template.

        Both are encoded together and cut after the context's tokens, as lm-evaluation-harness does; blanks that end a
        context belong to its continuation. A context that several continuations share is read once.
        """
        by_context, scores = defaultdict(list), [0.0] * len(pairs)
        for i, (context, _) in enumerate(pairs):
            by_context[context.rstrip()].append(i)
        for context, members in by_context.items():
            prompt = self._encode(context)
            rows = [self._encode("".join(pairs[i]))[len(prompt) :] for i in members]
            ids = pad_sequence(rows, batch_first=True, padding_value=self.pad_id)  # (n, T), padded on the right
            own = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
            with torch.inference_mode():
                log_probs = self.log_probs(self.read_batch([(prompt, [])]), ids, 1.0)[0]  # (n, T)
            for i, total in zip(members, (log_probs * own).sum(-1).tolist()):
                scores[i] = total
        return scores

    def _encode(self, text: str) -> Tensor:
        return torch.tensor(self.tokenizer(text, add_special_tokens=False)["input_ids"], device=self.device)

    # ── adapters ──
    def add_lora(self, layers: int, rank: int, alpha: int) -> list[torch.nn.Parameter]:
        """Puts a LoRA adapter on the last decoder layers; returns its parameters, the only trainable ones."""
        self.adapter = grpo.add_lora(self.model, layers, rank, alpha)
        return [p for p in self.adapter.parameters() if p.requires_grad]

    def load_adapter(self, folder: Path) -> None:
        """Puts a saved PEFT adapter on the model. Raises InputError if there is none, or if it is that of another model."""
        if not (folder / "adapter_config.json").is_file():
            raise InputError(f"{folder}: expected a PEFT adapter with an adapter_config.json; found none")
        refuse_pointers(folder)
        if not any(folder.glob("adapter_model.*")):
            raise InputError(f"{folder}: expected the adapter's weights, adapter_model.safetensors; found none")
        from peft import PeftModel

        with door("the adapter", folder), warnings.catch_warnings():
            warnings.filterwarnings("error", ".*missing adapter keys")  # PEFT would go on with random ones
            self.adapter = PeftModel.from_pretrained(self.model, str(folder))

    @contextlib.contextmanager
    def reference(self) -> Iterator[None]:
        """Within it, the policy is the reference: the same weights with the adapter, if there is one, switched off. Within
        itself it changes nothing (PEFT's own would switch the adapter on again at the end of the inner one)."""
        if self.adapter is None or self.is_reference:
            yield
            return
        self.is_reference = True
        try:
            with self.adapter.disable_adapter():
                yield
        finally:
            self.is_reference = False

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of token ids, special tokens included."""
        return self.tokenizer.decode(ids, skip_special_tokens=False)


def frozen(model: PreTrainedModel) -> PreTrainedModel:
    """The model in eval mode and without a trainable parameter, as `Policy.load` gives it."""
    return model.eval().requires_grad_(False)


@contextlib.contextmanager
def evaluating(model: torch.nn.Module) -> Iterator[None]:
    """Within it, every part of the model is in eval mode; after it, each is in the mode in which it was."""
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def page_parts(question: str, n_visual: Sequence[int], template: str = "") -> list[str | int]:
    """The parts of a prompt about pages of so many visual tokens each, for `chat_prompt`: see `Policy.prompt_of_pages`."""
    before, _, after = (template or PAGES_TEMPLATE).partition("{pages}")
    numbered = [part for i, n in enumerate(n_visual, start=1) for part in (f"[{i}]:", n)]
    parts = [before.replace("{question}", question), *numbered, after.replace("{question}", question)]
    return [part for part in parts if part]


def chat_prompt(
    tokenizer: PreTrainedTokenizerBase, parts: Sequence[str | int], image_token: int, thinking: bool, system: str = ""
) -> list[int]:
    """Token ids of a chat prompt of texts and images in their order; an image is given by how many visual tokens it has.

    thinking matters to templates that know it (Qwen3.5's prompt ends in an open <think>, or else in an empty closed one).
    system is the system message; without it the template may have one of its own (Qwen2.5-VL's has).
    A text stays a text, though it hold `<|image_pad|>`: it has a stand-in in the template, which is then cut there, and is
    encoded on its own, where the names of special tokens mean nothing.
    """
    texts = {f"\ue000{k}\ue001": part for k, part in enumerate(parts) if isinstance(part, str)}  # of the private use area
    stand_ins = iter(texts)
    shape = [next(stand_ins) if isinstance(part, str) else part for part in parts]
    content = [{"type": "text", "text": part} if isinstance(part, str) else {"type": "image"} for part in shape]
    messages = [{"role": "system", "content": [{"type": "text", "text": system}]}] if system else []
    rendered = tokenizer.apply_chat_template(
        [*messages, {"role": "user", "content": content}], add_generation_prompt=True, tokenize=False, enable_thinking=thinking
    )
    sizes, ids = iter(part for part in parts if not isinstance(part, str)), []
    for piece in re.split("(\ue000\\d+\ue001)", rendered):
        if piece in texts:
            ids += tokenizer(texts[piece], add_special_tokens=False, split_special_tokens=True)["input_ids"]
        else:
            own = tokenizer(piece, add_special_tokens=False)["input_ids"]
            ids += [token for i in own for token in [i] * (next(sizes) if i == image_token else 1)]
    return ids


def token_grid(image_processor: Qwen2VLImageProcessorPil, size: tuple[int, int]) -> tuple[int, int]:
    """The grid (rows, columns) of visual tokens after merging for an image of size (width, height), without computing it.

    Raises InputError for an aspect ratio above 200, the processor's limit.
    """
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import smart_resize

    cell = image_processor.patch_size * image_processor.merge_size  # 28 px in Qwen2.5-VL, 32 px in Qwen3-VL and Qwen3.5
    low, high = image_processor.size["shortest_edge"], image_processor.size["longest_edge"]
    try:
        height, width = smart_resize(size[1], size[0], factor=cell, min_pixels=low, max_pixels=high)
    except ValueError as error:
        raise InputError(f"an image of {size[0]}x{size[1]} pixels: {error}") from error
    return height // cell, width // cell


def seeded(*key: object, device: str | torch.device = "cpu") -> torch.Generator:
    """A generator that is a function of its key alone, e.g. (run seed, step, sample id): never of rank or history."""
    digest = hashlib.md5(" ".join(map(str, key)).encode()).digest()
    return torch.Generator(device).manual_seed(int.from_bytes(digest[:8], "little") >> 1)


def draw(log_p: Tensor, u: Tensor) -> Tensor:
    """The token at which each row's distribution function passes u: (n, V), (n,) uniform in [0, 1) → (n,).

    One random number a row, where `torch.multinomial` needs one for each of the V tokens.
    """
    cdf = log_p.exp().cumsum(-1)  # (n, V)
    return torch.searchsorted(cdf, u[:, None] * cdf[:, -1:], right=True)[:, 0].clamp(max=log_p.shape[1] - 1)


def project(hidden: Tensor, weight: Tensor) -> Tensor:
    """Logits W h, (…, D), (V, D) → (…, V), in float32: factors of bfloat16, but products that are summed and kept in float32.

    Rounded to bfloat16 they would say little: 24 is followed by 24.125. Without gradient on a GPU. A CPU has no such product;
    there the head is copied to float32.
    """
    if hidden.dtype == torch.float32:
        return F.linear(hidden, weight)
    if hidden.device.type == "cpu":
        return F.linear(hidden.float(), weight.float())
    return torch.mm(hidden.flatten(0, -2), weight.T, out_dtype=torch.float32).unflatten(0, hidden.shape[:-1])


class TokenLogProb(torch.autograd.Function):
    """log π of tokens y given the hidden states that predict them, (n, D), (V, D), (n,) → (n,), for a frozen head W.

    With z = W h / temperature, log π_y = z_y − log Σ_v exp z_v; its gradient in h is Σ_v (1[v = y] − π_v) W_v / temperature.
    That is taken at once, while the logits are there, so that none are kept for the backward pass and none computed twice.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Tensor:
        """log π (n,) and, where hidden (n, D) wants it, its gradient, which `backward` only scales."""
        logits = project(hidden, weight).div_(temperature)  # (n, V)
        chosen, top = logits.gather(1, targets[:, None]), logits.amax(-1, keepdim=True)
        p = logits.sub_(top).exp_()  # in place, as all below: V is large
        total = p.sum(-1, keepdim=True)
        if ctx.needs_input_grad[0]:
            change = p.div_(-total).scatter_add_(1, targets[:, None], torch.ones_like(total))  # 1[v = y] − π_v
            ctx.save_for_backward(change.to(weight.dtype) @ weight / temperature)  # (n, D)
        return (chosen - top - total.log())[:, 0]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (gradient,) = ctx.saved_tensors
        return grad[:, None].to(gradient.dtype) * gradient, None, None, None


COPIED = ["preprocessor_config.json", "video_preprocessor_config.json", "processor_config.json", "chat_template.*",
          "tokenizer*", "vocab.json", "merges.txt", "special_tokens_map.json", "added_tokens.json"]  # fmt: skip


def merge(run: Path, out: Path) -> None:
    """Writes the backbone of a run with its adapter merged in, as a directory that transformers loads by itself.

    Processors, tokenizer and template are the backbone's own files: saved again, they would say less, and AutoProcessor might
    choose another video processor. Raises InputError for a directory that holds something.
    """
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: expected a directory to write that is new or empty; found one that holds something")
    backbone = load_config(run).backbone
    policy = Policy.load(backbone, dtype="auto")
    policy.load_adapter(run / "adapter")
    make_folder(out, "OUT")
    policy.adapter.merge_and_unload().save_pretrained(out)
    folder = Path(source_of(backbone, weights=False))
    for path in [path for pattern in COPIED for path in folder.glob(pattern)]:
        shutil.copy(path, out / path.name)
    print(f"wrote {out}")


def main(argv: Sequence[str] | None = None) -> int:
    """`python models.py merge RUN OUT` writes a run's backbone with its adapter merged in."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("command", choices=["merge"])
    parser.add_argument("run", type=Path, help="the run directory")
    parser.add_argument("merged", type=Path, help="the directory to write")
    parser.add_argument("--debug", action="store_true", help="show where an error of the input was met")
    args = parser.parse_args(argv)
    try:
        merge(args.run, args.merged)
    except InputError as error:
        if args.debug:
            raise
        print(f"models.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
