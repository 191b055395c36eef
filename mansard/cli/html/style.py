"""The style sheet and the script of the page that `mansard.cli.html.report` writes."""

COLOURS = ("#2f6fb5", "#3d8b40", "#b4602a", "#8450a8", "#a83a4c", "#2a8a8f", "#7d7420", "#5d6470")
"""By device, in the plan's order; distinguishable on white and on black, also with most kinds of colour
blindness."""

STYLE = """
:root { color-scheme: light dark; --line: #8884; --text: CanvasText; }
body { font: 13px/1.45 system-ui, sans-serif; margin: 1.2em; background: Canvas; color: CanvasText; }
h1 { font-size: 1.35em; margin: 0 0 .3em; } h2 { font-size: 1.1em; margin: 1.4em 0 .4em; }
table { border-collapse: collapse; }
th { text-align: left; font-weight: 600; }
td, th { padding: 0 1em 0 0; white-space: nowrap; }
td.n, th.n { text-align: right; }
.bar { display: flex; gap: 1.2em; align-items: center; margin: .3em 0; }
.scroll { overflow: auto; border: 1px solid var(--line); max-height: 75vh; resize: vertical; }
.graph { display: flex; width: max-content; }
.graph svg { flex: none; }
.graph table { table-layout: fixed; }
.graph tr { height: 22px; } .graph td, .graph th { height: 22px; padding: 0 .9em 0 0; line-height: 22px; }
.graph td div { max-width: 34em; overflow: hidden; text-overflow: ellipsis; }
.graph tr.starts td { box-shadow: inset 0 1px var(--line); }
.chip { display: inline-block; width: .8em; height: .8em; border-radius: 3px; margin-right: .4em; }
path.edge { fill: none; stroke: #888; stroke-width: 1; opacity: .55; }
path.moves { stroke-dasharray: 4 2; opacity: .9; }
path.lit { stroke: #e0a000; stroke-width: 2.5; opacity: 1; }
tr.lit { background: #e0a00040; } tr:hover { background: #8882; }
.node.lit { stroke: #e0a000; stroke-width: 4; }
svg text { fill: CanvasText; font: 11px system-ui, sans-serif; }
.timeline { position: relative; }
.span { stroke: Canvas; stroke-width: .4; } .span.critical { stroke: #e0a000; stroke-width: 1.6; }
.span.lit { fill: #e0a000 !important; }
#tip { position: fixed; right: 1em; bottom: 1em; max-width: 46em; white-space: pre-wrap; padding: .6em .9em;
  background: Canvas; border: 1px solid #888; border-radius: 6px; box-shadow: 0 2px 10px #0004; display: none;
  pointer-events: none; overflow-wrap: anywhere; }
"""

SCRIPT = """
'use strict';
const tip = document.getElementById('tip');
const all = (selector) => Array.from(document.querySelectorAll(selector));
const byName = new Map();
for (const item of all('[data-of]')) {
  if (!byName.has(item.dataset.of)) byName.set(item.dataset.of, []);
  byName.get(item.dataset.of).push(item);
}
const edges = new Map();
for (const edge of all('path.edge')) {
  for (const end of [edge.dataset.from, edge.dataset.to]) {
    if (!edges.has(end)) edges.set(end, []);
    edges.get(end).push(edge);
  }
}
function light(name, on) {
  for (const item of byName.get(name) || []) item.classList.toggle('lit', on);
  for (const edge of edges.get(name) || []) edge.classList.toggle('lit', on);
}
for (const item of all('[data-tip]')) {
  item.addEventListener('mouseenter', () => {
    tip.textContent = item.dataset.tip; tip.style.display = 'block'; light(item.dataset.of, true);
  });
  item.addEventListener('mouseleave', () => { tip.style.display = 'none'; light(item.dataset.of, false); });
  item.addEventListener('click', () => {
    for (const other of byName.get(item.dataset.of) || []) {
      if (other !== item) other.scrollIntoView({ block: 'center', inline: 'center', behavior: 'smooth' });
    }
  });
}
for (const slider of all('input[data-zooms]')) {
  const target = document.getElementById(slider.dataset.zooms);
  const width = slider.dataset.how === 'width';
  slider.addEventListener('input', () => {
    const box = target.parentElement;
    const middle = (box.scrollLeft + box.clientWidth / 2) / box.scrollWidth;
    if (width) target.style.width = 100 * 2 ** slider.value + '%'; else target.style.zoom = 2 ** slider.value;
    if (width) box.scrollLeft = middle * box.scrollWidth - box.clientWidth / 2;
  });
}
"""
