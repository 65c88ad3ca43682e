// The page: what is shown, and what changes it.

const $ = (id) => document.getElementById(id);
const scenes = D.scenes.map(() => ({event: '', owners: null}));

function choose(i) {
  const c = D.conditions[i];
  if (c) Object.assign(state, {setup: c.setup, timers: c.timers, phase: c.phase});
}

// settle on a condition that was run, as near as can be to what was picked.
function nearest() {
  const all = D.conditions.map((c, i) => ({c, i})).filter(({c}) => c.setup === state.setup);
  const best = all.find(({c}) => c.timers === state.timers && c.phase === state.phase) || all.find(({c}) => c.timers === state.timers) || all[0];
  if (best) choose(best.i);
}

function controls() {
  const form = $('controls'), unique = (list) => [...new Set(list)];
  const timers = unique(D.conditions.map((c) => c.timers)), phases = unique(D.conditions.map((c) => c.phase)).filter((p) => p !== '');
  const named = {own: 'own', equal: 'equal for all', fast: 'own, fast detection'};
  const parts = [];
  if (D.setups.length > 1) {
    const select = el('select', {id: 'setup', onchange: () => { state.setup = Number(select.value); changed(); }}, D.setups.map((s, i) => el('option', {value: i, selected: i === state.setup}, s.text)));
    parts.push(el('label', {class: 'field'}, el('span', {class: 'lab'}, 'Group'), select));
  } else if (D.setups.length) {
    parts.push(el('span', {class: 'field'}, el('span', {class: 'lab'}, 'Group'), D.setups[0].text));
  }
  if (timers.length) parts.push(options('Timers', 'timers', timers.map((t) => [t, named[t] || t]), state.timers, (v) => { state.timers = v; changed(); }));
  if (phases.length) parts.push(options('Heartbeats before the event', 'phase', phases.map((p) => [p, p]), state.phase, (v) => { state.phase = v; changed(); }));
  if (D.models.length > 1) {
    parts.push(el('fieldset', {}, el('legend', {}, 'Models'), el('span', {class: 'checks'}, D.models.map((m, i) => el('label', {}, el('input', {type: 'checkbox', checked: true, onchange: (e) => {
      if (e.target.checked) state.hidden.delete(i);
      else if (state.hidden.size < D.models.length - 1) state.hidden.add(i);
      else e.target.checked = true;
      changed();
    }}), el('span', {class: 'name'}, m.name))))));
  }
  form.replaceChildren(...parts);
}

// able greys out what was not run.
function able() {
  const has = (f) => D.conditions.some((c) => c.setup === state.setup && f(c));
  for (const input of document.querySelectorAll('input[name=timers]')) {
    input.disabled = !has((c) => c.timers === input.value);
    input.checked = input.value === state.timers;
  }
  for (const input of document.querySelectorAll('input[name=phase]')) {
    input.disabled = !has((c) => c.timers === state.timers && c.phase === input.value);
    input.checked = input.value === state.phase;
  }
}

function overview(cond) {
  const select = el('select', {id: 'measure', onchange: () => {
    state.measure = select.value;
    overview(conditionIndex());
    $('measure').focus();
  }}, D.measures.filter((m) => m.text && !m.missing).map((m) => el('option', {value: m.id, selected: m.id === state.measure}, m.label)));
  $('matrix').replaceChildren(
    el('div', {class: 'tools'}, el('label', {class: 'field'}, el('span', {class: 'lab'}, 'Figure'), select)),
    el('p', {class: 'note'}, D.measures[measureAt[state.measure]].text + '. The stronger the colour and the longer the bar, the more, on a log scale within a row: full colour is ten times the least or more. ◆ is the least.'),
    matrix(cond));
}

function scene(si, cond) {
  const body = $(D.scenes[si].id).querySelector('.body'), s = scenes[si], events = eventsOf(cond, si);
  if (s.owners && s.owners.observer) s.owners.observer.disconnect();
  s.owners = null;
  if (!D.models.some((_, mi) => cellOf(cond, si, mi))) {
    body.replaceChildren(el('p', {class: 'note'}, 'Not run under these conditions.'));
    return;
  }
  if (!events.includes(s.event)) s.event = events[0] || '';
  s.owners = new Owners(si, cond);
  const right = el('div', {class: 'bars'});
  const show = () => {
    s.owners.show(s.event);
    owners.open = false;
    right.replaceChildren(...bars(cond, si, s.event).filter((x) => x !== ''));
  };
  const lag = s.owners.charts.some((c) => c.chart && c.chart.lag.length);
  const pick = events.length > 1 ? el('div', {class: 'tools'}, options('Event', 'event-' + si, events.map((e) => [e, e]), s.event, (v) => { s.event = v; show(); })) : '';
  const owners = el('details', {ontoggle: (e) => {
    if (e.target.open) e.target.replaceChildren(e.target.firstChild, s.owners.table(), s.owners.lagTable());
  }}, el('summary', {}, 'Owners ' + (lag ? 'and lag ' : '') + 'as a table'));
  body.replaceChildren(...[pick, el('div', {class: 'grid'}, s.owners.box, right), notes(cond, si),
    el('details', {open: true}, el('summary', {}, 'Numbers as a table'), numbers(cond, si)), owners].filter((x) => x !== ''));
  show();
}

function changed() {
  nearest();
  able();
  const cond = conditionIndex();
  overview(cond);
  D.scenes.forEach((_, si) => scene(si, cond));
  if ($('sizes-body')) $('sizes-body').replaceChildren(...sizes());
  $('models-body').replaceChildren(modelTable(cond));
}

const redraw = (always) => scenes.forEach((s) => s.owners && s.owners.draw(always));

function theme() {
  const key = 'tacit-report-theme';
  let now = 'auto';
  try { now = localStorage.getItem(key) || 'auto'; } catch { /* a file may have no storage */ }
  const set = (v) => {
    if (v === 'auto') delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = v;
    try { localStorage.setItem(key, v); } catch { /* the same */ }
    redraw();
  };
  const box = options('Colours', 'theme', [['auto', 'auto'], ['light', 'light'], ['dark', 'dark']], now, set);
  $('theme').replaceChildren(...box.childNodes);
  set(now);
  matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => redraw());
}

theme();
choose(0);
controls();
changed();

let width = innerWidth;
addEventListener('resize', () => {
  if (innerWidth !== width) redraw();
  width = innerWidth;
});
let kept;
addEventListener('beforeprint', () => {
  kept = document.documentElement.dataset.theme;
  document.documentElement.dataset.theme = 'light';
  redraw(true);
});
addEventListener('afterprint', () => {
  if (kept) document.documentElement.dataset.theme = kept;
  else delete document.documentElement.dataset.theme;
  redraw();
});
