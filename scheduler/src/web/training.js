// Training runs: progress, curves of any metric, where ranks spend their time, and runs of a model over each other.

import { choice, facts, link, loss, make, moment, pill, quiet, read, readCurve, readUntil, redraw, section, share, table, time, whole } from './base.js';
import { bar, chart, hue } from './charts.js';

const hasEnded = (run) => ['finished', 'failed', 'ended'].includes(run.state);
export const isRunning = (run) => !hasEnded(run);

export function runFacts(run) {
  return facts([
    ['State', pill(run.state)],
    ['Model', link(`#/model/${encodeURIComponent(run.model)}`, run.model)],
    ['Epoch', run.epoch ? `${run.epoch} of ${run.epochs}` : run.epochs ? `– of ${run.epochs}` : ''],
    ['Step', run.steps_per_epoch ? `${whole(run.step)} of ${whole(run.steps_per_epoch)}` : ''],
    ['Loss', loss(run.loss)],
    ['Validation loss', loss(run.eval_loss)],
    ['Speed', run.rows_per_second ? `${whole(Math.round(run.rows_per_second))} rows/s` : ''],
    ['Time left', time(run.eta_seconds)],
    ['Ranks', run.ranks],
    ['Generation', run.generation > 1 ? run.generation : ''],
  ]);
}

export function runProgress(run) {
  const all = run.epochs * run.steps_per_epoch;
  if (!all) return null;
  const done = Math.max(0, run.epoch - 1) * run.steps_per_epoch + run.step;
  return make('progress', { max: all, value: done, 'aria-label': `Training: ${share(done, all)}` });
}

/// ---- curves of a metric

// Metrics by step or by epoch: name, and the points of a run. `of` is for epochs.
const metrics = [
  { key: 'loss', name: 'Loss', points: true },
  { key: 'rate', name: 'Rows per second', curve: (points) => points.map((p) => [p.steps, p.rows_per_second]) },
  { key: 'eval_mae', name: 'MAE', of: (e) => e.eval_mae },
  { key: 'eval_rmse', name: 'RMSE', of: (e) => e.eval_rmse },
  { key: 'eval_r2', name: 'R²', of: (e) => e.eval_r2 },
  { key: 'eval_accuracy', name: 'Accuracy', of: (e) => e.eval_accuracy },
  { key: 'eval_rmspe', name: 'RMSPE', of: (e) => e.eval_rmspe },
  { key: 'eval_interval_coverage', name: 'Interval coverage', of: (e) => e.eval_interval_coverage },
  { key: 'seconds', name: 'Seconds of an epoch', of: (e) => e.seconds },
  { key: 'compute', name: 'Share of computing', of: (e) => e.seconds > 0 ? e.compute_seconds / e.seconds : null },
  { key: 'reduce', name: 'Share of reducing', of: (e) => e.seconds > 0 ? e.reduce_seconds / e.seconds : null },
];
const ofLabels = (epochs) => (epochs[0]?.labels ?? []).flatMap(({ label }, at) => [
  { key: `mae ${label}`, name: `MAE of ${label}`, of: (e) => e.labels[at]?.eval_mae },
  { key: `r2 ${label}`, name: `R² of ${label}`, of: (e) => e.labels[at]?.eval_r2 },
]);
const there = (value) => value !== null && value !== undefined;
const ofEpochs = (epochs, of) => epochs.map((e) => [e.steps, of(e)]).filter(([, value]) => there(value));
const offered = (epochs) => [...metrics, ...ofLabels(epochs)].filter(({ of }) => !of || epochs.some((e) => there(of(e))));
const chosen = { metric: 'loss' };

// The curves of runs, each with its points and epochs: one chart, of the metric that is chosen.
function curves(title, runs) {
  const values = offered(runs.flatMap(({ epochs }) => epochs.slice(0, 200)));
  const metric = values.find(({ key }) => key === chosen.metric) ?? values[0];
  const single = runs.length === 1;
  const series = runs.flatMap(({ name, points, epochs, hue: own }) => {
    const named = (what) => single ? what : `${name}: ${what}`;
    if (metric.curve) return [{ name: single ? metric.name.toLowerCase() : name, hue: own, points: metric.curve(points) }];
    if (metric.of) return [{ name: single ? metric.name : name, hue: own, dots: true, points: ofEpochs(epochs, metric.of) }];
    return [
      { name: named('training loss'), key: single ? undefined : name, hue: own, points: points.map((p) => [p.steps, p.loss]) },
      { name: named('validation loss'), key: single ? undefined : null, hue: single ? 'two' : own, dots: true, dashed: !single, points: ofEpochs(epochs, (e) => e.eval_loss) },
    ];
  }).filter(({ points }) => points.length);
  const controls = [choice('Metric', values.map(({ key, name }) => [key, name]), metric.key, (key) => { chosen.metric = key; })];
  const legend = !single && metric.points ? 'solid: training loss; dashed: validation loss' : null;
  return chart(title, series, { scales: true, controls, legend });
}

export const curve = (points, epochs) => curves('Training curve', [{ name: '', points, epochs, hue: 'one' }]);

/// ---- time of ranks

const PARTS = [['waiting for and encoding rows', 'three'], ['computing', 'one'], ['in collectives', 'two'], ['other: meeting, evaluation, checkpoints', 'four']];

// Where the time of each rank went since its generation began: all of it.
export function splits(ranks) {
  if (!ranks.length) return quiet('No ranks yet.');
  const rows = ranks.flatMap((rank) => {
    const told = [rank.load_seconds ?? 0, rank.compute_seconds, rank.reduce_seconds];
    const sum = told.reduce((a, b) => a + b, 0);
    // The scheduler's clock and the rank's differ a little.
    const all = Math.max(rank.seconds, sum);
    const parts = [...told, all - sum];
    const label = parts.map((part, at) => `${share(part, all)} ${PARTS[at][0].split(':')[0]}`).join(', ');
    const rows = rank.rows === null ? 'waiting for its rows' : `${whole(rank.rows)} rows`;
    return [make('dt', {}, `rank ${rank.rank} `, make('small', {}, 'on ', link(`#/executor/${encodeURIComponent(rank.executor_id)}`, rank.executor_id), `, ${rows}`)),
      make('dd', {}, bar(parts.map((part, at) => [all ? part / all : 0, PARTS[at][1]]), label), make('small', {}, `${label}, of ${time(all)}`))];
  });
  return make('figure', {},
    make('figcaption', {}, PARTS.map(([name, hue]) => make('span', { class: `key box hue-${hue}` }, name))),
    make('dl', { class: 'split' }, rows));
}

/// ---- epochs

// Evaluation metrics; each task has some of them.
export const measures = [
  { name: 'Accuracy', number: true, of: (row) => loss(row.eval_accuracy) },
  { name: 'R²', number: true, of: (row) => loss(row.eval_r2) },
  { name: 'RMSPE', number: true, of: (row) => loss(row.eval_rmspe) },
  { name: 'Interval coverage', number: true, of: (row) => loss(row.eval_interval_coverage) },
];
export const found = (columns, rows) => columns.filter(({ of }) => rows.some((row) => of(row) !== ''));

// The last epochs; thousands would bury the sections below.
const EPOCHS = 50;
export function epochTable(all) {
  const epochs = all.slice(-EPOCHS);
  const left = all.length > EPOCHS ? [quiet(`The last ${EPOCHS} of ${whole(all.length)} epochs; volley.training_epochs has all of them.`)] : [];
  const labels = ofLabels(epochs).map(({ name, of }) => ({ name, number: true, of: (e) => loss(of(e)) }));
  return [...left, table([
    { name: 'Epoch', number: true, of: (e) => e.epoch },
    { name: 'Loss', number: true, of: (e) => loss(e.loss) },
    { name: 'Validation loss', number: true, of: (e) => loss(e.eval_loss) },
    ...found([...measures, ...labels], epochs),
    { name: 'Rows', number: true, of: (e) => whole(e.rows) },
    { name: 'Time', number: true, of: (e) => time(e.seconds) },
    { name: 'Computing', number: true, of: (e) => share(e.compute_seconds, e.seconds) },
    { name: 'Reducing', number: true, of: (e) => share(e.reduce_seconds, e.seconds) },
  ], epochs, 'Epochs')];
}

/// ---- runs of a model

// Splits at commas outside of quotes and brackets.
function parts(text) {
  const found = [];
  let [part, depth, quote] = ['', 0, null];
  for (const char of text) {
    if (quote) quote = char === quote ? null : quote;
    else if (char === "'" || char === '"') quote = char;
    else if ('([{'.includes(char)) depth += 1;
    else if (')]}'.includes(char)) depth -= 1;
    if (char === ',' && depth === 0 && !quote) { found.push(part); part = ''; } else part += char;
  }
  return [...found, part].map((part) => part.trim()).filter(Boolean);
}

// The options and the query of a CREATE MODEL, as they were typed.
export function typed(statement) {
  const at = /\bOPTIONS\s*\(/i.exec(statement);
  if (!at) return { options: new Map(), query: statement.trim() };
  const from = at.index + at[0].length;
  let [end, depth, quote] = [from, 1, null];
  for (; end < statement.length && depth > 0; end += 1) {
    const char = statement[end];
    if (quote) quote = char === quote ? null : quote;
    else if (char === "'" || char === '"') quote = char;
    else if (char === '(') depth += 1;
    else if (char === ')') depth -= 1;
  }
  const options = new Map(parts(statement.slice(from, end - 1)).map((option) => {
    const [name, ...value] = option.split('=');
    return [name.trim().toLowerCase(), value.join('=').trim()];
  }));
  return { options, query: statement.slice(end).replace(/^\s*AS\b/i, '').replace(/\s+/g, ' ').trim() };
}

// What differs between runs: options, rows and query; a line for each.
export function differences(runs) {
  const all = runs.map(({ statement }) => typed(statement ?? ''));
  const names = [...new Set(all.flatMap(({ options }) => [...options.keys()]))].sort();
  const rows = [
    ...names.map((name) => [name, all.map(({ options }) => options.get(name) ?? 'default')]),
    ['rows of an epoch', runs.map(({ epochs }) => epochs.length ? whole(epochs[0].rows) : '')],
    ['ranks', runs.map(({ run }) => whole(run.ranks))],
    ['query', all.map(({ query }) => query)],
  ];
  return rows.filter(([, values]) => new Set(values.filter(there)).size > 1);
}

const started = (run) => run.started ? moment(run.started) : 'not started';

export function runTable(runs) {
  return table([
    { name: 'Model', of: (r) => link(`#/model/${encodeURIComponent(r.model)}`, r.model) },
    { name: 'State', of: (r) => pill(r.state) },
    { name: 'Started', of: started },
    { name: 'Ranks', number: true, of: (r) => whole(r.ranks) },
    { name: 'Epoch', number: true, of: (r) => r.epochs ? `${r.epoch} of ${r.epochs}` : '' },
    { name: 'Steps', number: true, of: (r) => whole(r.steps) },
    { name: 'Loss', number: true, of: (r) => loss(r.loss) },
    { name: 'Validation loss', number: true, of: (r) => loss(r.eval_loss) },
    { name: 'Reason', wide: true, of: (r) => r.reason ?? '' },
  ], runs, 'Training runs');
}

// Most runs over each other, and those that are chosen at first.
const [MOST, FIRST] = [6, 3];
const overlaid = new Map();

function picks(model, runs) {
  const ids = new Set(runs.map(({ train_id }) => train_id));
  const kept = (overlaid.get(model) ?? runs.slice(0, FIRST).map(({ train_id }) => train_id)).filter((id) => ids.has(id));
  return kept.length ? kept : runs.slice(0, 1).map(({ train_id }) => train_id);
}

// The page of a model: its versions, and its runs over each other.
export async function modelPage(name, versions) {
  const [models, all] = await Promise.all([read('models'), read('training_runs')]);
  const runs = all.filter(({ model }) => model === name);
  const picked = picks(name, runs);
  const shown = await Promise.all(runs.filter(({ train_id }) => picked.includes(train_id)).map(async (run) => {
    const of = { train: run.train_id };
    const [points, epochs, jobs] = await Promise.all([
      hasEnded(run) ? readUntil(true, 'training_steps', of) : readCurve(of),
      readUntil(hasEnded(run), 'training_epochs', of),
      readUntil(true, 'jobs', of)]);
    return { run, points, epochs, job: jobs[0], statement: jobs[0]?.statement };
  }));
  shown.forEach((one, at) => { one.hue = hue(at); one.name = started(one.run); });
  const hueOf = new Map(shown.map(({ run, hue }) => [run.train_id, hue]));
  const select = (run) => {
    const on = picked.includes(run.train_id);
    const box = make('input', { type: 'checkbox', checked: on ? '' : null, disabled: (!on && picked.length >= MOST) || (on && picked.length === 1), 'aria-label': `Show the run of ${started(run)}` });
    box.addEventListener('change', () => {
      overlaid.set(name, box.checked ? [...picked, run.train_id] : picked.filter((id) => id !== run.train_id));
      redraw();
    });
    return [box, hueOf.has(run.train_id) ? make('span', { class: `key box hue-${hueOf.get(run.train_id)}` }) : ''];
  };
  const jobs = new Map(shown.map(({ run, job }) => [run.train_id, job]));
  const different = shown.length > 1 ? differences(shown) : [];
  const own = models.filter(({ model }) => model === name);
  return [
    make('h1', {}, `Model ${name}`),
    section('Versions', own.length ? versions(own) : quiet('No version is published in the model stores known to this scheduler.')),
    section('Runs', runs.length ? [
      curves(`Runs of ${name}`, shown),
      table([
        { name: 'Shown', of: select },
        { name: 'Started', of: started },
        { name: 'State', of: (r) => pill(r.state) },
        { name: 'Job', of: (r) => jobs.get(r.train_id) ? link(`#/job/${jobs.get(r.train_id).job_id}`, jobs.get(r.train_id).job_id, 'mono') : '' },
        { name: 'Ranks', number: true, of: (r) => whole(r.ranks) },
        { name: 'Epoch', number: true, of: (r) => r.epochs ? `${r.epoch} of ${r.epochs}` : '' },
        { name: 'Loss', number: true, of: (r) => loss(r.loss) },
        { name: 'Validation loss', number: true, of: (r) => loss(r.eval_loss) },
        { name: 'Reason', wide: true, of: (r) => r.reason ?? '' },
      ], runs, `Runs of ${name}`)] : quiet('The scheduler knows no runs of this model.')),
    shown.length > 1 ? section('What differs', different.length ? table([
      { name: 'Option', of: ([option]) => make('b', {}, option) },
      ...shown.map(({ name: run }, at) => ({ name: run, wide: true, of: ([, values]) => make('span', { class: 'mono' }, values[at]) })),
    ], different, 'Differences between the runs') : quiet('Nothing: the same options, query and number of rows.')) : null,
  ];
}
