"""Results for people: tables, figures and the HTML report."""

from lrformer.reports.report import render_report, write_report
from lrformer.reports.uncertainty_map import plot_uncertainty

__all__ = ["plot_uncertainty", "render_report", "write_report"]
