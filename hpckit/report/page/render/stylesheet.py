"""The style of a page in light and dark mode, on screens of any width and on paper."""

from __future__ import annotations

# Colours of meanings (train, lost and so on) are set once, and each element that has one takes it
# as --own. `soft` and `faint` are lighter shades of it. The colours of runs are others.
# A table that is wider than the screen is shaded where it continues: the first two layers of .wide
# move with the table, and cover the other two at its ends.
STYLE = """
:root { color-scheme: light dark; --ink: #1d2125; --soft: #566069; --page: #fff; --line: #dbe0e4;
  --box: #f4f6f8; --shade: #0004; --alert: #a83200; --link: #0a5ea8;
  --train: #1f6fc4; --start: #848f9b; --lost: #c2410c; --data: #a37a00; --save: #0b8468;
  --checks: #127f95; --valid: #7442b8; --eval: #b3307f; --slow: #8a5a2b; --cure: #2b3138;
  --other: #aab3bc; --parent: #67727d;
  --run0: #0072b2; --run1: #c26a00; --run2: #00805d; --run3: #b0508a; --run4: #8a6d00;
  --run5: #a11d3f; --run6: #6b4fbb; --run7: #6b737b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6e9; --soft: #a7b0b8; --page: #16181b;
  --line: #343a40; --box: #1f2327; --shade: #fff5; --alert: #ffa36b; --link: #7dbcf5;
  --train: #5aa9f0; --start: #737d88; --lost: #ff7d45; --data: #dcb83c; --save: #3cc39d;
  --checks: #56c8dc; --valid: #b693f5; --eval: #f089c2; --slow: #c8996a; --cure: #e8ecef;
  --other: #59626b; --parent: #8b959f;
  --run0: #56b4e9; --run1: #f0a030; --run2: #35c495; --run3: #e08cc0; --run4: #e0cf4a;
  --run5: #ff7088; --run6: #b3a0ff; --run7: #a0a8b0; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto;
  padding: 1rem 1rem 4rem; color: var(--ink); background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; max-width: 46rem; }
a { color: var(--link); }
nav ul { display: flex; flex-wrap: wrap; gap: .15rem 1rem; list-style: none; padding: 0;
  margin: .75rem 0 0; font-size: .87rem; }
nav + section > h2 { border-top: 0; margin-top: 0; }
.note, .key dt { color: var(--soft); font-size: .87rem; }
.alert { border-left: 4px solid var(--alert); padding: .3rem .8rem; background: var(--box); }
dl { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .25rem 1rem;
  margin: .75rem 0; }
dt { font-weight: 600; } dd { margin: 0; min-width: 0; max-width: 46rem; }
.key { grid-template-columns: repeat(auto-fill, minmax(min(10.5rem, 45%), 1fr)); gap: .5rem; }
.key div { background: var(--box); border-radius: .4rem; padding: .4rem .7rem; }
.key dt { font-weight: 400; } .key dd { font-weight: 600; font-variant-numeric: tabular-nums; }
pre { background: var(--box); padding: .6rem .8rem; border-radius: .4rem; white-space: pre-wrap;
  font-size: .85rem; margin: .75rem 0; }
.wide { overflow-x: auto; margin: .75rem 0; background:
  linear-gradient(to right, var(--page) 30%, transparent) 0 0 / 3rem 100% local no-repeat,
  linear-gradient(to left, var(--page) 30%, transparent) 100% 0 / 3rem 100% local no-repeat,
  linear-gradient(to right, var(--shade), transparent) 0 0 / .8rem 100% no-repeat,
  linear-gradient(to left, var(--shade), transparent) 100% 0 / .8rem 100% no-repeat; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem 1.1rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
.word { text-align: left; }
.long { white-space: normal; overflow-wrap: anywhere; min-width: 11rem; max-width: 34rem; }
.named th:first-child, .named td:first-child { position: sticky; left: 0; min-width: 7.5rem;
  background: var(--page); max-width: 40vw; white-space: normal; overflow-wrap: anywhere; }
figure { margin: 1rem 0; }
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr));
  gap: 0 1.5rem; }
.plot { padding: 0 1.2rem 0 3.6rem; } .strip { padding: 0 .8rem 0 .3rem; }
svg { display: block; overflow: visible; }
text { font: 12px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
text.lane { fill: var(--ink); }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
line.mark { stroke: var(--own); stroke-dasharray: 4 3; }
line.mark.cure { stroke-dasharray: 1 3; stroke-width: 1.5; }
text.mark { fill: var(--own); }
path { fill: none; stroke: var(--own); stroke-width: 1.7; vector-effect: non-scaling-stroke;
  stroke-linejoin: round; }
path.behind { stroke-width: 1; opacity: .4; }
path.dots { stroke-width: 5; stroke-linecap: round; }
path.dots.single { stroke-width: 9; }
path.dots.lost { stroke-width: 4; opacity: .75; }
rect { fill: var(--own); }
.strip rect { stroke: var(--own); } .shares rect { stroke: var(--page); }
rect.reading { fill: transparent; stroke: none; }
rect.reading:hover { fill: var(--ink); opacity: .07; }
.soft, .faint { opacity: .62; } .faint { opacity: .36; }
.train { --own: var(--train); } .start { --own: var(--start); } .lost { --own: var(--lost); }
.data { --own: var(--data); } .save { --own: var(--save); } .checks { --own: var(--checks); }
.valid { --own: var(--valid); } .eval { --own: var(--eval); } .slow { --own: var(--slow); }
.cure { --own: var(--cure); } .other { --own: var(--other); } .parent { --own: var(--parent); }
.run0 { --own: var(--run0); } .run1 { --own: var(--run1); } .run2 { --own: var(--run2); }
.run3 { --own: var(--run3); } .run4 { --own: var(--run4); } .run5 { --own: var(--run5); }
.run6 { --own: var(--run6); } .run7 { --own: var(--run7); } .limit { --own: var(--alert); }
path.dash1 { stroke-dasharray: 7 3; } path.dash2 { stroke-dasharray: 2 3; }
.key-of { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; list-style: none; margin: .3rem 0;
  padding: 0; font-size: .87rem; color: var(--soft); }
.key-of b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .4rem; vertical-align: -.05rem; background: var(--own); }
.swatch.behind { opacity: .4; }
.key-of li, td:has(> .swatch) { padding-left: 1.2rem; text-indent: -1.2rem; }
.dash1.swatch, .dash2.swatch { height: 0; border-top: .2rem dashed var(--own); background: none;
  vertical-align: .2rem; }
.dash2.swatch { border-top-style: dotted; }
input[type=radio] { position: absolute; opacity: 0; }
input[type=radio] + label { display: inline-block; font-size: .8rem; color: var(--soft);
  border: 1px solid var(--line); border-radius: .4rem; padding: .1rem .6rem;
  margin: 0 .4rem .5rem 0; cursor: pointer; }
input[type=radio]:checked + label { color: var(--ink); background: var(--box);
  border-color: var(--soft); }
input[type=radio]:focus-visible + label { outline: 2px solid var(--link); }
.to-log:checked ~ .lin, .to-lin:checked ~ .log { display: none; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; }
@media (max-width: 560px) { .minor { display: none; } .plot { padding-left: 3rem; } }
@media (max-width: 860px) {
  .cards thead { display: none; }
  .cards table, .cards tbody, .cards tr { display: block; }
  .cards tr { border-bottom: 1px solid var(--line); padding: .4rem 0; }
  .cards td { display: inline-block; border: 0; padding: .1rem 1rem .1rem 0; text-align: left;
    max-width: 100%; white-space: normal; }
  .cards td.long { display: block; } .cards td:empty { display: none; }
  .cards td[data-name]::before { content: attr(data-name) ": "; color: var(--soft); }
}
@media print { h2 { break-after: avoid; } figure { break-inside: avoid; }
  input[type=radio] + label, nav { display: none; } }
"""
