// The page: tables read from the scheduler each second, and drawn.

import { bytes, clock, facts, lines, link, loss, main, make, moment, pill, quiet, read, readCurve, section, table, tells, time, whole } from './base.js';
import { executorPage, executorTable, executorsPage } from './executors.js';
import { cancelButton, jobList, jobTable, statementOf } from './jobs.js';
import { graph, plans, stageTable, timeline } from './stages.js';
import { curve, epochTable, found, isRunning, measures, modelPage, runFacts, runProgress, runTable, splits } from './training.js';

const EVERY = 1000;
// Most lines of a log, executors of the overview and runs of the models' page that are drawn.
const [LINES, SHOWN, RUNS] = [500, 12, 100];
const status = document.getElementById('link');

// The log of the cluster, newest first. The form stays the same node, like that of jobs.
const logText = make('input', { type: 'search', placeholder: 'Text, executor or job', 'aria-label': 'Text, executor or job' });
const logKind = make('select', { 'aria-label': 'Kind' }, make('option', { value: '' }, 'All lines'), make('option', { value: 'failures' }, 'Errors'));
const logForm = make('form', { class: 'filters', role: 'search', 'aria-label': 'Log' }, logText, logKind);
logForm.addEventListener('submit', (event) => event.preventDefault());
logForm.addEventListener('input', () => show());

function logList(log) {
  const text = logText.value.trim().toLowerCase();
  const kept = log.filter((line) => (!logKind.value || line.failure) && (!text || tells(line, text))).reverse();
  return [logForm, kept.length || !log.length ? lines(kept.slice(0, LINES), true) : quiet('No matching lines.'),
    kept.length > LINES ? make('p', { class: 'pages' }, `The newest ${LINES} of ${whole(kept.length)} lines.`) : null];
}

function versionTable(models) {
  return table([
    { name: 'Model', of: (m) => link(`#/model/${encodeURIComponent(m.model)}`, m.model) },
    { name: 'Version', number: true, of: (m) => m.version },
    { name: 'Current', of: (m) => m.current ? make('span', { class: 'pill succeeded' }, 'current') : '' },
    { name: 'Predicts', of: (m) => m.label },
    { name: 'Published', of: (m) => moment(m.published) },
    { name: 'Parameters', number: true, of: (m) => whole(m.parameters) },
    { name: 'Rows', number: true, of: (m) => whole(m.train_rows) },
    { name: 'Ranks', number: true, of: (m) => m.ranks },
    { name: 'Epoch kept', number: true, of: (m) => `${m.kept_epoch} of ${m.epochs}` },
    { name: 'Loss', number: true, of: (m) => loss(m.loss) },
    { name: 'Validation', number: true, of: (m) => loss(m.eval_loss) },
    ...found(measures, models),
    { name: 'Report', of: (m) => m.report
      ? link(`/reports/${encodeURIComponent(m.model)}/${m.version}/${m.train_id}`, 'charts') : '' },
  ], [...models].reverse(), 'Versions of models');
}

async function trainingNow(run) {
  const of = { train: run.train_id };
  const [points, epochs, jobs] = await Promise.all([readCurve(of), read('training_epochs', of), read('jobs', of)]);
  return section(`Training ${run.model}`, runFacts(run), runProgress(run), run.reason ? quiet(run.reason) : null, curve(points, epochs),
    jobs.length ? make('p', {}, link(`#/job/${jobs[0].job_id}`, 'Job, ranks and stages')) : null);
}

const sum = (values) => values.every((value) => value === null) ? null : values.reduce((a, b) => a + (b ?? 0), 0);

/// ---- pages

const pages = {
  async overview() {
    const [executors, jobs, runs] = await Promise.all([read('executors'), read('jobs'), read('training_runs')]);
    const total = (of) => executors.reduce((all, executor) => all + of(executor), 0);
    const running = jobs.filter((job) => !job.ended);
    const training = runs.filter(isRunning);
    const slots = total((e) => e.slots);
    const used = sum(executors.map((e) => e.process_bytes));
    const tiles = [
      ['Executors', whole(executors.length), ''],
      ['Slots busy', whole(slots - total((e) => e.free_slots)), ` of ${whole(slots)}`],
      ['Jobs running', whole(running.length), ` of ${whole(jobs.length)}`],
      ['Training now', whole(training.length), ''],
      ['CPU cores in use', (sum(executors.map((e) => e.cpu_cores)) ?? 0).toFixed(1), ''],
      ['Memory of executors', used === null ? '–' : bytes(used), ''],
    ];
    return [
      make('h1', {}, 'Overview'),
      make('dl', { class: 'tiles' }, tiles.map(([name, value, more]) =>
        make('div', {}, make('dt', {}, name), make('dd', {}, value, make('small', {}, more))))),
      ...await Promise.all(training.slice(0, 4).map(trainingNow)),
      section('Jobs', jobs.length ? jobTable(jobs.slice(0, 8), 'Newest jobs')
        : quiet('No jobs yet. Run one with volley --scheduler and this address.'),
      jobs.length > 8 ? make('p', {}, link('#/jobs', `All ${whole(jobs.length)} jobs`)) : null),
      section('Executors', executorTable(executors.slice(0, SHOWN)),
        executors.length > SHOWN ? make('p', {}, link('#/executors', `All ${whole(executors.length)} executors`)) : null),
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
    const written = sum(stages.map((stage) => stage.rows_written));
    const spilled = sum(stages.map((stage) => stage.spilled_bytes));
    return [
      make('h1', {}, `Job ${id}`),
      statementOf(job),
      facts([['State', pill(job.state)], ['User', job.owner], ['Submitted', moment(job.submitted)],
        ['Time', time(job.seconds)], ['Rows written', written === null ? '' : whole(written)],
        ['Spilled', spilled ? bytes(spilled) : ''], ['Attempts', job.attempts], ['Queue', job.queue], ['Priority', job.priority],
        ['Waits', job.waits]]),
      job.ended ? null : cancelButton(job),
      job.error ? make('p', { class: 'failure' }, (failed[0] ? `Rank ${failed[0].rank} failed first. ` : '') + job.error) : null,
      run ? section('Training', runFacts(run), runProgress(run), run.reason ? quiet(run.reason) : null, curve(points, epochs)) : null,
      run && ranks.length ? section('Where the time goes', splits(ranks)) : null,
      epochs.length ? section('Epochs', epochTable(epochs)) : null,
      stages.some((stage) => stage.started !== null) ? section('Timeline', timeline(job, stages)) : null,
      stages.length ? section('Stages', graph(job, stages, ranks), stageTable(stages), plans(stages)) : null,
      section('Log', lines(log.slice(-LINES))),
    ];
  },

  executors: executorsPage,
  executor: executorPage,

  async models() {
    const [models, runs] = await Promise.all([read('models'), read('training_runs')]);
    return [make('h1', {}, 'Models'),
      section('Versions', models.length ? versionTable(models)
        : quiet('No versions in the model stores of the runs known to this scheduler.')),
      section('Training runs', runs.length ? runTable(runs.slice(0, RUNS)) : quiet('No runs yet: CREATE MODEL begins one.')),
    ];
  },

  model: (name) => modelPage(name, versionTable),

  async log() {
    return [make('h1', {}, 'Log'), section('Events', logList(await read('log')))];
  },
};

/// ---- display

// Entry of the navigation that a page belongs to.
const entries = { job: 'jobs', executor: 'executors', model: 'models' };

function asked() {
  const decoded = (part) => {
    try {
      return decodeURIComponent(part);
    } catch {
      return part; // typed by hand
    }
  };
  const [page = '', id = ''] = location.hash.replace(/^#\/?/, '').split('/').map(decoded);
  return { page: page === '' ? 'overview' : page, id };
}

let shown = '';
let latest = 0;

async function show() {
  const { page, id } = asked();
  const mine = ++latest;
  let content;
  try {
    content = Object.hasOwn(pages, page)
      ? await pages[page](id)
      : [make('h1', {}, 'Page not found'), make('p', {}, link('#/', 'Go to the overview'))];
    if (mine !== latest) return;
    status.textContent = `live, ${clock(Date.now())}`;
    status.className = '';
  } catch (error) {
    if (mine !== latest) return;
    status.textContent = 'the scheduler does not answer';
    status.className = 'lost';
    if (shown) return; // keeps the last content
    content = [make('p', { class: 'notice' }, String(error.message ?? error))];
  }
  const where = `${page}/${id}`;
  const isNew = where !== shown;
  const field = document.activeElement;
  const within = main.contains(field);
  const typing = within && field.matches('input, select');
  // A curve that is read, a graph that is moved, a text that is selected and a list that is open stay as they are.
  const isHeld = main.querySelector('svg:hover') || choosing || (within && field.matches('svg')) || (String(getSelection()) && !typing);
  if (!isNew && isHeld && !acted) return;
  acted = false;
  const open = new Set([...main.querySelectorAll('details[open]')].map(({ id }) => id));
  const scrolls = () => [...main.querySelectorAll('.scroll, pre')];
  const scrolled = scrolls().map(({ scrollLeft, scrollTop }) => [scrollLeft, scrollTop]);
  const focused = !isNew && within ? pathTo(field) : null;
  main.replaceChildren(...content.filter(Boolean));
  if (isNew) {
    shown = where;
    document.title = `${main.querySelector('h1')?.textContent ?? 'Volley'} · Volley`;
    for (const entry of document.querySelectorAll('nav a')) {
      const current = entry.dataset.page === (entries[page] ?? page);
      current ? entry.setAttribute('aria-current', 'page') : entry.removeAttribute('aria-current');
    }
    scrollTo(0, 0);
    return;
  }
  main.querySelectorAll('details').forEach((details) => { details.open = open.has(details.id); });
  scrolls().forEach((node, at) => {
    if (scrolled[at]) [node.scrollLeft, node.scrollTop] = scrolled[at];
  });
  if (focused) (main.contains(field) ? field : follow(focused))?.focus({ preventScroll: true });
}

// Path of a node, as positions among siblings. These are counted from the last one: a form that stays the same is in the
// new drawing already, and so no longer first.
function pathTo(node) {
  const path = [];
  for (let at = node; at !== main; at = at.parentNode) path.unshift([...at.parentNode.children].reverse().indexOf(at));
  return path;
}
const follow = (path) => path.reduce((node, at) => node?.children[node.children.length - 1 - at], main);

async function forever() {
  for (;;) {
    if (!document.hidden) await show();
    await new Promise((resolve) => setTimeout(resolve, EVERY));
  }
}

// A list that is open would be closed by a new drawing.
let choosing = false;
const opens = (event) => {
  const isKey = event.type === 'keydown';
  if (event.target.matches('select') && (!isKey || [' ', 'Enter', 'ArrowDown', 'ArrowUp'].includes(event.key))) choosing = true;
  if (event.key === 'Escape') choosing = false;
};
main.addEventListener('pointerdown', opens);
main.addEventListener('keydown', opens);
for (const ends of ['change', 'focusout']) main.addEventListener(ends, () => { choosing = false; }, true);

// Somebody has chosen something: what is drawn changes, whatever is held.
let acted = false;
addEventListener('redraw', () => { acted = true; show(); });
// The link to the content is no page.
document.querySelector('.skip').addEventListener('click', (event) => { event.preventDefault(); main.focus(); });
addEventListener('hashchange', () => { show().then(() => main.focus({ preventScroll: true })); });
document.addEventListener('visibilitychange', () => { if (!document.hidden) show(); });
forever();
