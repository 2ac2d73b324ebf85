"""What a response answers: the tokens that say it, and whether it is right (R_ans).

A response reads `<think> ... </think> <answer> red </answer>`. Two questions are asked about it:

    which of the sampled tokens are the answer?   `answer_span`   Answer-CED sums log π over these, and only these
    is the answer right?                          `is_correct`    R_ans in training, the score in evaluation

Both read the same characters, the last complete <answer>...</answer> outside the reasoning, so what is rewarded is what is
audited. A public benchmark's reply may have no tag at all: what follows its reasoning is judged then. With a tag that is not
closed, or with nothing in it, the answer is wrong.

A reply is read in four steps. It is brought into one spelling (`_clean`). Each value in it, of the kind that is asked for,
becomes one character; alternatives ("2 or 3", "A/B", "yes and no") become one together, which is unreadable where it decides.
What the reply does not say is left out (`_silenced`): questions, and clauses that deny, compare, quote, plan or suppose.
Then the first of these readings that finds a value decides. `read` tells which, so that last resorts can be counted.

    reading    what it reads                                              an example                              says
    whole      all of the reply; of numbers, with their unit              （ｂ） · 7 dogs · a dog                 B · 7 · B
    stated     after the last "answer is", "I choose", "total:", boxed    The answer is 4, not 9.                 4
    alone      all of a line or sentence, or how a line begins            7. Three are left, four right.          7
    concluded  the last after "so", "leaves", "="; before "is right"      A is wrong; C fits. · 3 + 4 = 7         C · 7
    told       numbers, after "there are", "I see", not "on the left"     There are 7 dogs in 2 rows.             7
    once       the only value that is named                               It was painted by Georges Seurat.       A
    last       last resort: the last sentence that names one value        Goats and hens eat. This one is a hen.  A

    kind   values                                                         what is none of them
    count  1,000 · -3 · .5 · 1.5×10³ · 5cm · ½ · twenty-one · two dozen   2nd, 3D, 7/7, step 2, at least 3, one of them
    yesno  yes, no, and sentences that mean one: "Absolutely.", "不是"    no image, no. 2
    mcq    a letter; an option's text, as whole words and operators,      A man, 30°C, ∠C, N/A. Letters and numbers name
           the longest first                                              other things too: not read by `once` and `last`
    word   the whole reply, without case, articles, punctuation           C++ is not C

Where a reply breaks off in a new clause, the last three read nothing. Unreadable is wrong, never a guess.
"""

import re
import unicodedata
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
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

_CJK = "[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"  # written without blanks: 答案是B
_SPELLINGS = str.maketrans({**dict.fromkeys("‐‑‒–—―−", "-"), **dict.fromkeys("’‘ʼ", "'"), **dict.fromkeys("“”", '"'),
                            "。": ". ", "、": ", "})
_REWRITTEN = [(re.compile(pattern), new) for pattern, new in [
    (r"<\|[^|\n]{0,40}\|>|</?s>", ""),  # special tokens
    (r"[\u200b-\u200f\ufeff\U000f0000-\U0010ffff]", ""),  # of no width, and those that stand for values below
    (r"\\boxed\b", " answer: "),
    (r"\\[dt]?frac *\{?(\d+)\}? *\{?(\d+)\}?", r" \1⁄\2"),
    (r"\\(?:times|cdot)\b|\*(?=10\^)", "×"),
    (r"\^?\{?\\(?:circ|degree)\b\}?", "°"),
    (r"\\(?:text|math)[a-z]*|[*_`$\\{}]", ""),
    (rf"(?<={_CJK})(?=[A-Za-z\d])|(?<=[A-Za-z\d])(?={_CJK})", " "),
    (r"[^\S\n]+", " "),
    (r"\s*\n\s*", "\n"),
    (r"(?m)((?:^|[.!?:] )[^\w\n]{0,8}[A-Z])\. (?=\S)", r"\1) "),  # "A. dog" ends no sentence
    (r"(?im)((?:^|[.!?] )(?:yes|no))(?= (?:it|they|there|this|that|the|i|we|you)\b)", r"\1,"),  # "No it is not"
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


# ---- what a reply says -----------------------------------------------------------------------------------------------

# Each value in a reply is replaced by one character, which stands for it in all that follows.
_SURE = "\U000f0000-\U000fffff"  # what is a value wherever it stands: a number, a yes, an option's text
_LABEL = "\U00100000-\U0010ffff"  # what may name something else: a letter, a number that is an option's text
_VALUE = _SURE + _LABEL
Found = tuple[int, int, frozenset, bool]  # a value at [start, stop) of a text, and whether it is sure

_PAUSE = rf"[^\w.:=!?\n{_VALUE}]*?"  # blanks, brackets and marks inside a sentence
# Alternatives: values with only marks between them ("2, 3"; not "12 (3 rows)", not "seven - 7"), or "2 cats or 3".
_ALTERNATIVES = re.compile(rf"""[{_VALUE}](?:(?:(?!\ ?\(|\ -\ ){_PAUSE}(?:\w+ly\ )?
    |{_PAUSE}(?:(?:\w+{_PAUSE}){{0,2}}\b(?:or|and|nor)|\b(?:to|then))\b{_PAUSE}(?:(?:an?|the)\ )?)[{_VALUE}])+""", re.I | re.X)
_SENTENCE = re.compile(r"[^\n]+?(?:[.!?]+(?=\W|\Z)|\n|\Z)")
# Where a clause ends: at a mark, or before a word that opens another; "B, not A" and "B rather than A" are two. The first
# branch is no such place: that "not" belongs to its verb.
_BREAK = re.compile(r"""\b(?:is|are|was|were|be|do|does|did|can|could|would|should|will|must|may|might|has|have|had)\ not\b
    | (?P<cut>[,;:](?!\d)(?:\ not\b)? | \s-+\s(?:not\b)? | \b(?:but|so|because|since|as\ opposed|which|while|although|though
    |whereas|therefore|thus|hence|where|when|if|leaves|leaving|rather\ than|instead\ of|than|except|not|nor
    |and(?=\ (?:the|it|this|that|i|we|so|not|then)\b))\b)""", re.I | re.X)
# What a clause that says nothing does: it denies, compares, quotes; it plans, supposes, considers.
_SILENT = re.compile(rf"""\b(?:not|no\ [{_VALUE}]|\w+n't|cannot|never|neither|nor|than|instead\ of|opposed|except|wrong|incorrect
    |false|out|(?<!no\ )doubt|eliminat\w+|thought|said|(?<!would\ )(?<!'d\ )says?|reads|let(?:\ me|\ us|'s(?!\ go))
    |(?:i|we)(?:\ will|'ll)|first,?\ (?:i|we)|to\ (?:find|check|see|solve|decide)|if|suppose|assum\w+|consider\w*)(?!\w)
    | 不|没|错""", re.I | re.X)
# A silent clause that begins so, and has no value, is said of what stands before it: "B, a dog, does not fit".
_OF_THE_ABOVE = re.compile(rf"\W*(?:\b(?:is|are|was|does|do|can|could)\b|\w+n't|cannot|wrong|incorrect|(?<!,\ )not\b)[^{_VALUE}]*\Z",
                           re.I)


def _silenced(text: str) -> str:
    """`text` without its questions and its silent clauses; the marks that end a sentence stay."""
    said: list[str] = []
    for sentence in _SENTENCE.findall(text):
        asks = sentence.rstrip().endswith("?")
        cuts = [] if asks else [m.start() for m in _BREAK.finditer(sentence) if m["cut"]]
        kept: list[str] = []
        for clause in (sentence[a:b] for a, b in zip([0, *cuts], [*cuts, None])):
            silent = asks or _SILENT.search(clause)
            if silent and _OF_THE_ABOVE.match(clause):
                kept = []
            kept.append(re.sub(r"[^\n.!?]+", " " if kept else "_ ", clause) if silent else clause)
        said += kept
    return "".join(said)


class _Reply:
    """A reply whose values are single characters: all of it, what of it is said, and what each character stands for."""

    def __init__(self, text: str, found: Iterable[Found]) -> None:
        self.values: dict[str, frozenset] = {}
        pieces, at = [], 0
        for start, stop, values, sure in found:
            pieces += [text[at:start], self._character(values, sure)]
            at = stop
        self.text = _ALTERNATIVES.sub(self._joined, "".join([*pieces, text[at:]]))
        self.said = _silenced(self.text)  # every reading but `whole` is of this

    def _character(self, values: frozenset, sure: bool) -> str:
        character = chr(ord((_SURE if sure else _LABEL)[0]) + min(len(self.values), 0xFFFF))
        self.values[character] = self.values.get(character, frozenset()) | values
        return character

    def _joined(self, m: re.Match) -> str:
        characters = re.findall(f"[{_VALUE}]", m[0])
        return self._character(frozenset().union(*map(self.values.get, characters)), min(characters) < _LABEL[0])

    def led_to(self, *cues: re.Pattern) -> list[frozenset]:
        """The values at the end of each match of the cues, in the order of the text."""
        ends = sorted(m.end() for cue in cues for m in cue.finditer(self.said))
        return [self.values[self.said[end - 1]] for end in ends]

    def named(self) -> list[frozenset]:
        """The value that each sentence names, wherever it stands in it."""
        return [_agreed(self.values[c] for c in re.findall(f"[{_SURE}]", part)) for part in _SENTENCE.findall(self.said)]

    def breaks_off(self) -> bool:
        """Whether a clause begins after the last value, and has no end."""
        tail = re.split(f"[{_VALUE}]", self.text)[-1].rstrip(" \n\"')]")
        begun = re.search(r"\w", "".join(re.split(r"[.,;:!?\n]", tail, maxsplit=1)[1:]))
        midway = re.search(r"(?:[,:]|\b(?:and|or|but|so|the|an?|of|to|in|on|at|is|are|with))\Z", tail)
        return bool(midway or begun and tail[-1] not in ".!?")


def _agreed(values: Iterable[frozenset]) -> frozenset:
    """The value on which all agree; none if they do not."""
    union = frozenset().union(*values)
    return union if len(union) == 1 else frozenset()


# ---- the readings ----------------------------------------------------------------------------------------------------

# What may stand between a cue and its value, and before a value that is alone.
_FILL = rf"""(?:[^\w.!?{_VALUE}]|\b(?:about|approximately|around|roughly|exactly|clearly|definitely|likely|most|probably|only
    |just|simply|then|there|it|is|are|be|to|the|an?|option|choice|letter|answer|number|total|of|group)\b){{0,30}}"""
_LEAD = rf"""(?:[^\w.!?\n{_VALUE}]|\b(?:the|an?|option|choice|answer|total|about|around|only|just|oh|well|most|\w+ly|i\ think)\b
    ){{0,12}}"""
_GAP = rf"[^.:\n{_VALUE}]{{0,60}}?"
_THUS = r"\b(?:so|therefore|thus|hence)\b|[→∴]|=>|所以|因此"
_PART = r"\b(?:left|right|top|bottom|front|back|middle|first|here|more|plus)\b"  # of a picture


def _cue(words: str, after: str = "", fill: str = _FILL) -> re.Pattern:
    """A pattern that ends with the value that `words` announce, if `after` follows it."""
    return re.compile(rf"(?:{words}){fill}[{_VALUE}]{after}", re.I | re.M | re.X)


_UNIT = rf"(?:\b(?!and|or|to|but|than|not|half)\w+[^\w?{_VALUE}]*){{0,3}}"
_WHOLE = {unit: re.compile(rf"{_LEAD}([{_VALUE}])[^\w?{_VALUE}]*{unit}\Z", re.I | re.X) for unit in ("", _UNIT)}
_STATED = _cue(rf"""(?:\b(?:ans(?:wer)?(?!\ (?:choices|options))|solution|conclusion|respuesta|réponse|antwort|risposta|resposta
    |ответ)\b|答案|选项|答え|正解|정답|답)(?:{_GAP}(?:\b(?:is|are|be|was|es|est|ist|è)\b|[:=]|是|为|は))?
    |\b(?:option|choice|pick|guess|letter|match|total|count|number|one|correct|final\ \w+)\b{_GAP}(?:\b(?:is|are|be)\b|[:=])
    |\b(?:i|we|let's)(?:'\w+)?\ (?:\w+\ ){{0,3}}(?:choose|pick|select|go(?:ing)?\ (?:with|for)|say)\b|选择?""")
_ALONE = _cue(r"^|(?<=[.!?]\ )", rf"(?=[^\w.!?\n{_VALUE}]*(?:[.!]|$))", _LEAD)
_OPENS = _cue("^", rf"(?=\s*[^\w\s?{_VALUE}](?!\ (?:is|was|has|looks|would)\b)|\ (?:because|since|as|it|they)\b)", _LEAD)
_THEREFORE = _cue(rf"""{_THUS}|\b(?:leaves?|leaving|remains|but|makes?|making|equals?|gives?|giving|gets?|comes\ to
    |(?:it|this|that|which)(?:\ is|'s)|(?:must|has\ to|have\ to|would|should)\ be)\b|[=≈]|共|为|是""",
    rf"(?:(?<=[{_SURE}])|(?=\W*(?:\Z|[.,;:!?\n]|\b(?:because|since|as|for|which|and|but|then)\b)))")
_FITS = _cue(rf"^|[.,;:!?]|{_THUS}|\b(?:then|but|and|that|only|i\ (?:think|believe))\b", r"""(?=\W*(?:
    \b(?:is|are|seems|looks|(?:would|must|should|has\ to)\ be)(?:\ \w+){0,2}?
      \ (?:correct|right|answer|best|true|one|choice|match|suitable)\b
    |\b(?:fits|matches|remains|it\ is)\b|(?:选?项)?是?(?:正确|对)|[^.,;:!?\n]*\b(?:in\ total|in\ all|altogether)\b))""")
_TELLS = _cue(rf"""(?:^|(?<=[.!?]\ ))(?![^.!?\n{_VALUE}]*(?:{_PART}|\brow\b))[^.!?\n{_VALUE}]*?
    (?:^|有|\bhay|\by\ (?:en\ )?a|\bsind|\bson|\bthere\ (?:are|is|were|(?:appear|seem)\ to\ be)
    |\b(?:i|we|you)\ (?:can\ )?(?:see|count|find)|\b(?:shows?|contains?|has|depicts?|features?))(?!\w)""",
    rf"(?![^.,;:!?\n]*{_PART})")


def _readings(kind: str, reply: _Reply) -> Iterator[tuple[str, frozenset]]:
    """The readings of the table at the top, in its order: the name, and the values that are offered there."""
    whole = _WHOLE[_UNIT if kind == "count" else ""].match(reply.text)
    if whole:
        yield "whole", reply.values[whole[1]]
    for values in reply.led_to(_STATED)[-1:]:
        yield "stated", values
    alone = reply.led_to(_ALONE, _OPENS)
    yield "alone", _agreed(alone)
    for values in reply.led_to(_THEREFORE, _FITS)[-1:]:
        yield "concluded", values
    if not reply.breaks_off():
        if kind == "count":
            yield "told", _agreed(reply.led_to(_TELLS))
        yield "once", _agreed(reply.named())
        if kind != "yesno" and not alone:
            yield "last", next(filter(None, reversed(reply.named())), frozenset())


# ---- numbers ---------------------------------------------------------------------------------------------------------

_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
          "seventeen eighteen nineteen").split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000}
_WORDS = {w: n for n, w in enumerate(_UNITS)} | {w: 10 * n for n, w in enumerate(_TENS, start=2)}
_WORDS |= {"none": 0, "no": 0, "a": 1, "and": 0}  # "no" only in "there are no", the last two only in "a hundred and one"

_PLAIN = r"(?:(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?: ?[×x] ?10\^-?\d+|[eE][-+]?\d+)?"
_DIGITS = (rf"(?<![\w^.])(?<!\d[,:])(?<![\d./]/)(?:(?<![\w)])-)?(?:(?:\d+ )?\d+⁄0*[1-9]\d*|10\^-?\d+|{_PLAIN})"
           r"(?:(?=(?!st\b|nd\b|rd\b|th\b)[A-Za-z]{2}|[mg]\b)|(?!\w))(?![.,:]\d|/\d|\^|-[A-Za-z])")
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[- ](?:{'|'.join(_UNITS[1:10])}))?|{'|'.join(_UNITS)})"
_SCALED = rf"(?:{_SMALL}|a) (?:{'|'.join(_SCALES)})(?: (?:and )?{_SMALL})?"
# Two scales ("two thousand three hundred") are beyond this grammar and read as two numbers, hence as no number.
_SPELLED = rf"\b(?:none|{_SCALED}|{_SMALL})\b(?![- ](?:{'|'.join(_SCALES)})\b)"
_NO_ONES = r"(?<=there are )no(?= (?!other|more|way|image)\w)|^no(?! one\b)(?= \w+ (?:are|can be) (?:visible|seen|shown)\b)"
_TERM = r"[\d.,]{1,20}(?: [A-Za-z]{1,12})? ?"
_SUM = rf"(?<![\w.,×*/÷+-])(?<![×*/÷+-] )-?{_TERM}(?:[-+×*/÷] ?{_TERM})+(?==)"
_NUMBER = re.compile(rf"(?m)(?P<sum>{_SUM})|{_DIGITS}|(?i:{_SPELLED}|{_NO_ONES})")
# Words around a number, <here>, that make it a label, a bound, a doubt, a part ("there are 5 of them" is none) or a pronoun.
_COUNTS_NOTHING = re.compile(r"""\b(?:step|nos?\.?|figure|fig\.|image|page|row|column|line|at\ least|at\ most|up\ to|over|under
    |above|below|than)\ < | >\ ?%\ (?:sure|certain) | >\ (?:\w+\ )?or\ (?:more|less|fewer)\b
    | (?<!are\ )<(?!none>)[^>]*>\ of\ (?:them|these|those|which|the)\b
    | \b(?:the|this|that|each|every|any|another|other|some|by|first|next)\ (?:\w+\ )?<one>
    | <one>\ (?:by|cannot|can|could|may|might|must|should|would|another|moment)\b""", re.I | re.X)

def _numbers(text: str) -> Iterator[Found]:
    for m in _NUMBER.finditer(text):
        before, after = text[max(0, m.start() - 24) : m.start()], text[m.end() : m.end() + 16]
        if not m["sum"] and not _COUNTS_NOTHING.search(f"{before}<{m[0]}>{after}"):
            yield *m.span(), frozenset([_to_number(m[0])]), True


def _to_number(token: str) -> float:
    """The value of what `_NUMBER` matches: "1,000", "1.5×10^3", "2 1⁄2", "one hundred and five"."""
    if "⁄" in token:
        *whole, above, below = map(float, re.findall(r"\d+", token))
        return (-1 if token[0] == "-" else 1) * (sum(whole) + above / below)
    if any(c.isdigit() for c in token):
        token = re.sub(r"(?<=\d)[, ](?=\d)", "", token)
        return float(re.sub(r"(\d)? ?[×x]? ?10\^", lambda m: (m[1] or "1") + "e", token))
    total = 0
    for word in re.findall("[a-z]+", token.lower()):
        total = total * _SCALES[word] if word in _SCALES else total + _WORDS[word]
    return float(total)


# ---- yes and no ------------------------------------------------------------------------------------------------------

_YESNO = {  # as a word of a sentence, and as all of one
    "yes": (r"\b(?:yes|yeah|yep|yup|是的)\b",
            r"y|(?:it is )?true|(?:that's )?(?:correct|right)|indeed|absolutely|definitely|exactly|sure|certainly|of course"
            "|affirmative|是|对|有|はい|oui|s[íi]|ja|да|네|예"),
    "no": (r"\bno\b(?!-\w|\.? ?\d)(?=[^\w\n]*(?:$|[^\w\s])| (?:and|or|but|because|since|as|not|is|was|would|yes)\b)"
           r"|\b(?:nope|nah|不是的?|不)\b",
           r"n|(?:it is )?false|incorrect|wrong|negative|not at all|(?:definitely|absolutely|certainly|of course) not|否|不对"
           "|没有|いいえ|non|nein|нет|아니요|아니오"),
}
_YES_OR_NO = re.compile("(?im)" + "|".join(
    rf"(?P<{value}>{word})|(?:^|(?<=[.!?:是为])) ?[^\w\n]{{0,4}}(?P<{value}_>\b(?:{alone}))(?=[^\w\n;:/,]*(?:[.!\n]|\Z)|$)"
    for value, (word, alone) in _YESNO.items()))


def _yes_and_no(text: str) -> Iterator[Found]:
    for m in _YES_OR_NO.finditer(text):
        yield *m.span(m.lastgroup), frozenset([m.lastgroup.rstrip("_")]), True


def opposite(text: str) -> str | None:
    """`text` with the yes or no that is read in it turned into the other; None if no such word alone decides the reading.

    "eyes? Yes." becomes "eyes? No.", and "Y" becomes "N".
    """
    said = parse_yesno(text)
    if said is None:
        return None
    other = {"yes": "no", "no": "yes"}[said]
    narrow = "".join(n if len(n := unicodedata.normalize("NFKC", c)) == 1 else c for c in text)  # as long as `text`
    for m in re.finditer(rf"(?im)(?:{'|'.join(_YESNO[said])})(?!\w)", narrow):
        word = other[0] if m[0].lower() in ("y", "n") else other
        word = word.upper() if m[0].isupper() else word.title() if m[0].istitle() else word
        turned = text[: m.start()] + word + text[m.end() :]
        if parse_yesno(turned) == other:
            return turned
    return None


# ---- options ---------------------------------------------------------------------------------------------------------

# A and I are words too ("A man", "I think"): not letters before any word but these, or one more letter.
_WORD = (r"(?<=[AaIi]) (?!(?:because|since|as|is|was|and|or|to|not|but|seems|looks|fits|matches|remains|would|must|should|it"
         r"|does|can|cannot|rather|\w)\b)\w")
# "N/A" offers no letter. The A stands behind the N, so both ends are looked at.
_LETTER = re.compile(rf"(?i)(?<!\w)(?<!\w['-])(?<![∠△°^])(?!n/a\b)(?<!\bn/(?=a\b))[A-Z](?!\w|['-]\w|[+#]|{_WORD})")
_ITS_TEXT = re.compile(r"[^\w\n]{0,4}(?:(?:an?|the) )?", re.I)  # what may stand between a letter and its text
_ACTS = "+*/⁄^<>≤≥×÷"  # what makes a number beside it another one
_OPERATORS = _ACTS + "=≠±√"
_NUMERALS = {*_WORDS, *_SCALES, *"first second third fourth last".split()}


def _pattern(words: Sequence[str]) -> str:
    """Of an option's text: its words and operators, whole; where it begins or ends with a number, no part of a formula."""
    first, last = (len(word) == 1 or word[0].isdigit() for word in (words[0], words[-1]))
    before = rf"(?<![\w.{_ACTS}-])(?<![{_ACTS}] )(?<!\W\w - )" if first else r"(?<!\w)"
    after = rf"(?!\w|[.,]\d| ?[{_OPERATORS}]|-\w| - ?\w\b)" if last else r"(?!\w)"
    return before + rf"(?:[^\w\n{_OPERATORS}-]|-(?!\d|\w\b| ))*(?:(?:an?|the) )?".join(map(re.escape, words)) + after


def _texts_in(text: str, options: dict[str, str]) -> dict[int, Found]:
    """The options' texts in `text` by where they begin, the longest first; none that lies in another."""
    letters: dict[tuple, frozenset] = {}
    for letter, option in options.items():
        option = re.sub(r"\b(?:an?|the) (?=\w\w)(?!and\b|or\b)", "", _clean(option).casefold())
        words = tuple(re.findall(rf"\d+(?:[.,]\d+)*|[^\W\d]+|[{_OPERATORS}]|-(?= ?(?:\d|\w\b))", option))
        letters[words] = letters.get(words, frozenset()) | {letter}
    found: dict[int, Found] = {}
    taken: set[int] = set()
    for words in sorted(letters, key=len, reverse=True):
        if re.fullmatch("[a-z]?", "".join(words)):  # a lone letter is never an option's text
            continue
        sure = any(len(word) > 1 and word.isalpha() and word not in _NUMERALS for word in words)
        for m in re.finditer(_pattern(words), text, re.I):
            if m.start() not in taken:
                found[m.start()] = *m.span(), letters[words], sure
                taken.update(range(*m.span()))
    return found


def _choices(text: str, options: dict[str, str]) -> list[Found]:
    """The letters and the texts of the options in `text`. A letter and the text that it labels are one, and then alone sure."""
    found = _texts_in(text, options)
    inside = {at for start, stop, *_ in found.values() for at in range(start, stop)}
    labelled = set()
    for m in _LETTER.finditer(text):
        letter = m[0].upper()
        if letter in options and m.start() not in inside:
            _, stop, letters, _ = found.pop(_ITS_TEXT.match(text, m.end()).end(), (0, m.end(), frozenset(), False))
            found[m.start()] = m.start(), stop, frozenset(letter), False
            labelled |= {m.start()} if letter in letters else set()
    return [(*run[:3], start in labelled if labelled else run[3]) for start, run in sorted(found.items())]


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
    text = _clean(text)
    found = _numbers(text) if kind == "count" else _yes_and_no(text) if kind == "yesno" else _choices(text, options)
    for by, values in _readings(kind, _Reply(text, found)):
        if values:
            return Reading(next(iter(values)), by) if len(values) == 1 else Reading(None, "")
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
