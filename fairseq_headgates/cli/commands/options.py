"""`headgates options`: print the options that this plugin adds to fairseq-train."""

from fairseq_headgates.cli.command import Options, command


@command("options", "headgates options", "headgates options | grep -A 3 -e --gate-lr-scale")
class OptionsOptions(Options):
    """Print the options that this plugin adds to fairseq-train.

    Print the options that --arch transformer_head_gates and --criterion label_smoothed_cross_entropy_l0 add to
    fairseq-train; the other architectures (*_head_gates) and criterions (*_l0) of this plugin add the same.
    (fairseq-train --help lists only fairseq's.)
    """
