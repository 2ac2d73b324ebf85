"""The values of a reply: brought into one spelling, then each replaced by one character, which stands for it in what follows.

    text ─`clean`─▶ one spelling ─`marked`─▶ text with a character for each number, yes or no, or option, and what these are

`answers` reads what the reply says of them.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable

# ---- one spelling ----------------------------------------------------------------------------------------------------

def compiled(pattern: str) -> re.Pattern:
    """Of any case, ^ and $ at every line; a line break in the pattern, with the blanks after it, is layout."""
    return re.compile(re.sub(r"\n +", "", pattern), re.IGNORECASE | re.MULTILINE)


_CJK = "[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]"  # written without blanks: 答案是B
_SPELLINGS = str.maketrans(dict.fromkeys("‐‑‒–—―−", "-") | dict.fromkeys("’‘ʼ", "'") | dict.fromkeys("“”", '"')
                           | {"。": ". ", "、": ", "})
_REWRITTEN = [(re.compile(pattern), new) for pattern, new in [
    (r"<\|[^|\n]{0,40}\|>|</?s>|[\u200b-\u200f\ufeff\U000f0000-\U0010ffff]", ""),  # special tokens; no width; see SURE
    (r"\\boxed\b", " answer: "),
    (r"\\[dt]?frac *\{?([\d.]+)\}? *\{?([\d.]+)\}?", r" \1⁄\2"),
    (r"\\(?:times|cdot)\b|\*(?=10\^)", "×"),
    (r"\\(?:approx|simeq)\b", "≈"),
    (r"\^?\{?\\(?:circ|degree)\b\}?", "°"),
    (r"\\(?:text|math)[a-z]*|\\[,;! ]|[*_`$\\{}]", ""),
    (rf"(?<={_CJK})(?=[A-Za-z\d])|(?<=[A-Za-z\d])(?={_CJK})|[^\S\n]+", " "),
    (r"\.{3,}", ", "),
    (r"\s*\n\s*", "\n"),
    (r"(?m)((?:^|[.!?:] )[^\w\n]{0,8}[A-Z])\. (?=\S)(?!(?:It|There|They|In)\b)", r"\1) "),  # "A. dog" ends no sentence
]]


def clean(text: str) -> str:
    """`text` in one spelling: NFKC, one dash, one quote; no markup, TeX, special tokens, list numbers, runs of blanks."""
    text = re.sub("[⁰¹²³⁴-⁹]+", r"^\g<0>", text)  # 10³ is not 103
    text = re.sub(r"(?<=\d)(?=[¼-¾⅐-⅞])", " ", text)  # nor 2½ 21/2
    text = unicodedata.normalize("NFKC", text).translate(_SPELLINGS)
    for pattern, new in _REWRITTEN:
        text = pattern.sub(new, text)
    if re.search(r"(?m)^[^\w\n]{0,8}1[.)] \S", text):
        text = re.sub(r"(?m)^[^\w\n]{0,8}\d{1,2}[.)] (?=\S)", "", text)
    return text.strip()


# ---- the values of a reply -------------------------------------------------------------------------------------------

# Each value in a reply is replaced by one character of its own, which stands for it in all that follows.
SURE = "\U000f0000-\U000fffff"  # what is a value wherever it stands: a number, a yes, an option's text
VALUE = SURE + "\U00100000-\U0010ffff"  # and what may name something else: a letter, a number that is an option's text

_UNITS = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
          "seventeen eighteen nineteen").split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_SCALES = {"dozen": 12, "hundred": 100, "thousand": 1000}
_WORDS = {w: n for n, w in enumerate(_UNITS)} | {w: 10 * n for n, w in enumerate(_TENS, start=2)} | _SCALES | {"a": 1}

_TERM = r" ?(?:[a-z]{2,12} )?(?:[+×*÷=≈]|/ ?\d|plus\b|- ?[\d.]{1,20} ?(?:[a-z]{1,12} ?)?=)"  # after a number: part of a sum
_PLAIN = r"(?:(?:\d{1,3}(?:[, ]\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?: ?[×x] ?10\^-?\d+|e[-+]?\d+)?"
_RATIO = r"(?:\d+ )?\d+(?:\.\d+)?⁄(?=[0.]*[1-9])\d+(?:\.\d+)?"
_DIGITS = (rf"(?<![\w^.])(?<!\d[,:])(?<![\d./]/)(?<!\d / )(?:(?<![\w)])-)?(?:{_RATIO}|10\^-?\d+|{_PLAIN})"
           r"(?:(?=(?!st\b|nd\b|rd\b|th\b)[a-z]{2}|(?:[mg]|(?-i:[JLNVWs]))\b)|(?!\w))(?![.,:]\d|/\d|\^|-[a-z])")
_SMALL = rf"(?:(?:{'|'.join(_TENS)})(?:[- ](?:{'|'.join(_UNITS[1:10])}))?|{'|'.join(_UNITS)})"
_SCALE = "(?: (?:dozen|hundred|thousand))"
_SPELLED = rf"\b(?:none|(?:{_SMALL}|a(?={_SCALE}))(?:{_SCALE}+(?: (?:and )?{_SMALL})?)*)\b"
_NO_ONES = r"(?<=there are )no(?= (?!other|more|way|image)\w)|^no(?! one\b)(?= \w+ (?:are|can be) (?:visible|seen|shown)\b)"
_NUMBER = compiled(rf"(?:{_DIGITS}|{_SPELLED})(?!{_TERM})|{_NO_ONES}")
# Words around a number, <here>, that make it a label, a bound, a doubt, a part ("there are 5 of them" is none) or a pronoun.
_COUNTS_NOTHING = compiled(r"""\b(?:step|nos?\.?|figure|fig\.|image|page|row|column|line|at least|at most|up to|over|under|above
    |number|player|below|than|first|next|last) <|> ?% (?:sure|certain|confident)|> (?:\w+ )?or (?:more|less|fewer)\b
    |(?<!are )(?<!be )(?<!see )<(?!none>)[^>]*> of (?:them|these|those|which|the)\b(?!\W*\Z)|\b(?:the|this|that|each|every|any
    |another|other|some|by|first|next) (?:\w+ )?<one>|<one> (?:by|cannot|can|could|may|might|must|should|would|another
    |moment)\b""")


def _to_number(token: str) -> float:
    """The value of what `_NUMBER` matches: "1,000", "1.5×10^3", "2 1⁄2", "one hundred and five"; 0 for "none" and "no"."""
    if "⁄" in token:
        *whole, above, below = map(float, re.findall(r"[\d.]+", token))
        return (-1 if token[0] == "-" else 1) * (sum(whole) + above / below)
    if any(c.isdigit() for c in token):
        token = re.sub(r"(?<=\d)[, ](?=\d)", "", token)
        return float(re.sub(r"(\d)? ?[×x]? ?10\^", lambda m: (m[1] or "1") + "e", token))
    thousands = part = 0
    for word in re.findall("[a-z]+", token):
        part = part * _SCALES[word] if word in _SCALES else part + _WORDS.get(word, 0)
        if word == "thousand":
            thousands, part = thousands + part, 0
    return float(thousands + part)


_THAT_IS = "(?:(?:it|that|the statement)(?: is|'s) )?"
_YESNO = {  # as a word of a sentence, and as all of one
    "yes": (r"\b(?:yes|yeah|yep|yup)\b|是的|^(?:true|correct|是)(?=,)",
        rf"""y|{_THAT_IS}(?:true|correct)|that(?: is|'s) right|affirmative|(?:indeed|absolutely|definitely|exactly|sure
        |certainly|of course)(?:,? it is)?|是|对的?|有|はい|oui|s[íi]|ja|да|네|예"""),
    "no": (r"""\bno\b(?!-\w|\.? ?\d)(?=[^\w\n]*(?:$|[^\w\s])| (?:and|or|but|because|since|as|not|is|was|would|yes|it|they
        |there|this|that|the|i|we|you)\b)|\b(?:nope|nah)\b|^(?:false|incorrect)(?=,)|不是的?|不""",
        rf"""n|{_THAT_IS}(?:false|incorrect|wrong|not (?:true|correct|right))|negative|not really|not at all|no way
        |(?:definitely|absolutely|certainly|of course) not|否|不对|没有|いいえ|non|nein|нет|아니요|아니오"""),
}
_YES_OR_NO = compiled("|".join(
    rf"(?P<{value}>{word})|(?:^|(?<=[.!?:是为])) ?[^\w\n]{{0,4}}(?P<{value}_>\b(?:{alone}))(?=[^\w\n;:/,]*(?:[.!\n]|\Z)|$)"
    for value, (word, alone) in _YESNO.items()))


# A and I are words too ("A man", "I think"): not letters before any word but these, or one more letter.
_WORD = (r"(?<=[AaIi]) (?!(?:because|since|as|is|was|and|or|to|not|but|seems|looks|fits|matches|remains|would|must|should|it"
         r"|does|can|cannot|rather|instead|\w)\b)\w")
# "N/A" offers no letter. The A stands behind the N, so both ends are looked at.
_LETTER = compiled(rf"(?<!\w)(?<!\w['-])(?<![∠△°^])(?!n/a\b)(?<!\bn/(?=a\b))[A-Z](?!\w|['-]\w|[+#]|{_WORD})")
_OPERATORS = "+*/^<>≤≥×÷=≠±√"  # all but the last four make what follows another thing
_PIECE = re.compile(rf"""(?!(?:an?|the)\ (?!and\b|or\b)\w\w)  # of a text; articles are none
    (?:\d+(?:[.,]\d+)*|(?<![^\W\d])[^\W\d]+|[{_OPERATORS}]|-(?=\ ?(?:\d|\w\b)))""", re.X)
_BEFORE = re.compile(rf"(?<!\.(?=\d))(?<![\w{_OPERATORS[:-4]}-])(?<![{_OPERATORS[:-4]}] )(?<!\W\w - )")  # a whole text
_AFTER = re.compile(rf"(?!\w|[.,]\d| ?[{_OPERATORS}]|-\w| - ?\w\b)")
_ITS = compiled(r"[^\w\n]{0,4}(?:(?:an?|the) )?")  # between a letter and its text
_NUMERALS = {*_WORDS, *"none no first second third fourth last".split()}


def _choices(text: str, options: dict[str, str], mark: Callable[..., str]) -> str:
    """`text` with the options' texts marked, the longest first, and their letters. A letter and its text are one, and then
    alone sure."""
    texts: dict[tuple[str, ...], str] = {}
    for letter, option in options.items():
        option = re.sub(r"(?i)^(?:an?|the) (?=\w\w)(?!and\b|or\b)", "", clean(option).replace("⁄", "/"))
        words = tuple(_PIECE.findall(option.casefold()))
        texts[words] = texts.get(words, "") + letter
    pieces = list(_PIECE.finditer(text))
    names = [piece[0].casefold() for piece in pieces]
    found: dict[int, tuple[int, str, bool]] = {}  # where a value begins → where it ends, its letters, whether it is sure
    for words in sorted(texts, key=len, reverse=True):
        if re.fullmatch(r"[^\W\d]?", "".join(words)):  # a lone letter is never an option's text
            continue
        sure = any(len(word) > 1 and word.isalpha() and word not in _NUMERALS for word in words)
        for i in range(len(names) - len(words) + 1):
            start, stop = pieces[i].start(), pieces[i + len(words) - 1].end()
            if names[i : i + len(words)] == [*words] and _BEFORE.match(text, start) and _AFTER.match(text, stop):
                found[start] = stop, texts[words], sure
                names[i : i + len(words)] = [""] * len(words)
    labelled = set()
    for piece, name in zip(pieces, names):
        if name.upper() in options and _LETTER.match(text, start := piece.start()):
            stop, letters, _ = found.pop(_ITS.match(text, start + 1).end(), (start + 1, "", False))
            found[start] = stop, name.upper(), name.upper() in letters
            labelled |= {start} if found[start][2] else set()
    marked, at = [], 0
    for start, (stop, letters, sure) in sorted(found.items()):
        marked += [text[at:start], mark(letters, start in labelled if labelled else sure)]
        at = stop
    return "".join([*marked, text[at:]])


_PAUSE = rf"[^\w.:=!?\n{VALUE}]*?"  # blanks, brackets and marks inside a sentence
# Alternatives: values with only marks between them ("2, 3"; not "12 (3 rows)", not "seven - 7"), or "2 cats or 3".
_ALTERNATIVES = compiled(rf"""[{VALUE}](?:(?:(?! ?\(| - ){_PAUSE}(?:\w+ly )?
    |{_PAUSE}(?:(?:\w+{_PAUSE}){{0,2}}\b(?:or|and|nor)|\b(?:to|then))\b{_PAUSE}(?:(?:an?|the) )?)[{VALUE}])+""")


def marked(text: str, kind: str, options: dict[str, str] | None) -> tuple[str, dict[str, frozenset]]:
    """`text` with one character for each value and each run of alternatives, and what these characters stand for."""
    values: dict[str, frozenset] = {}

    def mark(offered: Iterable, sure: bool = True) -> str:
        character = chr(ord(SURE[0]) + len(values) % 0xFFFF + 0x10000 * (not sure))
        values[character] = values.get(character, frozenset()).union(offered)
        return character

    def number(m: re.Match) -> str:
        around = f"{m.string[max(0, m.start() - 24) : m.start()]}<{m[0]}>{m.string[m.end() : m.end() + 16]}"
        return m[0] if _COUNTS_NOTHING.search(around) else mark([_to_number(m[0].lower())])

    def yes_or_no(m: re.Match) -> str:
        return m.string[m.start() : m.start(m.lastgroup)] + mark([m.lastgroup.rstrip("_")])

    def alternatives(m: re.Match) -> str:
        characters = re.findall(f"[{VALUE}]", m[0])
        return mark(frozenset().union(*map(values.get, characters)), min(characters) <= SURE[-1])

    if kind == "mcq":
        text = _choices(text.replace("⁄", "/"), options, mark)
    else:
        text = _NUMBER.sub(number, text) if kind == "count" else _YES_OR_NO.sub(yes_or_no, text)
    return _ALTERNATIVES.sub(alternatives, text), values
