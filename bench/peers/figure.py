#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Draws the JSON of bench/peers.sh: how many times as long as ours a step of each peer takes, for each width.

Usage: python3 bench/peers/figure.py RESULTS.json FIGURE.svg
"""
import json
import pathlib
import sys
from html import escape

# Colours and lettering are those of report/svg_plot.hpp.
STYLE = """
svg.chart { font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, sans-serif; }
svg.chart .back { fill: #fff; } svg.chart text { fill: #5d646d; }
svg.chart .title, svg.chart .name { fill: #1c1e21; }
svg.chart .tick { stroke: #e6e8ea; } svg.chart .strong { stroke: #9aa1a9; }
.c0 { fill: #2463c9; } .c1 { fill: #c2570c; } .c2 { fill: #0b7d6b; } .c3 { fill: #8443b8; }
@media (prefers-color-scheme: dark) {
  svg.chart .back { fill: #15171a; } svg.chart text { fill: #9ba3ac; }
  svg.chart .title, svg.chart .name { fill: #e6e8ea; }
  svg.chart .tick { stroke: #2a2e33; } svg.chart .strong { stroke: #68717a; }
  .c0 { fill: #74a9ff; } .c1 { fill: #ffa05c; } .c2 { fill: #4fd0b6; } .c3 { fill: #cb9dff; } }
svg.chart .title { font-size: 16px; font-weight: 600; } svg.chart .group { font-weight: 600; }
"""
# Groups of rows: our contender, its name, and the peers that are measured against it.
GROUPS = (
    ("unit-fp8", "against unit-fp8", (("fp32", "PyTorch FP32"), ("compile", "compiled FP32"),
                                      ("autocast", "bf16 autocast"), ("compile-autocast", "compiled autocast"))),
    ("fp32", "against fp32", (("fp32", "PyTorch FP32"), ("compile", "compiled FP32"))),
    ("mxfp8", "against mxfp8", (("mxfp8", "MXFP8, emulated"),)),
    ("limited", "against limited sums", (("limited", "emulated"),)),
)
LEFT, TOP, PANEL, GAP, BAR, HEADING = 172, 82, 190, 22, 11, 26
LONGEST = 0.7  # of a panel: the number stands behind the bar


def number(ratio):
    return f"{ratio:.0f}" if ratio >= 100 else f"{ratio:.1f}" if ratio >= 10 else f"{ratio:.2f}"


def svg(report):
    found = {}
    for result in report["results"]:
        if result["side"] == "peer":
            for ours, ratio in result.get("ratios", {}).items():
                found[result["width"], result["threads"], ours, result["contender"]] = ratio
    widths = sorted({result["width"] for result in report["results"]})
    threads = sorted({result["threads"] for result in report["results"]})
    row = BAR * len(threads) + 9
    # Longer bars are cut off: one of a hundred would leave no difference to be seen among the others.
    longest = max([2.0] + [min(ratio, 8.0) for ratio in found.values()])
    scale = LONGEST * PANEL / longest
    height = TOP + sum(HEADING + row * len(rows) for _, _, rows in GROUPS) + 52
    width = max(500, LEFT + len(widths) * (PANEL + GAP) + 10)  # room for the title
    parts = []

    def text(x, y, what, kind="", anchor="start"):
        parts.append(f'<text x="{x:.0f}" y="{y:.0f}" class="{kind}" text-anchor="{anchor}">{escape(what)}</text>')

    def line(x, y0, y1, kind):
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{y0:.0f}" y2="{y1:.0f}" class="{kind}"/>')

    def bar(x, y, length, colour, title):
        parts.append(f'<rect x="{x:.1f}" y="{y:.1f}" width="{length:.1f}" height="{BAR - 1}" class="c{colour}">'
                     f"<title>{escape(title)}</title></rect>")

    text(14, 26, "Time of a training step, as a multiple of ours", "title")
    x = LEFT
    for i, count in enumerate(threads):
        bar(x, 39, 16, i % 4, "")
        text(x + 22, 49, f"{count} thread" + "s"[: count > 1], "name")
        x += 104
    bottom = height - 48
    for i, of_panel in enumerate(widths):
        x = LEFT + i * (PANEL + GAP)
        text(x, TOP - 8, f"width {of_panel}", "name group")
        for tick in range(2, int(longest) + 1, 2 if longest > 4 else 1):
            line(x + tick * scale, TOP, bottom, "tick")
            text(x + tick * scale, bottom + 16, str(tick), "", "middle")
        text(x, bottom + 16, "0", "", "middle")
    y = TOP
    for ours, heading, rows in GROUPS:
        text(14, y + 18, heading, "name group")
        y += HEADING
        for peer, name in rows:
            text(22, y + row / 2 + 1, name, "name")
            for i, of_panel in enumerate(widths):
                x = LEFT + i * (PANEL + GAP)
                for j, count in enumerate(threads):
                    ratio, top = found.get((of_panel, count, ours, peer)), y + j * BAR
                    if ratio is None:
                        if j == 0:
                            text(x + 5, y + row / 2 + 1, "not measured")
                        continue
                    length = min(ratio, longest) * scale
                    bar(x, top, length, j % 4, f"{heading}, width {of_panel}, {count} threads: {number(ratio)}")
                    if ratio > longest:  # a gap: the bar is cut off
                        parts.append(f'<rect x="{x + length - 12:.1f}" y="{top - 1:.1f}" width="4" height="{BAR + 1}" '
                                     'class="back"/>')
                    text(x + length + 5, top + BAR - 1, number(ratio), "name small")
            y += row
    for i in range(len(widths)):
        x = LEFT + i * (PANEL + GAP)
        line(x, TOP, bottom, "strong")
        line(x + scale, TOP, bottom, "strong")
        text(x + scale, bottom + 16, "1", "", "middle")
    text(14, height - 12, f"{report['processor']}; medians of {report['rounds']} rounds in turn")
    return (f'<svg xmlns="http://www.w3.org/2000/svg" class="chart" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img" aria-label="Time of a training step of PyTorch, as a multiple of ours">\n'
            f"<style>{STYLE}svg.chart .small {{ font-size: 11px; }}\n</style>\n"
            f'<rect width="{width}" height="{height}" class="back"/>\n' + "\n".join(parts) + "\n</svg>\n")


if __name__ == "__main__":
    source, target = map(pathlib.Path, sys.argv[1:])
    target.write_text(svg(json.loads(source.read_text())))
