"""Class names as tools write them, and the English of questions about them.

    "car_(automobile)", "Car"   ─class_name─▶ car
    "children", "strawberries"  ─class_name─▶ child, strawberry            then `with_article`, `singular`, `plural`

The rules are those of school; what they get wrong stands in a table. A name that is a plural already is taken by its singular.
"""

import re

PAIRS = set("skis scissors jeans pants trousers shorts tights leggings glasses sunglasses eyeglasses goggles binoculars "
            "spectacles headphones earphones tongs pliers tweezers pajamas".split())  # fmt: skip
PIECES = set("broccoli bread toast cheese meat lettuce celery asparagus garlic furniture luggage jewelry".split())
# What the rules do not know: singular → plural. A compound follows its last word: "fire hydrant", "snowman".
IRREGULAR = {
    "person": "people", "child": "children", "man": "men", "woman": "women", "mouse": "mice", "goose": "geese",
    "foot": "feet", "tooth": "teeth", "ox": "oxen", "knife": "knives", "wife": "wives", "life": "lives", "leaf": "leaves",
    "loaf": "loaves", "shelf": "shelves", "wolf": "wolves", "calf": "calves", "half": "halves", "scarf": "scarves",
    "thief": "thieves", "elf": "elves", "potato": "potatoes", "tomato": "tomatoes", "mango": "mangoes", "hero": "heroes",
    "cactus": "cacti", "mosquito": "mosquitoes", "cookie": "cookies", "movie": "movies", "pie": "pies", "tie": "ties",
    "brownie": "brownies", "hoodie": "hoodies", "smoothie": "smoothies", "zombie": "zombies", "axe": "axes",
    "quiz": "quizzes", "house": "houses", "blouse": "blouses", "bus": "buses", "minibus": "minibuses", "gas": "gases",
    "lens": "lenses", "canvas": "canvases",
}  # fmt: skip
UNCHANGED = set("sheep deer fish aircraft spacecraft moose bison salmon shrimp squid swine series species chassis news "
                "tennis chess".split())  # fmt: skip
SINGULAR = {many: one for one, many in IRREGULAR.items()}
NOT_MAN = re.compile(r"(hu|ger|ro|sha|talis|otto|cai)man$")  # these are no kind of man


def class_name(text: str) -> str:
    """The name that questions use: no underscores, no qualifier in brackets, one number. "" if it holds no letter.

    `Handbag/Satchel` is "handbag or satchel". Capitals stay in names such as TV.
    """
    plain = re.sub(r"\s*[(\[{][^)\]}]*[)\]}]", " ", text.replace("_", " "))
    plain = plain if any(map(str.isalpha, plain)) else text  # a name that is all bracket: (unknown)
    kinds = [kind.strip("()[]{} ") for kind in plain.split("/") if any(map(str.isalpha, kind))]
    return " or ".join(dict.fromkeys(of_one(" ".join(map(small, kind.split()))) for kind in kinds))


def small(word: str) -> str:
    """A word without its capital; TV and a lone letter keep theirs."""
    return word.lower() if word.istitle() and len(word) > 1 else word


def last_word(name: str) -> tuple[str, str]:
    """A name as its beginning, with the blank, and its last word."""
    start = re.search(r"[^\s-]*$", name).start()
    return name[:start], name[start:]


def of_one(name: str) -> str:
    """The singular of a name that may be a plural: `dogs` → `dog`, but `bus` → `bus`."""
    noun, of, rest = name.partition(" of ")
    head, word = last_word(noun)
    return head + ("glass" if head and word == "glasses" else one_of(word)) + of + rest  # wine glasses are no pair of them


def one_of(word: str) -> str:
    if word in SINGULAR:
        return SINGULAR[word]
    if word.endswith("men") and len(word) > 3 and word not in ("specimen", "abdomen", "omen", "ramen"):
        return f"{word[:-3]}man"
    known = word in PAIRS | PIECES | UNCHANGED or word in IRREGULAR
    if known or not re.search(r"[a-z]{2}[^siu]s$", word):  # bus, glass, tennis
        return word
    if word.endswith("ies"):
        return f"{word[:-3]}y"
    return word[:-2] if re.search(r"(ch|sh|x|ss|zz|us)es$", word) else word[:-1]


def many_of(word: str) -> str:
    """`bus` → `buses`, `person` → `people`."""
    if word in IRREGULAR:
        return IRREGULAR[word]
    if word in UNCHANGED:
        return word
    if word.endswith("man") and not NOT_MAN.search(word):
        return f"{word[:-3]}men"
    if re.search(r"[^aeiou]y$", word):
        return f"{word[:-1]}ies"
    return f"{word}es" if word.endswith(("s", "x", "z", "ch", "sh")) else f"{word}s"


def counted(name: str) -> str:
    """What is counted of a thing that has no plural of its own: `skis` → `pair of skis`, `bread` → `piece of bread`."""
    word = last_word(name)[1]
    return f"pair of {name}" if word in PAIRS else f"piece of {name}" if word in PIECES else name


def singular(name: str) -> str:
    """The noun after "the": `skis` → `pair of skis`."""
    return " or ".join(map(counted, name.split(" or ")))


def plural(name: str) -> str:
    """`bus` → `buses`, `person` → `people`, `bunch of grapes` → `bunches of grapes`."""
    plurals = []
    for kind in map(counted, name.split(" or ")):
        noun, of, rest = kind.partition(" of ")
        head, word = last_word(noun)
        plurals.append(head + many_of(word) + of + rest)
    return " or ".join(plurals)


def with_article(name: str) -> str:
    """`dog` → `a dog`, `apple` → `an apple`, `hourglass` → `an hourglass`, `unicycle` → `a unicycle`."""
    noun = singular(name)
    vowel = re.match(r"[aeiou]|hour|heir", noun.lower()) and not re.match(r"uni(?!n)|us[eb]|eu|one\b|ukul", noun.lower())
    return f"an {noun}" if vowel else f"a {noun}"
