/* SPDX-License-Identifier: Apache-2.0 */
/*
 * chart_style.c - the style sheet of charts and the script that shows the values under the pointer.
 * page.c puts them into the page.
 */
#include "cli/report/chart.h"

const char *chart_style(void)
{
    return ":root{--s0:#1668b8;--s1:#c2571a;--s2:#2e8540;--s3:#7d4fb3;--s4:#8a6d00;--s5:#a3344d;--"
           "s6:#5c6675}\n"
           "@media(prefers-color-scheme:dark){:root{--s0:#6cb2f5;--s1:#f0955c;--s2:#74c586;"
           "--s3:#b99be6;--s4:#d9bb4e;--s5:#ea8198;--s6:#9aa5b4}}\n"
           ".s0{--c:var(--s0)}.s1{--c:var(--s1)}.s2{--c:var(--s2)}.s3{--c:var(--s3)}"
           ".s4{--c:var(--s4)}.s5{--c:var(--s5)}.s6{--c:var(--s6)}\n"
           "figure{margin:0;padding:14px 16px;border:1px solid var(--rule);border-radius:8px;"
           "background:var(--card);min-width:0}\n"
           "figcaption{font-weight:600;margin-bottom:12px}\n"
           ".key{display:inline-block;font-weight:400;font-size:13px;margin-left:12px;"
           "color:var(--soft);white-space:nowrap}\n"
           ".key b{display:inline-block;min-width:2.8em;color:var(--ink);font-weight:400;"
           "font-variant-numeric:tabular-nums}\n"
           ".key i,td i{display:inline-block;width:10px;height:10px;border-radius:2px;"
           "background:var(--c);margin-right:5px}\n"
           ".plot{display:grid;grid-template-columns:auto 1fr;column-gap:8px;"
           "padding-right:10px;font-size:12px;color:var(--soft);"
           "font-variant-numeric:tabular-nums}\n"
           ".ys,.xs{position:relative}.ys b{visibility:hidden}\n"
           ".ys span{position:absolute;right:0;transform:translateY(-50%);line-height:1}\n"
           ".xs{grid-column:2;height:18px}\n"
           ".xs span{position:absolute;top:5px;transform:translateX(-50%);line-height:1}\n"
           ".x{grid-column:2;margin:0;text-align:center}\n"
           ".area{height:230px}svg{display:block;width:100%;height:100%;overflow:visible}\n"
           "svg *{vector-effect:non-scaling-stroke}.grid{stroke:var(--rule);stroke-width:1}\n"
           ".line{fill:none;stroke:var(--c);stroke-width:1.6;stroke-linejoin:round}\n"
           ".point{stroke:var(--c);stroke-width:5;stroke-linecap:round}rect{fill:var(--c)}\n"
           ".at{stroke:var(--ink);stroke-width:1;stroke-dasharray:3 3}\n"
           ".none{color:var(--soft)}\n";
}

/* Shows the value under the pointer beside each name: the nearest point of a line, or the
 * column. */
const char *chart_script(void)
{
    return "document.querySelectorAll('figure').forEach(function(figure){\n"
           "  var svg=figure.querySelector('.area svg');if(!svg)return;\n"
           "  var chart=JSON.parse(figure.querySelector('script').textContent);\n"
           "  var mark=svg.querySelector('.at'),step=figure.querySelector('.x span');\n"
           "  var keys=Array.from(figure.querySelectorAll('.key b'));\n"
           "  var last=keys.map(function(key){return key.textContent;});\n"
           "  function find(one,x){\n"
           "    var best=-1;\n"
           "    one.x.forEach(function(value,i){\n"
           "      if(one.y[i]!==null&&(chart.stacked?best===-1&&value>=x:\n"
           "         best===-1||Math.abs(one.x[best]-x)>Math.abs(value-x)))best=i;});\n"
           "    return best;}\n"
           "  function show(event){\n"
           "    var box=svg.getBoundingClientRect();\n"
           "    var part=Math.min(1,Math.max(0,(event.clientX-box.left)/box.width));\n"
           "    var x=chart.x0+part*(chart.x1-chart.x0);\n"
           "    chart.series.forEach(function(one,s){\n"
           "      var i=find(one,x);keys[s].textContent=i===-1?'':one.y[i];\n"
           "      if(s===0&&i!==-1)step.textContent=one.x[i];});\n"
           "    mark.setAttribute('d','M'+part*1000+' 0V1000');}\n"
           "  svg.addEventListener('pointermove',show);svg.addEventListener('pointerdown',show);\n"
           "  svg.addEventListener('pointerleave',function(){\n"
           "    keys.forEach(function(key,s){key.textContent=last[s];});\n"
           "    step.textContent='';mark.setAttribute('d','');});\n"
           "});\n";
}
