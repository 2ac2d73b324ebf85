"""answers.py: the answer's tokens on adversarial cuts and real tokenizers, and verdicts that nobody should dispute."""

import json
import random
from pathlib import Path

import pytest

import answers
import values
from answers import (
    answer_span,
    answer_text,
    is_correct,
    judged,
    normalize_word,
    parse_choice,
    parse_count,
    parse_yesno,
    read,
    score,
    word_f1,
)

SHARED = Path(__file__).resolve().parent.parent.parent / "shared"
TRAPS = SHARED / "data" / "benchmarks" / "traps.json"
REPLIES = SHARED / "data" / "replies" / "replies.jsonl"
QWEN = SHARED / "data" / "qwen"
KINDS = {"count", "yesno", "mcq", "word"}

PETS = {"A": "a hen", "B": "a goat", "C": "a cow", "D": "a pig"}


# ---- the answer as text ----------------------------------------------------------------------------------------------

@pytest.mark.parametrize("response, expected", [
    ("<think> look </think> <answer> red </answer>", "red"),
    ("<answer>two\nlines</answer> tail", "two\nlines"),
    ("<answer>old</answer> no: <answer>new</answer>", "new"),
    ("<answer> a <answer> b </answer>", "b"),
    ("<answer>kept</answer> and <answer>cut off", "kept"),
    ("<answer> a </answer> b </answer>", "a"),
    ("</answer> <answer> a </answer>", "a"),
    ("<answer>red", None),
    ("red</answer>", None),
    ("</answer><answer>", None),
    ("<answer> \n </answer>", None),
    ("<answer>a</answer><answer></answer>", None),  # the last pair is the answer, and it says nothing
    ("red", None),
    ("", None),
])
def test_answer_text(response, expected):
    assert answer_text(response) == expected
    span = answer_span(list(response), "".join)  # a tokenizer of one character a token
    assert (span is None) == (expected is None)
    assert span is None or response[slice(*span)] == expected


# ---- the answer as tokens --------------------------------------------------------------------------------------------

def decode_bytes(tokens):
    return b"".join(tokens).decode("utf-8", errors="replace")


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    """`data` in random tokens, with no regard for where a character or a tag ends."""
    bounds = sorted({0, len(data), *rng.choices(range(1, len(data)), k=rng.randint(1, len(data)))})
    return [data[a:b] for a, b in zip(bounds, bounds[1:])]


def answer_bytes(text: str) -> tuple[int, int]:
    """[a, b) in bytes of the last answer, by a route of its own: the test texts have no tag after their last pair."""
    head, _, tail = text.rpartition("<answer>")
    inner = tail.partition("</answer>")[0]
    a = len((head + "<answer>" + inner[: len(inner) - len(inner.lstrip())]).encode())
    return a, a + len(inner.strip().encode())


TEXTS = [
    "<think> é </think><answer>red</answer>",
    "<answer>汉</answer>",
    "<answer> é汉🙂 </answer> 汉",
    "<answer>a🙂b</answer>🙂",
    "<answer>汉字 and 🙂</answer>",
    "🙂<answer>old</answer><answer>née\nété</answer>",
    "<answer>\u3000汉\u00a0</answer>",  # blanks of several bytes: not part of the answer
]


@pytest.mark.parametrize("text", TEXTS)
def test_span_is_the_smallest_cover_of_the_answers_bytes(text):
    a, b = answer_bytes(text)
    for seed in range(100):
        tokens = cut(text.encode(), random.Random(seed))
        ends = [len(b"".join(tokens[:i])) for i in range(len(tokens) + 1)]  # token i holds bytes [ends[i], ends[i + 1])
        first, stop = answer_span(tokens, decode_bytes)
        assert ends[first] <= a and b <= ends[stop], (tokens, first, stop)  # every byte is in
        assert a < ends[first + 1] and ends[stop - 1] < b, (tokens, first, stop)  # each end token holds one of them


def test_span_starts_at_the_token_that_begins_a_split_character():
    tokens = [b"<answer", b">\xe6", b"\xb1", b"\x89<", b"/answer>"]  # the tags share tokens with parts of one character
    assert answer_span(tokens, decode_bytes) == (1, 4)


def test_span_under_a_decoder_that_shows_one_mark_for_each_unfinished_byte():
    def decode(tokens):  # as byte-fallback tokenizers do: the decoded prefix may then be longer than the whole
        data = b"".join(tokens)
        for cut_off in range(4):
            try:
                return data[: len(data) - cut_off].decode() + "\ufffd" * cut_off
            except UnicodeDecodeError:
                continue
        raise AssertionError("not a prefix of UTF-8")

    wide_blank, smile = [[bytes([byte]) for byte in char.encode()] for char in "\u3000🙂"]
    assert answer_span([b"<answer>", *wide_blank, *smile, b"</answer>"], decode) == (4, 8)


def test_span_under_a_word_level_decoder_that_joins_with_blanks():
    words = "<think> look </think> <answer> dark red </answer> <eos>".split()
    assert answer_span(words, " ".join) == (4, 6)


def test_span_needs_few_decodes():
    calls = []
    tokens = list("<think>" + "x" * 4000 + "</think><answer>red</answer>")
    answer_span(tokens, lambda ids: calls.append(1) or "".join(ids))
    assert len(calls) < 60


@pytest.mark.parametrize("name", ["qwen2_5_vl_7b", "qwen3_vl_8b", "qwen3_5_9b"])
def test_span_on_real_tokenizers(name, real_tokenizer):
    if not (QWEN / name).is_dir():
        pytest.skip(f"no tokenizer at {QWEN / name}")
    tokenizer = real_tokenizer(name)

    def decode(ids):
        return tokenizer.decode(ids, skip_special_tokens=False)

    def recut(text, rng):  # pieces encoded one by one: ids that encoding the whole would not give, as sampling does
        bounds = sorted({0, len(text), *rng.choices(range(1, len(text)), k=6)})
        return [i for a, b in zip(bounds, bounds[1:]) for i in tokenizer.encode(text[a:b])]

    for text in [*TEXTS, "<think> look </think> <answer>red</answer><|im_end|>", "<answer>\n12 cats\n</answer>\n"]:
        answer = answer_text(text)
        cuts = [tokenizer.encode(text), *(recut(text, random.Random(seed)) for seed in range(8))]
        for ids in cuts:
            assert decode(ids) == text
            first, stop = answer_span(ids, decode)
            assert answer in decode(ids[first:stop])
            # Without its first or its last token the span has lost a part of the answer.
            assert answer not in decode(ids[first + 1 : stop]) and answer not in decode(ids[first : stop - 1])
            assert decode(ids[:first]).count("<answer>") >= text.count("<answer>") - 1  # it is the last answer
    assert answer_span(tokenizer.encode("<answer>red"), decode) is None


def test_span_keeps_a_token_that_straddles_the_tag():
    tokens = ["<answer", ">red", "dish</", "answer>"]
    assert answer_span(tokens, "".join) == (1, 3)


# ---- the verdict -----------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("text, expected", [
    ("7", 7), ("7.", 7), ("**7**", 7), ("$7$", 7), (r"\boxed{7}", 7), (r"$\boxed{\text{seven}}$", 7), ("7.0", 7),
    ("2.5", 2.5), ("-4", -4), ("−4", -4), ("5,000", 5000), ("$1{,}500$", 1500), ("1,234,567.5", 1234567.5),
    ("eleven geese", 11), ("Twenty-two", 22), ("twenty two", 22), ("sixty", 60), ("sixteen", 16), ("zero", 0),
    ("a hundred", 100), ("one hundred and twelve", 112), ("three thousand forty-two", 3042),
    ("none", 0), ("None are visible.", 0), ("everyone is alone", None), ("Nobody has a phone but one boy.", 1),
    ("no geese", None), ("no one", None), ("no clue", None), ("", None), ("many", None),
    ("2nd", None), ("3D", None), ("v1.5", None), ("1.5v", None), ("five (5)", 5),
    ("2 or 3", None), ("2-3", None), ("2–3", None), ("2, 3", None), ("2 3", None), ("2/3", None), ("2 to 3", None),
    ("2 geese or 3 geese", None), ("2 (or 3)", None), ("two or three", None), ("1,0000", None), ("3 or three", 3),
    ("two thousand three hundred", 2300), ("two hundred thousand", 200000), ("fifteen hundred and five", 1505),
    ("Player 6", None), ("6 is too many.", None), ("Six of them", 6), ("5? No, 6.", 6),
    ("Two here and then six there, eight in all.", 8),
    ("The answer is 8 because 2 rows hold 4 each.", 8), ("Answer: 8 (2 rows of 4)", 8), ("Answer: 2 or 3", None),
    ("The answer is 4. Wait. The answer is 6. I had seen 2.", 6), ("The answer is about 9, not 3.", 9),
    ("The answer is -2", -2), ("not 9", None), ("It isn't 9", None), ("not 1,000", None), ("It is not 9 but 3", 3),
])
def test_count(text, expected):
    assert parse_count(text) == expected


@pytest.mark.parametrize("text, expected", [
    ("Yes", "yes"), ("no.", "no"), ("*No*, never", "no"), ("YES!", "yes"), ("Yes it does", "yes"),
    ("No. One sign says yes.", "no"), ("Yes. There is no doubt.", "yes"), ("I would say yes", "yes"),
    ("right", None), ("That's right.", "yes"),  # alone it is a side
    ("Some would say yes.", None), ("If so, yes.", None), ("Yes, though not at the top.", "yes"),
    ("There is no boat.", None),  # a "no" that counts boats: the question is not known here
    ("The answer is no", "no"), ("I looked. Answer: Yes, no boat hides it.", "yes"),
    ("Answer: No. I had thought yes.", "no"), (r"\boxed{yes}", "yes"), ("Y", "yes"), ("(n)", "no"), ("y axis", None),
    ("yes or no", None), ("yes/no", None), ("Yes and no.", None), ("yes no", None), ("I said yes, then no", None),
    ("Yes, no doubt", "yes"),  # "no" is a value only where it is no determiner
    ("I know", None), ("another notice", None), ("yesterday", None), ("not yes", None), ("I do not know", None),
    ("", None),
])
def test_yesno(text, expected):
    assert parse_yesno(text) == expected


@pytest.mark.parametrize("text, expected", [
    ("C", "C"), ("c", "C"), ("C.", "C"), ("(c)", "C"), ("[C]", "C"), ("**C**", "C"), (r"$\boxed{\text{C}}$", "C"),
    ("C) a cow", "C"), ("C: a cow", "C"), ("C. A cow", "C"), ("C\nIt is big.", "C"), ("It is big.\nSo:\n\nC", "C"),
    ("A", "A"), ("a", "A"), ("A.", "A"), ("(A)", "A"), ("A. a hen", "A"), ("a) hen", "A"), ("'A'", "A"),
    ("A cow", "C"), ("a Cow.", "C"), ("cow", "C"), ("The answer is a cow.", "C"), ("The answer is 'C'.", "C"),
    ("A bird sits there", None), ("A bird sits on B", None), ("Answer: A bird sits there", None),
    ("A cow. It has horns.", "C"), ("a cow, I think", "C"), ("Answer: A cow", "C"), ("It is 'C'. It moos", "C"),
    ("it's D'or, vitamin-C, A-frame, I'd say", None),
    ("The answer is A because it has wings", "A"), ("the answer is c because it moos", "C"), ("Answer: C", "C"),
    ("The correct option is (C).", "C"), ("I pick C since A. is small", "C"), ("I would go with option C.", "C"),
    ("The answer is C. B is close.", "C"), ("Answer: B. No. Answer: C", "C"), ("Option C is right.", "C"),
    ("(B) is too small, so (C)", "C"), ("It has the horns of C", None), ("It is C, not B.", "C"),
    ("It is not C", None), ("It isn't (C).", None), ("It cannot be C", None), ("The answer is not C", None),
    ("A/B", None), ("A, B", None), ("Answer: (A)/(B)", None), ("A B", None), ("A or B", None), ("A\nB", None),
    ("B or C", None), ("B/C", None), ("(B)/(C)", None), ("B, C", None), ("Answer: B or C", None), ("B and C", None),
    ("A. a hen\nB. a goat\nC. a cow", None), ("B is not clear and C is", None), ("Both B and C", None),
    ("a cow or a pig", None), ("E", None), ("Cows, Dogs", None), ("Beyond doubt", None), ("C-shaped", None),
    ("The answer is anything but C.", None), ("Somebody thinks it is a cow.", None), ("Response: C", "C"),
    ("none", None), ("no", None), ("I can't tell the answer", None), ("", None), ("...", None),
    ("N/A", None), ("n/a", None), ("The answer is N/A.", None), ("(N/A)", None), ("B/A", None), ("N/A, but C", "C"),
])
def test_choice(text, expected):
    assert parse_choice(text, PETS) == expected


def test_choice_reads_whole_option_texts():
    assert parse_choice("5", {"A": "15", "B": "5", "C": "-5"}) == "B"
    assert parse_choice("-5", {"A": "15", "B": "5", "C": "-5"}) == "C"
    assert parse_choice("The answer is 2.5.", {"A": "2.5", "B": "25"}) == "A"
    assert parse_choice("A and B", {"A": "red", "B": "blue", "C": "A and B", "D": "None"}) == "C"
    assert parse_choice("None", {"A": "red", "B": "blue", "C": "A and B", "D": "None"}) == "D"
    assert parse_choice("not open", {"A": "open", "B": "not open"}) == "B"
    assert parse_choice("same", {"A": "same", "B": "Same."}) is None  # two options with one text
    assert parse_choice("B", {"A": "B", "B": "A"}) == "B"  # a lone letter is a letter
    assert parse_choice("B. x", {"A": "B", "B": "x"}) == "B"
    assert parse_choice(r"$\frac{1}{2}$", {"A": r"$\frac{1}{3}$", "B": r"\frac{1}{2}"}) == "B"
    assert parse_choice("I think it is B", {letter: letter for letter in "ABCDEFGHI"}) == "B"


def test_word():
    assert normalize_word(" The  T-shirt, (RED). ") == "t shirt red"
    assert normalize_word("A") == "a" and normalize_word("-2.50!") == "-2.50" and normalize_word("…") == ""
    assert is_correct("<answer> the Red. </answer>", "red", "word")
    assert is_correct("<answer>e\u0301te\u0301</answer>", "Été", "word")  # composed and decomposed accents
    assert not is_correct("<answer>dark red</answer>", "red", "word")
    assert not is_correct("<answer>the</answer>", "red", "word")


@pytest.mark.parametrize("response, right", [
    ("<think>3</think><answer>4</answer>", True),
    ("<answer>3</answer><answer>\n4\n</answer>", True),
    ("<answer>4</answer> and <answer>3", True),
    ("<answer>4", False),
    ("4 <answer></answer>", False),
    ("<answer>4 or 5</answer>", False),
    ("<think>It could be 3.</think>\n4", True),
    ("<think>a</think>3<think>b</think>4", True),
    ("I see 4 of them.</think> many", False),  # the opening <think> may sit in the prompt
    ("<think>I see 4", False),
    ("4", True),
    ("", False),
])
def test_what_is_judged(response, right):
    assert is_correct(response, "4", "count") is right


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_an_empty_answer_is_never_right(kind):
    gold = {"count": "0", "yesno": "no", "mcq": "A", "word": "red"}[kind]
    for response in ["", "<answer></answer>", "<answer> </answer>", "<answer>", "...", "<think>" + gold]:
        assert not is_correct(response, gold, kind, PETS)


@pytest.mark.parametrize("gold, kind, options, message", [
    ("x", "essay", None, "unknown kind 'essay'"),
    ("A", "mcq", None, "needs options"),
    ("A", "mcq", {}, "needs options"),
    ("A", "mcq", {"1": "a hen"}, "needs options"),
    ("E", "mcq", PETS, "'E' cannot be read as kind 'mcq'"),
    ("abc", "count", None, "'abc' cannot be read as kind 'count'"),
    ("2 or 3", "count", None, "cannot be read"),
    ("maybe", "yesno", None, "cannot be read"),
    ("", "word", None, "cannot be read"),
])
def test_faults_of_the_data_are_errors_not_wrong_answers(gold, kind, options, message):
    with pytest.raises(ValueError, match=message):
        is_correct("<answer>x</answer>", gold, kind, options)


def test_gold_is_read_by_the_same_rules():
    assert is_correct("<answer>twenty-one</answer>", "21", "count") and is_correct("3", "3.0", "count")
    assert is_correct("<answer>yes</answer>", "Yes", "yesno")
    assert is_correct("(B)", "a goat", "mcq", PETS) and is_correct("a goat", "b", "mcq", PETS)


@pytest.mark.parametrize("piece", ["5 ", "5, or ", "A/", "A) ", "answer: ", "answer ", "not ", "\n", " ", "(", "x",
                                   "<answer>", "twenty ", "a hundred and ", "1,000", "7 / ", "7 is "])
def test_a_reply_that_repeats_itself_is_judged_in_linear_time(piece):
    for kind, gold in [("count", "7"), ("yesno", "no"), ("mcq", "B")]:
        assert not is_correct(piece * 2000, gold, kind, PETS)  # a second or more each if a pattern were quadratic


# The trap whose verdict is a matter of policy, and ours not the one given:
#   67  "The answer is N, not M.": N, which is stated, and M is denied (given: M, the last number)
# 47 ("rules out one letter, leaving another"), 58 ("Y" is yes), 70 ("none" is 0) and 71 ("one" as a word, not inside
# "someone") are as given.
OURS = {67: True}


@pytest.mark.skipif(not TRAPS.exists(), reason=f"no trap file at {TRAPS}")
def test_traps():
    rows = [row for row in json.loads(TRAPS.read_text()) if row["kind"] in KINDS]
    assert len(rows) > 40
    wrong = [row["id"] for row in rows
             if is_correct(row["response"], row["gold"], row["kind"], row.get("options"))
             is not OURS.get(row["id"], row["correct"])]
    assert not wrong
    assert not any(row["must"] for row in rows if row["id"] in OURS)


# ---- replies in many words -------------------------------------------------------------------------------------------

# Written before the reader was: what a person reads → replies, between " | " or line ends.
MCQ = {
    "C": r"""It's C. | I'd say C. | Final answer: C | Answer = C | My answer would be (C) | C, because it has horns.
        Must be C. | C — the horns give it away. | So C it is. | I am going with C here. | C is the best match.
        The best choice is C. | Ｃ． | The animal shown is a cow. | This picture shows a cow in a field.
        We see a cow, so C. | Choice (C) | option c is right | B is wrong, so it has to be C.
        At first B looked right, but C is the answer. | Not A, not B: C. | Only C fits the horns.
        Of the four, C matches best. | The animal isn't a goat but a cow. | It is a cow rather than a goat. | cow (C)
        If I had to choose, I would say C. | The one beside the goat is a cow.
        “C” | **C**: a cow | C.\n\nReason: A has wings, B is small. | A is a bird. B is too small. That leaves C.
        {"choice": "C"} | Eliminating A, B and D leaves C. | Looking at the horns\n\n**C** | Thus the correct option: C
        选C | 答案为C | C选项正确 | 正确选项是C | La respuesta es C. | Die Antwort ist C. | La réponse est C.
        The correct letter is C. | C) A cow. | A. a hen: no.\nB. a goat: no.\nC. a cow: yes.\nAnswer: C
        It must be the cow. | I believe the answer is C | Option C.
        Clearly the answer must be C, not B, since B has no horns. | C.\nA hen is smaller than that. | The right one is C.""",
    None: r"""It could be B or C. | Possibly A, possibly C. | I can't decide between B and C. | Not C. | C is out. | 20°C
        ∠C | C is definitely wrong. | It is neither a hen nor a pig. | Is it a cow? | Let me start with option C.
        None of them. | Consider C first. | Figure C is blurry. | Point C lies on the line
        The vitamin C content is high. | All of the above | Plan B would be to wait. | I am unable to see any animal.
        Sorry, no image was provided. | A person is standing there. | To find the answer, we compare A with B, and then
        Step 1: compare option A with | I do not think it is a cow. | If it were a cow, it would have horns.
        There is a cow and a pig. | Would B fit? | I doubt that it is C. | The options are A, B, C and D.
        Group A is larger than group B. | C is less likely than""",
}
COUNT = {
    7: r"""I count seven. | It looks like 7. | There appear to be 7 birds. | I'd say 7 | You can see 7 birds here.
        That makes 7. | The picture contains 7 birds. | 7 birds in total | In total: 7 | So the total comes to 7.
        4 + 3 equals 7. | Only 7. | 7! | 7 (4 left, 3 right) | Seven: four left, three right.
        7 birds: 4 left and 3 right | Count: 7 | count = 7 | about 7 | ７
        There are 7 birds, 4 on the left and 3 on the right. | 4 in front, 3 behind: 7 in all. | Not 6, but 7.
        Roughly 7 birds. | We have 4 on the left and 3 on the right, which gives 7. | The number of birds is 7, not 6.
        exactly seven birds | It is 7, because one is hidden behind another. | First I thought 6, but there are 7.
        **Count:** seven | 7 pcs. | There are 7 of them. | 共有7只鸟 | 答案为7 | 图中一共有7个 | Es sind 7. | Il y en a 7.
        Son 7 | $\boxed{7\text{ birds}}$ | Row 1 has 4, row 2 has 3. Total 7. | The answer: 7. Two of them are small.
        1, 2, 3, 4, 5, 6, 7. There are 7 birds. | 7\n\n4 sit on the wire, 3 on the roof. | 4 + 3 is 7
        28 / 4 = 7 | The number of birds a wire = 28 / 4 wires = 7 | If I had to guess, I would say 7.
        If the row goes on, the next would be 7. | Of the four wires each is 7 m. | On the two wires the limit is 7 birds.""",
    0: "There are no birds. | Zero. | No birds can be seen. | None", 24: "two dozen | 24 eggs", 1200: "1.2 × 10^3 | 1.2×10³",
    2.5: "2.5 kg | 2½", -3: "−3 | The value is -3.", 2e6: "2,000,000 USD | 2,000,000USD", 5: "5 cm^2 | 5cm", 0.13: ".13",
    0.5: r"$R = \frac{1}{2}$ | $R = \dfrac{3.5}{7} \approx 0.5 \Omega$ | $\frac{1.5}{3}$",
    100: "100V | It is 100 V. | v is equal to 100V.",
    None: r"""6 or 7 | between 6 and 7 | 6–7 | at least 7 | more than 7 | fewer than 7 | several | No idea.
        I cannot count them. | One cannot say. | One of them is hidden. | Let me count them one by one. | 3rd
        How many? 7? | Figure 7 | not seven | Starting from the left, 3 birds sit on the wire, and then
        First, the top row: 4. Then | the 7th bird | 6/7 | Either 6 or 7 birds. | The sign reads 50.
        There is no way to count them. | Up to 7 | Let me look at row 2. | 3 / 4 | If there were 7, the sum would be odd.""",
}
YESNO = {
    "yes": r"""Yes it is. | Yes, they do. | yes - both do | Sure. | Of course. | Certainly! | Correct. | True.
        It is true. | y | Ｙ | YES!! | I would say yes. | I think yes. | My answer is yes | So, yes. | Therefore, yes.
        The answer: yes. | Answer - Yes | 是的 | eyes? yes | Are they equal? Yes. | Yes; no other one is as tall.
        Yes, there's no doubt. | Not no, but yes. | 答案：是 | The boat is red, so yes. | **Yes**, it is.
        Yes\nThere is no other boat. | Final answer: \boxed{\text{Yes}} | Oui. | Sí.""",
    "no": r"""No it isn't. | No, they don't. | no - neither does | Nope! | Not at all. | Incorrect. | False.
        It is false. | n | Ｎ | NO | I would say no. | I think no. | My answer is no | So, no. | Therefore, no.
        The answer: no. | Answer - No | 不是 | 没有 | Are they equal? No. | The answer is not yes but no.
        The boat is blue, so no. | **No**, it is not. | No\nYes would need a red boat. | Certainly not. | Of course not.
        Nein. | 答案：否 | Absolutely not!""",
    None: r"""yes and no | Yes or no? | either yes or no | I have no idea. | There is no image. | No image was given.
        N/A | Maybe. | I can't say. | There are no signs that tell. | The sign says no. | Note the boats. | Yesterday
        Is the answer yes? | no. 3 | I know the place. | Let us see whether it is true. | He would say no to that.
        No information on this.""",
}
MORE = [  # options that are harder to tell apart
    ({"A": "Yes", "B": "No"}, {"A": "Yes | A. Yes | Yes, there is a way.", "B": "No, it does not. | The answer is no. | B",
                               None: "There is no way through. | Yes and no."}),
    ({"A": "x < 2", "B": "x > 2", "C": "x = 2"}, {"A": "x < 2 | **A. x < 2** | x<2", "C": "So x = 2.", None: "x ≥ 2",
                                                  "B": "The solution is x > 2. | $x>2$ | We get x > 2, not x < 2."}),
    ({"A": "60+k", "B": "60-k", "C": "k"}, {"A": "60+k | 60 + k", "B": "60-k | The answer is 60 - k.", None: "60*k | -60+k"}),
    ({"A": "3", "B": "4", "C": "34"}, {"A": "3", "B": "The answer is 4.", "C": "Answer: 34",
                                       None: "-3 | 3.5 | 3/4 | There are 3 rows and 4 columns."}),
    ({"A": "Georges Seurat", "B": "Seurat", "C": "Paul Signac"}, {
        "A": "It was painted by Georges Seurat. | Not Signac but Georges Seurat.", "B": "Seurat",
        "C": "It was made by Paul Signac in 1890. | Paul Signac admired Georges Seurat. The work is by Paul Signac."}),
]
UNREAD = {  # a person reads these; unreadable is the price of the rules that keep others from being misread
    "count": ["7 birds, two of which are flying", "VII"],  # looks cut off; initials and names
    "yesno": ["No; yes would need two of them."], "mcq": ["The slope is C."],
}


def replies(table: dict) -> list[tuple]:
    return [(reply.strip().replace("\\n", "\n"), says) for says, text in table.items()
            for line in text.splitlines() for reply in line.split(" | ")]


@pytest.mark.parametrize("options, table", [(PETS, MCQ), *MORE])
def test_choices_in_many_words(options, table):
    assert [(r, parse_choice(r, options)) for r, _ in replies(table)] == replies(table)


def test_counts_in_many_words():
    assert [(r, parse_count(r)) for r, _ in replies(COUNT)] == replies(COUNT)


def test_yes_and_no_in_many_words():
    assert [(r, parse_yesno(r)) for r, _ in replies(YESNO)] == replies(YESNO)
    assert {kind: [read(r, kind, PETS).value for r in rs] for kind, rs in UNREAD.items()} == {
        "count": [None] * 2, "yesno": [None], "mcq": [None]}


@pytest.mark.skipif(not REPLIES.exists(), reason=f"no replies at {REPLIES}")
def test_replies_are_read_as_a_person_reads_them():
    right, rows = {}, [row for row in map(json.loads, REPLIES.open()) if row["sure"]]
    for row in rows:
        value = read(judged(row["reply"]), row["kind"], row.get("options")).value
        assert value in (row["says"], None), row  # never another value
        right.setdefault(row["kind"], []).append(value == row["says"])
    shares = {kind: sum(of) / len(of) for kind, of in right.items()}
    assert shares["mcq"] >= 0.98 and shares["count"] >= 0.96 and shares["yesno"] >= 0.96, shares


@pytest.mark.parametrize("text, kind, by", [
    ("（ｂ）", "mcq", "whole"), ("7 dogs", "count", "whole"), ("The answer is 4, not 9.", "count", "stated"),
    ("7. Three are left, four right.", "count", "alone"), ("A is wrong; C fits.", "mcq", "concluded"),
    ("3 + 4 = 7", "count", "concluded"), ("There are 7 dogs in 2 rows.", "count", "told"),
    ("In the field stands a cow.", "mcq", "once"), ("A hen fears a goat. Here is a hen.", "mcq", "last"),
    ("It could be B or C.", "mcq", ""), ("red", "word", "whole"), ("", "word", ""),
])
def test_the_reading_that_decides_is_named(text, kind, by):
    assert read(text, kind, PETS).by == by


# ---- properties ------------------------------------------------------------------------------------------------------

PIECES = ["<answer>", "</answer>", "<think>", "</think>", "yes", "no", "A", "B.", "(C)", "a cow", "7", "1,000", "٣",
          "١,٠٠٠", "½", "1⁄0", "10^", "×10^-3", "1e999", "²", r"\frac{1}{0}", r"\boxed{", "}", "not", "or", "answer is",
          "so", "=", "?", "\n", " ", ", ", ". ", ": ", " - ", "\ud800", "\x00", "\U000f0000", "\U0010ffff", "答案是",
          "，", "two dozen", "hundred", "no one"]


def test_any_string_is_read_without_an_error():
    rng = random.Random(0)
    for _ in range(3000):
        text = "".join(rng.choices(PIECES, k=rng.randint(0, 12)))
        assert parse_choice(text, PETS) in {*PETS, None} and parse_yesno(text) in {"yes", "no", None}
        assert parse_count(text) is None or isinstance(parse_count(text), float)
        assert isinstance(normalize_word(text), str)


def test_what_is_audited_is_what_is_judged():
    rng = random.Random(1)
    for _ in range(3000):
        text = "".join(rng.choices([*PIECES[:10], " "], k=rng.randint(0, 9)))
        span = answer_span(list(text), "".join)
        assert judged(text) == text[slice(*span)] if span else answer_text(judged(text)) is None, text


def test_scoring_needs_the_standard_library_alone():
    for module in (answers, values):
        lines = Path(module.__file__).read_text().splitlines()
        imports = {line.split()[1] for line in lines if line.startswith(("import ", "from "))}
        assert imports <= {"re", "unicodedata", "bisect", "collections.abc", "os.path", "typing", "values"}


# ── answers about pages ──
@pytest.mark.parametrize("said, gold, f1", [
    ("3", "3", 1), ("The 3 dogs.", "3 dogs", 1), ("2 dogs", "3 dogs", 0.5), ("3 3 3", "3", 0.5), ("left", "right", 0),
    ("insufficient to answer", "insufficient", 1), ("Insufficient.", "insufficient to answer", 1), ("", "3", 0),
    ("insufficient to answer", "3", 0), ("3", "insufficient to answer", 0), ("not enough evidence", "insufficient", 1),
    ("The evidence is insufficient to answer the question.", "insufficient", 1), ("insufficient funds",) * 2 + (1,),
    ("insufficient funds", "insufficient", 0), ("3, but insufficient", "3", 0.5),
])  # fmt: skip
def test_word_f1_counts_repeated_words_and_knows_abstaining(said, gold, f1):
    assert word_f1(said, gold) == pytest.approx(f1)
    assert score(f"<think> 3 </think> <answer> {said} </answer>", gold, "pages") == pytest.approx(f1)
