// SPDX-License-Identifier: MIT
#pragma once

#include <unitscale/report/markup.hpp>

#include <nlohmann/json.hpp>

#include <string>
#include <string_view>

namespace unitscale::report {

// The page around a report's data: styles, markup and the script that draws. The page loads nothing from the network
// and follows the reader's choice of light or dark. Text from the data enters the page as text only.

inline constexpr std::string_view report_style = R"css(
:root { color-scheme: light dark; --page: #fbfbfa; --card: #ffffff; --ink: #1c1e21; --soft: #5d646d; --line: #e0e2e5;
  --grid: #e9ebed; --one: #9aa1a9; --warn: #b3261e; --alert: #fdecea; --alert-line: #e4a29c;
  --lost: #d7483a26; --coarse: #d99a1a26;
  --run0: #2463c9; --run1: #c2570c; --run2: #0b7d6b; --run3: #8443b8; }
@media (prefers-color-scheme: dark) {
  :root { --page: #15171a; --card: #1c1f23; --ink: #e6e8ea; --soft: #9ba3ac; --line: #31363c;
    --grid: #2a2e33; --one: #68717a; --warn: #ff8a80; --alert: #3a1c1a; --alert-line: #7d3a35;
    --lost: #ff6b5c2b; --coarse: #f2b53d26;
    --run0: #74a9ff; --run1: #ffa05c; --run2: #4fd0b6; --run3: #cb9dff; } }
* { box-sizing: border-box; }
html { scroll-padding-top: 150px; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 14px/1.45 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
main { max-width: 1560px; margin: 0 auto; padding: 4px 20px 60px; }
header { position: sticky; top: 0; z-index: 3; background: var(--page); border-bottom: 1px solid var(--line); }
header > div { max-width: 1560px; margin: 0 auto; padding: 8px 20px 0; }
h1 { font-size: 17px; margin: 0; font-weight: 650; }
h2 { font-size: 15px; margin: 26px 0 8px; font-weight: 650; }
.bar { display: flex; flex-wrap: wrap; gap: 6px 18px; align-items: center; }
.bar + .bar { margin-top: 6px; }
.push { margin-left: auto; }
label { display: inline-flex; gap: 5px; align-items: center; cursor: pointer; }
input[type=search] { font: inherit; width: 230px; padding: 4px 9px; border: 1px solid var(--line);
  border-radius: 6px; background: var(--card); color: inherit; }
input[type=checkbox] { accent-color: var(--soft); margin: 0; }
select { font: inherit; padding: 3px 6px; border: 1px solid var(--line); border-radius: 6px;
  background: var(--card); color: inherit; }
.key, .soft { color: var(--soft); }
.source { font-size: 12px; margin: 8px 0 0; overflow-wrap: anywhere; }
.key { display: inline-flex; gap: 6px; align-items: center; font-size: 13px; }
.swatch { width: 22px; height: 12px; display: inline-block; border-radius: 2px; }
.alert { background: var(--alert); border: 1px solid var(--alert-line); border-radius: 8px; padding: 10px 14px;
  margin: 14px 0 0; }
.alert b { color: var(--warn); }
.alert ul { margin: 6px 0 0; padding-left: 20px; }
.worst { display: grid; grid-template-columns: 1fr 1fr; gap: 18px; align-items: start; }
@media (max-width: 1100px) { .worst { grid-template-columns: 1fr; } }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 8px; padding: 10px 14px;
  overflow-x: auto; }
.card h2 { margin: 0 0 4px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13px; }
th { text-align: left; font-weight: 500; color: var(--soft); padding: 2px 10px 2px 0; white-space: nowrap; }
td { padding: 2px 10px 2px 0; border-top: 1px solid var(--grid); overflow-wrap: anywhere; }
td.number, th.number { text-align: right; white-space: nowrap; overflow-wrap: normal; }
button { font: inherit; color: inherit; background: none; border: 0; padding: 0; text-align: left; cursor: pointer;
  overflow-wrap: anywhere; }
button:hover { text-decoration: underline; }
.row { display: grid; grid-template-columns: 190px repeat(4, minmax(0, 1fr)); gap: 0 16px; }
.head { padding: 8px 0 4px; align-items: end; font-weight: 600; }
.head svg { width: calc(100% - 82px); height: 13px; display: block; overflow: visible; }
.head text { font-size: 10px; fill: var(--soft); font-weight: 400; text-anchor: middle; }
.op { padding: 8px 0; border-top: 1px solid var(--grid); }
.part { padding: 4px 0; }
.part > .soft { font-size: 12px; padding-left: 14px; }
.op .name { font-weight: 550; overflow-wrap: anywhere; }
.op .soft { font-size: 12px; }
details { margin-top: 12px; }
summary { font-weight: 650; cursor: pointer; padding: 6px 0; }
.run { display: grid; grid-template-columns: minmax(0, 1fr) 72px; gap: 0 10px; align-items: end; }
.run + .run { margin-top: 7px; }
.plot, .spark { display: block; width: 100%; height: 42px; }
.plot { background: var(--card); border-bottom: 1px solid var(--soft); }
.spark { height: 34px; margin-bottom: 4px; }
.run p { margin: 1px 0 0; grid-column: 1 / -1; font-size: 12px; color: var(--soft);
  font-variant-numeric: tabular-nums; }
.run p b { color: var(--warn); font-weight: 600; }
path { vector-effect: non-scaling-stroke; }
.operands { grid-column: 1 / -1; margin: 2px 0 0; overflow-x: auto; }
.operands summary { font-weight: 400; font-size: 12px; color: var(--soft); padding: 2px 0; }
.operands td { white-space: nowrap; }
.scales { width: 200px; }
.scales .plot { height: 24px; }
.none { color: var(--soft); padding: 20px 0; }
@media print { header { position: static; } }
)css";

inline constexpr std::string_view report_body = R"html(
<header><div>
<div class="bar"><h1 id="title"></h1><span id="runs" class="bar"></span>
<span class="push bar"><span id="count" class="soft"></span><select id="module" aria-label="go to a module"></select>
<input id="filter" type="search" placeholder="filter: part of a name, or a*b" aria-label="filter by name"></span></div>
<div class="bar"><label>show <select id="when"><option value="both">start and end</option>
<option value="first">start of training</option>
<option value="last">end of training</option></select></label>
<label><input id="log" type="checkbox"> logarithmic shares</label>
<span class="key"><svg class="swatch" viewBox="0 0 22 12">
<path d="M0 11H5V3H16V11H22" fill="none" stroke="currentColor" stroke-width="1.5"/></svg>start</span>
<span class="key"><svg class="swatch" viewBox="0 0 22 12">
<path d="M0 11H5V3H16V11H22" fill="currentColor" opacity=".4"/></svg>end</span>
<span class="key"><i class="swatch" style="background:var(--coarse)"></i>subnormal</span>
<span class="key"><i class="swatch" style="background:var(--lost)"></i>rounds to zero (left), overflows (right)</span>
<span class="key">beside it: rms over training, powers of two</span></div>
<div class="row head"><div class="soft" style="font-weight:400">exponents of</div>
<div>activations<svg data-axis></svg></div><div>weights<svg data-axis></svg></div>
<div>gradients<svg data-axis></svg></div><div>gradients of weights<svg data-axis></svg></div></div>
</div></header>
<main>)html";

inline constexpr std::string_view report_main =
    R"html(<div id="alerts"></div><div id="worst" class="worst" style="margin-top:16px"></div><div id="model"></div>
<noscript>
<p class="alert">This page draws its figures with a script, which this browser does not run.</p></noscript></main>
)html";

inline constexpr std::string_view report_script = R"js(
const $ = id => document.getElementById(id);
const escaped = text => String(text).replace(/[&<>"']/g, c => '&#' + c.charCodeAt(0) + ';');
const colour = run => `var(--run${run % 4})`;
const state = { hidden: new Set(), when: 'both', log: false, filter: '' };
const [low, high] = data.exponents, span = high - low;
const x = exponent => ((Math.min(Math.max(exponent, low), high) - low) / span * 200).toFixed(1);
const number = v => v === null ? 'out of range' : typeof v === 'string' ? v : v === 0 ? '0' :
  Math.abs(v) >= 1e4 || Math.abs(v) < 1e-2 ? v.toExponential(1).replace('e+', 'e') : v.toPrecision(3);
const percent = v => v === 0 ? '0' : v < 1e-4 ? '<0.01 %' :
  v >= 0.995 ? (v < 1 ? '>99 %' : '100 %') : (100 * v).toPrecision(2) + ' %';
const decibels = v => typeof v === 'string' ? v : v.toFixed(1) + ' dB';
const breakable = text => escaped(text).replace(/[\/_]/g, '$&<wbr>');

// Exponents as a staircase; h = [lowest exponent, shares in millionths ...].
function staircase(h) {
  const top = Math.max(...h.slice(1), 1);
  const y = share => state.log ?
    42 - 40 * Math.max(0, 1 + Math.log10(Math.max(share, 0.1) / top) / 6) :
    42 - 40 * share / top;
  let path = `M${x(h[0])} 42`;
  for (let i = 1; i < h.length; ++i) path += `V${y(h[i]).toFixed(1)}H${x(h[0] + i)}`;
  return path + 'V42';
}
function plot(cell, run, format) {
  let s = '';
  if (format && 'zero' in format) {
    const band = (from, to, fill) => to > from ?
      `<rect x="${x(from)}" y="0" width="${(x(to) - x(from)).toFixed(1)}" height="42" fill="${fill}"/>` : '';
    s += band(low, format.zero, 'var(--lost)') + band(format.zero, format.normal, 'var(--coarse)') +
      band(format.top, high, 'var(--lost)');
  }
  for (const e of data.ticks) s += `<path d="M${x(e)} 0V42" stroke="${e === 0 ? 'var(--one)' : 'var(--grid)'}"/>`;
  if (state.when !== 'first' && cell.last.length > 1)
    s += `<path d="${staircase(cell.last)}" fill="${colour(run)}" fill-opacity=".42"/>`;
  if (state.when !== 'last' && cell.first.length > 1)
    s += `<path d="${staircase(cell.first)}" fill="none" stroke="${colour(run)}" stroke-width="1.4"/>`;
  return `<svg class="plot" viewBox="0 0 200 42" preserveAspectRatio="none" aria-hidden="true">${s}</svg>`;
}
function spark(cell, run) {
  const known = cell.rms.filter(v => v !== null);
  if (known.length < 2) return '<span></span>';
  let least = Math.min(...known), most = Math.max(...known);
  const middle = (least + most) / 2, half = Math.max((most - least) / 2, 1) * 1.1;  // at least two powers of two high
  least = middle - half, most = middle + half;
  const at = (v, i) =>
    `${(i / (cell.rms.length - 1) * 70 + 1).toFixed(1)} ${(32 - (v - least) / (most - least) * 30).toFixed(1)}`;
  let path = '', pen = 'M';
  cell.rms.forEach((v, i) => { if (v === null) pen = 'M'; else path += pen + at(v, i), pen = 'L'; });
  let guides = '';
  for (let e = Math.ceil(least); e <= most; e += Math.max(1, Math.ceil((most - least) / 5)))
    guides += `<path d="M0 ${at(e, 0).split(' ')[1]}H72" stroke="${e === 0 ? 'var(--one)' : 'var(--grid)'}"/>`;
  return `<svg class="spark" viewBox="0 0 72 34" preserveAspectRatio="none" aria-hidden="true">` +
    `${guides}<path d="${path}" fill="none" stroke="${colour(run)}" stroke-width="1.4"/></svg>`;
}
function caption(cell, format) {
  const [a, b] = [cell.start, cell.end], shown = state.when === 'first' ? a : b;
  const rms = state.when === 'both' && cell.rms.length > 1 ? `${number(a.rms)} → ${number(b.rms)}` : number(shown.rms);
  const share = (name, v, limit) =>
    v > limit ? ` · <b>${name} ${percent(v)}</b>` : v > 0 ? ` · ${name} ${percent(v)}` : '';
  return `rms ${rms}` + share('NaN, inf', shown.bad, 0) +
    (format ? share('under', shown.under, 0.01) + share('over', shown.over, 0) : '') +
    (shown.zeros >= 0.01 ? ` · zeros ${percent(shown.zeros)}` : '');
}
function detail(cell, format) {
  const line = (name, s) =>
    `${name}: mean ${number(s.mean)}, std ${number(s.std)}, rms ${number(s.rms)}, ` +
    `magnitudes ${number(s.smallest)} to ${number(s.largest)}, zeros ${percent(s.zeros)}` +
    (format ? `, ${format.name}: under ${percent(s.under)}, over ${percent(s.over)}, SNR ${decibels(s.snr)}` : '');
  return escaped(line('start', cell.start) + '\n' + line('end', cell.end));
}
// Of some rows of a tensor (`whole` false) no losses are known: its format shades the picture only.
function column(cells, whole = true) {
  if (!cells) return '<div></div>';
  let s = '';
  cells.forEach((cell, run) => {
    if (!cell || state.hidden.has(run)) return;
    s += `<div class="run" title="${escaped(data.runs[run].name)}\n${detail(cell, whole && cell.format)}">` +
      `${plot(cell, run, cell.format)}${spark(cell, run)}<p>${caption(cell, whole && cell.format)}</p></div>`;
  });
  return `<div>${s}</div>`;
}
// What rounding does to the operands of the op's products; beside several scales their exponents.
function operandTable(operands) {
  const seen = (operands || []).filter(o => !state.hidden.has(o.run));
  if (seen.length === 0) return '';
  const course = (o, text) => {
    const [a, b] = [text(o.start), text(o.end)];
    return state.when === 'first' ? a : state.when === 'last' || a === b ? b : `${a} → ${b}`;
  };
  return '<details class="operands"><summary>operands of the products</summary><table><tr><th>operand</th>' +
    '<th>run</th><th>format</th><th>scale</th><th></th><th class="number">saturated</th>' +
    '<th class="number">flushed to zero</th><th class="number">SNR</th></tr>' + seen.map(o =>
    `<tr><td>${escaped(o.slot)}</td><td style="color:${colour(o.run)}">${escaped(data.runs[o.run].name)}</td>` +
    `<td>${escaped(o.format)}</td><td>${escaped(course(o, s => s.scale))}</td>` +
    `<td class="scales">${o.first ? plot(o, o.run, null) : ''}</td>` +
    `<td class="number">${course(o, s => percent(s.saturated))}</td>` +
    `<td class="number">${course(o, s => percent(s.flushed))}</td>` +
    `<td class="number">${course(o, s => decibels(s.snr))}</td></tr>`).join('') + '</table></details>';
}
function drawModel() {
  const wanted = state.filter.trim().toLowerCase().replace(/[.+?^${}()|[\]\\]/g, '\\$&').replace(/\*/g, '.*');
  const match = new RegExp(wanted);
  let s = '', shown = 0;
  for (const group of data.groups) {
    const rows = group.rows.filter(row => match.test(row.search.toLowerCase()));
    if (rows.length === 0) continue;
    shown += rows.length;
    s += `<details open data-module="${escaped(group.name)}"><summary>${escaped(group.name)}</summary>`;
    for (const row of rows)
      s += `<div class="row op"><div><div class="name">${breakable(row.name)}</div>` +
        `<div class="soft">${row.notes.map(breakable).join('<br>')}</div></div>` +
        column(row.value) + column(row.weight) + column(row.gradient) + column(row.weight_gradient) +
        operandTable(row.operands) + '</div>' + (row.row_groups || []).map(group =>
        `<div class="row part"><div class="soft">${escaped(group.name)}</div>${column(group.value, false)}<div></div>` +
        `${column(group.gradient, false)}<div></div></div>`).join('');
    s += '</details>';
  }
  $('model').innerHTML = s || '<p class="none">No tensor has a name like that.</p>';
  $('count').textContent = `${shown} of ${data.groups.reduce((n, g) => n + g.rows.length, 0)} rows`;
}
function drawTop() {
  $('title').textContent = document.title;
  $('runs').innerHTML = data.runs.map((run, i) =>
    `<label><input type="checkbox" checked data-run="${i}">` +
    `<i class="swatch" style="background:${colour(i)}"></i>${escaped(run.name)}` +
    `<span class="soft">${escaped(run.formats.join(', '))}</span></label>`).join('');
  $('alerts').innerHTML = data.runs.map(run => run.non_finite ?
    `<div class="alert"><b>First value that is not finite</b>, run ${escaped(run.name)}: ` +
    escaped(run.non_finite.text) +
    (run.non_finite.causes.length ?
      `<ul>${run.non_finite.causes.map(c => `<li>${escaped(c)}</li>`).join('')}</ul>` : '') +
    '</div>' : '').join('');
  const table = (title, list, none) => `<div class="card"><h2>${title}</h2>` +
    (list.length === 0 ? `<span class="soft">${none}</span>` :
    '<table><tr><th>tensor or product</th><th>pass or operand</th><th>run</th>' +
      '<th class="number">step</th><th class="number">share</th><th class="number">rms</th></tr>' + list.map(w =>
      `<tr><td><button data-go="${escaped(w.tensor)}">${breakable(w.tensor)}</button></td>` +
      `<td>${w.pass}</td><td style="color:${colour(w.run)}">${escaped(data.runs[w.run].name)}</td>` +
      `<td class="number">${w.step}</td><td class="number">${percent(w.share)}</td>` +
      `<td class="number">${number(w.rms)}</td></tr>`).join('') + '</table>') + '</div>';
  $('worst').innerHTML =
    table('Most rounded to zero', data.under, 'No element of any tensor rounds to zero.') +
    table('Most overflow', data.over, 'No element of any tensor exceeds its format.');
}
// The pictures of exponents stretch with the window. Letters must not: their width is taken back.
function drawAxes() {
  for (const axis of document.querySelectorAll('[data-axis]')) {
    axis.setAttribute('viewBox', `0 0 200 13`);
    axis.setAttribute('preserveAspectRatio', 'none');
    const width = axis.getBoundingClientRect().width || 200;
    axis.innerHTML = data.ticks.map(e =>
      `<text transform="translate(${x(e)} 10) scale(${(200 / width).toFixed(3)} 1)">` +
      `2${String(e).replace(/./g, c => c === '-' ? '⁻' : '⁰¹²³⁴⁵⁶⁷⁸⁹'[c])}</text>`).join('');
  }
}
drawTop();
drawAxes();
drawModel();
addEventListener('resize', drawAxes);
$('module').innerHTML = '<option value="">go to module …</option>' +
  data.groups.map(g => `<option>${escaped(g.name)}</option>`).join('');
$('module').addEventListener('change', e => {
  const place = [...document.querySelectorAll('[data-module]')].find(d => d.dataset.module === e.target.value);
  if (place) place.scrollIntoView();
  e.target.value = '';
});
$('filter').addEventListener('input', e => { state.filter = e.target.value; drawModel(); });
$('when').addEventListener('change', e => { state.when = e.target.value; drawModel(); });
$('log').addEventListener('change', e => { state.log = e.target.checked; drawModel(); });
$('runs').addEventListener('change', e => {
  const run = +e.target.dataset.run;
  e.target.checked ? state.hidden.delete(run) : state.hidden.add(run);
  drawModel();
});
$('worst').addEventListener('click', e => {
  const go = e.target.dataset.go;
  if (go) { $('filter').value = state.filter = go; drawModel(); $('model').scrollIntoView(); }
});
)js";

/// JSON for a script inside HTML. `<`, `>` and `&` occur in strings only and become \u003c, \u003e and \u0026, so that
/// no string can end the script. NaN and infinity become null; invalid UTF-8 becomes U+FFFD.
[[nodiscard]] inline std::string script_json(const nlohmann::ordered_json& data) {
    std::string text;
    for (const char c : data.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)) {
        if (c == '<') text += "\\u003c";
        else if (c == '>') text += "\\u003e";
        else if (c == '&') text += "\\u0026";
        else text += c;
    }
    return text;
}

/// The whole page. `title` is text; `data` is the object of `ReportData::json`; `source` says where they come from.
/// Test: tests/report/report_page_test.cpp
[[nodiscard]] inline std::string report_page(std::string_view title, const nlohmann::ordered_json& data,
                                             const PageSource& source = {}) {
    std::string body(report_body);
    (body += source_paragraph(source)) += report_main;
    (body += "<script>'use strict';\nconst data = ") += script_json(data);
    (body += ";\n") += report_script;
    return html_page(title, report_style, body += "</script>");
}

}  // namespace unitscale::report
