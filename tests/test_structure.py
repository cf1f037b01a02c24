"""The house keeps its shape: imports go down, stems mirror, files stay small, torch stays out."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "jaxattn"
ORACLE = ROOT / "torchref"

#: Layers from the bottom up; a module imports from its own layer or from below.
LAYERS = [
    ["_typing", "_text", "_version"],
    ["_checks", "_switching", "_writing"],
    ["_tensors"],
    ["core", "convert.rules", "convert.layout", "convert.match", "convert.registry", "layers"],
    [
        "convert.folding",
        "convert.formulas",
        "convert.framework",
        "convert.library_layers",
        "convert.torch_activations",
        "convert.naming",
        "convert.problems",
        "convert.apply",
        "convert.flax_layout",
        "convert.files",
    ],
    ["convert.schedule_lambdas", "convert.schedule_formulas", "convert.schedule_tables", "convert.schedules"],
    ["convert.optimizer_steps", "convert.optimizer_groups", "convert.optimizers", "convert.optimizer_moments"],
    ["variants"],
    ["transformer"],
    ["models"],
    ["convert.object_copy", "convert.torch_copy"],
    ["convert.port", "convert.unwrap", "convert.refuse"],
    [
        "convert.build",
        "convert.parts",
        "convert.torch_bridge",
        "capture",
        "compile",
        "adapters",
        "buckets",
        "structure",
    ],
    ["interleaved", "conditions"],
    ["parity", "timing", "plots", "conformance"],
    ["cli"],
]
#: What convert/files.py is made of.
CONVERT_FILES = {
    "bounded_json",
    "checkpoint",
    "diagnose",
    "mapped",
    "nested",
    "safetensors_file",
    "saving",
    "stored",
} | {
    "torch_archive",
    "torch_file",
    "torch_names",
    "torch_pickle",
}
TORCH_ALLOWED = [
    "convert/torch_bridge.py",
    "convert/torch_copy.py",
    "convert/unwrap.py",
    "_tensors.py",
    "convert/torch_file.py",
    "parity/",
    "timing.py",
    "cli/",
]
HARD_LIMIT = 300


def sources(root: Path) -> list[Path]:
    return sorted(root.rglob("*.py"))


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


def layer_of(name: str) -> int | None:
    name = name.removesuffix(".__init__")
    if name in {f"convert.{part}" for part in CONVERT_FILES}:
        name = "convert.files"
    for level, members in enumerate(LAYERS):
        if any(name == member or name.startswith(member + ".") for member in members):
            return level
    return None


@functools.cache
def imports(path: Path, *, top_level_only: bool = False) -> list[str]:
    """Absolute names of what a file imports, package-relative ones as `jaxattn.…`."""
    tree = ast.parse(path.read_text())
    nodes = tree.body if top_level_only else list(ast.walk(tree))
    package = list(path.relative_to(ROOT).parent.parts)
    names = []
    for node in nodes:
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            target = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{target}.{alias.name}" for alias in node.names] if not node.module else [target]
    return names


def test_every_file_has_a_layer():
    faces = {"__init__", "convert.__init__"}
    assert [
        dotted(path) for path in sources(PACKAGE) if dotted(path) not in faces and layer_of(dotted(path)) is None
    ] == []


def test_imports_go_down():
    upward = []
    for path in sources(PACKAGE):
        level = layer_of(dotted(path))
        if level is None:
            continue
        for name in imports(path):
            target = layer_of(name.removeprefix("jaxattn."))
            if name.startswith("jaxattn") and target is not None and target > level:
                upward.append(f"{dotted(path)} imports {name}")
    assert upward == []


def test_variants_never_import_variants():
    assert [
        str(p) for p in sources(PACKAGE / "variants") if any("jaxattn.variants" in name for name in imports(p))
    ] == []


@pytest.mark.parametrize("folder", ["tracing", "training"])
def test_parts_of_the_proof_know_nothing_of_what_is_made_of_them(folder):
    entries = {f"jaxattn.parity.{name}" for name in ("compare", "trace", "train", "report")}
    paths = sources(PACKAGE / "parity" / folder)
    assert len(paths) > 1 and [(str(p), n) for p in paths for n in imports(p) if n in entries] == []


@pytest.mark.parametrize(
    ("folder", "banned"),
    [
        ("core", ("flax", "torch")),
        ("variants", ("torch",)),
        ("transformer", ("torch",)),
        ("models", ("torch", "transformers")),
    ],
)
def test_banned_imports(folder, banned):
    wrong = [f"{p.name}: {n}" for p in sources(PACKAGE / folder) for n in imports(p) if n.split(".")[0] in banned]
    assert wrong == []


def test_rules_know_neither_jax_nor_flax():
    for name in ("convert/rules", "convert/match", "convert/layout", "_tensors"):
        assert not {n.split(".")[0] for n in imports(PACKAGE / f"{name}.py")} & {"jax", "flax"}, name


def test_torch_is_imported_only_inside_functions_of_a_few_files():
    for path in sources(PACKAGE):
        assert not {n.split(".")[0] for n in imports(path, top_level_only=True)} & {"torch", "torchref"}, path
        if "torch" in {n.split(".")[0] for n in imports(path)}:
            relative = str(path.relative_to(PACKAGE))
            assert any(relative.startswith(allowed) for allowed in TORCH_ALLOWED), relative


def test_jax_experimental_only_in_dispatch():
    for path in sources(PACKAGE):
        if path.name != "dispatch.py":
            assert "jax.experimental" not in path.read_text(), path


def test_the_oracle_never_sees_jax():
    for path in sources(ORACLE):
        assert not {n.split(".")[0] for n in imports(path)} & {"jax", "flax", "jaxattn"}, path


@pytest.mark.parametrize("folder", ["variants", "transformer"])
def test_stems_mirror(folder):
    def stems(root: Path) -> set[str]:
        return {path.stem for path in sources(root / folder)} - {"__init__"}

    helpers = {"torch_configuration", "layer"}
    assert stems(PACKAGE) - helpers == stems(ORACLE)
    tests = {path.stem.removeprefix("test_") for path in sources(ROOT / "tests" / folder)} - {"__init__"}
    assert stems(PACKAGE) - helpers <= tests


def test_files_are_small():
    roots = (PACKAGE, ORACLE, ROOT / "tests", ROOT / "benchmarks")
    long = {str(p): n for root in roots for p in sources(root) if (n := len(p.read_text().splitlines())) > HARD_LIMIT}
    assert long == {}


def test_no_postponed_annotations():
    for path in [*sources(PACKAGE), *sources(ORACLE)]:
        assert "from __future__ import annotations" not in path.read_text(), path


@pytest.mark.parametrize("root", [PACKAGE, ORACLE], ids=["jaxattn", "torchref"])
def test_the_public_face_only_re_exports(root):
    body = ast.parse((root / "__init__.py").read_text()).body
    assert isinstance(body[0], ast.Expr) and ast.get_docstring(ast.parse((root / "__init__.py").read_text()))
    for node in body[1:]:
        assert isinstance(node, ast.ImportFrom) and node.level == 1, ast.unparse(node)
        for alias in node.names:
            assert alias.asname == alias.name, f"write `import {alias.name} as {alias.name}`"


def test_import_is_light():
    """`import jaxattn` imports neither torch nor what only the command line and the pictures need."""
    heavy = ("torch", "torchref", "matplotlib", "jinja2", "typer", "transformers")
    code = f"import sys, jaxattn; print(*[name for name in {heavy} if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert run.stdout.split() == []


def test_every_public_module_has_a_case():
    """A class that is exported and not in the table would escape the laws."""
    from flax import nnx

    import jaxattn

    from .cases import CASES

    exported = [*vars(jaxattn).values(), *vars(jaxattn.models).values()]
    public = {value.__name__ for value in exported if isinstance(value, type) and issubclass(value, nnx.Module)}
    assert public == {type(case.flax()).__name__ for case in CASES}
