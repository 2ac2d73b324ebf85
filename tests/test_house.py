"""The house stands: imports go down only, functions stay short and typed, and every module has a test file of its own name."""

import ast
import functools
from pathlib import Path

import pytest
from conftest import ROOT

# From the ground up. A name is a file of the root or a room, that is, a folder; each may import what is on its floor and below.
FLOORS = (
    "ced grpo values attribution reading words",  # leaves: they import nothing of ours
    "config answers",
    "data models",
    "support toy sft",
    "rollout",
    "related",
    "methods",
    "report",
    "train",
    "studies benchmarks",
    "evaluate",
)
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor.split()}
LONGEST_FUNCTION = 60  # lines
LONGEST_LOOP = 330  # lines of train.py
FILES = sorted(path for path in (*ROOT.glob("*.py"), *ROOT.glob("[!.]*/*.py")) if path.parent != ROOT / "tests")


def module_of(path: Path) -> str:
    """`support/ranks.py` → `support.ranks`; `support/__init__.py` → `support`."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


MODULES = {module_of(path): path for path in FILES}


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def imports_of(module: str, tree: ast.Module, modules) -> set[str]:
    """Our modules that a module imports anywhere in it, within functions too; of `from support import ranks` both."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                names |= {".".join(parts[:n]) for n in range(1, len(parts) + 1)}
        elif isinstance(node, ast.ImportFrom):
            room = module if (MODULES.get(module) or Path()).name == "__init__.py" else module.rpartition(".")[0]
            base = ".".join(part for part in (room if node.level else "", node.module or "") if part)
            names |= {base, *(f"{base}.{alias.name}".lstrip(".") for alias in node.names)}
    return (names & set(modules)) - {module, module.partition(".")[0] if "." in module else ""}


def climbs(graph: dict[str, set[str]]) -> list[str]:
    """Every import that goes up, or from a leaf to anything of ours, or from or to a module that is on no floor."""
    wrong = []
    for module, imported in graph.items():
        here = LEVEL.get(module.partition(".")[0])
        if here is None:
            wrong.append(f"{module} is on no floor")
            continue
        for other in imported:
            there = LEVEL.get(other.partition(".")[0])
            if there is None or there > here or here == 0:
                wrong.append(f"{module} (floor {here}) imports {other} (floor {there})")
    return wrong


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules that import one another in a circle, or that lead to one; [] if there is none."""
    left = dict(graph)
    while ready := [module for module, imported in left.items() if not imported & left.keys()]:
        for module in ready:
            del left[module]
    return sorted(left)


def too_long(tree: ast.Module) -> list[str]:
    """Functions of more than LONGEST_FUNCTION lines."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return [f"{f.name}: {n} lines" for f in functions if (n := f.end_lineno - f.lineno + 1) > LONGEST_FUNCTION]


def untyped(tree: ast.Module) -> list[str]:
    """Parameters of functions without a type; lambdas cannot have one, self and cls need none."""
    found = []
    for f in ast.walk(tree):
        if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef):
            a = f.args
            given = [*a.posonlyargs, *a.args, *a.kwonlyargs, *filter(None, (a.vararg, a.kwarg))]
            found += [f"{f.name}({p.arg})" for p in given if p.annotation is None and p.arg not in ("self", "cls")]
    return found


GRAPH = {module: imports_of(module, tree_of(path), MODULES) for module, path in MODULES.items()}


def test_imports_go_down_only():
    assert climbs(GRAPH) == []


def test_imports_form_no_circle():
    assert circle(GRAPH) == []


@pytest.mark.parametrize("module", MODULES)
def test_functions_are_short_and_their_parameters_typed(module):
    assert too_long(tree_of(MODULES[module])) == untyped(tree_of(MODULES[module])) == []


def test_the_loop_is_read_in_one_sitting():
    assert len((ROOT / "train.py").read_text().splitlines()) <= LONGEST_LOOP


def test_every_module_has_a_test_file_of_its_own_name():
    names = {path.stem for path in FILES} - {"__init__"}
    assert [name for name in sorted(names) if not (ROOT / "tests" / f"test_{name}.py").is_file()] == []


# ── the checks themselves ──
@pytest.mark.parametrize("module, text, found", [
    ("rollout", "import train", ["rollout (floor 4) imports train (floor 8)"]),
    ("rollout", "def f():\n    from studies import study", [
        "rollout (floor 4) imports studies (floor 9)", "rollout (floor 4) imports studies.study (floor 9)"]),
    ("ced", "import grpo", ["ced (floor 0) imports grpo (floor 0)"]),
    ("support.plan", "import rollout as r", ["support.plan (floor 3) imports rollout (floor 4)"]),
    ("support.plan", "from toy import world\nfrom . import ranks\nimport config, torch", []),
    ("attic.old", "", ["attic.old is on no floor"]),
    ("train", "from attic import old", ["train (floor 8) imports attic (floor None)",
                                        "train (floor 8) imports attic.old (floor None)"]),
])  # fmt: skip
def test_what_goes_up_is_found(module, text, found):
    known = {*MODULES, "attic", "attic.old"}
    assert sorted(climbs({module: imports_of(module, ast.parse(text), known)})) == found


def test_circles_are_found():
    graph = {"support.a": {"toy.b"}, "toy.b": {"toy.c"}, "toy.c": {"support.a"}, "config": set(), "train": {"toy.c"}}
    assert circle(graph) == ["support.a", "toy.b", "toy.c", "train"]
    assert circle({"a": {"b"}, "b": set()}) == []


def test_long_and_untyped_functions_are_found():
    long = "class A:\n    def f(self, x: int, *rest, y=1, **more: int):\n" + "        x = 1\n" * 60
    assert too_long(ast.parse(long)) == ["f: 61 lines"] and untyped(ast.parse(long)) == ["f(y)", "f(rest)"]
    assert too_long(ast.parse(long.replace("        x = 1\n", "", 1))) == []
    assert untyped(ast.parse("f = lambda x: x")) == []
