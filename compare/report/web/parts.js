// The overview, bars, tables and small multiples.

// spread maps figures to 0..1 so that decades are even steps; 0 stays 0.
const unitStep = {ms: 1, n: 1, B: 100, 'B/s': 100};
const even = (unit, v) => Math.log1p(v / unitStep[unit]);

function matrix(cond) {
  const i = measureAt[state.measure], m = D.measures[i], models = shownModels();
  const rows = [];
  D.scenes.forEach((s, si) => {
    const events = eventsOf(cond, si);
    if (!events.length && models.some((mi) => cellOf(cond, si, mi))) events.push('');
    events.forEach((name) => rows.push({s, si, name, several: events.length > 1}));
  });
  const line = ({s, si, name, several}) => {
    const cells = models.map((mi) => ({cell: cellOf(cond, si, mi), ev: eventOf(cellOf(cond, si, mi), name)}));
    const all = cells.filter((c) => c.ev).map((c) => worth(c.ev, i)), low = Math.min(...all), high = Math.max(...all);
    const differ = high > low * 1.05 && even(m.unit, high) - even(m.unit, low) > 1e-3;
    return el('tr', {}, el('th', {scope: 'row'}, el('a', {href: '#' + s.id}, s.name), several ? el('small', {}, name) : ''), cells.map(({cell, ev}) => {
      if (!ev) return el('td', {class: 'no', title: cell ? (cell.errors || ['']).join('; ') : 'not run'}, cell ? 'failed' : '–');
      const v = worth(ev, i), w = words(ev, i);
      // Full colour takes a decade at least, so that small differences look small.
      const t = differ ? (even(m.unit, v) - even(m.unit, low)) / Math.max(Math.LN10, even(m.unit, high) - even(m.unit, low)) : 0;
      const best = differ && v <= low * 1.02;
      return el('td', {class: best ? 'best' : null, '--t': t.toFixed(3), '--w': (high > 0 ? even(m.unit, v) / even(m.unit, high) : 0).toFixed(3), title: unsettledText(ev) || null},
        w.text, best ? el('span', {class: 'hidden'}, ' (least)') : '', w.spread ? el('small', {}, '(' + w.spread + ')') : '', el('i', {'aria-hidden': 'true'}));
    }));
  };
  return region('Overview as a table', el('table', {class: 'matrix'},
    el('caption', {}, m.label + (m.beside ? ' / ' + D.measures[measureAt[m.beside]].label : '') + ', scenario by model'),
    el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'scenario'), models.map((mi) => el('th', {scope: 'col'}, el('span', {class: 'name'}, D.models[mi].name))))),
    el('tbody', {}, rows.map(line))));
}

// bars are the measures of an event, a chart each with a bar for each model.
function bars(cond, scene, name) {
  const models = shownModels().map((mi) => ({mi, ev: eventOf(cellOf(cond, scene, mi), name)})).filter((c) => c.ev);
  return D.measures.map((m, i) => {
    if (!m.bars || m.missing) return '';
    const stats = models.map((c) => stat(c.ev, i)), beside = m.beside ? measureAt[m.beside] : -1;
    const extra = beside < 0 ? [] : models.map((c) => stat(c.ev, beside).mid);
    const high = Math.max(0, ...stats.map((s) => s.hi), ...extra);
    if (high === 0) return el('figure', {}, el('figcaption', {}, m.label, ' ', el('small', {}, inUnit(m.unit, 0) + ' in all models')));
    const positive = stats.flatMap((s) => [s.lo, s.mid]).filter((v) => v > 0), low = Math.min(high, ...positive);
    const log = high > 0 && high / low > 30;
    const base = log ? [5, 2, 1].map((k) => k * 10 ** Math.floor(Math.log10(low / 1.3))).find((v) => v <= low / 1.3) : 0;
    const at = (v) => v <= 0 || high <= 0 ? 0 : log ? Math.max(0, Math.log(v / base) / Math.log(high / base)) : v / high;
    const pct = (v) => (at(v) * 100).toFixed(2) + '%';
    const scale = log ? 'log scale from ' + inUnit(m.unit, base) : '';
    const text = models.map((c) => D.models[c.mi].name + ' ' + words(c.ev, i).text).join(', ');
    return el('figure', {}, el('figcaption', {}, m.label, ' ', el('small', {}, scale + (beside >= 0 ? (scale ? '; ' : '') + 'dashed: the least number' : ''))),
      el('div', {role: 'img', 'aria-label': m.label + ': ' + text}, models.map((c, k) => {
        const s = stats[k];
        return el('div', {class: 'brow'}, el('span', {class: 'n', title: D.models[c.mi].name}, D.models[c.mi].name),
          el('span', {class: 'track'}, el('i', {class: 'f', style: 'width:' + pct(s.mid)}),
            s.hi > s.lo ? el('i', {class: 's', style: 'left:' + pct(s.lo) + ';width:' + ((at(s.hi) - at(s.lo)) * 100).toFixed(2) + '%'}) : '',
            beside >= 0 && extra[k] > 0 ? el('i', {class: 'm', style: 'left:' + pct(extra[k])}) : ''),
          el('span', {class: 'v'}, words(c.ev, i).text));
      })));
  });
}

// numbers is the table of all measures of all events of a scenario.
function numbers(cond, scene) {
  const events = eventsOf(cond, scene), models = shownModels();
  const listed = D.measures.map((m, i) => ({m, i})).filter(({m}) => m.text && !m.missing);
  const rows = [];
  for (const name of events) {
    for (const mi of models) {
      const cell = cellOf(cond, scene, mi), ev = eventOf(cell, name);
      if (!ev) continue;
      rows.push(el('tr', {}, el('th', {scope: 'row'}, D.models[mi].name), events.length > 1 ? el('td', {class: 'text'}, name) : '', listed.map(({i}) => {
        const w = words(ev, i);
        return el('td', {class: i === measureAt.settle && ev.u ? 'bad' : null}, w.text, w.spread ? el('small', {}, '(' + w.spread + ')') : '');
      }), el('td', {}, String(cell.n))));
    }
  }
  return region('Figures of ' + D.scenes[scene].name, el('table', {}, el('caption', {}, 'Median over the seeds (least – most)'),
    el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'model'), events.length > 1 ? el('th', {scope: 'col'}, 'event') : '',
      listed.map(({m}) => el('th', {scope: 'col'}, m.label + (m.beside ? ' / least' : ''))), el('th', {scope: 'col'}, 'runs'))),
    el('tbody', {}, rows)));
}

// notes are what figures do not say: what did not settle or could not be run.
function notes(cond, scene) {
  const out = [];
  for (const mi of shownModels()) {
    const cell = cellOf(cond, scene, mi);
    if (!cell) continue;
    if (cell.errors) out.push(D.models[mi].name + ': ' + cell.errors.length + ' of ' + cell.n + ' runs could not be made: ' + cell.errors[0]);
    for (const ev of cell.ev) if (ev.u) out.push(D.models[mi].name + ', ' + ev.n + ': ' + unsettledText(ev));
  }
  return out.length ? el('ul', {class: 'note'}, out.map((t) => el('li', {}, t))) : '';
}

// Cost against the number of members, for the setups that differ in size alone.
const sized = {scene: -1, event: ''};
function sizesOf(scene) {
  const here = D.setups[state.setup].alike, out = [];
  D.conditions.forEach((c, ci) => {
    const s = D.setups[c.setup];
    if (s.alike === here && c.timers === state.timers && c.phase === state.phase && D.models.some((_, mi) => cellOf(ci, scene, mi))) out.push({ci, s});
  });
  return out.sort((a, b) => a.s.members - b.s.members || a.s.queues - b.s.queues);
}

function sizes() {
  const able = D.scenes.map((_, si) => si).filter((si) => new Set(sizesOf(si).map((x) => x.s.members)).size > 1);
  if (!able.length) return [el('p', {class: 'note'}, 'No scenario was run in groups of several sizes under these conditions.')];
  if (!able.includes(sized.scene)) sized.scene = able.find((si) => D.scenes[si].name === 'join') ?? able[0];
  const list = sizesOf(sized.scene), events = [...new Set(list.flatMap((x) => eventsOf(x.ci, sized.scene)))];
  if (!events.includes(sized.event)) sized.event = events[0];
  const redraw = () => document.getElementById('sizes-body').replaceChildren(...sizes());
  const pick = (label, items, now, set) => {
    const id = 'sized-' + label;
    return el('label', {class: 'field'}, el('span', {class: 'lab'}, label), el('select', {id, onchange: (e) => {
      set(e.target.value);
      redraw();
      document.getElementById(id).focus();
    }}, items.map(([v, t]) => el('option', {value: v, selected: v === now}, t))));
  };
  const tools = el('div', {class: 'tools'}, pick('Scenario', able.map((si) => [si, D.scenes[si].name]), sized.scene, (v) => { sized.scene = Number(v); }),
    events.length > 1 ? pick('Event', events.map((e) => [e, e]), sized.event, (v) => { sized.event = v; }) : '');
  const models = shownModels();
  const shown = ['settle', 'gap_total', 'wire_messages', 'wire_bytes'].map((id) => measureAt[id]).filter((i) => !D.measures[i].missing);
  const points = (mi, i) => list.map((x) => ({x, ev: eventOf(cellOf(x.ci, sized.scene, mi), sized.event)})).filter((p) => p.ev).map((p) => ({n: p.x.s.members, q: p.x.s.queues, ...stat(p.ev, i)}));
  const charts = shown.map((i) => sizeChart(i, models.map((mi) => ({mi, points: points(mi, i)}))));
  const table = region('Cost against group size as a table', el('table', {}, el('caption', {}, 'Median over the seeds'),
    el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'model'), el('th', {scope: 'col'}, 'members × queues'), shown.map((i) => el('th', {scope: 'col'}, D.measures[i].label)))),
    el('tbody', {}, models.flatMap((mi) => list.map((x) => {
      const ev = eventOf(cellOf(x.ci, sized.scene, mi), sized.event);
      return ev ? el('tr', {}, el('th', {scope: 'row'}, D.models[mi].name), el('td', {}, x.s.members + ' × ' + x.s.queues), shown.map((i) => el('td', {}, words(ev, i).text))) : '';
    })))));
  return [tools, modelLegend(models), el('div', {class: 'small'}, charts), el('details', {open: true}, el('summary', {}, 'Numbers as a table'), table)];
}

function sizeChart(i, lines) {
  const m = D.measures[i], W = 340, H = 220, L = 54, R = 12, T = 10, B = 34;
  const all = lines.flatMap((l) => l.points), ns = [...new Set(all.map((p) => p.n))].sort((a, b) => a - b);
  const high = Math.max(unitStep[m.unit], ...all.map((p) => p.hi)), positive = all.map((p) => p.mid).filter((v) => v > 0);
  const lowest = Math.min(high, ...positive), zero = all.some((p) => p.mid <= 0);
  const floor = 10 ** Math.floor(Math.log10(lowest)), top = 10 ** Math.ceil(Math.log10(high * 1.001));
  const bottom = H - B - (zero ? 14 : 0);
  const x = (n) => ns.length < 2 ? (L + W - R) / 2 : L + (Math.log(n) - Math.log(ns[0])) / (Math.log(ns[ns.length - 1]) - Math.log(ns[0])) * (W - L - R - 8) + 4;
  const y = (v) => v <= 0 ? H - B : bottom - Math.log(Math.max(v, floor) / floor) / Math.log(top / floor) * (bottom - T);
  const grid = [];
  const decades = Math.round(Math.log10(top / floor)), skip = Math.ceil(decades / 5);
  for (let k = 0; k <= decades; k += skip) grid.push([floor * 10 ** k, inUnit(m.unit, floor * 10 ** k).replace(/\.0+ /, ' ')]);
  if (zero) grid.push([0, '0']);
  const svg = el('svg', {viewBox: '0 0 ' + W + ' ' + H, role: 'img', 'aria-label': m.label + ' against members: ' + lines.filter((l) => l.points.length).map((l) =>
    D.models[l.mi].name + ' ' + l.points.map((p) => inUnit(m.unit, p.mid) + ' at ' + p.n).join(', ')).join('; ')},
  grid.map(([v, t]) => [el('line', {class: 'gridline', x1: L, x2: W - R, y1: y(v), y2: y(v)}), el('text', {x: L - 6, y: y(v) + 4, 'text-anchor': 'end'}, t)]),
  ns.map((n) => el('text', {x: x(n), y: H - B + 16, 'text-anchor': 'middle'}, String(n))),
  el('text', {x: (L + W - R) / 2, y: H - 3, 'text-anchor': 'middle'}, 'members'));
  for (const l of lines) {
    const style = modelLine(l.mi);
    if (l.points.length > 1) {
      svg.append(el('path', {d: l.points.map((p, k) => (k ? 'L' : 'M') + x(p.n).toFixed(1) + ' ' + y(p.mid).toFixed(1)).join(''), fill: 'none', stroke: style.color, 'stroke-width': 2, 'stroke-dasharray': style.dash}));
    }
    for (const p of l.points) {
      if (p.hi > p.lo) svg.append(el('line', {x1: x(p.n), x2: x(p.n), y1: y(p.lo), y2: y(p.hi), stroke: style.color, 'stroke-width': 1}));
      svg.append(el('g', {}, el('title', {}, D.models[l.mi].name + ', ' + p.n + ' × ' + p.q + ': ' + inUnit(m.unit, p.mid)), marker(x(p.n), y(p.mid), l.mi)));
    }
  }
  return el('figure', {}, el('figcaption', {}, m.label, ' ', el('small', {}, 'both axes log' + (zero ? ', 0 below' : ''))), svg);
}

// modelTable describes models and the settings they had.
function modelTable(cond) {
  const sets = D.models.map((_, mi) => {
    const cell = D.cells.find((c) => c.c === cond && c.m === mi);
    return cell ? D.settings[cell.set] || [] : [];
  });
  const names = [...new Set(sets.flatMap((s) => s.map((x) => x.name)))];
  return region('Models and their timers as a table', el('table', {}, el('caption', {}, 'As they were with ' + (D.conditions[cond] ? D.conditions[cond].timers_text : '')),
    el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'model'), el('th', {scope: 'col', style: 'text-align:left;min-width:16em'}, 'what it is'), el('th', {scope: 'col'}, 'coordinator'), names.map((n) => el('th', {scope: 'col'}, n)))),
    el('tbody', {}, D.models.map((m, mi) => el('tr', {}, el('th', {scope: 'row'}, m.name), el('td', {class: 'text'}, m.text), el('td', {}, m.coordinated ? 'yes' : 'no'), names.map((n) => {
      const s = sets[mi].find((x) => x.name === n);
      return el('td', {}, s ? s.value : '–');
    }))))));
}
