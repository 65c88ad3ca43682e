// The charts of owners: one for each model, all on one axis of time.

// decode unpacks a chart: for each queue its owners over time, gaps and double owners
// included, as segments [from, to, kind, member, other]; times in ms.
const NOBODY = -1, TWICE = -2;
const decoded = new Map();
function decode(index) {
  if (decoded.has(index)) return decoded.get(index);
  const c = D.charts[index], raw = atob(c.bars);
  let at = 0;
  const next = () => {
    let v = 0, f = 1;
    for (;;) {
      const b = raw.charCodeAt(at++);
      v += (b & 127) * f;
      if (b < 128) return v;
      f *= 128;
    }
  };
  const queues = D.lists[c.queues], rows = [];
  for (let q = 0; q < queues.length; q++) {
    const bars = [];
    let end = 0;
    for (let n = next(); n > 0; n--) {
      const m = next(), z = next(), from = end + (z % 2 ? -(z + 1) / 2 : z / 2);
      end = from + next();
      bars.push([from * c.tick, end * c.tick, m]);
    }
    rows.push(segments(bars, c.to * c.tick));
  }
  const marks = [];
  for (let i = 0; i < c.marks.length; i += 2) marks.push({at: c.marks[i] * c.tick, text: c.marks[i + 1]});
  const lag = [];
  for (let i = 0; i < (c.lag || []).length; i += 2) lag.push([c.lag[i] * c.tick, c.lag[i + 1]]);
  const out = {queues, members: D.lists[c.members], rows, marks, lag, to: c.to * c.tick, seed: c.seed, settled: c.settled || {}, every: c.every || 1};
  decoded.set(index, out);
  return out;
}

function segments(bars, to) {
  const cuts = [...new Set(bars.flatMap((b) => [b[0], b[1]]).concat(to))].sort((a, b) => a - b);
  const out = [];
  let open = [], next = 0; // bars are sorted by their beginning
  for (let i = 0; i + 1 < cuts.length; i++) {
    const a = cuts[i], b = cuts[i + 1];
    open = open.filter((o) => o[1] > a);
    while (next < bars.length && bars[next][0] <= a) open.push(bars[next++]);
    const kind = open.length === 0 ? NOBODY : open.length === 1 ? open[0][2] : TWICE;
    const last = out[out.length - 1];
    if (last && last[2] === kind && kind !== TWICE) last[1] = b;
    else out.push([a, b, kind, open.length ? open[0][2] : -1, open.length > 1 ? open[1][2] : -1]);
  }
  return out;
}

function segmentAt(row, t) {
  let a = 0, b = row.length;
  while (a < b) {
    const m = (a + b) >> 1;
    if (row[m][1] <= t) a = m + 1;
    else b = m;
  }
  return a < row.length && row[a][0] <= t ? row[a] : null;
}

function whoText(chart, seg) {
  if (!seg || seg[2] === NOBODY) return 'nobody';
  return seg[2] === TWICE ? chart.members[seg[3]] + ' and ' + chart.members[seg[4]] : chart.members[seg[2]];
}

// Charts of a scenario: they share the window of time and the cursor.
class Owners {
  constructor(scene, cond) {
    this.scene = scene;
    this.cond = cond;
    this.charts = shownModels().map((m) => {
      const cell = cellOf(cond, scene, m);
      return {model: m, cell, chart: cell && cell.chart !== undefined ? decode(cell.chart) : null, drawn: false};
    }).filter((c) => c.cell);
    this.cursor = null;
    this.box = el('div', {class: 'owners'});
  }

  // show builds the charts around an event.
  show(event) {
    this.event = event;
    this.cursor = null;
    const title = D.scenes[this.scene].name;
    for (const c of this.charts) {
      const e = c.cell.ev.find((x) => x.n === event);
      c.ev = e;
      const mark = c.chart && (c.chart.marks.find((m) => m.text === event) || c.chart.marks[0]);
      c.zero = mark ? mark.at : 0;
      c.rowOrder = null;
    }
    this.fits = this.charts.filter((c) => c.chart && c.ev).map((c) => ({model: c.model, ms: stat(c.ev, measureAt.settle).hi}))
      .sort((a, b) => b.ms - a.ms);
    this.window = this.fit(this.fits.length ? this.fits[0].ms : 1000);

    this.zoomSelect = el('select', {onchange: () => {
      const v = this.zoomSelect.value;
      if (v === 'all') this.window = this.whole();
      else if (v !== '') this.window = this.fit(this.fits[Number(v)].ms);
      this.draw();
    }}, this.fits.map((f, i) => el('option', {value: i}, 'until ' + D.models[f.model].name + ' settles, ' + span(f.ms))), el('option', {value: 'all'}, 'the whole run'), el('option', {value: '', hidden: true}, 'as zoomed'));
    const button = (text, label, f) => el('button', {type: 'button', 'aria-label': label, title: label, onclick: f}, text);
    const order = el('select', {onchange: (e) => {
      state.order = e.target.value;
      for (const c of this.charts) c.rowOrder = null;
      this.draw();
    }}, [['owner', 'by owner before the event'], ['queue', 'by queue']].map(([v, t]) => el('option', {value: v, selected: state.order === v}, t)));
    const tools = el('div', {class: 'tools'},
      el('label', {class: 'field'}, el('span', {class: 'lab'}, 'Time shown'), this.zoomSelect),
      el('span', {class: 'btns'},
        button('−', 'Zoom out', () => this.zoom(2)), button('+', 'Zoom in', () => this.zoom(0.5)),
        button('◀', 'Earlier', () => this.pan(-0.3)), button('▶', 'Later', () => this.pan(0.3))),
      el('label', {class: 'field'}, el('span', {class: 'lab'}, 'Rows'), order));

    this.group = el('div', {
      class: 'charts', tabindex: 0, role: 'application', 'aria-roledescription': 'charts of owners',
      'aria-label': 'Owners over time in scenario ' + title + ', event ' + event + ', one chart for each model. Arrow keys move a cursor, plus and minus zoom. The same is in a table below.',
      onkeydown: (e) => this.key(e),
    });
    for (const c of this.charts) this.build(c);
    this.axis = el('canvas', {class: 'axis', 'aria-hidden': 'true'});
    this.says = el('p', {class: 'says', 'aria-hidden': 'true'});
    this.spoken = el('p', {class: 'hidden', 'aria-live': 'polite'});
    this.group.append(this.axis);
    const parts = [tools, this.group, this.says, this.spoken,
      el('p', {class: 'keys'}, 'Drag to zoom in. Keys: ', el('kbd', {}, '← → ↑ ↓'), ' cursor, ', el('kbd', {}, '+ −'), ' zoom, ', el('kbd', {}, '0'), ' back. ' + this.seeds())];
    if (this.charts.some((c) => c.chart && c.chart.lag.length)) parts.splice(2, 0, this.buildLag());
    this.box.replaceChildren(...parts);
    this.watch();
  }

  // seeds says whose charts these are, if figures are of several.
  seeds() {
    const seeds = [...new Set(this.charts.filter((c) => c.chart && c.cell.n > 1).map((c) => c.chart.seed))];
    return seeds.length ? 'The charts are of seed ' + seeds.join(' or ') + '; figures are medians.' : '';
  }

  build(c) {
    const name = D.models[c.model].name;
    c.who = el('span', {class: 'who'});
    const fig = el('figure', {class: 'owner'}, el('figcaption', {}, el('span', {}, el('b', {class: 'name'}, name)), c.who));
    c.who.textContent = this.summary(c);
    if (c.chart) {
      const rows = c.chart.rows.length;
      c.rowHeight = Math.max(1, Math.min(9, Math.floor(180 / rows)));
      c.height = Math.ceil(rows * c.rowHeight);
      c.canvas = el('canvas', {role: 'img', 'aria-label': name + ': ' + rows + ' queues, a row each. ' + this.summary(c)});
      c.canvas.style.height = c.height + 2 + 'px';
      this.point(c);
      fig.append(c.canvas);
      if (c.chart.every > 1) fig.append(el('p', {class: 'keys'}, 'One of ' + c.chart.every + ' queues is shown.'));
    } else {
      fig.append(el('p', {class: 'empty'}, c.cell.errors ? 'The run could not be made: ' + c.cell.errors[0] : 'No chart of this run.'));
    }
    this.group.append(fig);
  }

  summary(c) {
    if (!c.ev) return c.cell.errors ? 'could not be run' : '';
    const of = (id) => words(c.ev, measureAt[id]).text;
    const parts = [c.ev.u ? 'not settled' : 'settled in ' + of('settle'), 'longest gap ' + of('gap_longest'), 'moved ' + of('moved')];
    if (stat(c.ev, measureAt.twice_queues).hi > 0) parts.push('two owners: ' + of('twice_queues'));
    return parts.join(' · ');
  }

  // fit is a window for an event that takes so long.
  fit(ms) {
    const d = Math.max(ms, 20);
    return [-d * 0.12, d * 1.15];
  }

  whole() {
    const all = this.charts.filter((c) => c.chart);
    return all.length ? [Math.min(...all.map((c) => -c.zero)), Math.max(...all.map((c) => c.chart.to - c.zero))] : [0, 1000];
  }

  zoom(f, around) {
    const [a, b] = this.window, [wa, wb] = this.whole();
    const t = around !== undefined ? around : this.cursor ? this.cursor.t : Math.min(Math.max(a, 0), b);
    const d = Math.max(100 * 0.1, Math.min((b - a) * f, wb - wa));
    const from = Math.max(wa, Math.min(t - (t - a) / (b - a) * d, wb - d));
    this.window = [from, from + d];
    this.free();
  }

  pan(share) {
    const [a, b] = this.window, d = b - a, [wa, wb] = this.whole();
    const from = Math.max(Math.min(wa, a), Math.min(a + share * d, Math.max(wb - d, a)));
    this.window = [from, from + d];
    this.free();
  }

  free() {
    this.zoomSelect.value = '';
    this.draw();
  }

  key(e) {
    if (e.target !== this.group || e.ctrlKey || e.metaKey || e.altKey) return;
    const [a, b] = this.window, d = b - a;
    const rows = Math.max(1, ...this.charts.map((c) => c.chart ? c.chart.rows.length : 0));
    const cur = this.cursor || {t: Math.min(Math.max(0, a), b), row: 0};
    switch (e.key) {
      case 'ArrowLeft': cur.t -= d / (e.shiftKey ? 10 : 60); break;
      case 'ArrowRight': cur.t += d / (e.shiftKey ? 10 : 60); break;
      case 'ArrowUp': cur.row = Math.max(0, cur.row - 1); break;
      case 'ArrowDown': cur.row = Math.min(rows - 1, cur.row + 1); break;
      case 'Home': cur.t = a; break;
      case 'End': cur.t = b; break;
      case '+': case '=': this.zoom(0.5); e.preventDefault(); return;
      case '-': case '_': this.zoom(2); e.preventDefault(); return;
      case '0':
        this.window = this.fit(this.fits.length ? this.fits[0].ms : 1000);
        this.zoomSelect.selectedIndex = 0;
        this.draw();
        e.preventDefault();
        return;
      case 'Escape': this.cursor = null; this.draw(); return;
      default: return;
    }
    e.preventDefault();
    const [wa, wb] = this.whole();
    cur.t = Math.max(wa, Math.min(cur.t, wb));
    this.cursor = cur;
    const lead = this.charts.find((c) => c.chart);
    if (lead) cur.queue = lead.chart.queues[this.order(lead)[cur.row]];
    if (cur.t < a - d / 1e6) this.pan((cur.t - a) / d - 0.2);
    else if (cur.t > b + d / 1e6) this.pan((cur.t - b) / d + 0.2);
    else this.draw();
    this.say(true);
  }

  // point follows the pointer: over the chart it moves the cursor, dragging zooms in;
  // a finger moves the cursor.
  point(c) {
    const at = (e) => {
      const r = c.canvas.getBoundingClientRect(), [a, b] = this.window;
      return {t: a + (e.clientX - r.left) / r.width * (b - a), row: Math.max(0, Math.min(c.chart.rows.length - 1, Math.floor((e.clientY - r.top - 1) / c.rowHeight)))};
    };
    c.canvas.addEventListener('pointerdown', (e) => {
      if (e.button !== 0) return;
      this.drag = e.pointerType === 'mouse' ? {from: at(e).t, x: e.clientX} : null;
      c.canvas.setPointerCapture(e.pointerId);
      this.cursor = this.byRow(c, at(e));
      this.draw();
      this.say(false);
    });
    c.canvas.addEventListener('pointermove', (e) => {
      const p = at(e);
      this.cursor = this.byRow(c, p);
      if (this.drag) this.drag.to = Math.abs(e.clientX - this.drag.x) > 4 ? p.t : undefined;
      this.draw();
      this.say(false);
    });
    const done = () => {
      if (this.drag && this.drag.to !== undefined) {
        const [a, b] = [this.drag.from, this.drag.to].sort((x, y) => x - y);
        this.window = [a, Math.max(b, a + 10)];
        this.drag = null;
        this.free();
      }
      this.drag = null;
    };
    c.canvas.addEventListener('pointerup', done);
    c.canvas.addEventListener('pointercancel', () => { this.drag = null; });
    c.canvas.addEventListener('pointerleave', (e) => {
      if (this.drag || e.pointerType !== 'mouse') return; // what a finger has picked stays
      this.cursor = null;
      this.draw();
      this.say(false);
    });
    c.canvas.addEventListener('wheel', (e) => {
      if (!e.ctrlKey) return; // the page scrolls
      e.preventDefault();
      this.zoom(e.deltaY > 0 ? 1.3 : 1 / 1.3, at(e).t);
    }, {passive: false});
  }

  // byRow is the cursor for a row of one chart: others may have their rows in another
  // order, so a cursor knows its queue.
  byRow(c, p) {
    return {t: p.t, row: p.row, queue: c.chart.queues[this.order(c)[p.row]]};
  }

  // order is the order of a chart's rows.
  order(c) {
    if (c.rowOrder) return c.rowOrder;
    const all = c.chart.queues.map((_, i) => i);
    if (state.order === 'owner') {
      const owner = all.map((i) => {
        const s = segmentAt(c.chart.rows[i], c.zero - 0.5) || c.chart.rows[i].find((x) => x[2] !== NOBODY);
        return s ? s[3] : 1e9;
      });
      all.sort((a, b) => owner[a] - owner[b] || a - b);
    }
    c.rowOrder = all;
    return all;
  }

  queueOf(c) {
    const i = c.chart.queues.indexOf(this.cursor.queue);
    return i < 0 ? undefined : i;
  }

  say(aloud) {
    if (!this.cursor) {
      this.says.textContent = '';
      for (const c of this.charts) c.who.textContent = this.summary(c);
      return;
    }
    const step = (this.window[1] - this.window[0]) / 100, parts = [];
    let name = '';
    for (const c of this.charts) {
      if (!c.chart) continue;
      const q = this.queueOf(c);
      if (q === undefined) continue;
      const who = whoText(c.chart, segmentAt(c.chart.rows[q], this.cursor.t + c.zero));
      name = c.chart.queues[q];
      c.who.textContent = name + ': ' + who;
      parts.push(D.models[c.model].name + ' ' + who);
    }
    const where = 'At ' + timeText(this.cursor.t, step) + ', queue ' + name;
    this.says.textContent = where;
    if (aloud) this.spoken.textContent = where + ': ' + parts.join('; ');
  }

  // watch draws charts when they come near the screen, and frees them when they leave.
  watch() {
    if (this.observer) this.observer.disconnect();
    this.observer = new IntersectionObserver((entries) => {
      this.near = entries[entries.length - 1].isIntersecting;
      if (this.near) this.draw();
      else for (const c of this.charts) if (c.canvas) c.canvas.width = 0;
    }, {rootMargin: '600px'});
    this.observer.observe(this.group);
  }

  draw(always) {
    if (!this.near && !always) return;
    const now = {
      nobody: color('--nobody'), twice: color('--twice'), twice2: color('--twice2'), mark: color('--mark'), soft: color('--soft'),
      line: color('--line'), accent: color('--accent'), bg: color('--bg'),
    };
    for (const c of this.charts) if (c.canvas) this.drawChart(c, now);
    this.drawAxis(now);
    if (this.lagCanvas) this.drawLag(now);
  }

  // prepare sizes a canvas for the screen and returns its context and width.
  prepare(canvas, height) {
    const dpr = Math.min(2, window.devicePixelRatio || 1), w = Math.max(1, this.group.clientWidth);
    canvas.width = Math.round(w * dpr);
    canvas.height = Math.round(height * dpr);
    const g = canvas.getContext('2d');
    g.setTransform(dpr, 0, 0, dpr, 0, 0);
    return {g, w, px: 1 / dpr};
  }

  drawChart(c, now) {
    const {g, w, px} = this.prepare(c.canvas, c.height), [a, b] = this.window;
    const x = (t) => (t - c.zero - a) / (b - a) * w;
    g.fillStyle = now.nobody;
    g.fillRect(0, 0, w, c.height);
    const space = c.rowHeight >= 5 ? 1 : 0, order = this.order(c);
    const gaps = [], twice = [];
    order.forEach((q, row) => {
      const y = row * c.rowHeight, h = c.rowHeight - space;
      for (const s of c.chart.rows[q]) {
        const x0 = x(s[0]), x1 = x(s[1]);
        if (x1 < 0 || x0 > w) continue;
        if (s[2] === NOBODY) gaps.push([x0, y, Math.max(x1 - x0, px), h]);
        else if (s[2] === TWICE) twice.push([x0, y, Math.max(x1 - x0, 1), h]);
        else {
          g.fillStyle = ownerColor(s[2]);
          g.fillRect(Math.max(x0, 0), y, Math.min(x1, w) - Math.max(x0, 0), h);
        }
      }
    });
    g.fillStyle = now.nobody;
    for (const r of gaps) g.fillRect(...r);
    // What happened: the events, and when it had settled.
    for (const m of c.chart.marks) {
      const at = x(m.at);
      if (at >= 0 && at <= w) this.rule(g, at, c.height, now, []);
    }
    if (c.chart.settled[this.event] !== undefined) this.rule(g, x(c.zero + c.chart.settled[this.event]), c.height, now, [2, 3]);
    // On top, so that no line hides them.
    if (twice.length) {
      g.fillStyle = this.hatch(g, now);
      for (const r of twice) g.fillRect(...r);
    }
    if (this.drag && this.drag.to !== undefined) {
      g.globalAlpha = 0.25;
      g.fillStyle = now.accent;
      const p = [this.drag.from, this.drag.to].map((t) => x(t + c.zero)).sort((m, n) => m - n);
      g.fillRect(p[0], 0, p[1] - p[0], c.height);
      g.globalAlpha = 1;
    }
    if (this.cursor) {
      const q = this.queueOf(c), row = q === undefined ? -1 : order.indexOf(q), cx = x(this.cursor.t + c.zero);
      g.strokeStyle = now.mark;
      g.lineWidth = 1;
      g.beginPath();
      g.moveTo(cx, 0);
      g.lineTo(cx, c.height);
      g.stroke();
      if (row >= 0) g.strokeRect(0.5, row * c.rowHeight - 0.5, w - 1, c.rowHeight + 1 - space);
    }
  }

  rule(g, at, height, now, dash) {
    g.setLineDash([]);
    g.strokeStyle = now.bg;
    g.lineWidth = 4;
    g.globalAlpha = 0.75;
    const stroke = () => {
      g.beginPath();
      g.moveTo(at, 0);
      g.lineTo(at, height);
      g.stroke();
    };
    stroke();
    g.globalAlpha = 1;
    g.strokeStyle = now.mark;
    g.lineWidth = 1.5;
    g.setLineDash(dash);
    stroke();
    g.setLineDash([]);
  }

  hatch(g, now) {
    const p = document.createElement('canvas');
    p.width = p.height = 6;
    const h = p.getContext('2d');
    h.fillStyle = now.twice;
    h.fillRect(0, 0, 6, 6);
    h.strokeStyle = now.twice2;
    h.lineWidth = 1.5;
    for (const d of [-6, 0, 6]) {
      h.beginPath();
      h.moveTo(d, 6);
      h.lineTo(d + 6, 0);
      h.stroke();
    }
    return g.createPattern(p, 'repeat');
  }

  drawAxis(now) {
    const {g, w} = this.prepare(this.axis, 24), [a, b] = this.window;
    const t = ticks(a, b, w / 90);
    g.font = '12px ' + getComputedStyle(document.body).fontFamily;
    g.fillStyle = now.soft;
    g.strokeStyle = now.soft;
    for (const v of t.at) {
      const x = (v - a) / (b - a) * w, text = timeText(v, t.step), tw = g.measureText(text).width;
      g.fillRect(x, 0, 1, 5);
      g.fillText(text, Math.max(0, Math.min(x - tw / 2, w - tw)), 18);
    }
  }

  buildLag() {
    const with_ = this.charts.filter((c) => c.chart && c.chart.lag.length);
    const text = with_.map((c) => D.models[c.model].name + ' at most ' + Math.max(...c.chart.lag.map((p) => p[1]))).join(', ');
    this.lagCanvas = el('canvas', {role: 'img', 'aria-label': 'Messages stored and not yet handed out, over the same time: ' + text});
    this.lagMax = el('small', {class: 'soft'});
    return el('figure', {class: 'lag owner charts'}, el('figcaption', {}, el('b', {}, 'Lag: messages not yet handed out'), this.lagMax), this.lagCanvas, modelLegend(with_.map((c) => c.model)));
  }

  drawLag(now) {
    const height = 94, {g, w} = this.prepare(this.lagCanvas, height), [a, b] = this.window;
    const all = this.charts.filter((c) => c.chart && c.chart.lag.length);
    let most = 1;
    for (const c of all) {
      c.part = c.chart.lag.map(([t, n]) => [t - c.zero, n]);
      let before = null;
      for (const p of c.part) {
        if (p[0] >= a && p[0] <= b) most = Math.max(most, p[1]);
        else if (p[0] < a) before = p;
      }
      if (before) most = Math.max(most, before[1]);
    }
    this.lagMax.textContent = 'top of the chart: ' + whole(most) + ' messages';
    g.fillStyle = now.soft;
    for (const c of all) {
      const l = modelLine(c.model);
      g.strokeStyle = l.color;
      g.lineWidth = 2;
      g.setLineDash(l.dash ? l.dash.split(' ').map(Number) : []);
      g.beginPath();
      c.part.forEach(([t, n], i) => {
        const x = (t - a) / (b - a) * w, y = height - 3 - n / most * (height - 8);
        if (i) g.lineTo(x, y);
        else g.moveTo(x, y);
      });
      g.stroke();
    }
    g.setLineDash([]);
  }

  // table says in words what the charts show between the event and the end of its window.
  table() {
    const shown = this.charts.filter((c) => c.chart);
    if (!shown.length) return el('p', {class: 'note'}, 'No chart of these runs.');
    const until = this.fits.length ? this.fits[0].ms * 1.15 + 1 : 1000;
    const queues = [...new Set(shown.flatMap((c) => c.chart.queues))];
    const cell = (c, q) => {
      const i = c.chart.queues.indexOf(q);
      if (i < 0) return 'not there';
      const parts = c.chart.rows[i].filter((s) => s[1] > c.zero && s[0] < c.zero + until);
      return parts.map((s, n) => whoText(c.chart, s) + (n + 1 < parts.length ? ' to ' + span(Math.max(0, s[1] - c.zero)) : '')).join(', ') || 'nobody';
    };
    return region('Owners as a table', el('table', {}, el('caption', {}, 'Owner of each queue from the event on, with the time at which that ended'),
      el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'queue'), shown.map((c) => el('th', {scope: 'col'}, D.models[c.model].name)))),
      el('tbody', {}, queues.map((q) => el('tr', {}, el('th', {scope: 'row'}, q), shown.map((c) => el('td', {class: 'text'}, cell(c, q))))))));
  }

  // lagTable has the lag at some times of the same window.
  lagTable() {
    const shown = this.charts.filter((c) => c.chart && c.chart.lag.length);
    if (!shown.length) return '';
    const t = ticks(0, this.fits.length ? Math.max(this.fits[0].ms * 1.15, 20) : 1000, 12);
    const at = (c, ms) => {
      const before = c.chart.lag.filter((p) => p[0] - c.zero <= ms);
      return before.length ? whole(before[before.length - 1][1]) : '–';
    };
    return region('Lag as a table', el('table', {}, el('caption', {}, 'Messages not yet handed out, from the event on'),
      el('thead', {}, el('tr', {}, el('th', {scope: 'col'}, 'time'), shown.map((c) => el('th', {scope: 'col'}, D.models[c.model].name)))),
      el('tbody', {}, t.at.map((ms) => el('tr', {}, el('th', {scope: 'row'}, timeText(ms, t.step)), shown.map((c) => el('td', {}, at(c, ms))))))));
  }
}
