"""The words of the README are true: files and their sizes, commands and their flags, functions and pictures."""

import importlib
import re
from dataclasses import fields

import comparison
import diagnose
import pytest
import speed
from conftest import ROOT

import evaluate
import train
from benchmarks import BENCHMARKS

README = (ROOT / "README.md").read_text()
MODULES = [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.py"), *ROOT.glob("related/[!_]*.py"))]


def test_every_file_is_listed_with_its_line_count():
    listed = {name: int(lines) for name, lines in re.findall(r"^\| \[`([\w/]+\.py)`\]\(\1\) \| (\d+) \|", README, re.MULTILINE)}
    assert listed == {name: len((ROOT / name).read_text().splitlines()) for name in MODULES}


def test_every_function_of_the_equation_table_exists():
    table = README.split("| | equation | function |")[1].split("\n\n")[0]
    names = re.findall(r"`(\w+)\.(\w+)`", table)
    assert len(names) >= 7
    for module, function in names:
        assert callable(getattr(importlib.import_module(module), function))


def commands() -> list[tuple[str, list[str]]]:
    blocks = re.findall(r"```bash\n(.*?)```", README, re.DOTALL)
    return [(script, re.findall(r"--[\w-]+", rest)) for b in blocks for script, rest in re.findall(r"(\w+\.py)([^\n&]*)", b)]


@pytest.mark.parametrize("script, flags", commands())
def test_every_command_names_real_files_and_flags(script, flags, capsys):
    with pytest.raises(SystemExit) as end:
        importlib.import_module(script.removesuffix(".py")).main(["--help"])
    text = capsys.readouterr().out
    assert end.value.code == 0 and all(re.search(rf"{flag}\b", text) for flag in flags)


def test_every_diagnostic_has_a_command():
    assert set(re.findall(r"python diagnose.py (\w+)", README)) == set(diagnose.DIAGNOSTICS)


def test_flags_named_in_the_text_are_fields_of_config():
    known = {train.flag(f.name) for f in fields(train.Config)}
    parsers = [module.make_parser() for module in (train, evaluate, comparison, diagnose, speed)]
    others = {option for parser in parsers for action in parser._actions for option in action.option_strings}
    others |= {"--nproc", "--nproc-per-node"}  # torchrun's
    assert set(re.findall(r"`(--[\w-]+)", README)) <= known | others


def test_pictures_and_links_exist():
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target


def test_expected_output_has_the_form_the_command_prints():
    header = train.markdown({}, {}).splitlines()[0]
    assert header in README
    splits = {"consistent": {}, "conflict": {}}
    assert comparison.table({"methods": {}, "n": splits}).splitlines()[0] in README


def test_the_instruction_is_the_constant_of_models():
    from models import INSTRUCTION

    assert INSTRUCTION in README.replace("\\<", "<").replace("\n", " ")


def test_the_comparison_has_a_row_for_every_method():
    rows = README.split("## Controlled comparison")[1].split("\n## ")[0]
    assert re.findall(r"^\| ([\w-]+) \|", rows, re.MULTILINE)[1:] == list(train.METHODS)


def test_numbers_in_the_text_are_the_defaults():
    config = train.Config()
    assert f"{config.min_area * 100} % to {config.max_area * 100:.0f} %" in README and f"{config.eps_margin} nat" in README


def test_the_table_of_benchmarks_is_that_of_the_code():
    listed = re.findall(r"^\| `(\w+)` \| ([\d,]+) \| (.+) \| (.+) \|$", README, re.MULTILINE)
    assert listed == [(name, f"{bench.n:,}", bench.split + (f" ({bench.config})" if bench.config else ""), bench.rule)
                      for name, bench in BENCHMARKS.items()]  # fmt: skip
