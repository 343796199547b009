"""The style of a page in light and dark mode, on screens of any width and on paper."""

from __future__ import annotations

# A table that is wider than the screen is shaded where it continues: the first two layers of .wide
# move with the table, and cover the other two at its ends. The colours of curves are those of Okabe
# and Ito, darker on white and lighter on black where they would be faint.
STYLE = """
:root { color-scheme: light dark; --ink: #1d2125; --soft: #5a636c; --page: #fff; --line: #d5dade;
  --box: #f3f5f7; --shade: #0004; --alert: #b03a00; --mark: #b3261e; --start: #b5bdc6;
  --lost: #d55e00; --c0: #0072b2; --c1: #c26a00; --c2: #00805d; --c3: #b0508a; --c4: #8a6d00;
  --c5: #2a9fd6; --c6: #6b4fbb; --c7: #6b737b; }
@media (prefers-color-scheme: dark) { :root { --ink: #e3e6e9; --soft: #a3abb3; --page: #17191c;
  --line: #363b41; --box: #212529; --shade: #fff5; --alert: #ff9d5c; --mark: #ff7b72;
  --start: #59616a; --lost: #ff8c42; --c0: #56b4e9; --c1: #f0a030; --c2: #35c495; --c3: #e08cc0;
  --c4: #e0cf4a; --c5: #9cd8ff; --c6: #b3a0ff; --c7: #a0a8b0; } }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 0 auto; padding: 1rem;
  color: var(--ink); background: var(--page); overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; line-height: 1.25; margin: .5rem 0 0; }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem; padding-top: .75rem;
  border-top: 1px solid var(--line); }
h3 { font-size: 1rem; margin: 1.5rem 0 .5rem; }
p { margin: .5rem 0; }
.note, .key dt, figcaption { color: var(--soft); font-size: .87rem; }
.alert { border-left: 4px solid var(--alert); padding: .3rem .8rem; background: var(--box); }
dl { display: grid; grid-template-columns: minmax(5rem, max-content) 1fr; gap: .25rem 1rem;
  margin: .75rem 0; }
dt { font-weight: 600; } dd { margin: 0; min-width: 0; }
.key { grid-template-columns: repeat(auto-fill, minmax(min(11rem, 45%), 1fr)); gap: .6rem; }
.key div { background: var(--box); border-radius: .4rem; padding: .5rem .7rem; }
.key dt { font-weight: 400; } .key dd { font-weight: 600; }
pre { background: var(--box); padding: .6rem .8rem; border-radius: .4rem; white-space: pre-wrap;
  font-size: .85rem; margin: .75rem 0; }
.wide { overflow-x: auto; margin: .75rem 0; background:
  linear-gradient(to right, var(--page) 30%, transparent) 0 0 / 3rem 100% local no-repeat,
  linear-gradient(to left, var(--page) 30%, transparent) 100% 0 / 3rem 100% local no-repeat,
  linear-gradient(to right, var(--shade), transparent) 0 0 / .8rem 100% no-repeat,
  linear-gradient(to left, var(--shade), transparent) 100% 0 / .8rem 100% no-repeat; }
table { border-collapse: collapse; font-size: .87rem; font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; }
.word { text-align: left; }
.long { white-space: normal; overflow-wrap: anywhere; min-width: 11rem; max-width: 34rem; }
figure { margin: .75rem 0; }
.plot { padding: 0 1.2rem 0 3.6rem; } .strip { padding: 0 .8rem 0 .3rem; }
svg { display: block; overflow: visible; }
svg svg { overflow: hidden; }
text { font: 12px system-ui, sans-serif; fill: var(--soft); }
text.lane { fill: var(--ink); } text.mark { fill: var(--mark); }
.grid { stroke: var(--line); } .axis { stroke: var(--soft); }
line.mark { stroke: var(--mark); stroke-dasharray: 4 3; }
path { fill: none; stroke-width: 1.6; vector-effect: non-scaling-stroke; stroke-linejoin: round; }
path.dots { stroke-width: 5; stroke-linecap: round; }
path.aside { stroke: var(--soft); stroke-width: 3; opacity: .6; } rect.aside { fill: var(--soft); }
.c0 { --own: var(--c0); } .c1 { --own: var(--c1); } .c2 { --own: var(--c2); }
.c3 { --own: var(--c3); } .c4 { --own: var(--c4); } .c5 { --own: var(--c5); }
.c6 { --own: var(--c6); } .c7 { --own: var(--c7); } .aside { --own: var(--soft); }
.train { --own: var(--c2); } .start { --own: var(--start); } .lost { --own: var(--lost); }
path:not(.aside) { stroke: var(--own); } rect { fill: var(--own); }
path.dash1 { stroke-dasharray: 7 3; } path.dash2 { stroke-dasharray: 2 3; }
.key-of { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; list-style: none; margin: .3rem 0;
  padding: 0; font-size: .87rem; color: var(--soft); }
.swatch { display: inline-block; width: .8rem; height: .8rem; border-radius: .15rem;
  margin-right: .4rem; vertical-align: -.05rem; background: var(--own); }
.key-of li, td:has(> .swatch) { padding-left: 1.2rem; text-indent: -1.2rem; }
.dash1.swatch, .dash2.swatch { height: 0; border-top: .2rem dashed var(--own); background: none;
  vertical-align: .2rem; }
.dash2.swatch { border-top-style: dotted; }
details { border-top: 1px solid var(--line); padding: .5rem 0; }
summary { cursor: pointer; font-size: 1.15rem; font-weight: 600; }
@media print { h2 { break-after: avoid; } figure { break-inside: avoid; } }
"""
