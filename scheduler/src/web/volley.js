// The page: tables read from the scheduler each second, and drawn.
// Text from the cluster is inserted as text, never as markup.
'use strict';

const SVG = 'http://www.w3.org/2000/svg';
const EVERY = 1000;
const main = document.getElementById('main');
const link = document.getElementById('link');

/// ---- elements

function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return node;
}

const section = (title, ...content) => {
  const id = 's-' + title.toLowerCase().replace(/[^a-z]+/g, '-');
  return make('section', { 'aria-labelledby': id }, make('h2', { id }, title), ...content);
};

const quiet = (text) => make('p', { class: 'quiet' }, text);
const pill = (state) => make('span', { class: `pill ${state}` }, state);
const facts = (pairs) => make('dl', { class: 'facts' }, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== '')
  .map(([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))));

// With an order, the names of columns that have a key are buttons that sort by it.
function table(columns, rows, caption, order = null) {
  const head = columns.map(({ name, number, key }) => {
    if (!order || !key) return make('th', { scope: 'col', class: number && 'number' }, name);
    const sorted = order.name === name && (order.down ? 'descending' : 'ascending');
    const button = make('button', { type: 'button', class: 'sort' }, name, sorted ? (order.down ? ' ↓' : ' ↑') : '');
    button.addEventListener('click', () => order.by(name));
    return make('th', { scope: 'col', class: number && 'number', 'aria-sort': sorted }, button);
  });
  const body = rows.map((row) => make('tr', {}, columns.map(({ of, number, name }) =>
    make('td', { class: number ? 'number' : name === 'Statement' ? 'name' : null }, of(row) ?? ''))));
  return make('div', { class: 'scroll', tabindex: 0, role: 'region', 'aria-label': caption },
    make('table', {}, make('thead', {}, make('tr', {}, head)), make('tbody', {}, body)));
}

/// ---- formats of numbers and times

const whole = (n) => n === null || n === undefined ? '' : Number(n).toLocaleString('en-US');
const loss = (n) => n === null || n === undefined ? '' : Number(n).toPrecision(4);
const clock = (ms) => new Date(ms).toLocaleTimeString('en-GB');
// A time of today, or a day and a time.
const moment = (ms) => new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : new Date(ms).toLocaleString('en-GB');
function bytes(n) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${n.toFixed(n < 10 && at ? 1 : 0)} ${units[at]}`;
}
function time(seconds) {
  if (seconds === null || seconds === undefined) return '';
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 60) return `${Math.round(seconds)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.round(seconds % 60)} s`;
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}
const share = (part, all) => all > 0 ? `${Math.round(100 * part / all)} %` : '–';

/// ---- the scheduler

async function read(name, of = {}) {
  const answer = await fetch(`/api/volley/${name}?${new URLSearchParams(of)}`);
  // The login has ended, or the scheduler has been restarted.
  if (answer.status === 401) location.assign("/login");
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

// Reads only the new points of a known curve. A long curve is read again in full, because the
// scheduler thins it.
const LONG = 6000;
const curves = new Map();
async function readCurve(of) {
  const key = String(new URLSearchParams(of));
  const known = curves.get(key) ?? [];
  const last = known.length < LONG ? known.at(-1) : undefined;
  const points = last ? known.concat(await read('training_steps', { ...of, after: last.at })) : await read('training_steps', of);
  curves.set(key, points);
  return points;
}

/// ---- a chart: lines over steps

function chart(title, series, xName) {
  // As wide as the page: text keeps its size.
  const width = Math.max(280, Math.min(main.clientWidth, 1216) - (innerWidth < 672 ? 60 : 92));
  const [height, left, bottom, top, right] = [innerWidth < 672 ? 200 : 250, 52, 38, 12, 14];
  const all = series.flatMap(({ points }) => points);
  if (all.length === 0) return quiet('No data yet: the curve begins with the first steps.');
  const x = span(all.map(([x]) => x));
  const y = span(trimmed(all.map(([, y]) => y)));
  const atX = (v) => left + (v - x[0]) / (x[1] - x[0]) * (width - left - right);
  const atY = (v) => height - bottom - (Math.min(Math.max(v, y[0]), y[1]) - y[0]) / (y[1] - y[0]) * (height - bottom - top);
  const picture = draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': describe(title, series) });
  for (const tick of ticks(y, 5)) {
    picture.append(
      draw('line', { class: 'axis', x1: left, x2: width - right, y1: atY(tick), y2: atY(tick) }),
      draw('text', { x: left - 8, y: atY(tick) + 4, 'text-anchor': 'end' }, shortened(tick)));
  }
  for (const tick of ticks(x, width / 120)) {
    picture.append(draw('text', { x: atX(tick), y: height - bottom + 18, 'text-anchor': 'middle' }, whole(tick)));
  }
  picture.append(draw('text', { x: width - right, y: height - 2, 'text-anchor': 'end' }, xName));
  for (const { points, hue, dots } of series) {
    const d = points.map(([px, py], at) => `${at ? 'L' : 'M'}${atX(px).toFixed(1)} ${atY(py).toFixed(1)}`).join('');
    picture.append(draw('path', { class: `curve hue-${hue}`, d }));
    // Many dots would hide their line.
    if (dots && points.length <= 60) points.forEach(([px, py]) => picture.append(draw('circle', { class: `dot hue-${hue}`, cx: atX(px), cy: atY(py), r: 3.5 })));
  }
  const cross = draw('line', { class: 'cross', y1: top, y2: height - bottom, visibility: 'hidden' });
  picture.append(cross);
  const reading = make('p', { class: 'reading' });
  picture.addEventListener('pointermove', (event) => {
    const box = picture.getBoundingClientRect();
    const wanted = x[0] + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (x[1] - x[0]);
    const found = series.map(({ name, points }) => [name, nearest(points, wanted)]).filter(([, point]) => point);
    if (!found.length) return;
    cross.setAttribute('x1', atX(found[0][1][0]));
    cross.setAttribute('x2', atX(found[0][1][0]));
    cross.setAttribute('visibility', 'visible');
    reading.textContent = `${xName.replace(/s$/, '')} ${whole(found[0][1][0])}: ` + found.map(([name, [, v]]) => `${name} ${loss(v)}`).join(', ');
  });
  picture.addEventListener('pointerleave', () => { cross.setAttribute('visibility', 'hidden'); reading.textContent = ''; });
  const keys = series.map(({ name, hue }) => make('span', { class: `key hue-${hue}` }, name));
  return make('figure', {}, make('figcaption', {}, keys), picture, reading);
}

function span(values) {
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= pad; high += pad; }
  return [low, high];
}
// The first steps of a training are off the scale of all others.
function trimmed(values) {
  const sorted = [...values].sort((a, b) => a - b);
  const high = sorted[Math.floor(sorted.length * 0.98)];
  return values.length > 50 ? values.filter((v) => v <= high) : values;
}
function ticks([low, high], count) {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}
const shortened = (v) => Math.abs(v) >= 1e4 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(1) : String(Number(v.toPrecision(4)));
const nearest = (points, wanted) => points.reduce((best, point) =>
  !best || Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best, null);
function describe(title, series) {
  return `${title}. ` + series.filter(({ points }) => points.length).map(({ name, points }) =>
    `${name}: from ${loss(points[0][1])} to ${loss(points[points.length - 1][1])} over ${points.length} points`).join('; ');
}

/// ---- graph of a job's stages, from inputs to output

function graph(stages, ranks) {
  const byId = new Map(stages.map((stage) => [stage.stage_id, stage]));
  const depths = new Map();
  const depth = (id) => {
    if (!depths.has(id)) {
      depths.set(id, 0);
      const inputs = (byId.get(id)?.inputs ?? []).filter((input) => byId.has(input));
      depths.set(id, inputs.length ? 1 + Math.max(...inputs.map(depth)) : 0);
    }
    return depths.get(id);
  };
  stages.forEach(({ stage_id }) => depth(stage_id));
  const columns = [];
  for (const stage of stages) (columns[depth(stage.stage_id)] ??= []).push(stage);
  const [cardWidth, gapX, gapY, pad] = [196, 54, 18, 8];
  const cardHeight = (stage) => stage.kind === 'training' ? 78 + 24 * Math.max(1, Math.ceil(ranks.length / 2)) : 78;
  const heights = columns.map((column) => column.reduce((sum, stage) => sum + cardHeight(stage) + gapY, -gapY));
  const height = Math.max(...heights) + 2 * pad;
  const width = columns.length * (cardWidth + gapX) - gapX + 2 * pad;
  const places = new Map();
  columns.forEach((column, c) => {
    let y = pad + (height - 2 * pad - heights[c]) / 2;
    for (const stage of column) {
      places.set(stage.stage_id, { x: pad + c * (cardWidth + gapX), y, h: cardHeight(stage) });
      y += cardHeight(stage) + gapY;
    }
  });
  // A wide graph is drawn smaller, as long as it can be read; beyond that it scrolls.
  const room = Math.min(main.clientWidth, 1216) - (innerWidth < 672 ? 60 : 92);
  const scale = Math.min(1, Math.max(0.66, room / width));
  const picture = draw('svg', { viewBox: `0 0 ${width} ${height}`, width: width * scale, height: height * scale, role: 'img', 'aria-label': `Graph of ${stages.length} stages; the table below has the same data.` });
  for (const stage of stages) {
    const to = places.get(stage.stage_id);
    for (const input of stage.inputs.filter((input) => places.has(input))) {
      const from = places.get(input);
      const [x1, y1, x2, y2] = [from.x + cardWidth, from.y + from.h / 2, to.x, to.y + to.h / 2];
      const bend = Math.max(24, (x2 - x1) / 2);
      picture.append(draw('path', { class: 'edge', d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }));
    }
  }
  for (const stage of stages) {
    const { x, y, h } = places.get(stage.stage_id);
    const isTraining = stage.kind === 'training';
    const operator = stage.operator.split(/[:\s]/)[0].replace(/Exec$/, '');
    const done = stage.partitions ? stage.partitions_done / stage.partitions : 0;
    const card = draw('g', { class: `stage ${stage.state} ${stage.kind}`, transform: `translate(${x} ${y})` },
      draw('rect', { class: 'card', width: cardWidth, height: h, rx: 9 }),
      draw('text', { class: 'title', x: 12, y: 22 }, isTraining ? `${stage.stage_id}  training` : `${stage.stage_id}  ${operator}`),
      draw('text', { x: 12, y: 40 }, isTraining ? `barrier stage, ${stage.state}` : stage.state + (stage.rows === null ? '' : `, ${whole(stage.rows)} rows`)),
      draw('text', { x: 12, y: 57 }, isTraining ? `${whole(stage.partitions)} shards` : `${stage.partitions_done} of ${stage.partitions} partitions`),
      draw('rect', { class: 'track', x: 12, y: 65, width: cardWidth - 24, height: 4, rx: 2 }),
      draw('rect', { class: 'done', x: 12, y: 65, width: (cardWidth - 24) * done, height: 4, rx: 2 }));
    if (isTraining) {
      ranks.forEach((rank, at) => card.append(draw('g', { class: 'rank', transform: `translate(${12 + (at % 2) * 88} ${78 + 24 * Math.floor(at / 2)})` },
        draw('rect', { width: 82, height: 19, rx: 5 }),
        draw('text', { x: 8, y: 14 }, `rank ${rank.rank}`))));
    }
    picture.append(card);
  }
  return make('div', { class: 'graph', tabindex: 0, role: 'region', 'aria-label': 'Graph of stages' }, picture);
}

/// ---- parts of pages

const jobColumns = [
  { name: 'Job', key: (job) => job.job_id, of: (job) => make('a', { href: `#/job/${job.job_id}`, class: 'mono' }, job.job_id) },
  { name: 'State', key: (job) => job.state, of: (job) => pill(job.state) },
  { name: 'User', key: (job) => job.owner, of: (job) => job.owner },
  { name: 'Queue', key: (job) => job.queue, of: (job) => job.queue },
  { name: 'Wait reason', of: (job) => job.waits || '' },
  { name: 'Statement', key: (job) => job.name, of: (job) => job.name },
  { name: 'Submitted', key: (job) => job.submitted, of: (job) => moment(job.submitted) },
  { name: 'Time', number: true, key: (job) => job.seconds, of: (job) => time(job.seconds) },
  { name: 'Attempts', number: true, key: (job) => job.attempts, of: (job) => job.attempts },
];

// Filters and order of the listed jobs. The form stays the same node, which keeps the typed text.
const listed = { text: '', state: '', owner: '', kind: '', hours: '', by: 'Submitted', down: true, page: 0 };
const PAGE = 50;
const jobForm = make('form', { class: 'filters', role: 'search' });
const fields = {
  text: make('input', { type: 'search', placeholder: 'Statement or id', 'aria-label': 'Statement or id' }),
  state: make('select', { 'aria-label': 'State' }),
  owner: make('select', { 'aria-label': 'User' }),
  kind: make('select', { 'aria-label': 'Kind' }),
  hours: make('select', { 'aria-label': 'Time' }),
};
jobForm.append(...Object.values(fields));
jobForm.addEventListener('submit', (event) => event.preventDefault());
for (const [name, field] of Object.entries(fields)) {
  field.addEventListener('input', () => { listed[name] = field.value; listed.page = 0; show(); });
}
function choices(field, all, values) {
  const wanted = [['', all], ...values];
  const there = [...field.options].map((option) => option.value);
  if (there.join('\n') === wanted.map(([value]) => value).join('\n')) return;
  const chosen = field.value;
  field.replaceChildren(...wanted.map(([value, name]) => make('option', { value }, name)));
  field.value = wanted.some(([value]) => value === chosen) ? chosen : '';
  listed[Object.keys(fields).find((name) => fields[name] === field)] = field.value;
}

function jobList(jobs) {
  const same = (value) => [value, value];
  const distinct = (of) => [...new Set(jobs.map(of))].sort().map(same);
  choices(fields.state, 'All states', distinct((job) => job.state));
  choices(fields.owner, 'All users', distinct((job) => job.owner));
  choices(fields.kind, 'Queries and training', [['query', 'Queries'], ['training', 'Training']]);
  choices(fields.hours, 'Any time', [['1', 'Last hour'], ['24', 'Last day'], ['168', 'Last week']]);
  const text = listed.text.trim().toLowerCase();
  const since = listed.hours ? Date.now() - Number(listed.hours) * 3600e3 : 0;
  const kept = jobs.filter((job) => (!text || `${job.job_id} ${job.name}`.toLowerCase().includes(text))
    && (!listed.state || job.state === listed.state) && (!listed.owner || job.owner === listed.owner)
    && (!listed.kind || (job.train_id ? 'training' : 'query') === listed.kind) && job.submitted >= since);
  const { key } = jobColumns.find(({ name }) => name === listed.by);
  const compare = (a, b) => typeof a === 'number' ? a - b : String(a).localeCompare(String(b));
  kept.sort((a, b) => compare(key(a), key(b)) * (listed.down ? -1 : 1));
  const pages = Math.max(1, Math.ceil(kept.length / PAGE));
  listed.page = Math.min(listed.page, pages - 1);
  const from = listed.page * PAGE;
  const order = { name: listed.by, down: listed.down, by: (name) => {
    listed.down = listed.by === name ? !listed.down : true;
    listed.by = name;
    show();
  } };
  const turn = (name, by, able) => {
    const button = make('button', { type: 'button', disabled: !able }, name);
    button.addEventListener('click', () => { listed.page += by; show(); });
    return button;
  };
  const shown = kept.length
    ? `${from + 1} to ${Math.min(from + PAGE, kept.length)} of ${whole(kept.length)}` : 'No matching jobs';
  return [jobForm,
    kept.length ? table(jobColumns, kept.slice(from, from + PAGE), 'Jobs', order) : null,
    make('p', { class: 'pages' }, make('span', {}, kept.length < jobs.length ? `${shown} (${whole(jobs.length)} in total)` : shown),
      pages > 1 ? [turn('Previous', -1, listed.page > 0), turn('Next', 1, listed.page < pages - 1)] : [])];
}

// Asks for confirmation, cancels the job, and shows the scheduler's answer.
function cancelButton(job) {
  const button = make('button', { type: 'button', class: 'danger', id: 'cancel' }, 'Cancel job');
  button.addEventListener('click', async () => {
    if (!confirm(`Cancel job ${job.job_id}?`)) return;
    const answer = await fetch(`/api/volley/jobs/${encodeURIComponent(job.job_id)}/cancel`, { method: 'POST' });
    answers.set(job.job_id, answer.ok ? '' : (await answer.text()).trim());
    show();
  });
  const said = answers.get(job.job_id);
  return make('p', {}, button, said ? make('span', { class: 'refused', role: 'alert' }, ` ${said}`) : null);
}
const answers = new Map();

// The statement of a job, whole where the scheduler has it.
function statementOf(job) {
  const text = job.statement || job.name;
  if (!text) return null;
  return make('div', { class: 'statement' }, make('pre', { class: 'mono' }, text), copyButton(text));
}

function copyButton(text) {
  const button = make('button', { type: 'button', class: 'copy' }, 'Copy');
  button.addEventListener('click', async () => {
    await navigator.clipboard?.writeText(text);
    button.textContent = 'Copied';
  });
  return button;
}

function runFacts(run) {
  return facts([
    ['State', pill(run.state)],
    ['Model', run.model],
    ['Epoch', run.epoch ? `${run.epoch} of ${run.epochs}` : `– of ${run.epochs}`],
    ['Step', run.steps_per_epoch ? `${whole(run.step)} of ${whole(run.steps_per_epoch)}` : ''],
    ['Loss', loss(run.loss)],
    ['Validation loss', loss(run.eval_loss)],
    ['Speed', run.rows_per_second ? `${whole(Math.round(run.rows_per_second))} rows/s` : ''],
    ['Time left', time(run.eta_seconds)],
    ['Ranks', run.ranks],
    ['Generation', run.generation],
  ]);
}

function runProgress(run) {
  const all = run.epochs * run.steps_per_epoch;
  if (!all) return null;
  const done = Math.max(0, run.epoch - 1) * run.steps_per_epoch + run.step;
  return make('progress', { max: all, value: done, 'aria-label': `Training: ${share(done, all)}` });
}

function curve(points, epochs) {
  return [chart('Training curve', [
    { name: 'training loss', hue: 'one', points: points.map((p) => [p.steps, p.loss]) },
    { name: 'validation loss', hue: 'two', dots: true, points: epochs.filter((e) => e.eval_loss !== null).map((e) => [e.steps, e.eval_loss]) },
  ].filter(({ points }) => points.length), 'steps'), ...validation(epochs)];
}

// Metrics beside the loss: share of labels in the predicted interval, and R² of each of several labels.
function validation(epochs) {
  const line = (name, hue, of) => ({ name, hue, dots: true, points: epochs
    .map((epoch) => [epoch.steps, of(epoch)]).filter(([, value]) => value !== null && value !== undefined) });
  const labels = epochs[0]?.labels ?? [];
  return [
    ['Interval coverage', [line('interval coverage', 'two', (e) => e.eval_interval_coverage)]],
    ['R² of each label', labels.map(({ label }, at) => line(`R² of ${label}`, ['one', 'two', 'three'][at % 3], (e) => e.labels[at].eval_r2))],
  ].filter(([, lines]) => lines.some(({ points }) => points.length)).map(([title, lines]) => chart(title, lines, 'steps'));
}

function splits(ranks) {
  if (!ranks.length) return quiet('No ranks yet.');
  const keys = [['waiting for and encoding rows', 'three'], ['computing', 'one'], ['in collectives', 'two']];
  const rows = ranks.flatMap((rank) => {
    const parts = [rank.load_seconds ?? 0, rank.compute_seconds, rank.reduce_seconds];
    const all = parts.reduce((a, b) => a + b, 0);
    let x = 0;
    const label = parts.map((part, at) => `${share(part, all)} ${keys[at][0]}`).join(', ');
    const bar = draw('svg', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
      parts.map((part, at) => {
        const width = all ? 100 * part / all : 0;
        const rect = draw('rect', { class: `hue-${keys[at][1]}`, x, width, height: 10 });
        x += width;
        return rect;
      }));
    const rows = rank.rows === null ? 'waiting for its rows' : `${whole(rank.rows)} rows`;
    return [make('dt', {}, `rank ${rank.rank} `, make('small', {}, `on ${rank.executor_id}, ${rows}`)),
      make('dd', {}, make('div', { class: 'bar' }, bar), make('small', {}, label))];
  });
  return make('figure', {},
    make('figcaption', {}, keys.map(([name, hue]) => make('span', { class: `key box hue-${hue}` }, name))),
    make('dl', { class: 'split' }, rows));
}

// Evaluation metrics; each task has some of them.
const measures = [
  { name: 'Accuracy', number: true, of: (row) => loss(row.eval_accuracy) },
  { name: 'R²', number: true, of: (row) => loss(row.eval_r2) },
  { name: 'RMSPE', number: true, of: (row) => loss(row.eval_rmspe) },
  { name: 'Interval coverage', number: true, of: (row) => loss(row.eval_interval_coverage) },
];
// Metrics of each of several labels, in its own unit.
const ofLabels = (epochs) => (epochs[0]?.labels ?? []).flatMap(({ label }, at) => [
  { name: `MAE of ${label}`, number: true, of: (epoch) => loss(epoch.labels[at].eval_mae) },
  { name: `R² of ${label}`, number: true, of: (epoch) => loss(epoch.labels[at].eval_r2) },
]);
const found = (columns, rows) => columns.filter(({ of }) => rows.some((row) => of(row) !== ''));

// The last epochs; thousands would bury the sections below.
const EPOCHS = 50;
function epochTable(all) {
  const epochs = all.slice(-EPOCHS);
  const left = all.length > EPOCHS ? [quiet(`The last ${EPOCHS} of ${whole(all.length)} epochs; volley.training_epochs has all of them.`)] : [];
  return [...left, table([
    { name: 'Epoch', number: true, of: (e) => e.epoch },
    { name: 'Loss', number: true, of: (e) => loss(e.loss) },
    { name: 'Validation loss', number: true, of: (e) => loss(e.eval_loss) },
    ...found([...measures, ...ofLabels(epochs)], epochs),
    { name: 'Rows', number: true, of: (e) => whole(e.rows) },
    { name: 'Time', number: true, of: (e) => time(e.seconds) },
    { name: 'Computing', number: true, of: (e) => share(e.compute_seconds, e.seconds) },
    { name: 'Reducing', number: true, of: (e) => share(e.reduce_seconds, e.seconds) },
  ], epochs, 'Epochs')];
}

const teller = (line) => line.rank !== null ? `rank ${line.rank}` : line.executor_id ?? (line.job_id ? 'job' : 'training');

// Lines of a log; in a log of several jobs, each line links to its job.
function lines(log, linked = false) {
  if (!log.length) return quiet('No events yet.');
  return make('ol', { class: 'log' }, log.map((line) => make('li', {},
    make('time', { datetime: new Date(line.at).toISOString() }, moment(line.at)),
    make('span', { class: 'who' }, linked && line.job_id ? make('a', { href: `#/job/${line.job_id}` }, teller(line)) : teller(line)),
    make('span', { class: line.failure && 'bad' }, line.text))));
}

// The log of the cluster, newest first. The form stays the same node, like that of jobs.
const LINES = 500;
const logText = make('input', { type: 'search', placeholder: 'Text, executor or job', 'aria-label': 'Text, executor or job' });
const logKind = make('select', { 'aria-label': 'Kind' }, make('option', { value: '' }, 'All lines'), make('option', { value: 'failures' }, 'Errors'));
const logForm = make('form', { class: 'filters', role: 'search' }, logText, logKind);
logForm.addEventListener('submit', (event) => event.preventDefault());
logForm.addEventListener('input', () => show());

function logList(log) {
  const text = logText.value.trim().toLowerCase();
  const kept = log.filter((line) => (!logKind.value || line.failure)
    && (!text || `${teller(line)} ${line.job_id ?? ''} ${line.text}`.toLowerCase().includes(text))).reverse();
  return [logForm, kept.length || !log.length ? lines(kept.slice(0, LINES), true) : quiet('No matching lines.'),
    kept.length > LINES ? make('p', { class: 'pages' }, `The newest ${LINES} of ${whole(kept.length)} lines.`) : null];
}

function stageTable(stages) {
  return table([
    { name: 'Stage', number: true, of: (s) => s.stage_id },
    { name: 'State', of: (s) => pill(s.state) },
    { name: 'Operator', of: (s) => s.operator.length > 90 ? `${s.operator.slice(0, 89)}…` : s.operator },
    { name: 'Partitions', number: true, of: (s) => `${s.partitions_done} of ${s.partitions}` },
    { name: 'Rows', number: true, of: (s) => whole(s.rows) },
    { name: 'Bytes', number: true, of: (s) => s.tasks_done ? bytes(s.bytes) : '' },
    { name: 'Seconds', number: true, of: (s) => s.seconds === null ? '' : s.seconds.toFixed(2) },
    { name: 'Slowest task', number: true, of: (s) => s.tasks_done > 1 && s.median_seconds > 0 ? `${(s.slowest_seconds / s.median_seconds).toFixed(1)} × median` : '' },
    ...stages.some((s) => s.spilled_bytes) ? [{ name: 'Spilled', number: true, of: (s) => bytes(s.spilled_bytes) }] : [],
    { name: 'Reads', of: (s) => s.inputs.join(', ') },
  ], stages, 'Stages');
}

/// ---- pages

const pages = {
  async overview() {
    const [executors, jobs, runs] = await Promise.all([read('executors'), read('jobs'), read('training_runs')]);
    const sum = (of) => executors.reduce((all, executor) => all + of(executor), 0);
    const running = jobs.filter((job) => !job.ended);
    const training = runs.filter((run) => !['finished', 'failed', 'ended'].includes(run.state));
    const slots = sum((e) => e.slots);
    const tiles = [
      ['Executors', whole(executors.length), ''],
      ['Slots busy', `${slots - sum((e) => e.free_slots)}`, ` of ${slots}`],
      ['Jobs running', whole(running.length), ` of ${jobs.length}`],
      ['Training now', whole(training.length), ''],
    ];
    return [
      make('h1', {}, 'Overview'),
      make('dl', { class: 'tiles' }, tiles.map(([name, value, more]) =>
        make('div', {}, make('dt', {}, name), make('dd', {}, value, make('small', {}, more))))),
      ...await Promise.all(training.map(trainingNow)),
      section('Jobs', jobs.length ? table(jobColumns, jobs.slice(0, 8), 'Newest jobs')
        : quiet('No jobs yet. Run one with volley --scheduler and this address.'),
      jobs.length > 8 ? make('p', {}, make('a', { href: '#/jobs' }, `All ${jobs.length} jobs`)) : null),
      section('Executors', executors.length ? table([
        { name: 'Executor', of: (e) => make('span', { class: 'mono' }, e.executor_id) },
        { name: 'Host', of: (e) => `${e.host}:${e.port}` },
        { name: 'Role', of: (e) => e.role },
        { name: 'Slots', number: true, of: (e) => `${e.slots - e.free_slots} of ${e.slots} busy` },
        { name: 'Device', of: (e) => e.device },
        ...executors.some((e) => e.gpus.length) ? [{ name: 'GPUs', of: (e) => e.gpus.map((gpu) => make('div', {}, gpu)) }] : [],
        { name: 'Memory for queries', number: true, of: (e) => bytes(e.memory_bytes) },
        { name: 'Version', of: (e) => e.version },
        { name: 'Since', of: (e) => clock(e.since) },
        ...executors.some((e) => e.draining) ? [{ name: 'State', of: (e) => e.draining ? 'draining' : '' }] : [],
      ], executors, 'Executors') : quiet('No executor has registered yet: jobs wait until one does.')),
    ];
  },

  async jobs() {
    const jobs = await read('jobs');
    return [make('h1', {}, 'Jobs'),
      section('All jobs', jobs.length ? jobList(jobs) : quiet('No jobs yet.'))];
  },

  async job(id) {
    const of = { job: id };
    const [points, [job], stages, runs, ranks, epochs, log] = await Promise.all([readCurve(of),
      ...['jobs', 'stages', 'training_runs', 'training_ranks', 'training_epochs', 'log'].map((name) => read(name, of))]);
    if (!job) return [make('h1', {}, `Job ${id}`), make('p', { class: 'notice' }, 'Unknown job: the scheduler no longer keeps it, or has been restarted since.')];
    const run = runs[0];
    const failed = log.filter((line) => line.failure && line.rank !== null);
    return [
      make('h1', {}, `Job ${id}`),
      statementOf(job),
      facts([['State', pill(job.state)], ['User', job.owner], ['Submitted', moment(job.submitted)],
        ['Time', time(job.seconds)], ['Attempts', job.attempts], ['Queue', job.queue], ['Priority', job.priority]]),
      job.ended ? null : cancelButton(job),
      job.error ? make('p', { class: 'failure' }, (failed[0] ? `Rank ${failed[0].rank} failed first. ` : '') + job.error) : null,
      run ? section('Training', runFacts(run), runProgress(run), run.reason ? quiet(run.reason) : null, curve(points, epochs)) : null,
      run && ranks.length ? section('Where the time goes', splits(ranks)) : null,
      epochs.length ? section('Epochs', epochTable(epochs)) : null,
      stages.length ? section('Stages', graph(stages, ranks), stageTable(stages),
        make('details', { id: 'plans' }, make('summary', {}, 'Plans, with metrics of each operator'),
          stages.flatMap((stage) => [make('h3', {}, `Stage ${stage.stage_id}`), make('pre', { tabindex: 0 }, stage.plan)]))) : null,
      section('Log', lines(log.slice(-LINES))),
    ];
  },

  async models() {
    const [models, runs] = await Promise.all([read('models'), read('training_runs')]);
    const columns = [
      { name: 'Model', of: (m) => m.model },
      { name: 'Version', number: true, of: (m) => m.version },
      { name: '', of: (m) => m.current ? make('span', { class: 'pill succeeded' }, 'current') : '' },
      { name: 'Predicts', of: (m) => m.label },
      { name: 'Published', of: (m) => new Date(m.published).toLocaleString('en-GB') },
      { name: 'Parameters', number: true, of: (m) => whole(m.parameters) },
      { name: 'Rows', number: true, of: (m) => whole(m.train_rows) },
      { name: 'Ranks', number: true, of: (m) => m.ranks },
      { name: 'Epoch kept', number: true, of: (m) => `${m.kept_epoch} of ${m.epochs}` },
      { name: 'Loss', number: true, of: (m) => loss(m.loss) },
      { name: 'Validation', number: true, of: (m) => loss(m.eval_loss) },
      ...found(measures, models),
      { name: 'Report', of: (m) => m.report
        ? make('a', { href: `/reports/${encodeURIComponent(m.model)}/${m.version}/${m.train_id}` }, 'charts') : '' },
    ];
    const histories = await Promise.all(runs.slice(0, 12).map(async (run) => {
      const of = { train: run.train_id };
      const [points, epochs] = await Promise.all([readCurve(of), read('training_epochs', of)]);
      return section(`Training of ${run.model}${run.started ? `, ${new Date(run.started).toLocaleString('en-GB')}` : ''}`,
        runFacts(run), curve(points, epochs),
        epochs.length ? make('details', { id: `epochs-${run.train_id}` }, make('summary', {}, 'Epochs'), epochTable(epochs)) : null);
    }));
    return [make('h1', {}, 'Models'),
      section('Versions', models.length ? table(columns, [...models].reverse(), 'Versions of models')
        : quiet('No versions in the model stores of the runs known to this scheduler.')),
      ...histories];
  },

  async log() {
    return [make('h1', {}, 'Log'), section('Events', logList(await read('log')))];
  },
};

async function trainingNow(run) {
  const of = { train: run.train_id };
  const [points, epochs, jobs] = await Promise.all([readCurve(of), read('training_epochs', of), read('jobs', of)]);
  return section(`Training ${run.model}`, runFacts(run), runProgress(run), run.reason ? quiet(run.reason) : null, curve(points, epochs),
    jobs.length ? make('p', {}, make('a', { href: `#/job/${jobs[0].job_id}` }, 'Job, ranks and stages')) : null);
}

/// ---- display

function asked() {
  const [page = '', id = ''] = location.hash.replace(/^#\/?/, '').split('/').map(decodeURIComponent);
  return { page: page === '' ? 'overview' : page, id };
}

let shown = '';
let latest = 0;

async function show() {
  const { page, id } = asked();
  const mine = ++latest;
  let content;
  try {
    content = pages[page]
      ? await pages[page](id)
      : [make('h1', {}, 'Page not found'), make('p', {}, make('a', { href: '#/' }, 'Go to the overview'))];
    if (mine !== latest) return;
    link.textContent = `live, ${clock(Date.now())}`;
    link.className = '';
  } catch (error) {
    if (mine !== latest) return;
    link.textContent = 'the scheduler does not answer';
    link.className = 'lost';
    if (shown) return; // keeps the last content
    content = [make('p', { class: 'notice' }, String(error.message ?? error))];
  }
  const where = `${page}/${id}`;
  const isNew = where !== shown;
  // Keeps the state of the view: open details, scroll positions, a reading of a curve.
  const typing = main.contains(document.activeElement) && document.activeElement.matches('input, select');
  if (!isNew && (main.querySelector('svg:hover') || (String(getSelection()) && !typing))) return;
  const open = new Set([...main.querySelectorAll('details[open]')].map(({ id }) => id));
  const scrolled = [...main.querySelectorAll('.scroll, .graph, pre')].map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
  const field = document.activeElement;
  const focused = !isNew && main.contains(document.activeElement) ? pathTo(document.activeElement) : null;
  main.replaceChildren(...content.filter(Boolean));
  if (isNew) {
    shown = where;
    document.title = `${main.querySelector('h1')?.textContent ?? 'Volley'} · Volley`;
    for (const entry of document.querySelectorAll('nav a')) {
      const current = entry.dataset.page === page || (page === 'job' && entry.dataset.page === 'jobs');
      current ? entry.setAttribute('aria-current', 'page') : entry.removeAttribute('aria-current');
    }
    scrollTo(0, 0);
    return;
  }
  main.querySelectorAll('details').forEach((details) => { details.open = open.has(details.id); });
  main.querySelectorAll('.scroll, .graph, pre').forEach((node, at) => {
    if (scrolled[at]) [node.scrollLeft, node.scrollTop] = scrolled[at];
  });
  if (focused) (typing ? field : follow(focused))?.focus({ preventScroll: true });
}

// Path of a node, as positions among siblings.
function pathTo(node) {
  const path = [];
  for (let at = node; at !== main; at = at.parentNode) path.unshift([...at.parentNode.children].indexOf(at));
  return path;
}
const follow = (path) => path.reduce((node, at) => node?.children[at], main);

async function forever() {
  for (;;) {
    if (!document.hidden) await show();
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

addEventListener('hashchange', () => { show().then(() => main.focus({ preventScroll: true })); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) show(); });
forever();
