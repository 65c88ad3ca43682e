'use strict';
// Data, numbers in words, and small tools. Everything a report says comes in as text nodes.
const D = JSON.parse(document.getElementById('data').textContent);
const measureAt = Object.fromEntries(D.measures.map((m, i) => [m.id, i]));
const cellAt = new Map(D.cells.map((c) => [c.c + '/' + c.s + '/' + c.m, c]));

const state = {setup: 0, timers: '', phase: '', measure: 'settle', hidden: new Set(), order: 'owner'};

// el makes an element: attributes, then children; strings become text.
function el(name, attrs, ...children) {
  const svg = ['svg', 'g', 'path', 'line', 'text', 'circle', 'rect', 'polygon', 'title'].includes(name);
  const e = svg ? document.createElementNS('http://www.w3.org/2000/svg', name) : document.createElement(name);
  for (const [k, v] of Object.entries(attrs || {})) {
    if (k.startsWith('on')) e.addEventListener(k.slice(2), v);
    else if (k.startsWith('--')) e.style.setProperty(k, v);
    else if (v === true) e.setAttribute(k, '');
    else if (v !== false && v !== null && v !== undefined) e.setAttribute(k, v);
  }
  e.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== ''));
  return e;
}

function span(ms) {
  const s = ms / 1000;
  if (ms === 0) return '0 s';
  if (ms < 1) return ms.toFixed(2) + ' ms';
  if (ms < 9.95) return ms.toFixed(1) + ' ms';
  if (ms < 999.5) return ms.toFixed(0) + ' ms';
  if (s < 9.995) return s.toFixed(2) + ' s';
  if (s < 99.95) return s.toFixed(1) + ' s';
  if (s < 99999.5) return s.toFixed(0) + ' s';
  return (s / 3600).toFixed(0) + ' h';
}

function size(b) {
  const units = ['B', 'kB', 'MB', 'GB', 'TB'];
  let i = 0;
  for (; b >= 999.5 && i < units.length - 1; i++) b /= 1000;
  return b.toFixed(i > 0 && b < 99.5 ? 1 : 0) + ' ' + units[i];
}

const whole = (v) => Number.isInteger(v) ? String(v) : v.toFixed(1);

function inUnit(unit, v) {
  switch (unit) {
    case 'ms': return span(v);
    case 'B': return size(v);
    case 'B/s': return size(v) + '/s';
    default: return whole(v);
  }
}

// stat is a measure of an event: median, least, most.
function stat(ev, i) {
  const v = ev.v[i];
  return Array.isArray(v) ? {mid: v[0], lo: v[1], hi: v[2]} : {mid: v, lo: v, hi: v};
}

// worth is what a measure is judged by: moves only beyond the least number.
function worth(ev, i) {
  const m = D.measures[i], v = stat(ev, i).mid;
  return m.beside ? Math.max(0, v - stat(ev, measureAt[m.beside]).mid) : v;
}

// words are a measure's figure and its spread.
function words(ev, i) {
  const m = D.measures[i], s = stat(ev, i);
  let text = inUnit(m.unit, s.mid);
  if (m.beside) text += '\u00a0/\u00a0' + inUnit(m.unit, stat(ev, measureAt[m.beside]).mid);
  if (m.id === 'settle' && ev.u) text = '> ' + text;
  const a = inUnit(m.unit, s.lo), b = inUnit(m.unit, s.hi);
  return {text, spread: a === b ? '' : a + ' – ' + b};
}

function conditionIndex() {
  return D.conditions.findIndex((c) => c.setup === state.setup && c.timers === state.timers && c.phase === state.phase);
}
const cellOf = (cond, scene, model) => cellAt.get(cond + '/' + scene + '/' + model);
const eventOf = (cell, name) => cell && cell.ev.find((e) => e.n === name);
const shownModels = () => D.models.map((_, i) => i).filter((i) => !state.hidden.has(i));

function eventsOf(cond, scene) {
  const names = [];
  for (let m = 0; m < D.models.length; m++) {
    const c = cellOf(cond, scene, m);
    for (const e of c ? c.ev : []) if (!names.includes(e.n)) names.push(e.n);
  }
  return names;
}

// unsettledText says how many runs of an event did not settle, and why.
const unsettledText = (ev) => ev.u ? (ev.r > 1 ? ev.u + ' of ' + ev.r + ' runs' : 'the run') + ' did not settle: ' + ev.w : '';

// color resolves a custom property for canvas.
const probe = el('span', {style: 'display:none'});
document.body.append(probe);
function color(name) {
  probe.style.color = 'var(' + name + ')';
  return getComputedStyle(probe).color;
}

// Owners: eight hues that colour-blind readers can tell apart, none like the red of two
// owners; later members get them brighter or darker.
const hues = [[59, 120, 184], [230, 154, 23], [31, 158, 119], [124, 190, 232], [199, 116, 168], [190, 178, 20], [112, 86, 170], [140, 96, 64]];
function ownerColor(i) {
  const [r, g, b] = hues[i % hues.length], round = Math.floor(i / hues.length) % 4;
  const mix = (v) => Math.round(round === 1 ? v + (255 - v) * 0.45 : round === 2 ? v * 0.62 : round === 3 ? v + (255 - v) * 0.7 : v);
  return 'rgb(' + mix(r) + ',' + mix(g) + ',' + mix(b) + ')';
}

// Models in line charts: a colour, a shape and a dash each.
const lineColors = ['#0072b2', '#e69f00', '#009e73', '#cc79a7', '#56b4e9', '#d55e00', '#8a63c7', '#8c8c8c'];
const dashes = ['', '6 3', '2 2', '8 3 2 3', '4 2', '10 4', '1 3', '6 2 1 2'];
function modelLine(i) {
  return {color: lineColors[i % lineColors.length], dash: dashes[i % dashes.length], shape: i % 6};
}
function marker(x, y, i, r = 4) {
  const {color: fill, shape} = modelLine(i);
  const poly = (pts) => el('polygon', {points: pts.map(([a, b]) => (x + a * r) + ',' + (y + b * r)).join(' '), fill});
  switch (shape) {
    case 1: return poly([[-1, -1], [1, -1], [1, 1], [-1, 1]]);
    case 2: return poly([[0, -1.3], [1.2, 1], [-1.2, 1]]);
    case 3: return poly([[0, -1.4], [1.4, 0], [0, 1.4], [-1.4, 0]]);
    case 4: return poly([[0, 1.3], [1.2, -1], [-1.2, -1]]);
    case 5: return poly([[-1.3, -0.5], [-0.5, -0.5], [-0.5, -1.3], [0.5, -1.3], [0.5, -0.5], [1.3, -0.5], [1.3, 0.5], [0.5, 0.5], [0.5, 1.3], [-0.5, 1.3], [-0.5, 0.5], [-1.3, 0.5]]);
    default: return el('circle', {cx: x, cy: y, r, fill});
  }
}
function modelLegend(models) {
  return el('ul', {class: 'mlegend', 'aria-label': 'Models'}, models.map((i) => {
    const l = modelLine(i);
    return el('li', {}, el('svg', {width: 34, height: 14, viewBox: '0 0 34 14', 'aria-hidden': 'true'},
      el('line', {x1: 0, x2: 34, y1: 7, y2: 7, stroke: l.color, 'stroke-width': 2, 'stroke-dasharray': l.dash}), marker(17, 7, i)),
    el('span', {class: 'name'}, D.models[i].name));
  }));
}

// ticks are round values from a to b, about n of them.
function ticks(a, b, n) {
  const raw = (b - a) / Math.max(1, n), p = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((k) => k * p).find((s) => s >= raw * 0.999);
  const out = [];
  for (let v = Math.ceil(a / step - 1e-9) * step; v <= b + step * 1e-9; v += step) out.push(Math.abs(v) < step * 1e-6 ? 0 : v);
  return {step, at: out};
}

// timeText writes a tick of an axis whose ticks are so far apart, in ms.
function timeText(ms, step) {
  if (step < 1000 && Math.abs(ms) < 1000) return (step < 1 ? ms.toFixed(1) : ms.toFixed(0)) + ' ms';
  const digits = step >= 1000 ? 0 : step >= 100 ? 1 : step >= 10 ? 2 : 3;
  return (ms / 1000).toFixed(digits) + ' s';
}

// options is a group of radio buttons that looks like one control.
function options(legend, name, items, now, pick) {
  return el('fieldset', {class: 'seg'}, el('legend', {}, legend), el('span', {class: 'opts'}, items.map(([value, text, off]) =>
    el('label', {}, el('input', {type: 'radio', name, value, checked: value === now, disabled: off, onchange: () => pick(value)}), el('span', {}, text)))));
}

// region is a box that scrolls sideways, and by keys.
const region = (label, ...children) => el('div', {class: 'scroll', tabindex: 0, role: 'region', 'aria-label': label}, ...children);
