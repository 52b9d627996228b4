"""Tables and figures for people (no torch)."""

from fairseq_headgates.report.attention import attention_figure, attention_json, attention_page, attention_tables
from fairseq_headgates.report.content import Attention, Experiment, Input, ModelHeads, Training
from fairseq_headgates.report.evaluations import difference_table, evaluation_table
from fairseq_headgates.report.explanation import (
    explanation_figure,
    explanation_json,
    explanation_page,
    explanation_tables,
)
from fairseq_headgates.report.figures import curve_plot, heat_map, heat_maps
from fairseq_headgates.report.functions import (
    alignment_line,
    drift_table,
    function_table,
    open_heads,
    scored_table,
    statistics_table,
)
from fairseq_headgates.report.interactive import interactive_page
from fairseq_headgates.report.page import gates_gif, report_page
from fairseq_headgates.report.panels import Panel, row_of, score_panel, sweep_panels
from fairseq_headgates.report.tables import (
    METRICS,
    agreement_table,
    best_head_table,
    curve_table,
    gate_table,
    layer_tables,
    matrix,
    open_counts,
    overlap_table,
    removal_table,
    results_table,
    rounded,
    score_table,
    text_table,
)
from fairseq_headgates.report.text import choose_fonts, text_style

__all__ = [
    "METRICS",
    "Panel",
    "Attention",
    "Experiment",
    "Input",
    "ModelHeads",
    "Training",
    "agreement_table",
    "alignment_line",
    "attention_figure",
    "attention_json",
    "attention_page",
    "attention_tables",
    "best_head_table",
    "choose_fonts",
    "curve_plot",
    "curve_table",
    "difference_table",
    "drift_table",
    "evaluation_table",
    "explanation_figure",
    "explanation_json",
    "explanation_page",
    "explanation_tables",
    "function_table",
    "gate_table",
    "gates_gif",
    "heat_map",
    "heat_maps",
    "interactive_page",
    "layer_tables",
    "matrix",
    "open_counts",
    "open_heads",
    "overlap_table",
    "removal_table",
    "report_page",
    "results_table",
    "rounded",
    "row_of",
    "score_panel",
    "score_table",
    "scored_table",
    "statistics_table",
    "sweep_panels",
    "text_style",
    "text_table",
]
