"""One question, G answers, and what they are worth: steps 1 and 2 of the loop, shared by training and evaluation.

    sample → `sample_group` → Group (answers) → `judge` → Judgement (R_ans, sensitivities, margins)

Numbers come from `config.Config`.
"""

import contextlib
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from PIL import Image
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

import answers
import attribution
import ced
import data
from config import Config
from models import Policy, Prefix, Responses, Vision, evaluating, seeded
from support import joint
from support.questions import prompt_of


@dataclass(frozen=True)
class Group:
    """A prompt and its G sampled answers."""

    sample: data.Sample | data.PagedSample
    visions: list[Vision]  # of its pages
    prompt: Tensor  # (P,)
    prefix: Prefix  # the prompt as it was read for sampling
    responses: Responses
    texts: list[str]  # the responses, decoded
    spans: list[tuple[int, int] | None]  # the tokens of each final answer

    @property
    def vision(self) -> Vision:
        """The one image of a question that has no other."""
        (vision,) = self.visions
        return vision


@dataclass(frozen=True)
class Judgement:
    """What the audit and the answer key say of a group. Margins are 0 where `audited` is False."""

    r_ans: Tensor  # (G,) answer correctness, r_correct or r_wrong
    correct: Tensor  # (G,) bool
    parsed: Tensor  # (G,) bool: there is a final answer
    audited: Tensor  # (G,) bool: there is an answer to audit (presence: a readable yes or no)
    s: Tensor  # (1 + K, G) Eq. 2 of the final answer, nats; row 0 the evidence
    m: Tensor  # (G,) Eq. 3: Answer-CED
    m_cot: Tensor | None  # (G,) Eq. 3 averaged over the response: CoT-CED; None for methods that need no such margin
    masks: Tensor  # (1 + K, N) the audited token regions
    null_boxes: Tensor  # (≤ K, n, 4) the boxes of the null regions that have some
    group: Group | None = None  # what is judged


# ── 1 sample ────────────────────────────────────────────────────────────────────────────────────────────────────────
def sample_groups(
    policy: Policy, samples: Sequence[data.Sample], config: Config, group_size: int, generators: Sequence[torch.Generator]
) -> Iterator[Group]:
    """group_size answers of the policy to each sample, at config's temperature and length limit, `sample_rows` at a time.

    Prompts that are sampled together are padded on the left. Each has its own random numbers, so its answers are those that it
    gets alone; their log π differ by rounding.
    """
    together = max(1, config.sample_rows // group_size)  # prompts
    for start in range(0, len(samples), together):
        part, draws = samples[start : start + together], generators[start : start + together]
        asked = [ask(policy, sample, config) for sample in part]
        with torch.inference_mode():
            prefix = policy.read_batch([(prompt, visions) for visions, prompt in asked])
        responses = policy.sample(prefix, group_size, config.max_new_tokens, config.temperature, draws)
        for row, (sample, own) in enumerate(zip(part, responses.split(group_size))):
            yield group_of(policy, sample, *asked[row], prefix.fork(torch.tensor([row], device=policy.device)), own)


def sample_group(policy: Policy, sample: data.Sample, config: Config, group_size: int, generator: torch.Generator) -> Group:
    """group_size answers of the policy to one sample."""
    return next(sample_groups(policy, [sample], config, group_size, [generator]))


def given_group(policy: Policy, sample: data.Sample, texts: Sequence[str], config: Config) -> Group:
    """A group whose answers are given instead of sampled, to be judged or audited (log π is that of temperature 1)."""
    rows = [policy.tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]
    return group_of_ids(policy, sample, rows, config)


def group_of_ids(
    policy: Policy,
    sample: data.Sample,
    rows: Sequence[Sequence[int] | Tensor],
    config: Config,
    image: Image.Image | None = None,
    prompt: Tensor | None = None,
) -> Group:
    """`given_group` of rows of token ids, each up to its end, and of an image and a prompt that may be given: see `ask`."""
    rows = [torch.as_tensor(row, dtype=torch.long, device=policy.device) for row in rows]
    ids = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id)  # (G, T)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).bool()
    visions, prompt = ask(policy, sample, config, image, prompt)
    with torch.inference_mode():
        prefix = policy.read(prompt, visions)
        log_probs = policy.log_probs(prefix, ids, 1.0, mask)[0]
    return group_of(policy, sample, visions, prompt, prefix, Responses(ids, mask, log_probs, log_probs))


def ask(
    policy: Policy, sample: data.Sample, config: Config, image: Image.Image | None = None, prompt: Tensor | None = None
) -> tuple[list[Vision], Tensor]:
    """What the policy sees of the sample's pages, and the prompt (P,) that asks its question: of its files and by config, or an
    image and a prompt that are given. Raises ValueError for an image of another size than the one on which the boxes are."""
    sizes = [page.size for page in sample.pages]
    if image is not None and [image.size] != sizes:
        raise ValueError(f"{sample.id}: expected the image of size {sizes} that its boxes are on; found one of {image.size}")
    images = [data.open_image(page.image) for page in sample.pages] if image is None else [image]
    return [policy.encode(image) for image in images], prompt_of(policy, sample, config) if prompt is None else prompt


def group_of(
    policy: Policy, sample: data.Sample, visions: list[Vision], prompt: Tensor, prefix: Prefix, responses: Responses
) -> Group:
    """The group of these responses, decoded, with their answers found."""
    lengths = responses.mask.sum(-1).tolist()
    rows = [ids[:length] for ids, length in zip(responses.ids.tolist(), lengths)]
    texts = [policy.decode(row) for row in rows]
    spans = [answers.answer_span(row, policy.decode) for row in rows]
    return Group(sample, visions, prompt, prefix, responses, texts, spans)


# ── 2 judge ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def span_mask(spans: Sequence[tuple[int, int] | None], length: int) -> Tensor:
    """Token spans as masks, (G, T) bool; a missing span is all False."""
    positions = torch.arange(length)
    return torch.stack([(positions >= a) & (positions < b) for a, b in (span or (0, 0) for span in spans)])


def opposite(text: str) -> str | None:
    """`text` with the yes or no that is read in it turned into the other: "eyes? Yes." → "eyes? No.", "Y" → "N".

    Just the other word where none alone decides ("Absolutely."); None where nothing is read.
    """
    other = {"yes": "no", "no": "yes", "y": "n", "n": "y"}
    said, text = answers.parse_yesno(text), unicodedata.normalize("NFKC", text)
    for word in re.finditer(r"\b(?:yes|no|y|n)\b", text, re.IGNORECASE):
        new = other[word[0].lower()]
        new = new.upper() if word[0].isupper() else new.title() if word[0].istitle() else new
        turned = text[: word.start()] + new + text[word.end() :]
        if said and answers.parse_yesno(turned) == other[said]:
            return turned
    return said and other[said]


def flipped(policy: Policy, ids: list[int], span: tuple[int, int] | None) -> tuple[list[int], tuple[int, int] | None]:
    """A response's ids with its yes turned into no (or no into yes), and the new answer's span; None if it has neither."""
    other = opposite(policy.decode(ids[slice(*span)])) if span else None
    if other is None:
        return ids, None
    new = policy.tokenizer(other, add_special_tokens=False)["input_ids"]
    return ids[: span[0]] + new + ids[span[1] :], (span[0], span[0] + len(new))


def restated(policy: Policy, ids: list[int], span: tuple[int, int], said: str, other: str) -> tuple[list[int], tuple[int, int]]:
    """A response's ids with what its answer said in other words, and the new answer's span. Before and after nothing changes:
    the span alone, with what its tokens carry besides the answer, is encoded anew."""
    before, _, after = policy.decode(ids[slice(*span)]).partition(said)
    new = policy.tokenizer(before + other + after, add_special_tokens=False)["input_ids"]
    return ids[: span[0]] + new + ids[span[1] :], (span[0], span[0] + len(new))


def audited_spans(policy: Policy, group: Group, config: Config) -> list[tuple[int, int] | None]:
    """The tokens whose dependence on the evidence is asked for: the final answer's or, with `--span evidence`, those of what
    the response records of the pages. An answer that is derived from a written record is blind: the record has looked."""
    if config.span == "answer":
        return group.spans
    rows = zip(group.responses.ids.tolist(), group.responses.mask.sum(-1).tolist())
    return [answers.answer_span(ids[:length], policy.decode, config.span) for ids, length in rows]


def scored_rows(policy: Policy, group: Group, spans: list[tuple[int, int] | None]) -> tuple[Tensor, Tensor]:
    """The rows that an audit scores: token ids (rows, T) and their audited spans (rows, T) bool.

    The G responses; for a yes/no question then the same G with the answer flipped (an empty span where there is none).
    """
    ids = group.responses.ids.cpu()
    if group.sample.kind == "yesno":
        other, other_spans = zip(*(flipped(policy, row.tolist(), span) for row, span in zip(ids, spans)))
        rows = [*ids, *(ids.new_tensor(row) for row in other)]
        ids = pad_sequence(rows, batch_first=True, padding_value=policy.pad_id)
        spans = [*spans, *other_spans]
    return ids.to(policy.device), span_mask(spans, ids.shape[1])


def audit_answers(policy: Policy, group: Group, masks: Tensor, config: Config) -> tuple[Tensor, Tensor, Tensor]:
    """Eqs. 1 and 2 on a group: s (1 + K, G, T), audited spans (G, T) bool, and which responses have one (G,) bool.

    masks are (1 + K, Σ N) over the pages. s holds for the audited spans, and for CoT-CED, the one method that reads it
    elsewhere, for whole responses. log π on the unedited pages was recorded when the answers were sampled.

    With two possible answers the evidence speaks in their log-odds, so for yes/no questions the flipped answer is scored
    too: s and spans then have 2T columns, those of y and, with a minus sign, those of ȳ. Its audit is log π(y) − log π(ȳ).
    """
    visions, g = group.visions, len(group.texts)
    ids, spans = scored_rows(policy, group, audited_spans(policy, group, config))
    scored = None if config.method == "cot-ced" else spans

    def score(pages: list[list[Tensor]]) -> Tensor:
        prefix = policy.read(group.prompt, [vision.edited(maps) for vision, maps in zip(visions, pages)])
        return policy.log_probs(prefix, ids, 1.0, scored, config.audit_rows)

    noise = seeded(config.seed, "noise", group.sample.id)
    with torch.inference_mode():
        unedited = group.responses.unit_log_probs
        if group.sample.kind == "yesno":  # flipped answers were never sampled
            unedited = policy.log_probs(group.prefix, ids, 1.0, scored, config.audit_rows)[0]
        pages = [([m[0] for m in vision.features], vision.grid) for vision in visions]
        s = ced.audit(score, unedited, pages, masks, config.intervention, config.ring, noise).cpu()
    if group.sample.kind == "yesno":
        audited = spans[g:].any(-1)
        return torch.cat([s[:, :g], -s[:, g:]], -1), torch.cat([spans[:g], spans[g:]], -1) & audited[:, None], audited
    return s, spans, spans.any(-1)


def right_rows(policy: Policy, group: Group) -> tuple[Tensor, Tensor]:
    """The right answer after each chain of thought of a group: ids (rows, T), and which of them are its tokens (rows, T) bool.

    A right answer keeps the tokens that it was sampled in; a wrong one gives way to the right one, as the tokenizer encodes it.
    A response without an answer has no place for one; if none has, the right answer follows the prompt directly.
    """
    rows: list[list[int]] = []
    spans: list[tuple[int, int] | None] = []
    sample = group.sample
    for ids, span, text in zip(group.responses.ids.tolist(), group.spans, group.texts):
        if span and not answers.is_correct(text, sample.answer, sample.kind):
            ids, span = restated(policy, ids, span, answers.answer_text(text), sample.answer)
        if span:
            rows.append(ids[: span[1]])
            spans.append(span)
    if not rows:
        text = f"{answers.OPEN} {sample.answer} {answers.CLOSE}"
        rows.append(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
        spans.append(answers.answer_span(rows[0], policy.decode))
    ids = pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=policy.pad_id)
    return ids.to(policy.device), span_mask(spans, ids.shape[1]).to(policy.device)


def score_right(policy: Policy, group: Group, ids: Tensor, spans: Tensor, maps: list[Tensor]) -> Tensor:
    """log π of `right_rows` under n versions of each of the image's maps, (n, N, D): (n, rows, T), 0 but on the answers."""
    return policy.log_probs(policy.read(group.prompt, group.visions[0].edited(maps)), ids, 1.0, spans)


def eyes(policy: Policy, config: Config) -> contextlib.AbstractContextManager:
    """Within it, the policy is whoever says where the evidence is: the reference, for a region that followed the policy could
    be moved by it; or, in the ablation, the policy itself."""
    return contextlib.nullcontext() if config.evidence == "attributed-policy" else policy.reference()


def attributions_of(policy: Policy, group: Group, config: Config) -> Tensor:
    """What each visual token adds to log π of the right answer, (N,) in nats: integrated gradients, summed over the group.

    The prompt is read once a step of the path, whatever the number of answers; at most `evidence_rows` of these go through the
    model in one pass.
    """
    ids, spans = right_rows(policy, group)
    maps = [m[0] for m in group.visions[0].features]
    nothing = [m.float().mean(0) for m in maps]
    rows = config.evidence_rows or len(ids) * config.evidence_steps
    total = torch.zeros(len(maps[0]), device=policy.device)
    with eyes(policy, config):
        for part in zip(ids.split(rows), spans.split(rows)):
            score, at_once = partial(score_right, policy, group, *part), max(1, rows // len(part[0]))
            total += attribution.integrated_gradients(score, maps, nothing, config.evidence_steps, at_once)
    return total.cpu()


def regions_of(policy: Policy, group: Group, config: Config) -> tuple[Tensor, Tensor]:
    """The audit's token masks (1 + K, N), and the boxes (≤ K, n, 4) of the null regions that are the evidence moved; n = 0
    where the evidence is tokens. Found once a visit, and the same for all answers of the group.

        boxes              what the data says (`data.evidence_boxes`)
        attributed         where the right answer comes from, after the group's chains of thought (`attributions_of`)
        attributed-policy  the same in the eyes of the policy itself: the ablation
        random             as many tokens as the boxes own, anywhere
        centre             the paper's last resort, `data.centre_box`
    """
    sample, where = group.sample, seeded(config.seed, "regions", group.sample.id)
    if isinstance(sample, data.PagedSample):
        return joint_regions(sample, group.visions, config)
    grid = group.visions[0].grid
    if config.evidence in ("boxes", "centre"):
        boxes = torch.tensor(evidence_boxes(sample, config))
        return ced.audit_regions(boxes, sample.size, grid, config.k, config.max_iou, where)
    if config.evidence == "random":
        owned = ced.region_tokens(torch.tensor(sample.boxes), sample.size, grid)
        evidence = ced.random_tokens(torch.ones_like(owned), int(owned.sum()), where)
    else:
        attributions = attributions_of(policy, group, config)
        most = max(1, int(config.evidence_most * len(attributions)))
        evidence = attribution.region_of(attributions, config.evidence_mass, config.min_tokens, most)
    masks, shifts = ced.audit_tokens(evidence, grid, config.k, config.max_overlap, where)
    return masks, ced.shift_boxes(torch.empty(0, 4), shifts, sample.size, grid)


def evidence_boxes(sample: data.Sample, config: Config) -> tuple[tuple[float, float, float, float], ...]:
    """The boxes that are the evidence of a sample; none where it is tokens."""
    return {"boxes": sample.boxes, "centre": (data.centre_box(sample.size),)}.get(config.evidence, ())


def joint_regions(sample: data.PagedSample, visions: Sequence[Vision], config: Config) -> tuple[Tensor, Tensor]:
    """`regions_of` over several pages: masks (1 + K, Σ N), all False if no page holds evidence, or if all that they show is
    evidence and there is nothing to compare it with. Of null regions on several pages no boxes are kept, (≤ K, 0, 4)."""
    boxes = [torch.tensor(page.boxes).view(-1, 4) for page in sample.pages]
    pages = [(page.size, vision.grid) for page, vision in zip(sample.pages, visions)]
    evidence = joint.joint_tokens(boxes, *zip(*pages))
    if evidence.all() or not evidence.any():
        return torch.zeros(1 + config.k, len(evidence), dtype=torch.bool), torch.zeros(0, 0, 4)
    where = seeded(config.seed, "regions", sample.id)
    masks, placed = joint.joint_regions(boxes, pages, config.k, config.max_iou, where)
    return masks, torch.zeros(placed, 0, 4)


def judge(policy: Policy, group: Group, config: Config) -> Judgement:
    """R_ans and the audit of a group: K non-evidence regions, and Eqs. 1–3 on every answer."""
    sample = group.sample
    masks, nulls = regions_of(policy, group, config)
    if masks.any():
        s, spans, audited = audit_answers(policy, group, masks, config)
    else:  # there is nothing to audit, as where no page decides the answer
        spans = torch.zeros_like(group.responses.mask, device="cpu")
        s, audited = spans.expand(len(masks), *spans.shape).float(), spans.any(-1)
    parsed = torch.tensor([span is not None for span in group.spans])
    share = parsed * torch.tensor([answers.score(t, sample.answer, sample.kind) for t in group.texts])  # (G,) of R_ans
    mask = group.responses.mask.cpu()
    return Judgement(
        r_ans=torch.where(share == 1, config.r_correct, config.r_wrong + share * (config.r_correct - config.r_wrong)),
        correct=share == 1,
        parsed=parsed,
        audited=audited,
        s=(s * spans).sum(-1),
        m=ced.answer_margin(s, spans, config.eps_margin),
        m_cot=ced.cot_margin(s[..., : mask.shape[1]], mask, config.eps_margin) if config.method == "cot-ced" else None,
        masks=masks,
        null_boxes=nulls,
        group=group,
    )


def judge_given(
    policy: Policy,
    sample: data.Sample,
    rows: Sequence[Sequence[int] | Tensor],
    config: Config,
    image: Image.Image | None = None,
    prompt: Tensor | None = None,
) -> Judgement:
    """The judgement of answers that another trainer has sampled: rows of token ids, each up to its end.

    image (RGB, in memory) and prompt (P,), with one image token for each visual token, are those that the answers were sampled
    from; without them the sample's file, and the prompt of this project. The model may be in training: there is no dropout and
    no gradient, and each of its parts is left in the mode in which it was.
    """
    with evaluating(policy.model):
        return judge(policy, group_of_ids(policy, sample, rows, config, image, prompt), config)
