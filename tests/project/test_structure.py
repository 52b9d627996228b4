"""The structure of the package: layers of rooms, and what starts quickly."""

import ast
import multiprocessing
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.commands import PRELOADED

import fairseq_headgates
from fairseq_headgates.cli.main import find_commands

PACKAGE = Path(fairseq_headgates.__file__).parent
# Rooms (modules and sub-packages) in layers; a room imports only from lower layers, and from itself.
LAYERS = [
    ["messages", "compat"],
    ["files", "safety"],
    ["heads"],
    ["gates"],
    ["drawing", "inference"],
    ["attention"],
    ["plugin"],
    ["data"],
    ["checkpoints"],
    ["scores"],
    ["compression"],
    ["cli"],
    ["extensions"],
]
LARGEST = {"fairseq_headgates": 400, "recipes": 400, "benchmarks": 400, "tests": 500}  # lines of a file


def room_of(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported_rooms(path):
    """The rooms that a file imports from, those in functions included."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairseq_headgates"):
            yield from [node.module.split(".")[1]] if "." in node.module else [name.name for name in node.names]
        elif isinstance(node, ast.Import):
            assert not any(name.name.startswith("fairseq_headgates") for name in node.names), path


def test_imports_run_downward_only():
    layer = {room: number for number, rooms in enumerate(LAYERS) for room in rooms}
    files = [path for path in PACKAGE.rglob("*.py") if path not in {*PACKAGE.glob("__*__.py")}]
    assert {room_of(path) for path in files} == set(layer)
    for path in files:
        own = room_of(path)
        rooms = {*imported_rooms(path)}
        above = {room for room in rooms if room in layer and room != own and layer[room] >= layer[own]}
        assert not above, f"{path.relative_to(PACKAGE)} imports {above}"


def test_extensions_import_the_core_only_and_are_imported_by_nothing():
    """Each is one folder, whose docstring names its page."""
    folders = sorted(path for path in (PACKAGE / "extensions").iterdir() if (path / "__init__.py").is_file())
    assert len(folders) > 5
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE).parts
        own = parts[1] if parts[0] == "extensions" else ""
        others = {name for name in imported_extensions(path) if name != own}
        assert not others, f"{path.relative_to(PACKAGE)} imports {others}"
    for folder in folders:
        page = re.search(r"docs/\S+\.md", ast.get_docstring(ast.parse((folder / "__init__.py").read_text())))
        assert (PACKAGE.parent / page[0]).is_file(), folder


def imported_extensions(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fairseq_headgates.extensions"):
            parts = node.module.split(".")[2:]
            yield from parts[:1] or [name.name for name in node.names]


@pytest.mark.parametrize("folder", LARGEST)
def test_files_are_short(folder):
    files = [path for path in (PACKAGE.parent / folder).rglob("*") if path.suffix in (".py", ".sh", ".smk")]
    long = {path.name: lines for path in files if (lines := len(path.read_text().splitlines())) > LARGEST[folder]}
    assert files and not long


def test_only_the_files_package_reads_text():
    """Only files/ knows about byte order marks, ends of lines and encodings."""
    others = [path for path in PACKAGE.rglob("*.py") if room_of(path) != "files"]
    assert not [path for path in others if re.search(r"\.read_text\(|sys\.stdin", path.read_text(encoding="utf-8"))]


def test_only_the_anatomy_searches_models():
    """Stacks, layers and blocks are found in one file, and the numbers of layers in names are read there."""
    search = re.compile(r"""named_modules|layers\\?\.\(?\\d|partition\("layers""")
    found = {str(p.relative_to(PACKAGE)) for p in PACKAGE.rglob("*.py") if search.search(p.read_text(encoding="utf-8"))}
    # Beside it: the owners of shared parameters, and parameters of layers that only one version of fairseq has.
    assert found == {"attention/anatomy.py", "attention/modules.py", "compat.py"}


def test_help_and_wrong_options_need_neither_torch_nor_fairseq():
    """In a fresh interpreter, as the command starts: the parser of one command after the other."""
    code = """if True:
        import sys, headgates_start
        from fairseq_headgates.cli.main import build_parser
        for command in sys.argv[1:]:
            build_parser([command])
            print(command, *{"torch", "fairseq", "numpy", "scipy", "matplotlib"} & set(sys.modules))
    """
    commands = sorted(find_commands())
    command = [sys.executable, "-c", code, *commands]
    done = subprocess.run(command, capture_output=True, text=True, cwd=PACKAGE.parent, check=True)
    assert done.stdout.splitlines() == commands


def test_the_package_registers_on_import():
    """In a process that has imported fairseq, and nothing of this package."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    code = "import sys; assert 'fairseq_headgates' not in sys.modules; import fairseq_headgates; "
    code += "sys.exit('fairseq_headgates.plugin.criterions' not in sys.modules)"
    process = context.Process(target=exec, args=(code,))
    process.start()
    process.join(60)
    assert process.exitcode == 0
