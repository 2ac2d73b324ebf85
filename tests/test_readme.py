"""The words of the README and of docs/ are true: files and their sizes, commands and their flags, functions, links, figures."""

import argparse
import importlib
import re
import shlex
import sys
from dataclasses import fields

import pytest
from conftest import ROOT
from torch.distributed import run as torchrun

import config
import evaluate
import report
import train
from benchmarks import BENCHMARKS
from methods import COMPARED
from models import INSTRUCTION
from studies import comparison, diagnose, evisrag, evpv, idle, knobs, speed
from support import elastic

PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))}
README, WORDS = PAGES["README.md"], "\n\n".join(PAGES.values())
SPANS = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", re.sub(r"```.*?```", "", WORDS, flags=re.DOTALL))]
OTHERS = ("pip install", "python -m pytest", "export ")  # commands that are not ours


def cells(table: str) -> list[list[str]]:
    """The rows of a Markdown table, its header first, without the line that rules it off."""
    rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in table.strip().splitlines()]
    return [rows[0], *rows[2:]]


def table_of(page: str, header: str) -> list[list[str]]:
    """The table of a page whose header begins so."""
    return cells(header + page.split("\n" + header, 1)[1].split("\n\n")[0])


def commands() -> list[str]:
    """Every command that is printed, in a block or within the text."""
    blocks = "\n".join(re.findall(r"```bash\n(.*?)```", WORDS, re.DOTALL))
    lines = [part.strip() for line in blocks.splitlines() for part in line.split("&&")]
    printed = dict.fromkeys(lines + [span for span in SPANS if re.match(r"(python|torchrun) ", span)])
    return [command for command in printed if command and not command.startswith(OTHERS)]


def program(command: str) -> tuple[str, list[str]]:
    """A command's module and its arguments, as the shell and torchrun's own parser divide it."""
    name, *words = shlex.split(command)
    if name == "torchrun":
        args = torchrun.parse_args(words)
        script, arguments = args.training_script, args.training_script_args
    else:
        assert name == "python"
        script, arguments = (words[1].replace(".", "/") + ".py", words[2:]) if words[0] == "-m" else (words[0], words[1:])
    assert (ROOT / script).is_file(), f"{command}: there is no {script}"
    return script.removesuffix(".py").replace("/", "."), arguments


def parser_of(module: str, arguments: list[str]) -> argparse.ArgumentParser | None:
    """The program's own parser, where it can be had; the comparison passes unknown flags on to that of train.py."""
    make = getattr(importlib.import_module(module), "make_parser", None)
    return make() if make and "--table3" not in arguments else None


@pytest.mark.parametrize("command", commands())
def test_every_command_names_a_real_program_and_real_flags(command, capsys, monkeypatch):
    module, arguments = program(command)
    subject = [word for word in arguments[:1] if not word.startswith("-")]  # what to diagnose, `merge`
    help_flags = [*subject, *(["--table3"] if "--table3" in arguments else []), "--help"]
    monkeypatch.setattr("sys.argv", [module, *help_flags])
    main, parser = importlib.import_module(module).main, parser_of(module, arguments)
    if parser:  # whole, values and all; placeholders of the text are not numbers
        parser.parse_args(arguments)
    with pytest.raises(SystemExit) as end:
        main(help_flags) if main.__code__.co_argcount else main()
    text = capsys.readouterr().out
    assert end.value.code == 0
    flags = [word.split("=")[0] for word in arguments if word.startswith("--") and word != "--table3"]
    assert [flag for flag in flags if not re.search(rf"(?<![\w-]){flag}(?![\w-])", text)] == []


def test_torchrun_s_lines_for_one_host_and_many_hand_our_flags_to_our_parser():
    lines = [command for command in commands() if command.startswith("torchrun ") and " train.py " in command]
    parsed = [torchrun.parse_args(shlex.split(line)[1:]) for line in lines]
    assert {args.nnodes for args in parsed} == {"1:1", "2", "1:4", "$SLURM_NNODES"} and len(lines) == 5
    for args in parsed:
        assert (args.training_script, args.nproc_per_node) == ("train.py", "8")
        assert args.nnodes == "1:1" or (args.rdzv_backend == "c10d" and args.rdzv_endpoint.endswith(":29500"))
        given = train.make_parser().parse_args(args.training_script_args)
        comes_back = args.max_restarts > 0 or "SLURM" in args.nnodes
        assert given.backbone == "qwen2.5-vl-7b" and given.resume == (elastic.HERE if comes_back else None)


def test_where_hosts_may_join_a_job_that_runs_torchrun_is_told_to_let_them():
    lines = re.findall("(.*)\n(torchrun --nnodes 1:.*)", PAGES["docs/gpus.md"])
    assert [before for before, _ in lines] == ["export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"] * 2


def test_every_diagnostic_has_a_command():
    assert set(re.findall(r"python -m studies.diagnose (\w+)", PAGES["docs/diagnostics.md"])) == set(diagnose.DIAGNOSTICS)


def test_flags_named_in_the_text_exist():
    known = {config.flag(field.name) for field in fields(config.Config)} | {"--nproc"}  # the last is named as refused
    ours = (train, evaluate, comparison, diagnose, evisrag, evpv, idle, knobs, speed)
    parsers = [*(module.make_parser() for module in ours), torchrun.get_args_parser()]
    known |= {option for parser in parsers for action in parser._actions for option in action.option_strings}
    assert {span.split()[0] for span in SPANS if re.match(r"--\w", span)} <= known


def test_the_tree_has_every_file_of_the_root_with_its_line_count_and_every_room():
    tree = README.split("```text\n")[1].split("```")[0]
    counted = {name: int(lines) for name, lines in re.findall(r"^(\w+\.py) +(\d+)  \S", tree, re.MULTILINE)}
    assert counted == {path.name: len(path.read_text().splitlines()) for path in ROOT.glob("*.py")}
    rooms = re.findall(r"^(\w+)/ +\S", tree, re.MULTILINE)
    assert all((ROOT / room).is_dir() for room in rooms)
    assert {path.parent.name for path in ROOT.glob("[a-z]*/*.py")} | {"docs", "assets"} == set(rooms)


def test_every_python_file_that_is_named_exists():
    names = {path.name for path in ROOT.glob("*/*.py")}
    named = re.findall(r"(?<![./\w])[\w/]+\.py\b", WORDS)
    assert named and [name for name in named if not ((ROOT / name).is_file() or name in names)] == []


def test_every_function_of_the_equation_table_exists():
    functions = [re.findall(r"`(\w+)\.(\w+)`", row[2]) for row in table_of(README, "| | equation |")[1:]]
    assert len(functions) == 5 and all(functions)
    for module, function in sum(functions, []):
        assert callable(getattr(importlib.import_module(module), function))


def anchors(page: str) -> set[str]:
    """The names that GitHub gives to a page's headings."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in re.findall(r"^#+ (.+)$", page, re.MULTILINE)}


@pytest.mark.parametrize("name", PAGES)
def test_links_and_pictures_exist(name):
    for target, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PAGES[name]):
        path = (ROOT / name).parent / target if target else ROOT / name
        assert path.exists(), target
        assert not anchor or anchor in anchors(path.read_text()), anchor


def test_every_page_opens_with_its_question_and_the_readme_leads_to_it():
    pages = {name: page.splitlines()[0] for name, page in PAGES.items() if name != "README.md"}
    assert len(pages) >= 6
    for name, title in pages.items():
        assert re.fullmatch(r"# .+\?", title), name
        assert f"[{title[2:]}]({name})" in README


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 180


def test_expected_output_has_the_form_the_command_prints():
    assert report.markdown({}, {}).splitlines()[0] in README
    splits = {"consistent": {}, "conflict": {}}
    assert comparison.table({"methods": {}, "n": splits}).splitlines()[0] in PAGES["docs/comparison.md"]


def test_the_instruction_is_the_constant_of_models():
    assert INSTRUCTION in " ".join(README.replace("\\<", "<").split())


def test_the_comparison_has_a_row_for_every_method_and_the_readme_quotes_its_page():
    page = PAGES["docs/comparison.md"]
    assert [row[0].strip("`") for row in table_of(page, "| `--method` |")[1:]] == COMPARED
    (columns, *whole), (quoted, *short) = table_of(page, "| method | seeds |"), table_of(README, "| method |")
    assert [row[0] for row in whole] == ["frozen base", *COMPARED]
    assert short == [[row[columns.index(name)] for name in quoted] for row in whole]


def test_numbers_in_the_text_are_the_defaults():
    default = config.Config()
    assert f"{default.min_area * 100} % to {default.max_area * 100:.0f} %" in PAGES["docs/departures.md"]
    assert f"{default.eps_margin} nat" in PAGES["docs/departures.md"]


def test_the_table_of_benchmarks_is_that_of_the_code():
    listed = table_of(PAGES["docs/benchmarks.md"], "| benchmark | N |")[1:]
    assert listed == [[f"`{name}`", f"{bench.n:,}", bench.split + (f" ({bench.config})" if bench.config else ""), bench.rule]
                      for name, bench in BENCHMARKS.items()]  # fmt: skip


def test_torchrun_is_written_so_that_it_starts():
    """Its own abbreviations would take `--nproc`, and `--run` of what stands behind it."""
    printed = [command for command in commands() if command.startswith("torchrun")]
    assert len(printed) >= 4 and all("--nproc-per-node" in command for command in printed)
    for command in printed:
        args = torchrun.parse_args(shlex.split(command)[1:])
        assert args.nproc_per_node == "8" and (ROOT / args.training_script).is_file()
    if sys.version_info < (3, 13, 1):  # as docs/gpus.md says
        for refused in ("--nproc 8 train.py", "--nproc-per-node 8 evaluate.py --run runs/x"):
            with pytest.raises(SystemExit):
                torchrun.parse_args(shlex.split(refused))
