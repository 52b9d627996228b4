# What all Snakefiles share: the checked configuration, folders, and the plan.
import os
import re
import shlex
import sys

from snakemake.exceptions import WorkflowError
from snakemake.utils import validate

sys.path.insert(0, str(workflow.basedir))
from plan import Family, Training, command_line, cuts, models, trainings, whole_length


def check(family):
    """Check the configuration, and fill in defaults; a wrong key or value ends the recipe with one line."""
    config["family"] = family
    try:
        validate(config, "config.schema.yaml")
    except WorkflowError as error:
        problem = error.__context__
        place = getattr(problem, "json_path", "$")[2:]
        sys.exit(f"wrong configuration: {place + ': ' if place else ''}{getattr(problem, 'message', error)}")


def models_of(family):
    """The models of the table."""
    try:
        return models(config, family)
    except ValueError as error:
        sys.exit(f"wrong configuration: {error}")


def plain_or_gz(plain):
    """The path of a raw text, plain or compressed."""
    return f"{plain}.gz" if os.path.exists(f"{plain}.gz") and not os.path.exists(plain) else plain


SCRIPTS = os.path.relpath(f"{workflow.basedir}/../scripts")
# Without a byte order mark, and with the line ends of Unix.
READ = r"gzip -cdf {input[0]} | LC_ALL=C sed '1s/^\xef\xbb\xbf//; s/\r$//'"
