"""What a response answers: the tokens that say it, and whether it is right (R_ans).

A response reads `<think> ... </think> <answer> red </answer>`. Two questions are asked about it:

    which of the sampled tokens are the answer?   `answer_span`   Answer-CED sums log π over these, and only these
    is the answer right?                          `is_correct`    R_ans in training, the score in evaluation

Both read the same characters, the last complete <answer>...</answer> outside the reasoning, so what is rewarded is what is
audited. A public benchmark's reply may have no tag at all: what follows its reasoning is judged then. With a tag that is not
closed, or with nothing in it, the answer is wrong.

A reply is brought into one spelling. Each value in it, of the kind that is asked for, becomes one character; alternatives
("2 or 3", "A/B") become one together, unreadable where it decides. What the reply does not say is left out: questions, and
clauses that deny, compare, quote, plan or suppose. Then the first reading that finds a value decides:

    reading    what it reads                                              an example                              says
    whole      all of the reply; of numbers, with their unit              （ｂ） · 7 dogs · a dog                 B · 7 · B
    stated     after the last "answer is", "I choose", "total:", boxed    The answer is 4, not 9.                 4
    alone      all of a line or sentence, or how a line begins            7. Three are left, four right.          7
    concluded  the last after "so", "leaves", "="; before "is right"      A is wrong; C fits. · 3 + 4 = 7         C · 7
    told       numbers, after "there are", "I see", not "on the left"     There are 7 dogs in 2 rows.             7
    once       the only value that is named                               It was painted by Georges Seurat.       A
    last       last resort: the last sentence's only value, or its "is 9" The price of two is 9 dollars.          9

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

from values import SURE, VALUE, clean, compiled, marked

OPEN, CLOSE = "<answer>", "</answer>"
FORMAT = f"inside {OPEN} {CLOSE}, after its reasoning, if any, inside <think> </think>"


# ---- the answer of a response, as characters and as tokens -----------------------------------------------------------

# A prompt may have opened <think>, and a reply may never close it.
_REASONING = re.compile(r"(?:\A|<think>)(?:(?!<think>).)*?</think>|<think>(?:(?!<think>|<answer>).)*", re.DOTALL)


def _unthought(text: str) -> str:
    """`text` with its reasoning blanked out, character by character."""
    return _REASONING.sub(lambda m: "\n" * len(m[0]), text)


def _answer_range(text: str, tag: str = "answer") -> tuple[int, int] | None:
    """[a, b) in characters of the last complete answer, without the blanks around it; None if there is no such text."""
    text = _unthought(text)
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


def asks_for_answer(instruction: str) -> bool:
    """Whether the answer of a response in the format that an instruction prints can be read: the instruction is such a response
    itself, once something stands in its last tags."""
    before, _, after = instruction.rpartition(CLOSE)
    return _answer_range(f"{before}.{CLOSE}{after}") is not None if CLOSE in instruction else False


def answer_span(ids: Sequence[int], decode: Callable[[Sequence[int]], str], tag: str = "answer") -> tuple[int, int] | None:
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


def judged(response: str) -> str:
    """The part of a response that answers: inside the tags or, where there are none, the last that is no reasoning."""
    if OPEN in _unthought(response):
        return answer_text(response) or ""
    return next((part for part in reversed(_REASONING.split(response)) if part.strip()), "")


# ---- what a reply says -----------------------------------------------------------------------------------------------

_SENTENCE = re.compile(r"[^\n]+?(?:[.!?]+(?=\W|\Z)|\n|\Z)")
_IF = compiled(r"\W*if (?:so|not|[^.]*\b(?:was|were)\b[^.]*\bwould)\b")
# Where a clause ends: at a mark, or before a word that opens another; "B, not A" and "B rather than A" are two. The first
# branch is no such place: that "not" belongs to its verb.
_BREAK = compiled(rf"""\b(?:is|are|was|were|be|do|does|did|can|could|would|should|will|must|may|might|has|have|had) not\b
    |(?P<cut>[,;:](?!\d)(?: not\b)?| -+ (?:not\b)?|→|=>|(?<!think )(?<!anything )\b(?:but|so|because|since|as opposed|which
    |while|although|though|whereas|however|therefore|thus|hence|where|when|if|leaves|leaving|rather than|instead of|than|except
    |not|nor|and(?= (?:the|it|this|that|i|we|so|not|then)\b)|(?<=^[{VALUE}] )(?:it|they|there|this|that|the|i|we|you))\b)""")
_CHOOSES = r"(?:choos|chose|pick|select|opt for|go(?:ing)? (?:with|for)|say|answer)"
# What a clause that says nothing does: it denies, compares, quotes; it plans, supposes, considers.
_SILENT = compiled(rf"""\b(?:not|no [{VALUE}]|(?<=[:-] )no\W*\Z|\w+n't|cannot|never|neither|nor|than|instead of|opposed|except
    |wrong|incorrect|false|out|unlikely|(?<!no )(?<!without )doubt|eliminat\w+|exclud\w+|lacks?|thinks|thought|said|written
    |labelled|anything but|too (?:many|few)|options include|some(?:one|body)?(?= (?:\w+ )?(?:says?|thinks?))|others
    |(?<!would )(?<!'d )(?<!'ll )(?<!i )says?|reads|let(?: me| us|'s)(?! {_CHOOSES})|(?:i|we)(?: will|'ll)(?! {_CHOOSES})
    |(?:start|begin)(?:s|ing)? with|first,? (?:i|we)|to (?:find|check|see|solve|decide|choose)|if|suppose|assum\w+
    |consider\w*)(?!\w)|不|没|错""")
# A silent clause that begins so, and has no value, is said of what stands before it: "B, a dog, does not fit".
_OF_THE_ABOVE = compiled(rf"""\W*(?:\b(?:is|are|was|does|do|can|could)\b|\w+n't|cannot|wrong|incorrect|(?<=[:-] )no\W*\Z
    |(?<!, )not\b(?! (?:at|in|on)\b|[^\w{VALUE}]*\Z))[^{VALUE}]*\Z""")


def _silenced(text: str) -> str:
    """`text` without its questions and its silent clauses; the marks that end a sentence stay."""
    said: list[str] = []
    for sentence in _SENTENCE.findall(text):
        asks = sentence.rstrip().endswith("?") or _IF.match(sentence)
        cuts = [] if asks else [m.start() for m in _BREAK.finditer(sentence) if m["cut"]]
        kept: list[str] = []
        for clause in (sentence[a:b] for a, b in zip([0, *cuts], [*cuts, None])):
            silent = asks or _SILENT.search(clause)
            if silent and _OF_THE_ABOVE.match(clause):
                kept = []
            kept.append(re.sub(r"[^\n.!?]+", " " if kept else "_ ", clause) if silent else clause)
        said += kept
    return "".join(said)


def _breaks_off(text: str) -> bool:
    """Whether a clause begins after the last value, and has no end."""
    tail = re.split(f"[{VALUE}]", text)[-1].rstrip(" \n\"')]")
    begun = re.search(r"\w", "".join(re.split(r"[.,;:!?\n]", tail, maxsplit=1)[1:]))
    return bool(begun and tail[-1] not in ".!?"
                or re.search(r"(?:[,:]|\b(?:and|or|but|so|the|an?|of|to|in|on|at|is|are|with))\Z", tail))


# ---- the readings ----------------------------------------------------------------------------------------------------

# What may stand between a cue and its value, and before a value that is alone.
_FILL = rf"""(?:[^\w.!?{VALUE}]|\b(?:about|approximately|around|roughly|exactly|clearly|definitely|likely|most|probably|only
    |just|simply|then|there|it|is|are|be|to|with|the|an?|option|choice|letter|answer|number|total|of|group)\b){{0,30}}"""
_LEAD = rf"""(?:[^\w.!?\n{VALUE}]|\b(?:the|an?|option|choice|answer|letter|total|about|around|only|just|oh|well|no|wait|most
    |\w+ly|i think)\b){{0,12}}"""
_GAP = rf"[^.:\n{VALUE}]{{0,60}}?"
_THUS = r"\b(?:so|therefore|thus|hence)\b|[→∴]|=>|所以|因此"
_PART = r"\b(?:left|right|top|bottom|front|back|middle|first|here|more|plus)\b"  # of a picture


def _cue(words: str, after: str = "", fill: str = _FILL) -> re.Pattern:
    """A pattern that ends with the value that `words` announce, if `after` follows it."""
    return compiled(rf"(?:{words}){fill}[{VALUE}]{after}")


_WHOLE = compiled(rf"""{_LEAD}([{VALUE}])[^\w?{VALUE}]*(?:(?<=[{SURE}])[^\w?{VALUE}]*
    (?:\b(?!and|or|to|but|than|not|half|is|are|was|can|in|would|too)\w+[^\w?{VALUE}]*){{0,3}})?\Z""")
_STATED = _cue(rf"""(?:\b(?:ans(?:wer)?(?! (?:choices|options))|solution|conclusion|response|result|final|respuesta|réponse
    |antwort|risposta|resposta|ответ)\b|答案|选项|答え|正解|정답|답)(?:{_GAP}(?:\b(?:is|are|be|was|es|est|ist|è|é)\b|[:=]
    |[是为為はが은는]))?|\b(?:option|choice|pick|guess|letter|match|total|(?<!i )(?<!we )count|number|one|correct|best
    |final \w+)\b{_GAP}(?:\b(?:is|are|be)\b|[:=])|(?:^|[.!?,;:] |\b(?:i|we|let's|so)(?:'\w+)? (?:\w+ ){{0,3}}){_CHOOSES}\w*
    |\ba total of|故?选择?""")
_ALONE = _cue(r"^|(?<=[.!?] )", rf"(?=[^\w.!?\n{VALUE}]*(?:[.!]|$))", _LEAD)
_OPENS = _cue("^", rf"(?=\s*[^\w\s?{VALUE}](?! (?:is|was|has|looks|would)\b)| (?:because|since|as|it|they)\b)", _LEAD)
_THEREFORE = _cue(rf"""{_THUS}|\b(?:leaves?|leaving|remains|but|makes?|making|equals?|gives?|giving|gets?|comes to
    |(?:it|this|that|which)(?: is|'s)|(?:must|has to|have to|would|should|it'd) be)\b|[=≈]|共|为|是""",
    rf"(?:(?<=[{SURE}])|(?=\W*(?:\Z|[.,;:!?\n]|\b(?:because|since|as|for|which|and|but|then)\b)))")
_FITS = _cue(rf"^|[.,;:!?]|{_THUS}|\b(?:then|but|and|that|only|however|i (?:think|believe))\b", r"""(?=\W*(?:
    \b(?:yes|correct|true|fits|best|matches|remains|it is)\b|(?:选?项)?是?(?:正确|对)
    |\b(?:is|are|seems|looks|(?:would|must|should|has to) be)(?: \w+){0,2}? (?:correct|right|answer|best|true|one|choice|match
    |suitable|what)\b|[^.,;:!?\n]*\b(?:in total|in all|altogether)\b))""")
_TELLS = _cue(rf"""(?:^|(?<=[.!?] ))(?![^.!?\n{VALUE}]*(?:{_PART}|\brow\b))[^.!?\n{VALUE}]*?
    (?:^|有|\bhay|\by (?:en )?a|\bsind|\bson|\bthere (?:are|is|were|(?:appear|seem)s? to be)
    |\b(?:i|we|you) (?:can )?(?:see|count|counted|find)|\b(?:shows?|contains?|has|depicts?|features?))(?!\w)""",
    rf"(?![^.,;:!?\n]*{_PART})")
_SUBJECT = compiled(rf"(?<![^.!?\n])[^.!?\n]*\b(?:is|are|was|were)\b{_FILL}(?=[{SURE}] ?[^\s{VALUE}]*(?:$|[.!]\s|\Z))")


def _agreed(values: Iterable[frozenset]) -> frozenset:
    """The value on which all agree; none if they do not."""
    union = frozenset().union(*values)
    return union if len(union) == 1 else frozenset()


def _readings(kind: str, text: str, values: dict[str, frozenset]) -> Iterator[tuple[str, frozenset]]:
    """The readings of the table at the top, in its order: the name, and the values that are offered there."""
    said = _silenced(text)
    if whole := _WHOLE.match(said):
        yield "whole", values[whole[1]]

    def led_to(*cues: re.Pattern) -> list[frozenset]:
        return [values[said[end - 1]] for end in sorted(m.end() for cue in cues for m in cue.finditer(said))]

    yield "stated", next(reversed(led_to(_STATED)), frozenset())
    alone = led_to(_ALONE, _OPENS)
    yield "alone", _agreed(alone)
    yield "concluded", next(reversed(led_to(_THEREFORE, _FITS)), frozenset())
    if _breaks_off(text):
        return
    if kind == "count":
        yield "told", _agreed(offered for offered in led_to(_TELLS) if len(offered) == 1)

    def named(text: str) -> list[frozenset]:
        return [frozenset().union(*map(values.get, re.findall(f"[{SURE}]", part))) for part in _SENTENCE.findall(text)]

    yield "once", _agreed(named(said))
    if kind != "yesno" and not alone:
        yield "last", next((offered for offered in reversed(named(_SUBJECT.sub("", said))) if len(offered) == 1), frozenset())


_LACK = r"(?:insufficient|not enough)(?: (?:information|evidence|context|data))?(?: to (?:answer|tell|say)(?: .*)?)?"
_ABSTAINS = re.compile(
    rf"(?:(?:there|evidence|information|context|it) is )?{_LACK}|(?:it )?cannot be (?:answered|determined)(?: .*)?")


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
    readings = _readings(kind, *marked(clean(text), kind, options))
    by, values = next((reading for reading in readings if reading[1]), ("", frozenset()))
    return Reading(next(iter(values)), by) if len(values) == 1 else Reading(None, "")


def parse_count(text: str) -> float | None:
    """The number that `text` gives; None if there is none, or if it offers several."""
    return read(text, "count").value


def parse_yesno(text: str) -> str | None:
    """ "yes" or "no"; None if `text` gives neither, or both."""
    return read(text, "yesno").value


def parse_choice(text: str, options: dict[str, str]) -> str | None:
    """The letter of the option that `text` chooses; None if it chooses none, or several. Raises ValueError as `read` does."""
    return read(text, "mcq", options).value


def score(response: str, gold: str, kind: str) -> float:
    """How right a response is, from 0 to 1: the word F1 of an answer about pages, else `is_correct`."""
    return word_f1(judged(response), gold) if kind == "pages" else float(is_correct(response, gold, kind))


def is_correct(response: str, gold: str, kind: str, options: dict[str, str] | None = None) -> bool:
    """Whether `response` gives the answer `gold`, both read in the same way. Unreadable is wrong.

    For mcq the gold may be a letter or a text. Raises ValueError as `read` does, and for a gold that cannot be read: those
    are faults of the data, not of the model.
    """
    wanted = read(gold, kind, options).value
    if wanted is None:
        raise ValueError(f"the gold answer {gold!r} cannot be read as kind {kind!r}")
    return read(judged(response), kind, options).value == wanted
