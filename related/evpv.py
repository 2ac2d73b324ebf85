"""EVPV, Explicit Visual Premise Verification (arXiv 2603.16253): was a step reasoned wrongly, or was the picture seen wrongly?

A process reward model gives each step of a solution one number, which cannot tell the two apart. So the policy states, beside
each step, the visual facts that it rests on; an extractor lists facts of the image, once an image; and how well the two agree
gates the rewards of the steps that look.

    symbol      code name          meaning
    C           facts              what the extractor saw: triples (predicate, subject, value)
    d_t, ν_t    a step's claims    the triples that step t states as seen; ν_t = 1 if there are any
    v_j, p_j    claim, support     one of the solution's M claims, and m(v_j, C): 1 stated by C, 0 contradicted, else UNKNOWN
    r           reliability        ε-smoothed geometric mean of supports, in (0, 1]
    α(r)        gate               σ(β (r − τ))
    u_t         u                  the verifier's P(step t is right)
    R_t         step_rewards       R_base = 2 u_t − 1, gated where ν_t = 1
    Score(S)    trajectory_score   geometric mean of the rewards, mapped from [−1, 1] to [0, 1]

Paper and released code (github.com/Qwen-Applications/EVPV-PRM) name no β, τ, ε, UNKNOWN, or threshold κ above which a step is
called right: those are choices. Four properties follow from the formula, whatever the numbers:
* α > 0 changes no sign. With the threshold 0, gated and ungated verdicts on steps are equal; only a tuned κ tells them apart.
* Attenuation is not correction. A true look that the verifier rejects stays rejected, and the gate makes a rejected false
  look *better*: −0.8 becomes −0.007.
* One r a solution also gates its true looks.
* Silence passes: an empty or selective checklist has r = 1, and idle true claims dilute a false one (r → ε^(1/M) → 1).
The gates that `HOW` adds to the paper's mend one of these each. A claim or a list of facts that cannot be read is UNKNOWN,
never contradicted: with 0 in its place, every look of an image whose facts are unreadable would fall below any fixed κ.
"""

import json
import math
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from statistics import fmean

Triple = tuple[str, str, float | str]  # predicate, subject, value; words and numbers as `norm` writes them

UNKNOWN = 0.5
BETA, TAU, EPS, FLOOR = 10.0, 0.5, 1e-3, 1e-3
TOLERANCE = 0.05  # relative, of lengths and angles that are read off; counts are exact
EXACT = ("count", "number")
CONVERSE = {"left of": "right of", "above": "below", "larger than": "smaller than", "contains": "inside"}
CONVERSE |= {converse: relation for relation, converse in CONVERSE.items()}
CONVERSE |= {relation: relation for relation in ("parallel", "perpendicular", "connected")}  # symmetric


# ── claims and facts ────────────────────────────────────────────────────────────────────────────────────────────────
def norm(value: object) -> float | str:
    """A number, if that is all it is ("3", "1,000", "90°"); else the words in lower case, without a leading article and end
    punctuation. "point A" keeps its A, and NaN is a word."""
    text = " ".join(str(value).lower().replace("_", " ").replace("−", "-").split()).rstrip(".,;:!? ")
    text = re.sub(r"^(an?|the) (?=.)", "", text)
    try:
        number = float(re.sub(r",(?=\d{3}\b)", "", text).rstrip("° "))
    except ValueError:
        return text
    return number if math.isfinite(number) else text


def triple(entry: object) -> Triple:
    """One claim or fact as a Triple. Raises ValueError unless it is a list of three words or numbers."""
    whole = isinstance(entry, list) and len(entry) == 3 and all(isinstance(part, str | int | float) for part in entry)
    if not whole or not all(isinstance(part, str) and part.strip() for part in entry[:2]):
        raise ValueError(f"expected [predicate, subject, value]; found {json.dumps(entry)[:80]}")
    predicate, subject = (str(norm(part)) for part in entry[:2])
    return predicate, subject, norm(entry[2])


def as_triples(entries: object) -> list[Triple]:
    """A list of triples, or one triple, as parsed from JSON. Raises ValueError."""
    if not isinstance(entries, list):
        raise ValueError(f"expected a list of [predicate, subject, value]; found {json.dumps(entries)[:80]}")
    return [triple(entry) for entry in ([entries] if entries and isinstance(entries[0], str) else entries)]


def triples(text: str) -> list[Triple]:
    """The first JSON list of triples in a text; a single triple is a list of one. Raises ValueError with the reason.

    A list is read whole or not at all: half of a checklist, as in a text that was cut off, would hide which half was lost.
    """
    start = re.search(r'\[(?=\s*[\["\]])', text)  # what else a bracket opens ("[1]", "[see above]") is no list of triples
    if not start:
        raise ValueError("no JSON list of triples")
    try:
        return as_triples(json.JSONDecoder().raw_decode(text, start.start())[0])
    except RecursionError as error:  # a model may repeat "[" for ever
        raise ValueError("a JSON list nested without end") from error


def agreement(claim: Triple, fact: Triple, tolerance: float) -> float | None:
    """1 if the fact states the claim, 0 if it contradicts it, None if it does not speak of it. The type follows from what they
    say: relational (the predicate has a converse), numeric (two numbers), or structural (two texts)."""
    predicate, subject, value = claim
    if predicate in CONVERSE:
        stated = {claim, (CONVERSE[predicate], value, subject)}
        contradicted = {(predicate, value, subject), (CONVERSE[predicate], subject, value)} - stated
        return 1.0 if fact in stated else 0.0 if fact in contradicted else None
    if fact[:2] != (predicate, subject) or isinstance(value, str) != isinstance(fact[2], str):
        return None  # "3 cm" against 3 is neither the same nor another
    if isinstance(value, str):
        return float(value == fact[2])
    return float(abs(value - fact[2]) <= (0 if predicate in EXACT else tolerance) * abs(fact[2]))


def support(claim: Triple | None, facts: Sequence[Triple], unknown: float = UNKNOWN, tolerance: float = TOLERANCE) -> float:
    """p_j = m(v_j, C). Of several facts about one thing the best counts. None, a claim that cannot be read, is UNKNOWN."""
    found = [] if claim is None else [agreement(claim, fact, tolerance) for fact in facts]
    return max((p for p in found if p is not None), default=unknown)


def corrupt(
    facts: Sequence[Triple], kind: str, rate: float, options: dict[str, Sequence[float | str]], rng: random.Random
) -> list[Triple]:
    """C with each fact hit with probability `rate`. kind `drop`: it is gone; `perturb`: it has another of its predicate's
    options; `shuffle`: it trades values with the other hit facts of its predicate (in another order C would be the same)."""
    hit = {i for i in range(len(facts)) if rng.random() < rate}
    if kind == "drop":
        return [fact for i, fact in enumerate(facts) if i not in hit]
    values = [value for _, _, value in facts]
    if kind == "perturb":
        for i in sorted(hit):
            values[i] = rng.choice([option for option in options[facts[i][0]] if option != values[i]])
    elif kind == "shuffle":
        together = defaultdict(list)
        for i in sorted(hit):
            together[facts[i][0]].append(i)
        for places in together.values():
            turn = rng.randrange(1, max(2, len(places)))  # none keeps its own
            for i, j in zip(places, places[turn:] + places[:turn]):
                values[i] = facts[j][2]
    else:
        raise ValueError(f"kind: expected drop, perturb or shuffle; found {kind!r}")
    return [(*fact[:2], value) for fact, value in zip(facts, values)]


# ── rewards ─────────────────────────────────────────────────────────────────────────────────────────────────────────
def reliability(supports: Sequence[float], eps: float = EPS) -> float:
    """r = exp(1/M Σ_j log(ε + p_j)), at most 1 (ε alone would lift it above); 1 if there is no claim."""
    return min(1.0, math.exp(fmean(math.log(eps + p) for p in supports))) if supports else 1.0


def gate(r: float, beta: float = BETA, tau: float = TAU) -> float:
    """α(r) = σ(β (r − τ))."""
    return 1 / (1 + math.exp(-beta * (r - tau)))


# A look's reward from R_base, α of the solution, and r_t and α of its own claims.
HOW: dict[str, Callable[[float, float, float, float], float]] = {
    "base": lambda base, alpha, own_r, own_alpha: base,  # the verifier alone
    "trajectory": lambda base, alpha, own_r, own_alpha: alpha * base,  # the paper: R_t = α(r) R_base
    "positive": lambda base, alpha, own_r, own_alpha: alpha * base if base > 0 else base,  # as released: no rejection fades
    # this project's:
    "step": lambda base, alpha, own_r, own_alpha: own_alpha * base,  # a true look does not pay for a false one
    "penalty": lambda base, alpha, own_r, own_alpha: alpha * base - (1 - alpha),  # unsupported is wrong, not neutral
    "penalty-step": lambda base, alpha, own_r, own_alpha: own_alpha * base - (1 - own_alpha),
    "direct": lambda base, alpha, own_r, own_alpha: 2 * own_r - 1,  # facts in the verifier's place: true looks are accepted too
}


def step_rewards(
    u: Sequence[float], supports: Sequence[Sequence[float]], how: str, beta: float = BETA, tau: float = TAU, eps: float = EPS
) -> list[float]:
    """R_t of a solution's steps, in [−1, 1]: u (T,), and the supports of each step's claims, none where ν_t = 0.

    `how` names a row of `HOW`. Steps that do not look keep R_base = 2 u_t − 1 in all of them.
    """
    alpha = gate(reliability([p for own in supports for p in own], eps), beta, tau)
    rewards = []
    for u_t, own in zip(u, supports, strict=True):
        base, own_r = 2 * u_t - 1, reliability(own, eps)
        rewards.append(HOW[how](base, alpha, own_r, gate(own_r, beta, tau)) if own else base)
    return rewards


def trajectory_score(rewards: Sequence[float], floor: float = FLOOR) -> float:
    """Score(S) = Π_t max(floor, (1 + R_t) / 2)^(1/T). A solution without steps, one that cannot be read, scores 0."""
    return math.exp(fmean(math.log(max(floor, (1 + reward) / 2)) for reward in rewards)) if rewards else 0.0


# ── what it is worth ────────────────────────────────────────────────────────────────────────────────────────────────
def macro_f1(predicted: Sequence[int], gold: Sequence[int]) -> float:
    """The mean of the F1 of right steps (1) and of wrong ones (−1). Neutral steps (0) are left out, as in VisualProcessBench; a
    class that nobody names has F1 0."""
    pairs, scores = [(p, g) for p, g in zip(predicted, gold, strict=True) if g], []
    for label in (1, -1):
        named = sum((p == label) + (g == label) for p, g in pairs)
        scores.append(2 * sum(p == g == label for p, g in pairs) / named if named else 0.0)
    return fmean(scores)


def threshold(rewards: Sequence[float], gold: Sequence[int]) -> float:
    """κ: steps with R_t > κ are called right at the highest Macro-F1. It lies midway between two rewards,
    is −2 if all are, and 1 if none is."""
    pairs = sorted((reward, label) for reward, label in zip(rewards, gold, strict=True) if label)
    right, n = sum(label == 1 for _, label in pairs), len(pairs)
    hit, caught, best, kappa = right, 0, right / max(right + n, 1), -2.0
    for called, (reward, label) in enumerate(pairs, start=1):  # so many are called wrong
        hit, caught = hit - (label == 1), caught + (label == -1)
        after = pairs[called][0] if called < n else math.inf
        score = hit / max(right + n - called, 1) + caught / (n - right + called)
        if after > reward and score > best:
            best, kappa = score, min(1.0, (reward + after) / 2)
    return kappa


def best_of_n(scores: Sequence[float], right: Sequence[float]) -> float:
    """The expected `right` of the response with the highest score. Ties share evenly: with "right if any tied one is", a judge
    that says the same of all would score Pass@N."""
    best = max(scores)
    return fmean(value for score, value in zip(scores, right, strict=True) if score == best)
