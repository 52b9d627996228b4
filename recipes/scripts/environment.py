"""Checks of an environment for setup.sh: exit code 0 if the check holds. Standard library only, any interpreter.

environment.py shared-torch     print the version of a torch that a new environment can share
environment.py torch            torch is new enough and works with its numpy
environment.py pins             print the requirements that keep torch and numpy as they are
environment.py fairseq NAME==VERSION    this fairseq is complete, and there is no other one
environment.py tools ROOT EXTRAS    the packages of the extras of setup.py can be imported, and ours is in ROOT
"""

import importlib
import importlib.util
import os
import sys
from collections.abc import Callable
from importlib.metadata import distributions, version

REQUIRED = ["sacrebleu", "tensorboardX", "conllu"]
TOOLS = {  # of an extra
    "fairseq": [],
    "text": ["sacremoses", "subword_nmt"],
    "recipes": ["sacremoses", "subword_nmt", "mtdata", "opustools", "pooch"],
    "plots": ["matplotlib"],
    "ctranslate2": ["ctranslate2"],
    "dev": ["hypothesis", "pytest"],
}
if sys.version_info >= (3, 11):
    TOOLS["recipes"].append("snakemake")


def check_torch() -> None:
    import torch

    version("torch"), version("numpy")  # their installation is complete
    assert tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 4), torch.__version__
    assert torch.zeros(1).numpy().sum() == 0


def print_shared_torch() -> None:
    """Print nothing if sharing is unsound: --system-site-packages exposes all packages of the interpreter.

    In a virtual environment it would expose those of the base interpreter, and another fairseq would share the folder
    of the one to be installed.
    """
    if sys.prefix == sys.base_prefix and importlib.util.find_spec("fairseq") is None:
        check_torch()
        print(version("torch"))


def print_pins() -> None:
    print(*(f"{name}=={version(name)}" for name in ("torch", "numpy")), sep="\n")


def check_fairseq(wanted: str) -> None:
    installed = {f"{found.name.replace('_', '-')}=={found.version}" for found in distributions()}
    found = {name for name in installed if name.startswith(("fairseq==", "fairseq-fixed=="))}
    assert found == {wanted}, f"{wanted} is wanted, {found} is installed"
    for module in ("libbleu", "data.data_utils_fast", "data.token_block_utils_fast"):  # the compiled ones
        importlib.import_module(f"fairseq.{module}")


def check_tools(root: str, extras: str) -> None:
    for name in REQUIRED + [name for extra in extras.split(",") for name in TOOLS[extra]]:
        importlib.import_module(name)
    found = importlib.util.find_spec("fairseq_headgates")
    assert found and os.path.realpath(str(found.origin)).startswith(root + os.sep), "this checkout is not installed"


if __name__ == "__main__":
    CHECKS: dict[str, Callable[..., None]] = {
        "shared-torch": print_shared_torch,
        "torch": check_torch,
        "pins": print_pins,
        "fairseq": check_fairseq,
        "tools": check_tools,
    }
    sys.path.pop(0)  # not from this folder
    CHECKS[sys.argv[1]](*sys.argv[2:])
