"""The style sheet of the page: light and dark by the reader's setting, from a phone's width up."""

from __future__ import annotations

STYLE = """
:root{color-scheme:light dark;--bg:#fff;--panel:#f5f6f8;--text:#1b1f24;--quiet:#57606c;--line:#d5dae0;
--c0:#1769aa;--c1:#b93a0b;--c2:#15743a;--c3:#7a22c4;--bad:#b3261e;--good:#15743a;--warn:#8a5a00;--heat:#f3a24e;
--p0:#2f7fc1;--p1:#e0a100;--p2:#3f9b5b;--p3:#9b6bd3;--p4:#8a94a0;--p5:#c4cbd3;--p6:#cf3f35;--p7:#5b6470}
@media (prefers-color-scheme:dark){:root{--bg:#13161a;--panel:#1c2026;--text:#e4e8ec;--quiet:#9da8b4;
--line:#363e48;--c0:#6cb6ff;--c1:#ffa657;--c2:#5fd07a;--c3:#d2a8ff;--bad:#ff8a80;--good:#5fd07a;--warn:#f0c05a;
--heat:#a5601c;--p0:#4a9ade;--p1:#d9a520;--p2:#52b070;--p3:#b088e6;--p4:#7d8895;--p5:#4b545f;--p6:#ef6a60;
--p7:#a0aab5}}
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--bg);color:var(--text);font:16px/1.5 system-ui,sans-serif}
main{max-width:1180px;margin:0 auto;padding:1.25rem 1rem 3rem}
h1{font-size:1.6rem;line-height:1.25;margin:0;overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:2.25rem 0 .75rem;padding-top:.75rem;border-top:1px solid var(--line)}
h3{font-size:1rem;margin:0 0 .25rem;overflow-wrap:anywhere}
p{margin:.4rem 0}
.quiet,.label{color:var(--quiet);fill:var(--quiet)}
.phase{display:inline-block;margin-left:.5rem;padding:.05rem .6rem;border-radius:1rem;font-size:1rem;
border:1px solid currentColor;vertical-align:middle;white-space:nowrap}
.done{color:var(--good)}.failed,.lost,.restarted{color:var(--bad)}.running{color:var(--c0)}
.preempted,.stopped{color:var(--warn)}
.tiles{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.6rem;margin:1.25rem 0}
.tiles div{background:var(--panel);border-radius:.5rem;padding:.5rem .75rem;min-width:0}
.tiles dt{color:var(--quiet);font-size:.85rem;overflow-wrap:anywhere}
.tiles dd{margin:0;font-size:1.2rem;overflow-wrap:anywhere}
.tiles small{display:block;color:var(--quiet);font-size:.8rem}
.box{border:1px solid var(--line);border-left:.3rem solid var(--bad);border-radius:.3rem;padding:.6rem .9rem;
margin:1rem 0;overflow-wrap:anywhere}
.box h2{border:0;padding:0;margin:0 0 .4rem}
.box.note{border-left-color:var(--warn)}
.warning{color:var(--warn)}
.charts{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,24rem),1fr));gap:1rem 1.5rem}
.chart{min-width:0}
svg{display:block;width:100%;height:auto;overflow:visible}
svg text{font:12px system-ui,sans-serif}
@media (max-width:30rem){svg text{font-size:15px}}
.end{text-anchor:end}.middle{text-anchor:middle}
.grid{stroke:var(--line);stroke-width:1}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round;vector-effect:non-scaling-stroke}
.c0{stroke:var(--c0)}.c1{stroke:var(--c1);stroke-dasharray:7 3}.c2{stroke:var(--c2);stroke-dasharray:2 3}
.c3{stroke:var(--c3);stroke-dasharray:9 3 2 3}
.band{stroke:none;opacity:.22}.b0{fill:var(--c0)}.b1{fill:var(--c1)}.b2{fill:var(--c2)}.b3{fill:var(--c3)}
circle.line{stroke-dasharray:none;fill:var(--bg)}
.repeated{opacity:.4}
.mark{stroke-width:1.2;vector-effect:non-scaling-stroke}
.mark.attempt{stroke:var(--quiet);stroke-dasharray:2 4}.mark.failure{stroke:var(--bad)}
.legend{display:flex;flex-wrap:wrap;gap:0 1rem;font-size:.85rem;margin:.1rem 0}
.key{white-space:nowrap}.key svg{display:inline-block;width:24px;height:10px;margin-right:.35rem}
.swatch{display:inline-block;width:.8rem;height:.8rem;border-radius:.15rem;margin-right:.35rem}
.over{border:0;padding:0;margin:.5rem 0 1rem;display:flex;gap:1.25rem;flex-wrap:wrap}
.over legend{float:left;padding:0;margin-right:1.25rem;color:var(--quiet)}
.by-time{display:none}
main:has(#over-time:checked) .by-step{display:none}
main:has(#over-time:checked) .by-time{display:block}
details{margin:.35rem 0}
summary{cursor:pointer;color:var(--quiet)}
:focus-visible{outline:2px solid var(--c0);outline-offset:2px}
.scroll{overflow-x:auto;margin:.4rem 0}
details .scroll,.ranks .scroll{overflow:auto;max-height:34rem}
.ranks h3{margin-top:1.25rem}
table{border-collapse:collapse;font-size:.9rem;font-variant-numeric:tabular-nums}
caption{text-align:left;color:var(--quiet);padding:.2rem 0}
caption span{display:inline-block;position:sticky;left:0;max-width:calc(100vw - 2.5rem)}
th,td{text-align:left;padding:.25rem .9rem .25rem 0;vertical-align:top;border-bottom:1px solid var(--line);
white-space:nowrap}
thead th{color:var(--quiet);font-weight:500;vertical-align:bottom}
details thead th,.ranks thead th{position:sticky;top:0;background:var(--bg)}
tbody th{font-weight:500}
th code{overflow-wrap:normal}
td.value{overflow-wrap:anywhere;min-width:13rem;white-space:pre-wrap}
td.heat{background:color-mix(in srgb,var(--heat) var(--share),transparent);padding:.25rem .5rem}
td small{display:block;font-size:.85em}
th.part{white-space:normal;padding:.25rem .5rem;max-width:8rem}
td.odd{outline:2px solid var(--bad);outline-offset:-2px}
.track{position:relative;display:block;height:.9rem;width:100%;min-width:11rem;margin-top:.3rem;
background:var(--panel);border-radius:.2rem;overflow:hidden}
.track span{position:absolute;top:0;bottom:0;min-width:2px;background:currentColor}
.track .failure{background:var(--bad);width:2px}
.stack{display:flex;height:1.1rem;min-width:8rem;border-radius:.2rem;overflow:hidden;background:var(--panel)}
.p0{background:var(--p0)}.p1{background:var(--p1)}.p2{background:var(--p2)}.p3{background:var(--p3)}
.p4{background:var(--p4)}.p5{background:var(--p5)}.p6{background:var(--p6)}.p7{background:var(--p7)}
pre{background:var(--panel);border-radius:.3rem;padding:.6rem .75rem;overflow:auto;max-height:30rem;
font:.82rem/1.45 ui-monospace,monospace;margin:.4rem 0}
code{font:.9em ui-monospace,monospace;overflow-wrap:anywhere}
footer{margin-top:2.5rem;padding-top:.75rem;border-top:1px solid var(--line);color:var(--quiet);
font-size:.85rem}
"""
