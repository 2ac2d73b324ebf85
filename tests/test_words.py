"""The names of classes, as tools write them, in the English of questions."""

import pytest

import words


@pytest.mark.parametrize("name, clean", [
    ("car_(automobile)", "car"), ("Person", "person"), ("Handbag/Satchel", "handbag or satchel"), ("children", "child"),
    ("strawberries", "strawberry"), ("Knife", "knife"), ("TV", "TV"), ("A", "A"), ("potted_plant", "potted plant"),
    ("dogs", "dog"), ("bus", "bus"), ("buses", "bus"), ("glass", "glass"), ("people", "person"), ("cookies", "cookie"),
    ("wine glasses", "wine glass"), ("glasses", "glasses"), ("scissors", "scissors"), ("octopus", "octopus"),
    ("tennis racket", "tennis racket"), ("firemen", "fireman"), ("bunch_of_grapes", "bunch of grapes"), ("[Dog]", "Dog"),
    ("  traffic   light ", "traffic light"), ("狗", "狗"), ("boxes", "box"), ("sheep", "sheep"), ("leaves", "leaf"),
])  # fmt: skip
def test_names_are_cleaned_once(name, clean):
    assert words.class_name(name).lower() == clean.lower()
    assert words.class_name(words.class_name(name)) == words.class_name(name)


@pytest.mark.parametrize("name", ["+", "-", "0", "12", "_", "()", "?", ""])
def test_a_name_without_a_letter_is_none(name):
    assert words.class_name(name) == ""


@pytest.mark.parametrize("name, one, many", [
    ("person", "a person", "people"), ("child", "a child", "children"), ("strawberry", "a strawberry", "strawberries"),
    ("knife", "a knife", "knives"), ("key", "a key", "keys"), ("bench", "a bench", "benches"), ("box", "a box", "boxes"),
    ("potato", "a potato", "potatoes"), ("photo", "a photo", "photos"), ("snowman", "a snowman", "snowmen"),
    ("human", "a human", "humans"), ("sheep", "a sheep", "sheep"), ("skis", "a pair of skis", "pairs of skis"),
    ("broccoli", "a piece of broccoli", "pieces of broccoli"), ("hourglass", "an hourglass", "hourglasses"),
    ("unicycle", "a unicycle", "unicycles"), ("umbrella", "an umbrella", "umbrellas"), ("apple", "an apple", "apples"),
    ("handbag or satchel", "a handbag or satchel", "handbags or satchels"),
    ("computer mouse", "a computer mouse", "computer mice"),
    ("bunch of grapes", "a bunch of grapes", "bunches of grapes"), ("fire hydrant", "a fire hydrant", "fire hydrants"),
])  # fmt: skip
def test_one_and_many(name, one, many):
    assert (words.with_article(name), words.plural(name)) == (one, many)
    assert words.with_article(name).split(" ", 1)[1] == words.singular(name)
