"""Packaging of fairseq-headgates; pyproject.toml only configures the tools."""

from pathlib import Path

from setuptools import find_packages, setup

readme = Path(__file__).with_name("README.md")

setup(
    name="fairseq-headgates",
    version="0.1.0",
    description="Learn which attention heads of a trained fairseq transformer can be removed, and remove them",
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    author="The fairseq-headgates authors",
    license="MIT",
    license_files=["LICENSE"],
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
    package_data={"fairseq_headgates": ["py.typed", "report/templates/*"]},
    packages=find_packages(include=["fairseq_headgates", "fairseq_headgates.*"]),
    python_requires=">=3.10",
    install_requires=["torch>=2.4", "conllu", "jinja2", "numpy", "regex", "sacrebleu", "scipy", "tensorboardX", "tqdm"],
    extras_require={
        # An extra, because the packages `fairseq` and `fairseq-fixed` own the same folder `fairseq/`:
        # whoever has one of them already must not get the other installed over it.
        "fairseq": [
            "fairseq==0.12.2; python_version < '3.11'",  # needs pip < 24.1 and numpy < 1.24
            "fairseq-fixed==0.12.3.1; python_version >= '3.11'",
        ],
        "recipes": ["sacremoses", "subword-nmt"],
        "plots": ["matplotlib"],
        "report": ["matplotlib", "tensorboard"],
        "ctranslate2": ["ctranslate2>=4"],
        "dev": [
            "axe-core-python",
            "build",
            "ctranslate2>=4",
            "furo",
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
            "setuptools>=64",
            "sphinx>=7",
            "tensorboard",
            "wheel",
        ],
    },
    py_modules=["headgates_start"],
    entry_points={"console_scripts": ["headgates = headgates_start:main"]},
)
