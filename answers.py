"""What a response answers: the tokens that say it, and whether it is right (R_ans).

A response reads `<think> ... </think> <answer> red </answer>`. Two questions are asked about it:

    which of the sampled tokens are the answer?   `answer_span`   Answer-CED sums log π over these, and only these
    is the answer right?                          `is_correct`    R_ans in training, the score in evaluation

Both read the same characters, the last complete <answer>...</answer> outside the reasoning, so what is rewarded is what is
audited. A public benchmark's reply may have no tag at all: what follows its reasoning is judged then. With a tag that is not
closed, or with nothing in it, the answer is wrong.

A reply is brought into one spelling (`_clean`), the values in it are found (numbers; yes and no; letters and texts of options),
and what it does not say is left out (`_silenced`): a question, and a clause that denies, plans, supposes, compares or quotes.
Then the first of these readings that offers a value decides. Each has a name, by which a caller can count the last resorts.

    reading     what it reads                                                  an example                              says
    whole       all of the reply; of numbers, with their unit                  ｂ） · Y · 7 dogs · a dog                B yes 7 B
    stated      right after the last "answer is", "I choose", "total:", boxed  The answer is 4, not 9.                 4
    alone       a line or sentence of its own, or one that opens a line        7. Three are left, four right.          7
    concluded   the last of: "so" or "it is" and no more; what "is right",     I count 3 here, 4 there, so 7.          7
                "fits"; what a sentence with "therefore" or "=" gives          A is wrong; C fits.                     C
    told        of numbers: "there are", "I see", if of the whole picture      There are 7 dogs, one of them black.    7
    once        the only value that is named                                   It was painted by Georges Seurat.       B
    last        the last resort: the last sentence that gives one value        They are 15 and 4. The gap is 11.       11

A sentence *gives* what it says something is ("the gap is 11"), else the only value that it names. Where a reply breaks off in
a new clause, only what it has said so far by name or conclusion is read: no `once`, no `last`; nor is a list's item the last.

    kind    values                                                               what is none of them
    count   1,000 · -3 · .5 · 1.5×10³ · 5cm · ½ · twenty-one · two dozen · VII   2nd, 3D, 7/7, x7, step 2, at least 3, one of
            · "none" and "there are no" are 0                                    them, 90 % sure
    yesno   yes, no, and sentences that mean one: "Absolutely.", "不是"          no image, no. 2, no doubt
    mcq     an option's text, as whole words with their operators, the longest   A man, 30°C, ∠C, vitamin C: a letter names
            first; a letter where the reply says that it is the answer; so too   things, and is looked for only in the first
            with a number that is an option's text                               four readings, but in brackets or after "option"
    word    the whole reply, without case, articles, punctuation; C++ is not C

Two principles hold for every kind. Unreadable is wrong, never a guess. Alternatives ("2 or 3", "A/B", "yes and no") are one
reading with several values, hence unreadable.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from os.path import commonprefix  # of any strings: it compares character by character
from typing import NamedTuple

OPEN, CLOSE = "<answer>", "</answer>"


# ---- the answer of a response, as characters and as tokens -----------------------------------------------------------

def _outside(text: str) -> list[tuple[int, int]]:
    """[a, b) of the stretches of `text` that are no reasoning. A prompt may have opened <think>, and a reply may never
    close it: what no tag opens is reasoning back to the start, what no tag closes is reasoning to the end."""
    stretches, start = [], 0
    for part in text.split("</think>"):
        head, opened, _ = part.partition("<think>")
        if opened or start + len(part) == len(text):
            stretches.append((start, start + len(head)))
        start += len(part) + len("</think>")
    return stretches


def _answer_range(text: str) -> tuple[int, int] | None:
    """[a, b) in characters of the last complete answer, without the blanks around it; None if there is no such text."""
    for begin, end in reversed(_outside(text)):
        start = text.rfind(OPEN, begin, max(text.rfind(CLOSE, begin, end), begin))  # the nearest before the last closing tag
        if start >= 0:
            start += len(OPEN)
            inner = text[start : text.find(CLOSE, start)]
            start += len(inner) - len(inner.lstrip())
            return (start, start + len(inner.strip())) if inner.strip() else None
    return None


def answer_text(response: str) -> str | None:
    """The text of the last complete <answer>...</answer>, stripped; None if missing, unclosed or empty."""
    found = _answer_range(response)
    return response[slice(*found)] if found else None


def answer_span(ids: Sequence[int], decode: Callable[[Sequence[int]], str]) -> tuple[int, int] | None:
    """Half-open span, in positions of `ids`, of the tokens that carry a character of the answer, or a part of one.

    `ids` are the sampled tokens and are only ever decoded: encoding the text again may cut it elsewhere, and a token
    may straddle a tag (">red"). `decode` must show special tokens, and an unfinished UTF-8 character as U+FFFD.
    Returns None where `answer_text(decode(ids))` is None. Costs O(log T) decodes of a prefix.
    """
    text = decode(ids)
    found = _answer_range(text)
    if found is None:
        return None

    def finished(i: int) -> int:  # how many characters of text are complete after ids[:i]
        return len(commonprefix([text, decode(ids[:i])]))

    def touched(i: int) -> int:  # the same, with the character that ids[:i] has begun and not finished
        return min(finished(i) + 1, len(decode(ids[:i])))

    # Token i carries the characters [finished(i), touched(i + 1)). Both bounds never fall as i grows, so bisect.
    first = bisect_right(range(len(ids)), found[0], key=lambda i: touched(i + 1))  # first i with touched(i + 1) > a
    stop = bisect_left(range(len(ids)), found[1], key=finished)  # first i with finished(i) >= b
    return first, stop


def judged(response: str) -> str:
    """The part of a response that answers: inside the tags or, where there are none, the last that is no reasoning."""
    parts = [response[begin:end] for begin, end in _outside(response)]
    if any(OPEN in part for part in parts):
        return answer_text(response) or ""
    return next((part for part in reversed(parts) if part.strip()), "")


# ---- one spelling ----------------------------------------------------------------------------------------------------

_CJK = "[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"
_SPELLINGS = str.maketrans({**dict.fromkeys("‐‑‒–—―−", "-"), **dict.fromkeys("’‘ʼ", "'"), **dict.fromkeys("“”", '"'),
                            "。": ". ", "、": ", "})
_REWRITTEN = [(re.compile(pattern), new) for pattern, new in [
    (r"<\|[^|\n]{0,40}\|>|</?s>|[\u200b-\u200f\ufeff\ue000-\uf8ff]", ""),  # special tokens, marks of no width, our masks
    (r"\\boxed\b", " answer: "),
    (r"\\[dt]?frac *\{?(\d+)\}? *\{?(\d+)\}?", r" \1⁄\2"),
    (r"\\(?:times|cdot)\b|\*(?=10\^)", "×"),
    (r"\\approx\b", "≈"),
    (r"\^?\{?\\(?:circ|degree)\b\}?", "°"),
    (r"(?<=[A-Za-z])_(?=[A-Za-z])", " "),
    (r"\\(?:text|math)[a-z]*|[*_`$\\{}]", ""),
    (rf"(?<={_CJK})(?=[A-Za-z\d])|(?<=[A-Za-z\d])(?={_CJK})", " "),
    (r"[^\S\n]+", " "),
    (r"\s*\n\s*", "\n"),
    (r"(?m)((?:^|[.!?:] )[^\w\n]{0,8}[A-Z])\. (?=\S)", r"\1) "),  # "A. dog" ends no sentence
    (r"(?im)((?:^|[.!?] )(?:yes|no))(?= (?:it|he|she|they|there|this|that|the|i|we|you)\b)", r"\1,"),
]]


def _clean(text: str) -> str:
    """`text` in one spelling: NFKC, one dash, one quote; no markup, TeX, special tokens, list numbers, runs of blanks."""
    text = re.sub("[⁰¹²³⁴-⁹]+", r"^\g<0>", text)  # 10³ is not 103
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)  # nor 2½ 21/2
    text = unicodedata.normalize("NFKC", text).translate(_SPELLINGS)
    for pattern, new in _REWRITTEN:
        text = pattern.sub(new, text)
    if re.search(r"(?m)^[^\w\n]{0,8}1[.)] \S", text):
        text = re.sub(r"(?m)^[^\w\n]{0,8}\d{1,2}[.)] (?=\S)", "", text)
    return text.strip()


# ---- the values of a reply, and what it says -------------------------------------------------------------------------

class _Run(NamedTuple):
    """A value at [start, stop) of a text, or neighbouring ones, which are alternatives: "2 or 3"."""

    start: int
    stop: int
    values: frozenset
    mark: str


# A run is masked by its mark, character by character, before the words around it are looked at.
OWN = "\ue000"  # a letter with its option's text: "B. dog"
SURE = "\ue001"  # what names a value wherever it stands: a number, a yes, an option's text
BARE = "\ue002"  # a number that is an option's text
LETTER = "\ue003"
_ANY = OWN + SURE + BARE + LETTER

_PAUSE = r"[^\w.:=!?\n]*"  # blanks, brackets and marks inside a sentence
# What makes the next value an alternative: only marks between the two ("2, 3"; not "12 (3 rows)"), or "2 cats or 3".
_JOIN = re.compile(rf"(?! ?\(| - ){_PAUSE}|{_PAUSE}(?:(?:\w+{_PAUSE}){{0,2}}\b(?:or|and|nor)|\b(?:to|then))\b{_PAUSE}"
                   r"(?:(?:an?|the) )?", re.I)
_AGAIN = re.compile(r"[^\w\n]{0,4}")  # "five (5)"


def _joined(text: str, found: Iterable[_Run]) -> list[_Run]:
    """The runs found in `text`, those made one that are alternatives or say the same again."""
    runs: list[_Run] = []
    for run in found:
        last = runs[-1] if runs else None
        gap = text[last.stop : run.start] if last and run.start - last.stop < 60 else "\n"
        if last and (_JOIN.fullmatch(gap) or last.values == run.values and _AGAIN.fullmatch(gap)):
            runs[-1] = _Run(last.start, run.stop, last.values | run.values, min(last.mark, run.mark))
        else:
            runs.append(run)
    return runs


_SENTENCE = re.compile(r"[^\n]+?(?:[.!?]+(?=\W|\Z)|\n|\Z)")
_VERB = r"(?:is|are|was|were|be|do|does|did|can|could|would|should|will|must|may|might|has|have|had)"
# Where a clause ends: at a mark, or before a word that opens another. "B, not A" and "B rather than A" are two clauses.
_BREAK = re.compile(rf"""\b{_VERB}(?:\ \w+ly)?\ not\b  # no break: this "not" belongs to its verb
    | (?P<cut>[,;:](?!\d) | \s-+\s | \b(?:but|so(?!\ that)|because|since|which|while|although|though|whereas|therefore|thus
    |hence|where|when|if|given|rather\ than|instead\ of|than|unlike|except|as\ opposed|and\ not|not|nor
    |and(?=\ (?:the|it|this|that|i|we|so|then|thus|therefore|hence)\b))\b)""", re.I | re.X)
# What a clause that says nothing does: it denies; it quotes; it plans, supposes, considers or asks for more.
_SILENT = re.compile(rf"""\b(?:not|\w+n't|cannot|never|neither|nor|rather\ than|instead\ of|opposed|unlike|except|wrong|incorrect|false
    |undefined|impossible|unlikely|unclear|unknown|unable|sorry|rul\w+\ out|(?:is|are)\ out|tempting|(?<!no\ )doubt
    |(?:exclude|eliminate|discard|reject|dismiss)[sd]?|than\W+(?:\w+\W+){{0,2}}[{_ANY}]
    |thought|(?<!'d\ )(?<!would\ )(?<!let's\ )says?|said|(?:sign|text|label|caption)\w*\ .{{0,60}}reads?|labell?ed|mention\w*
    |let\ me|let\ us|let's(?!\ (?:go|say|pick|choose))|(?:i|we)(?:\ will|'ll)(?!\ (?:go|say|pick|choose|select|answer))
    |first,?\ (?:i|we)|to\ (?:find|check|see|solve|determine|verify|decide)|if|suppose|assum\w+|given|consider\w*|look\ at
    |(?:i|we)(?:\ would|'d)?\ need|please)(?!\w) | 不|没|错""", re.I | re.X)
# A silent clause of this form, if it names no value, is said of what stands before it: "B, a dog, does not fit".
_OF_THE_ABOVE = re.compile(rf"""\W*(?:(?:and|but)\ )?(?:{_VERB}|\w+n't|cannot|seems|looks|wrong|incorrect|false)\b
    | (?::|\s-+)\s*not\b""", re.I | re.X)


def _silenced(masked: str) -> str:
    """`masked` with its questions and its silent clauses blanked, in the same number of characters."""
    kept = list(masked)
    for sentence in _SENTENCE.finditer(masked):
        start, stop = sentence.span()
        asks = sentence[0].rstrip().endswith("?")
        cuts = [] if asks else [m.start() for m in _BREAK.finditer(masked, start, stop) if m["cut"]]
        for a, b in zip([start, *cuts], [*cuts, stop]):
            if asks or _SILENT.search(masked, a, b):
                if _OF_THE_ABOVE.match(masked, a, b) and not re.search(f"[{_ANY}]", masked[a:b]):
                    a = start
                kept[a:b] = [c if c in "\n.!?" else " " for c in masked[a:b]]
    return "".join(kept)


# A clause that begins after the last value, and has no end.
_GOES_ON = re.compile(r"""(?:[.,;:!?\n]\s*(?:and|but|so|or|which|that|next|then|now|to|let|in|on|at|from|for|with|because|since|as
    |if|when|while|i|we|this|these|there|the|an?|\w+ly)\b[^.,;:!?\n]*|[,:]|\b(?:and|or|but|so|the|an?|of|to|in|on|at|is|are|that
    |which|with|for|will|there|then))\s*\Z""", re.I | re.X)


class _Reply:
    """A clean reply: the runs of values in it, by their start, and its text with those masked."""

    def __init__(self, text: str, found: Iterable[_Run]) -> None:
        self.runs = {run.start: run for run in _joined(text, found)}
        pieces, at = [], 0
        for run in self.runs.values():
            pieces += [text[at : run.start], run.mark * (run.stop - run.start)]
            at = run.stop
        self.masked = "".join([*pieces, text[at:]])
        self.said = _silenced(self.masked)  # every reading but `whole` is of this
        self.sentences = [m.span() for m in _SENTENCE.finditer(self.said)]
        self.breaks_off = bool(_GOES_ON.search(text, at))

    def led_to(self, cue: re.Pattern, start: int = 0, stop: int | None = None) -> list[_Run]:
        """The said runs that begin where a match of `cue` ends."""
        ends = (m.end() for m in cue.finditer(self.said, start, len(self.said) if stop is None else stop))
        return [self.runs[end] for end in ends if end in self.runs]

    def named(self, start: int = 0, stop: int | None = None, marks: str = OWN + SURE) -> list[_Run]:
        """The said runs of these marks."""
        stop = len(self.said) if stop is None else stop
        return [run for at, run in self.runs.items() if start <= at < stop and self.said[at] in marks]


# ---- the readings ----------------------------------------------------------------------------------------------------

# What may stand between a cue and its value.
_FILL = rf"""(?:[^\w.!?{_ANY}]|\b(?:about|approximately|around|roughly|exactly|clearly|definitely|likely|most|probably|only|just
    |simply|indeed|that|then|there|it|is|are|be|to|the|an?|option|choice|letter|answer|number|total|of|group)\b){{0,30}}"""
# What may stand before a value that is alone.
_LEAD = rf"""(?:[^\w.!?\n{_ANY}]|\b(?:the|an?|option|choice|answer|about|approximately|around|roughly|exactly|only|just|oh|well
    |hm+|maybe|perhaps|most|likely|\w+ly|i\ (?:think|guess|believe))\b){{0,12}}"""


def _cue(words: str, marks: str = _ANY, fill: str = _FILL) -> re.Pattern:
    """A pattern that ends where the value begins that `words` announce."""
    return re.compile(rf"(?:{words}){fill}(?=[{marks}])", re.I | re.M | re.X)


_GAP = rf"[^.:\n{_ANY}]{{0,60}}?"
_IS = r"(?:\b(?:is|are|be|was|were|es|est|ist)\b|[:=]|是|为|は)"
_ANSWER = rf"""(?:\b(?:ans(?:wer)?(?!\ (?:choices|options))|solution|response|conclusion|verdict|réponse|respuesta|antwort
    |risposta|resposta|ответ)\b|答案|选项|答え|正解|정답|답)(?:{_GAP}{_IS})?
    |\b(?:result|option|choice|selection|guess|pick|vote|letter|match|final\ \w+|(?:one|option|choice)\ (?:that|which))\b
     {_GAP}{_IS}"""
_STATED = _cue(_ANSWER + r"""|\b(?:i|we|let's)(?:'\w+)?\ (?:\w+\ ){0,3}(?:choose|chose|pick|select|go(?:ing)?\ (?:with|for)|opt\ for
    |settle\ on|conclude|say)\b|\b(?:vote\ is\ for|would\ say)\b|选择?""")

_MARKS = rf"[^\w.!?\n{_ANY}]*"
_ALONE = re.compile(rf"(?:^|(?<=[.!?]\ )){_LEAD}(?=[{_ANY}]+{_MARKS}(?:[.!]|$))", re.I | re.M | re.X)
_OPENS = re.compile(rf"^{_LEAD}(?=[{_ANY}]+(?:\s*[^\w\s?{_ANY}](?!\s*[{_ANY}])|\ (?:because|since|as|it|they)\b))",
                    re.I | re.M | re.X)
_WHOLE = re.compile(rf"{_LEAD}(?P<value>[{_ANY}]+)[^\w?{_ANY}]*"
                    rf"(?P<unit>(?:\b(?!and|or|to|but|than|not|half)\w+[^\w?{_ANY}]*){{0,3}})\Z", re.I | re.X)

_THUS = r"\b(?:so|therefore|thus|hence)\b|[→∴]|=>|所以|因此|故"
_RIGHT = r"""\W*(?:(?:\b(?:is|are|was|seems|looks|appears|(?:would|must|should|will|has\ to)\ be)(?:\ to\ be)?
    (?:\ (?:also|clearly|definitely|indeed|then|most|likely|probably|the|my|our|only|best|more|a))*
    \ (?:correct|right|answer|best|true|appropriate|accurate|suitable|one|choice|total|likely|what\ i)
    |\b(?:fits|matches|remains|it\ is|works|in\ total|total|in\ all|altogether)|[-:]\ (?:right|correct))\b|(?:选?项)?是?(?:正确|对))"""
# A conclusion in one clause: what leads to the value, and what follows it.
_CONCLUSIONS = [(cue, re.compile(after, re.I | re.X)) for cue, after in [
    (_cue(rf"""{_THUS}|\b(?:then|but|and|leav(?:es|ing)(?:\ us\ with)?|left\ with|remains|makes\ it|looks\ like
        |(?:it|this|(?<!,\ )that|which|one|match|fit|object|image|picture)(?:\ is|'s)
        |(?:must|has\ to|have\ to|should|would|can\ only|will)\ be)\b|为|是"""),
     rf"{_RIGHT}|\W*(?:\Z|[.,;:!?\n]|\b(?:because|since|as|for|which|and|but|given|then)\b)"),
    (_cue(rf"^|[.,;:!?]|{_THUS}|\b(?:then|but|and|that|only|i\ (?:think|believe|guess))\b"), _RIGHT),
    (_cue(rf"\b(?:total|sum|(?<!i\ )count|tally|number)\b{_GAP}(?:{_IS}|\bof\b)"), ""),
    (_cue("[,;:]", LETTER), r"[^\w,;:]*(?:[.!\n]|\Z)"),  # "By elimination, B."
]]
_ADDS_UP = re.compile(rf"""{_THUS}|\b(?:altogether|in\ total|in\ all|total|overall|makes?|making|equals?|gives?|giving
    |leaves?|leaving|sum)\b|[=≈]|总共|一共|共""", re.I | re.X)
_PREDICATE = _cue(rf"""{_THUS}|\b(?:is|are|was|were|be|equals?|gives?|giving|makes?|making|totals?|yields?|means)\b
    |[=≈]|是|为|共|有""", OWN + SURE + BARE)
_TELLS = _cue(r"""\A|\bthere\ (?:are|is|were|was|will\ be|(?:appear|seem)\ to\ be)\b|有|共
    |\b(?:i|we|you)\ (?:can\ )?(?:see|count|counted|find|found|spot)\b|\b(?:total|group)\ of\b|\bhay\b|\by\ a\b|\bgibt\ es\b
    |\b(?:shows?|contains?|has|have|depicts?|features?|includes?|displays?|consists\ of)\b""")
_PLACE = re.compile(r"""\b(?:on|at|in|to|along|near)\ (?:the|its|one|each|this|that)(?:\ \w+)?\ ?(?:left|right|top|bottom|front
    |back|middle|center|centre|foreground|background|row|column|corner|side|shelf|table)\b|\bin\ front\b|\b(?:here|more)\b""",
                    re.I | re.X)


def _only(runs: Iterable[_Run]) -> frozenset:
    """The value of the runs, if it is one."""
    values = frozenset().union(*(run.values for run in runs))
    return values if len(values) == 1 else frozenset()


def _concluded(reply: _Reply) -> frozenset:
    """The last conclusion: in one clause, or the last value that a sentence gives that adds up."""
    found = {run.start: run.values for cue, after in _CONCLUSIONS for run in reply.led_to(cue) if after.match(reply.said, run.stop)}
    for start, stop in reply.sentences:
        if _ADDS_UP.search(reply.said, start, stop):
            found[start] = _only(reply.led_to(_PREDICATE, start, stop)[-1:] or reply.named(start, stop))
    return next((found[at] for at in sorted(found, reverse=True) if found[at]), frozenset())


def _told(reply: _Reply) -> frozenset:
    """The numbers of "there are 7 dogs", where the sentence up to the next mark speaks of no part of the picture."""
    told = []
    for run in reply.led_to(_TELLS):
        before, after = reply.said[: run.start], reply.said[run.stop :]
        words = re.search(r"[^.!?\n]*\Z", before)[0] + re.match(r"[^.,;:!?\n]*", after)[0]
        told += [] if len(run.values) > 1 or _PLACE.search(words) else [run.values]
    return frozenset().union(*told)


def _last(reply: _Reply, numbers: bool) -> frozenset:
    """What the last sentence gives that gives one value and is no item of a list; of numbers, the last that has any."""
    for start, stop in reversed(reply.sentences):
        if not (_ALONE.match(reply.said, start) or _OPENS.match(reply.said, start)):
            values = _only(reply.led_to(_PREDICATE, start, stop) or reply.named(start, stop))
            if values or numbers and re.search(f"[{_ANY}]", reply.masked[start:stop]):
                return values
    return frozenset()


def _readings(kind: str, reply: _Reply) -> Iterator[tuple[str, frozenset]]:
    """The readings of the table at the top, in its order: the name, and the values that are offered there."""
    whole = _WHOLE.match(reply.masked)
    if whole and (kind == "count" or not whole["unit"]):
        yield "whole", reply.runs[whole.start("value")].values
    for run in reply.led_to(_STATED)[-1:]:
        yield "stated", run.values
    yield "alone", _only(reply.led_to(_ALONE) + reply.led_to(_OPENS))
    yield "concluded", _concluded(reply)
    if kind == "count":
        yield "told", _told(reply)
    if not reply.breaks_off:
        yield "once", _only(reply.named(marks=OWN))
        yield "once", _only(reply.named())
        if kind != "yesno":
            yield "last", _last(reply, numbers=kind == "count")


# ---- numbers ---------------------------------------------------------------------------------------------------------

_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
          "seventeen eighteen nineteen").split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000}
_WORDS = {w: n for n, w in enumerate(_UNITS)} | {w: 10 * n for n, w in enumerate(_TENS, start=2)}
_WORDS |= {"none": 0, "no": 0, "a": 1, "and": 0}  # "no" only in "there are no", the last two only in "a hundred and one"
_ROMAN = {ten + one: 10 * i + j for i, ten in enumerate(["", "X", "XX", "XXX"])
          for j, one in enumerate(["", "I", "II", "III", "IV", "V", "VI", "VII", "VIII", "IX"]) if len(ten + one) > 1}

_PLAIN = r"(?:(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?: ?[×x] ?10\^-?\d+|[eE][-+]?\d+)?"
_DIGITS = (rf"(?<![\w^.])(?<!\d[,:])(?<![\d./]/)(?:(?<![\w)])-)?(?:(?:\d+ )?\d+⁄0*[1-9]\d*|10\^-?\d+|{_PLAIN})"
           r"(?:(?=(?!st\b|nd\b|rd\b|th\b)[A-Za-z]{2}|[mg]\b)|(?!\w))(?![.,:]\d|/\d|\^|-[A-Za-z])")
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[- ](?:{'|'.join(_UNITS[1:10])}))?|{'|'.join(_UNITS)})"
_SCALED = rf"(?:{_SMALL}|a) (?:{'|'.join(_SCALES)})(?: (?:and )?{_SMALL})?"
# Two scales ("two thousand three hundred") are beyond this grammar and read as two numbers, hence as no number.
_SPELLED = rf"\b(?:none|{_SCALED}|{_SMALL})\b(?![- ](?:{'|'.join(_SCALES)})\b)"
_NO_ONES = (r"(?<=there are )no(?= (?!other|more|further|way|image|picture|photo|information|detail|clue|option|answer)\w)"
            r"|^no(?! one\b)(?= (?:\w+ ){1,2}(?:are|is|can be) (?:\w+ )?(?:visible|seen|shown|present|there|in)\b)")
_NUMBER = re.compile(rf"(?m){_DIGITS}|(?i:{_SPELLED}|{_NO_ONES})|\b(?:{'|'.join(_ROMAN)})\b(?=\W*\Z)(?<!\w\W.)")
# Words around a number, <here>, that make it a label, a bound, a doubt, a part ("there are 5 of them" is none) or a pronoun.
_COUNTS_NOTHING = re.compile(r"""\b(?:step|nos?\.?|figure|fig\.|table|question|image|page|row|column|line|item|equation|phase
    |case|at\ least|at\ most|up\ to|over|under|above|below|beyond|exceeds|(?:max|min)imum\ of|than)\ <
    | >\ ?%\ (?:sure|certain|confident) | >\ (?:\w+\ )?or\ (?:more|less|fewer)\b
    | (?<!are\ )<(?!none>)[^>]*>\ of\ (?:them|these|those|which|whom|the)\b
    | \b(?:the|this|that|each|every|any|which|another|other|some|by|first|second|third|last|next)\ (?:\w+\ )?<one>
    | <one>\ (?:by|cannot|can|could|may|might|must|should|would|another|moment|second|minute|side|hand)\b""", re.I | re.X)
_SUM = re.compile(r"(?<![-+×*/÷\w.,°%])(?<![-+×*/÷] )(?:-?[\d.,]{1,20}[°%]?(?: [A-Za-z]{1,12})? ?[-+×*/÷] ?)+-?[\d.,]{1,20}[°%]?(?: [A-Za-z]{1,12})? ?(?==)")


def _numbers(text: str) -> Iterator[_Run]:
    for m in _NUMBER.finditer(text):
        before, after = text[max(0, m.start() - 24) : m.start()], text[m.end() : m.end() + 16]
        if not _COUNTS_NOTHING.search(f"{before}<{m[0]}>{after}"):
            yield _Run(*m.span(), frozenset([_to_number(m[0])]), SURE)


def _to_number(token: str) -> float:
    """The value of what `_NUMBER` matches: "1,000", "1.5×10^3", "2 1⁄2", "one hundred and five", "VII"."""
    if token in _ROMAN:
        return float(_ROMAN[token])
    sign = -1 if token[0] == "-" else 1
    if "⁄" in token:
        *whole, above, below = re.findall(r"\d+", token)
        return sign * (float(*whole) + float(above) / float(below))
    if any(c.isdigit() for c in token):
        return float(re.sub(r"^(-?)10\^", r"\g<1>1e", re.sub(r" ?[×x] ?10\^", "e", token)).replace(",", "").replace(" ", ""))
    total = 0
    for word in re.findall("[a-z]+", token.lower()):
        total = total * _SCALES[word] if word in _SCALES else total + _WORDS[word]
    return float(total)


# ---- yes and no ------------------------------------------------------------------------------------------------------

_ENGLISH_YES = "y|true|correct|indeed|absolutely|definitely|exactly|affirmative|(?:sure|right|certainly|of course)(?!,)"
_YESNO = {  # as a word of a sentence, and as all of one
    "yes": (r"\b(?:yes|yeah|yep|yup)\b|(?<=\bis )true(?=[^\w\n]*$)",
            rf"{_ENGLISH_YES}|(?:that|you)(?:'s| is|'re| are) (?:right|true|correct)|是|是的|对|对的|有|有的|はい|oui|s[íi]|ja|да|네|예"),
    "no": (r"\bno\b(?!-\w|\.? ?\d)(?=[^\w\n]*(?:$|[^\w\s])| (?:and|or|but|because|since|as|not|is|was|would|to|yes)\b)"
           r"|\b(?:nope|nah)\b|(?<=\bis )false(?=[^\w\n]*$)",
           r"n|false|incorrect|wrong|negative|not at all|(?:definitely|absolutely|certainly|of course) not|否|不|不是|不是的|不对"
           "|没有|いいえ|non|nein|нет|아니요|아니오"),
}
_YES_OR_NO = re.compile("(?im)" + "|".join(
    rf"(?P<{value}>{word})|(?:^|(?<=[.!?:是为])) ?[^\w\n]{{0,4}}(?P<{value}_>\b(?:{alone}))(?=[^\w\n;:/]*(?:[.,!\n]|\Z)|$)"
    for value, (word, alone) in _YESNO.items()))


def _yes_and_no(text: str) -> Iterator[_Run]:
    for m in _YES_OR_NO.finditer(text):
        yield _Run(*m.span(m.lastgroup), frozenset([m.lastgroup.rstrip("_")]), SURE)


def opposite(text: str) -> str | None:
    """`text` with the yes or no that is read in it turned into the other; None if it says neither.

    "eyes? Yes." becomes "eyes? No.", and "Y" becomes "N". It is the word whose change changes the reading, else every one.
    """
    said, text = parse_yesno(text), unicodedata.normalize("NFKC", text)
    if said is None:
        return None
    other = {"yes": "no", "no": "yes"}[said]
    words = rf"(?im)(?:{'|'.join(_YESNO[said])})(?!\w)"
    def turned(m: re.Match) -> str:
        word = other[0] if len(m[0]) == 1 and m[0].isascii() else other
        return word.upper() if m[0].isupper() else word.title() if m[0][0].isupper() else word

    one_turned = (text[: m.start()] + turned(m) + text[m.end() :] for m in re.finditer(words, text))
    return next((new for new in [*one_turned, re.sub(words, turned, text)] if parse_yesno(new) == other), None)


# ---- options ---------------------------------------------------------------------------------------------------------

# "N/A" offers no letter. The A stands behind the N, so both ends are looked at.
_NOT_APPLICABLE = r"(?!n/a\b)(?<!\bn/(?=a\b))"
# A and I are words too ("A man", "I think"): not letters before any word but these, or one more letter.
_WORD_NOT_LETTER = (r"(?<=[AaIi]) (?!(?:because|since|as|is|was|and|or|to|not|but|seems|looks|appears|fits|matches|works|remains"
                    r"|would|must|should|it|does|can|cannot|rather|instead|\w)\b)\w")
_LABEL = re.compile(rf"(?i)(?P<open>[(\[] ?)?(?<!\w)(?<!\w['-])(?<![∠△°^]){_NOT_APPLICABLE}(?P<letter>[A-Z])"
                    rf"(?!\w|['-]\w|[+#]|{_WORD_NOT_LETTER})(?(open) ?[)\]])")
_LABELS = re.compile(r"[^\w\n]{0,4}(?:(?:an?|the) )?", re.I)  # what may stand between a letter and its text
_CALLED = re.compile(r"\b(?:option|choice) *\Z", re.I)
_IN_PLACE = re.compile(r"(?:\A|[.,;:!?\n]|\b(?:is|are|be|so|thus|hence|therefore)) *\Z", re.I)  # not "the angle at (B)"

_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|\.\d+|[^\W\d]+|[+*/⁄^=<>≤≥≠±×÷√]|-(?= ?(?:\d|[A-Za-z]\b))")
_NUMERALS = {*_WORDS, *_SCALES, *"first second third fourth fifth sixth last".split()}


class _Token(NamedTuple):
    """A word, a number or an operator."""

    word: str
    start: int
    stop: int


def _tokens(text: str) -> list[_Token]:
    """The words, numbers and operators of `text`, each in one spelling, without articles (which stand before a word)."""
    tokens = []
    for m in _TOKEN.finditer(text):
        word = m[0].casefold()
        if word[-1].isdigit():
            word = word.replace(",", "") if re.fullmatch(r"\d{1,3}(?:,\d{3})+(?:\.\d+)?", word) else word
            word = re.sub(r"^(?=\.)", "0", re.sub(r"(\.\d*?)0+$", r"\1", word).rstrip("."))
        tokens.append(_Token(word, *m.span()))
    followers = [*(token.word for token in tokens[1:]), ""]
    return [token for token, after in zip(tokens, followers)
            if token.word not in {"a", "an", "the"} or len(after) < 2 or after in {"and", "or"}]


@lru_cache(maxsize=1024)
def _texts(options: tuple[tuple[str, str], ...]) -> dict[str, list[tuple[list[str], frozenset, str]]]:
    """First word → the options' texts that begin with it, the longest first: words, letters, mark."""
    letters: dict[tuple[str, ...], set] = {}
    for letter, text in options:
        letters.setdefault(tuple(token.word for token in _tokens(_clean(text))), set()).add(letter)
    texts: dict[str, list] = {}
    for words in sorted(letters, key=len, reverse=True):
        if words and not re.fullmatch("[a-z]", "".join(words)):  # a lone letter is never an option's text
            named = any(len(w) > 1 and w.isalpha() and w not in _NUMERALS for w in words)
            texts.setdefault(words[0], []).append((list(words), frozenset(letters[words]), SURE if named else BARE))
    return texts


def _is_operand(tokens: Sequence[_Token], i: int, j: int) -> bool:
    """Whether tokens[i:j] are part of a longer formula, as the 5 of "-5" and of "5 + x" is."""
    def ends(token: _Token) -> bool:
        return len(token.word) == 1 or token.word[-1].isdigit()

    before, after = (tokens[k] if 0 <= k < len(tokens) else _Token(" ", -1, -1) for k in (i - 1, j))
    minus = before.word == "-" and (before.stop == tokens[i].start or i > 1 and ends(tokens[i - 2]))
    times = after.start == tokens[j - 1].stop  # "2π"
    return (ends(tokens[i]) and (minus or before.word in "+*/⁄^<>≤≥×÷")
            or ends(tokens[j - 1]) and (times or after.word in "+*/⁄^<>≤≥×÷=-"))


def _texts_in(text: str, options: dict[str, str]) -> Iterator[_Run]:
    """The options' texts in `text`, as whole words: the longest that begins at a place, and none inside another."""
    tokens, texts = _tokens(text), _texts(tuple(options.items()))
    polar = {run.start for run in _yes_and_no(text)} if texts.keys() & {"yes", "no"} else set()
    done = 0
    for i, first in enumerate(tokens):
        for words, letters, mark in texts.get(first.word, ()) if i >= done else ():
            j = i + len(words)
            if (words == [token.word for token in tokens[i:j]] and "\n" not in text[first.start : tokens[j - 1].stop]
                    and not _is_operand(tokens, i, j) and (words not in (["yes"], ["no"]) or first.start in polar)):
                yield _Run(first.start, tokens[j - 1].stop, letters, mark)
                done = j
                break


def _choices(text: str, options: dict[str, str]) -> list[_Run]:
    """The letters and the texts of the options in `text`; a letter and the text that it labels are one."""
    found = {run.start: run for run in _texts_in(text, options)}
    inside = {at for run in found.values() for at in range(run.start, run.stop)}
    for m in _LABEL.finditer(text):
        letter = m["letter"].upper()
        if letter in options and m.start("letter") not in inside:
            own = found.pop(_LABELS.match(text, m.end()).end(), None)
            before = text[max(0, m.start() - 16) : m.start()]
            sure = _CALLED.search(before) or m["open"] and _IN_PLACE.search(before)
            mark = OWN if own and letter in own.values else SURE if sure else LETTER
            found[m.start()] = _Run(m.start(), own.stop if own else m.end(), frozenset(letter), mark)
    return [found[start] for start in sorted(found)]


# ---- the verdict -----------------------------------------------------------------------------------------------------

class Reading(NamedTuple):
    """What a reply says, None if that is unreadable, and the reading of the table that decided, "" if none did."""

    value: float | str | None
    by: str


def normalize_word(text: str) -> str:
    """Lower case, single blanks, no articles, no punctuation but a number's sign and decimal point and the marks of C++ and C#.

    An article that is the whole text stays: the answer to "which letter?" may be "a".
    """
    text = re.sub(r"\\(?:boxed\b|(?:text|math)[a-z]*)", "", unicodedata.normalize("NFKC", text)).casefold()
    words = re.sub(r"(?!(?<=\d)\.\d|(?<!\w)[.-]\d|(?<=\w)[+#]|(?<=\w\+)\+)[\W_]", " ", text).split()
    return " ".join([word for word in words if word not in {"a", "an", "the"}] or words)


def read(text: str, kind: str, options: dict[str, str] | None = None) -> Reading:
    """What `text` says, by the table at the top. kind is count, yesno, mcq or word; mcq needs `options`, letter → text.

    Raises ValueError for another kind, and for options that do not map single capital letters to texts; never for a text.
    """
    if kind == "word":
        word = normalize_word(text)
        return Reading(word, "whole") if word else Reading(None, "")
    if kind not in ("count", "mcq", "yesno"):
        raise ValueError(f"unknown kind {kind!r}; expected one of count, mcq, word, yesno")
    if kind == "mcq" and not (options and all(re.fullmatch("[A-Z]", letter) for letter in options)):
        raise ValueError(f"kind 'mcq' needs options, a dict of capital letter -> text, got {options!r}")
    text = _SUM.sub("", _clean(text)) if kind == "count" else _clean(text)
    found = _numbers(text) if kind == "count" else _yes_and_no(text) if kind == "yesno" else _choices(text, options)
    for by, values in _readings(kind, _Reply(text, found)):
        if values:
            return Reading(*values, by) if len(values) == 1 else Reading(None, "")
    return Reading(None, "")


def parse_count(text: str) -> float | None:
    """The number that `text` gives; None if there is none, or if it offers several."""
    return read(text, "count").value


def parse_yesno(text: str) -> str | None:
    """ "yes" or "no"; None if `text` gives neither, or both."""
    return read(text, "yesno").value


def parse_choice(text: str, options: dict[str, str]) -> str | None:
    """The letter of the option that `text` chooses; None if it chooses none, or several. Raises ValueError as `read` does."""
    return read(text, "mcq", options).value


def is_correct(response: str, gold: str, kind: str, options: dict[str, str] | None = None) -> bool:
    """Whether `response` gives the answer `gold`, both read in the same way. Unreadable is wrong.

    For mcq the gold may be a letter or a text. Raises ValueError as `read` does, and for a gold that cannot be read: those
    are faults of the data, not of the model.
    """
    wanted = read(gold, kind, options).value
    if wanted is None:
        raise ValueError(f"the gold answer {gold!r} cannot be read as kind {kind!r}")
    return read(judged(response), kind, options).value == wanted
