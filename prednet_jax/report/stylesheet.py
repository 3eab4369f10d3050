"""The page's style sheet: one column, light and dark, readable on a phone."""

from prednet_jax.report.theme import DARK, LIGHT, Theme


def _palette(theme: Theme) -> str:
    """The colours of the lines as custom properties."""
    return " ".join(f"--{name}: {value};" for name, value in theme.colours.items())


_CLASSES = "\n".join(
    f".colour-{name} {{ --c: var(--{name}); }}"
    for name in (*LIGHT.colours, "ink", "muted")
)
_PAGE = """
:root { color-scheme: light dark;
  --paper: #f7f6f2; --card: #ffffff; --ink: #1d2125; --muted: #5c646d;
  --line: #dedcd5; --good: #00694b; --bad: #b34a00; --open: #7a5b00; --same: #005a94;
  --serif: Charter, "Iowan Old Style", "Palatino Linotype", Georgia, serif;
  --sans: system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif;
  --mono: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #14171a; --card: #1c2025; --ink: #eceae4; --muted: #a0a7b0;
  --line: #343a42; --good: #4fc79b; --bad: #f58b47; --open: #e0b84a;
  --same: #6bb7ee; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 1rem/1.55 var(--sans); -webkit-text-size-adjust: 100%; }
main { max-width: 73rem; margin: 0 auto; padding: 2.2rem 1.5rem 4rem; }
h1, h2, .answer { font-family: var(--serif); font-weight: 700; line-height: 1.15;
  letter-spacing: -0.01em; text-wrap: balance; }
h1 { font-size: clamp(1.8rem, 4.6vw, 2.7rem); margin: 0.2rem 0 0.5rem; }
h2 { font-size: 1.55rem; margin: 2.8rem 0 0.4rem; padding-top: 1.1rem;
  border-top: 2px solid var(--ink); }
h3 { font-size: 1.05rem; margin: 1.8rem 0 0.5rem; }
h4 { font-size: 0.95rem; margin: 0; font-weight: 400; }
h4 code { font-weight: 700; margin-right: 0.4em; }
p { margin: 0.5rem 0; max-width: 46rem; }
.kicker { font-size: 0.8rem; letter-spacing: 0.07em; text-transform: uppercase;
  color: var(--muted); margin: 0; }
.standfirst { font-size: 1.1rem; color: var(--muted); margin-bottom: 1.4rem;
  max-width: none; text-wrap: balance; }
.note, figcaption, .facts { color: var(--muted); font-size: 0.88rem; }
.columns { display: grid; gap: 1.2rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.card, figure { background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; margin: 0; padding: 1.1rem 1.2rem; min-width: 0; }
.card { border-top: 5px solid var(--open); }
.card.refuted { border-top-color: var(--same); }
.card.supported { border-top-color: var(--good); }
.answer { font-size: 1.75rem; margin: 0.1rem 0 0.2rem; }
.card dl { margin: 0.9rem 0 0; border-top: 1px solid var(--line); }
.card dl div { display: flex; justify-content: space-between; gap: 1rem;
  padding: 0.32rem 0; border-bottom: 1px solid var(--line); font-size: 0.92rem; }
.card dt { color: var(--muted); }
.card dd { margin: 0; text-align: right; font-variant-numeric: tabular-nums; }
.tag { display: inline-block; margin: 0.8rem 0 0; padding: 0.1rem 0.55rem;
  font-size: 0.82rem; color: var(--open); border: 1px solid currentColor;
  border-radius: 0.8rem; }
figure img { display: block; width: 100%; height: auto; }
figcaption { margin-top: 0.7rem; max-width: 46rem; }
section > .columns { margin-top: 1.2rem; }
.wide { margin-top: 0.8rem; background: var(--card); border: 1px solid var(--line);
  border-radius: 6px; padding: 0.3rem 1rem; overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 0.88rem;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 0.45rem 0.55rem; vertical-align: baseline;
  border-bottom: 1px solid var(--line); }
tbody tr:last-child > * { border-bottom: 0; }
th:first-child { text-align: left; padding-left: 0; }
.measures td:last-child, .measures th:last-child { text-align: left; }
thead th { color: var(--muted); font-weight: 400; font-size: 0.8rem;
  line-height: 1.25; vertical-align: bottom; }
tbody th { font-weight: 400; }
.measures table { font-size: 0.84rem; }
.measures td:not(:nth-child(4)) { white-space: nowrap; }
.measures td:nth-child(4) { min-width: 9.5rem; }
.ends { color: var(--muted); white-space: nowrap; }
.word { font-weight: 600; white-space: nowrap; }
.higher-loss .word { color: var(--bad); }
.lower-loss .word { color: var(--good); }
.equivalent .word { color: var(--same); }
.inconclusive .word { color: var(--open); }
code, pre { font-family: var(--mono); font-size: 0.86em; }
pre { margin: 0.35rem 0 0; padding: 0.6rem 0.8rem; background: var(--paper);
  border-radius: 4px; white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.4;
  font-size: 0.76rem; }
.arm { background: var(--card); border: 1px solid var(--line); border-radius: 6px;
  padding: 0.75rem 1rem; min-width: 0; }
.columns.arms { gap: 0.7rem; margin-top: 0.5rem; }
.arm pre span { display: inline-block; max-width: 100%; white-space: pre-wrap; }
.design td:nth-child(4) { text-align: left; }
.arm.skipped { border-style: dashed; }
.arm .facts { margin: 0.1rem 0 0; overflow-wrap: anywhere; }
details { border-bottom: 1px solid var(--line); padding: 0.55rem 0; }
summary { cursor: pointer; font-weight: 600; }
details dl, section > dl { margin: 0.6rem 0; font-size: 0.9rem; }
details dl div, section > dl div { display: grid; gap: 0 1rem; padding: 0.2rem 0;
  grid-template-columns: minmax(8rem, 14rem) minmax(0, 1fr); }
details dt, section > dl dt { color: var(--muted); }
details dd, section > dl dd { margin: 0; overflow-wrap: anywhere; }
details dd dl { margin: 0; }
blockquote { margin: 0.9rem 0 0; padding: 0 0 0 1rem; max-width: 60rem;
  color: var(--muted); font-size: 0.9rem;  border-left: 3px solid var(--line); }
sup { line-height: 0; font-size: 0.75em; }
ul { padding-left: 1.1rem; max-width: 46rem; }
li { margin: 0.35rem 0; }
footer { margin-top: 3.5rem; color: var(--muted); font-size: 0.88rem; }
.live > picture { display: none; }
.axis { margin: 0 0 0.2rem; font-size: 0.85rem; color: var(--muted); }
.plot svg { display: block; width: 100%; height: auto; touch-action: pan-y; }
.plot text { fill: var(--muted); font-size: 12px; font-variant-numeric: tabular-nums; }
.grid { stroke: var(--line); }
.zone { fill: var(--line); opacity: 0.55; }
.line .middle { fill: none; stroke: var(--c); stroke-width: 2; }
.line .middle.control { stroke-width: 5.5; opacity: 0.3; }
.line .band { fill: var(--c); opacity: 0.13; }
.line circle, .mark circle { fill: var(--c); stroke: var(--card); }
.mark line { stroke: var(--muted); stroke-dasharray: 2 3; }
.line.colour-muted .middle { stroke-dasharray: 2 4; }
output { font-variant-numeric: tabular-nums; min-width: 3.2rem; text-align: right; }
.cursor, .seeds { display: flex; align-items: center; gap: 0.6rem; font-size: 0.85rem;
  color: var(--muted); }
.cursor input { flex: 1; min-width: 0; accent-color: var(--same); }
.switches { margin: 0.3rem 0 0.5rem; padding: 0; border: 0; font-size: 0.85rem;
  min-width: 0; font-variant-numeric: tabular-nums; }
.switches legend { padding: 0; color: var(--muted); }
.switches div { display: flex; flex-wrap: wrap; justify-content: space-between;
  gap: 0 1rem; border-bottom: 1px solid var(--line); padding: 0.15rem 0; }
.switches div > span { margin-left: auto; }
.chip { display: inline-flex; align-items: center; gap: 0.45rem; min-width: 0;
  overflow-wrap: anywhere; }
.chip i { flex: none; width: 1rem; height: 0.2rem; background: var(--c); }
.chip input { accent-color: var(--c); margin: 0; }
.difference { display: grid; align-items: center; gap: 0 0.8rem; font-size: 0.85rem;
  grid-template: "who track what" / minmax(5rem, auto) minmax(0, 1fr) 6.6rem; }
.differences { display: grid; grid-template-columns: minmax(0, auto) 1fr auto; }
.differences .difference { grid-column: 1 / -1; grid-template-columns: subgrid; }
.who { grid-area: who; overflow-wrap: anywhere; } .what { grid-area: what; }
.track { grid-area: track; position: relative; height: 1.9rem; }
.track i { position: absolute; }
.none { top: 0; bottom: 0; background: var(--line); opacity: 0.55; }
.zero { top: 0; bottom: 0; left: 50%; border-left: 1px solid var(--muted); }
.bar { top: calc(50% - 2px); height: 4px; border-radius: 2px; background: var(--c);
  opacity: 0.6; }
.dot { top: calc(50% - 5px); width: 10px; height: 10px; margin-left: -5px;
  border-radius: 50%; background: var(--c); border: 2px solid var(--c); }
.dot.same { background: var(--card); border-radius: 0; transform: rotate(45deg); }
.marks span { position: absolute; transform: translateX(-50%); color: var(--muted);
  font-size: 0.75rem; white-space: nowrap; }
select { font: inherit; color: inherit; background: var(--card); max-width: 100%;
  border: 1px solid var(--line); border-radius: 4px; padding: 0.15rem 0.3rem; }
:focus-visible { outline: 2px solid var(--same); outline-offset: 2px; }
.film { display: grid; gap: 0.8rem;
  grid-template-columns: repeat(auto-fill, minmax(8.5rem, 1fr)); }
.window { overflow: hidden; }
.window img { display: block; height: 100%; max-width: none;
  image-rendering: pixelated; }
.slide p { margin: 0.2rem 0 0; font-size: 0.82rem; }
.error { color: var(--muted); white-space: nowrap; }
.source { border: 0; padding: 0.5rem 0 0; font-size: 0.85rem; }
.source summary { font-weight: 400; color: var(--muted); }
a { color: var(--same); }
@media (max-width: 44rem) {
  main { padding: 1.2rem 0.9rem 3rem; }
  .card, figure { padding: 0.9rem; }
  .wide { padding: 0 0.9rem; }
  .differences .difference { grid-template: "who what" "track track" / 1fr auto; }
  thead { position: absolute; width: 1px; height: 1px; overflow: hidden;
    clip-path: inset(50%); }
  tr, tbody, table { display: block; }
  tr { padding: 0.6rem 0; border-bottom: 1px solid var(--line); }
  tbody tr:last-child { border-bottom: 0; }
  tbody th, td { display: flex; justify-content: space-between; gap: 1rem;
    border: 0; padding: 0.12rem 0; text-align: right; }
  .measures td:not(:nth-child(4)) { white-space: normal; }
  td::before { content: attr(data-label); max-width: 9rem; text-align: left;
    color: var(--muted); }
  tbody th code { font-weight: 700; font-size: 0.95rem; }
  details dl div, section > dl div { grid-template-columns: 1fr; }
}
@media print { body { background: none; }
  .cursor, .seeds, .chip input { display: none; }
  .switches div:has(input:not(:checked)) { display: none; }
  .chip i, .track i { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  .wide { overflow: visible; padding: 0.2rem 0.5rem; }
  .wide table, .measures table { font-size: 0.66rem; }
  .wide th, .wide td { padding: 0.25rem 0.3rem; }
  .ends, .measures td:not(:nth-child(4)) { white-space: normal; }
  .wide code { overflow-wrap: anywhere; }
  .measures td:nth-child(4) { min-width: 0; }
  details > * { display: block; }
  details::details-content { content-visibility: visible; block-size: auto; }
  figure, .card, .arm, tr { break-inside: avoid; }
  h2, h3, section > p { break-after: avoid; } }
"""
STYLE = (
    f":root {{ {_palette(LIGHT)} }}\n@media screen and (prefers-color-scheme: dark) "
    f"{{ :root {{ {_palette(DARK)} }} }}\n{_CLASSES}\n{_PAGE}"
)
