"""What a response answers: the tokens that say it, and whether it is right (R_ans).

A response reads `<think> ... </think> <answer> red </answer>`. Two questions are asked about it:

    which of the sampled tokens are the answer?   `answer_span`   Answer-CED sums log π over these, and only these
    is the answer right?                          `is_correct`    R_ans in training, the score in evaluation

Both read the same characters, the last complete <answer>...</answer>, so what is rewarded is what is audited. A public
benchmark's reply may have no tag at all: what follows its reasoning is judged then. With a tag that is not closed, or
with nothing in it, the answer is wrong.

    kind    value      where it is read: the first place that holds one decides
    count   a number   right after the last "answer is" / "answer:" / \\boxed; else the last number of the reply.
                       Digits ("1,000", "-3", "3.0" = 3) or words ("twenty-one", "a hundred"); "none" is 0, "no" is not.
    yesno   yes | no   right after the last "answer is"; else at the start; else the only one of the two in the reply.
                       A reply that is only "Y" or "N" counts.
    mcq     a letter   the reply is a letter or an option's text; else the same right after the last "answer is" /
                       "I choose"; else a letter that heads a line ("B", "B. dog"); else the last one in brackets;
                       else the only capital on its own. "A man is here" holds an article, not option A.
    word    a text     the whole reply, without case, articles and punctuation.

Three principles hold for every kind. Unreadable is wrong, never a guess. Alternatives ("2 or 3", "A/B", "yes and no",
even "Yes, no doubt") are one reading with several values, hence unreadable. A negated value ("not 6") is not read.
So "The answer is 4, not 9." says 4, and "I count 3 here and then 4 there, so 7." says 7.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from os.path import commonprefix  # of any strings: it compares character by character

OPEN = "<answer>"


# ---- the answer of a response, as characters and as tokens -----------------------------------------------------------

def _answer_range(text: str, tag: str = "answer") -> tuple[int, int] | None:
    """[a, b) in characters of the last complete answer, without the blanks around it; None if there is no such text."""
    start = text.rfind(f"<{tag}>", 0, max(text.rfind(f"</{tag}>"), 0))  # the nearest opening before the last closing tag
    if start < 0:
        return None
    start += len(f"<{tag}>")
    inner = text[start : text.find(f"</{tag}>", start)]
    start += len(inner) - len(inner.lstrip())
    return (start, start + len(inner.strip())) if inner.strip() else None


def answer_text(response: str) -> str | None:
    """The text of the last complete <answer>...</answer>, stripped; None if missing, unclosed or empty."""
    found = _answer_range(response)
    return response[slice(*found)] if found else None


def answer_span(
    ids: Sequence[int], decode: Callable[[Sequence[int]], str], tag: str = "answer"
) -> tuple[int, int] | None:
    """Half-open span, in positions of `ids`, of the tokens that carry a character of the answer, or a part of one; or of
    what stands in another tag.

    `ids` are the sampled tokens and are only ever decoded: encoding the text again may cut it elsewhere, and a token
    may straddle a tag (">red"). `decode` must show special tokens, and an unfinished UTF-8 character as U+FFFD.
    Returns None where `answer_text(decode(ids))` is None. Costs O(log T) decodes of a prefix.
    """
    text = decode(ids)
    found = _answer_range(text, tag)
    if found is None:
        return None

    def finished(i: int) -> int:  # how many characters of text are complete after ids[:i]
        return len(commonprefix([text, decode(ids[:i])]))

    # Token i carries the characters [finished(i), touched(i + 1)). Both bounds never fall as i grows, so bisect.
    stop = bisect_left(range(len(ids)), found[1], key=finished)  # first i with finished(i) >= b
    return token_of(ids, decode, found[0]), stop


def token_of(ids: Sequence[int], decode: Callable[[Sequence[int]], str], at: int) -> int:
    """The position in `ids` of the first token that carries character `at` of their text, or a part of it."""
    text = decode(ids)

    def touched(i: int) -> int:  # characters of text that ids[:i] have finished, or at least begun
        begun = decode(ids[:i])
        return min(len(commonprefix([text, begun])) + 1, len(begun))

    return bisect_right(range(len(ids)), at, key=lambda i: touched(i + 1))  # first i with touched(i + 1) > at


# ---- reading values out of a reply -----------------------------------------------------------------------------------

_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
          "seventeen eighteen nineteen").split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = {"hundred": 100, "thousand": 1000}
_WORDS = {w: n for n, w in enumerate(_UNITS)} | {w: 10 * n for n, w in enumerate(_TENS, start=2)}
_WORDS |= {"none": 0, "a": 1, "and": 0}  # the last two only inside "a hundred and one"

# Every value pattern below is free of capturing groups, so that `_read` can nest it.
_DIGITS = r"(?<!\w)(?<!\d\.)-?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?!\w|\.\d)"
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[- ](?:{'|'.join(_UNITS[1:10])}))?|{'|'.join(_UNITS)})"
_SCALED = rf"(?:{_SMALL}|a) (?:hundred|thousand)(?: (?:and )?{_SMALL})?"
# Two scales ("two thousand three hundred") are beyond this grammar and read as two numbers, hence as no number.
_SPELLED = rf"(?i:(?<!\bno )\b(?:none|{_SCALED}|{_SMALL})\b(?![- ](?:hundred|thousand)\b))"
_NUMBER = rf"(?:{_DIGITS}|{_SPELLED})"
_YESNO = r"\b(?i:yes|no)\b"
# "N/A" offers no letter. The A stands behind the N, so both ends are looked at.
_NOT_APPLICABLE = r"(?!(?i:n/a)\b)(?<!\b[Nn]/(?=[Aa]\b))"
# A and I are words too ("A man", "I think"): not letters before any word but these, or one more letter.
_WORD_NOT_LETTER = r"(?<=[AaIi]) (?!(?:because|since|as|is|and|or|to|not|but|\w)\b)\w"

_PAUSE = r"[^\w.:=!?\n]*"  # blanks, brackets and marks inside a sentence
# What makes the next value an alternative: only marks between the two ("2, 3"; not "12 (3 rows)"), or "2 cats or 3".
_JOIN = rf"(?:(?! ?\(){_PAUSE}|{_PAUSE}(?:\w+{_PAUSE})?\b(?i:or|and|to)\b{_PAUSE})"
_NEGATED = re.compile(r"(?:\b(?:can)?not|n['’]t) (?:be |option )?\S+", re.IGNORECASE)
_STATED = re.compile(
    r"\b(?:(?:answer|option|choice)\b[^.:\n]{0,40}?(?:\b(?:is|be)\b|[:=])|(?:choose|pick|select|go with)\b):?\s*"
    r"(?:(?:about|approximately|clearly|definitely|exactly|likely|most|probably|that|there|are|option|choice) )*",
    re.IGNORECASE)
_LACK = r"(?:insufficient|not enough)(?: (?:information|evidence|context|data))?(?: to (?:answer|tell|say)(?: .*)?)?"
_ABSTAINS = re.compile(
    rf"(?:(?:there|evidence|information|context|it) is )?{_LACK}|(?:it )?cannot be (?:answered|determined)(?: .*)?")
_AT_START = r"\A\W*?"  # lazy, to leave a minus sign to its number


def _clean(text: str) -> str:
    """Without markdown, TeX marks and runs of blanks; \\boxed states the answer, so it becomes the words that do."""
    text = re.sub(r"\\boxed\b", " answer: ", text.replace("−", "-"))
    text = re.sub(r"\\(?:text|math)[a-z]*|[*_`$\\{}]", "", text)
    return "\n".join(" ".join(line.split()) for line in text.splitlines() if line.strip())


def _stated(text: str) -> list[str]:
    """What follows each statement of the answer, up to the next statement; the last one first."""
    return _STATED.split(text)[:0:-1]


def _read(text: str, value: str, convert: Callable, before: str = "", after: str = "") -> list[set]:
    """The readings of text in their order. Each is the set of values it offers: several if they are alternatives."""
    run = rf"{before}({value}(?:{_JOIN}{value})*){after}"
    found = re.finditer(run, _NEGATED.sub(" ", text))
    return [{convert(v) for v in re.findall(value, m.group(1))} for m in found]


def _decide(readings: Iterable[set]) -> float | str | None:
    """The value of the first reading that offers any; None if it offers several, or if there is no reading."""
    offered = next(filter(None, readings), set())
    return offered.pop() if len(offered) == 1 else None


def _to_number(token: str) -> float:
    """The value of what `_NUMBER` matches: "1,000" or "one hundred and five"."""
    if any(c.isdigit() for c in token):
        return float(token.replace(",", ""))
    total = 0
    for word in re.findall("[a-z]+", token.lower()):
        total = total * _SCALES[word] if word in _SCALES else total + _WORDS[word]
    return float(total)


def parse_count(text: str) -> float | None:
    """The number that `text` gives, by the table at the top; None if there is none, or if it offers several."""
    text = _clean(text)
    stated = [run for tail in _stated(text) for run in _read(tail, _NUMBER, _to_number, before=_AT_START)]
    return _decide(stated + _read(text, _NUMBER, _to_number)[::-1])


def parse_yesno(text: str) -> str | None:
    """ "yes" or "no", by the table at the top; None if `text` gives neither, or both."""
    text = {"y": "yes", "n": "no"}.get(normalize_word(text), _clean(text))
    first = [run for part in [*_stated(text), text] for run in _read(part, _YESNO, str.lower, before=_AT_START)]
    return _decide([*first, set().union(*_read(text, _YESNO, str.lower))])


def _options_named(text: str, options: dict[str, str]) -> set[str]:
    """The option whose letter is all of `text`; else those whose text is all of it, or all of its first sentence."""
    said = {normalize_word(text), normalize_word(re.split(r"\.(?!\d)|\n", text)[0])}
    said -= {"", *map(str.lower, options)}  # a lone letter is never an option's text
    by_text = {letter for letter, option in options.items() if normalize_word(_clean(option)) in said}
    return {re.sub(r"\W", "", text).upper()} & options.keys() or by_text


def parse_choice(text: str, options: dict[str, str]) -> str | None:
    """The letter of the option that `text` chooses, by the table at the top; None if it chooses none, or several.

    `options` maps single capital letters to texts. Raises ValueError if it does not, or is empty.
    """
    if not options or not all(re.fullmatch("[A-Z]", letter) for letter in options):
        raise ValueError(f"kind 'mcq' needs options, a dict of capital letter -> text, got {options!r}")
    text = _clean(text)
    capital = rf"(?<!\w)(?<!\w['’-]){_NOT_APPLICABLE}[{''.join(options)}](?!\w|['’-]\w|{_WORD_NOT_LETTER})"
    letter = rf"(?i:{capital})"

    readings = [_options_named(text, options)]  # then in the order of the table
    for tail in _stated(text):
        readings += [_options_named(tail, options), *_read(tail, letter, str.upper, before=_AT_START)]
    heads = _read(text, letter, str.upper, before=r"(?m:^)[^\w(\[]*", after=r"(?=[.):;]|(?m:\W*$))")
    readings.append(set().union(*heads))
    readings += _read(text, capital, str.upper, before=r"[(\[]", after=r"[)\]]")[::-1]
    readings.append(set().union(*_read(text, capital, str.upper)))
    return _decide(readings)


def normalize_word(text: str) -> str:
    """Lower case, single blanks, no articles, no punctuation but the sign and the decimal point of a number.

    An article that is the whole text stays: the answer to "which letter?" may be "a".
    """
    text = unicodedata.normalize("NFKC", text).casefold()
    words = re.sub(r"(?!(?<=\d)\.\d|(?<!\w)-\d)[\W_]", " ", text).split()
    return " ".join([word for word in words if word not in {"a", "an", "the"}] or words)


def word_f1(said: str, gold: str) -> float:
    """F1 of the words that two texts share, each as often as both have it. Abstaining ("insufficient to answer") is one
    answer whatever its words: 1 if both abstain, 0 if one does."""
    if abstains(said) or abstains(gold):
        return float(abstains(said) and abstains(gold))
    a, b = (normalize_word(text).split() for text in (said, gold))
    return 2 * sum(min(a.count(word), b.count(word)) for word in set(a)) / (len(a) + len(b)) if a and b else 0.0


def abstains(text: str) -> bool:
    """Whether an answer says, and only says, that what is there does not suffice for one."""
    return _ABSTAINS.fullmatch(normalize_word(text)) is not None


# ---- the verdict -----------------------------------------------------------------------------------------------------

def judged(response: str) -> str:
    """The part of a response that answers: inside the tags or, where there are none, all but the reasoning."""
    if OPEN in response:
        return answer_text(response) or ""
    return response.rpartition("</think>")[2].partition("<think>")[0]  # a <think> left open is reasoning to the end


def score(response: str, gold: str, kind: str) -> float:
    """How right a response is, from 0 to 1: the word F1 of an answer about pages, else `is_correct`."""
    return word_f1(judged(response), gold) if kind == "pages" else float(is_correct(response, gold, kind))


def is_correct(response: str, gold: str, kind: str, options: dict[str, str] | None = None) -> bool:
    """Whether `response` gives the answer `gold`, both read by the same parser. Unreadable is wrong.

    kind is count, yesno, mcq or word; mcq needs `options`, letter → text, and its gold may be a letter or a text.
    Raises ValueError for another kind, for mcq without options, and for a gold that cannot be read: those are faults of
    the data, not of the model.
    """
    parsers = {"count": parse_count, "yesno": parse_yesno, "word": normalize_word,
               "mcq": lambda text: parse_choice(text, options)}
    if kind not in parsers:
        raise ValueError(f"unknown kind {kind!r}; expected one of {sorted(parsers)}")
    wanted = parsers[kind](gold)
    if wanted is None or wanted == "":
        raise ValueError(f"the gold answer {gold!r} cannot be read as kind {kind!r}")
    return parsers[kind](judged(response)) == wanted
