// The stages of a job: as a timeline, as a graph from inputs to output, as a table, and as plans.

import { button, bytes, draw, isNarrow, link, make, pill, room, share, shortened, table, time, toggle, whole } from './base.js';
import { bar, histogram, times } from './charts.js';

const does = (stage) => stage.description || stage.operator.split(/[:\s]/)[0].replace(/Exec$/, '');

// Opens the plan of a stage, and shows it.
function openPlan(stage) {
  const plan = document.getElementById(`plan-${stage.stage_id}`);
  if (!plan) return;
  document.getElementById('plans').open = true;
  plan.open = true;
  plan.scrollIntoView({ block: 'start' });
  plan.querySelector('summary').focus({ preventScroll: true });
}

// Makes a part of a picture act as a button.
function acts(node, act) {
  node.addEventListener('click', act);
  node.addEventListener('keydown', (event) => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    act();
  });
  return node;
}

/// ---- the timeline

// Most bars of executors: beyond that, only stages are drawn.
const MOST_BARS = 400;
const timelines = { executors: false };

// Stages over time, each with a bar from its first task's launch to its last one's end; below it, if wanted, a thin bar
// for each executor that ran its tasks.
export function timeline(job, stages) {
  const begun = stages.filter((stage) => stage.started !== null);
  if (!begun.length) return null;
  // By the scheduler's clock, which may differ from this one's.
  const now = job.submitted + 1e3 * (job.seconds ?? 0);
  const end = Math.max(...begun.map((stage) => stage.ended ?? Math.max(job.ended || now, stage.started)));
  const start = Math.min(job.submitted, ...begun.map((stage) => stage.started));
  const lanes = begun.reduce((sum, stage) => sum + stage.executors.length, 0);
  const offers = lanes > begun.length && lanes <= MOST_BARS;
  const perExecutor = offers && timelines.executors;
  const width = room();
  const [left, right, top, tall, thin] = [isNarrow() ? 112 : 300, 12, 22, 22, 7];
  const chars = Math.floor((left - 12) / 6.3);
  const span = Math.max((end - start) / 1e3, 0.001);
  const atX = (ms) => left + Math.max(0, ms - start) / 1e3 / span * (width - left - right);
  const heightOf = (stage) => tall + (perExecutor ? thin * stage.executors.length + 2 : 0);
  const height = top + begun.reduce((sum, stage) => sum + heightOf(stage), 0) + 4;
  const picture = draw('svg', { class: 'timeline', viewBox: `0 0 ${width} ${height}`, width, height, role: 'group', 'aria-label': `Timeline of ${begun.length} stages over ${time(span)}` });
  for (const tick of times([0, 1e3 * span], Math.max(2, (width - left) / 110))) {
    const x = atX(start + tick);
    picture.append(draw('line', { class: 'axis', x1: x, x2: x, y1: top - 4, y2: height }),
      draw('text', { x, y: 12, 'text-anchor': x > width - 40 ? 'end' : 'middle' }, tick === 0 ? '0' : time(tick / 1e3)));
  }
  let y = top;
  for (const stage of begun) {
    const until = stage.ended ?? (['running', 'cancelled'].includes(stage.state) ? end : stage.started);
    const label = `Stage ${stage.stage_id}: ${does(stage)}; ${stage.state}, ${time((until - stage.started) / 1e3)}, begun after ${time((stage.started - start) / 1e3) || '0 s'}`;
    const lane = draw('g', { class: `lane ${stage.state} ${stage.kind}`, role: 'button', tabindex: 0, 'aria-label': label },
      draw('title', {}, label),
      draw('rect', { class: 'ground', x: 0, y, width, height: tall }),
      draw('text', { x: 4, y: y + 15 }, shortened(`${stage.stage_id}  ${does(stage)}`, chars)),
      draw('rect', { class: 'span', x: atX(stage.started), y: y + 5, width: Math.max(2, atX(until) - atX(stage.started)), height: 12, rx: 3 }));
    y += tall;
    if (perExecutor) {
      for (const executor of stage.executors) {
        const last = executor.running ? end : executor.ended ?? executor.started;
        lane.append(draw('rect', { class: 'share', x: atX(executor.started), y, width: Math.max(2, atX(last) - atX(executor.started)), height: thin - 2, rx: 2 },
          draw('title', {}, `${executor.executor_id}: ${whole(executor.tasks + executor.running)} tasks`)));
        if (!isNarrow()) lane.append(draw('text', { class: 'small', x: left - 8, y: y + 5, 'text-anchor': 'end' }, shortened(executor.executor_id, 28)));
        y += thin;
      }
      y += 2;
    }
    picture.append(acts(lane, () => openPlan(stage)));
  }
  return make('div', {},
    offers ? make('div', { class: 'tools' }, toggle('Executors', timelines.executors, (on) => { timelines.executors = on; })) : null,
    make('div', { class: 'scroll' }, picture));
}

/// ---- the graph

const [CARD, ROW, GAP_X, GAP_Y, PAD] = [232, 92, 56, 18, 8];
const [LEAST, MOST] = [0.2, 2];
const TALLEST = 560;
// Where each job's graph is looked at, and how near; it outlives the drawing.
const looks = new Map();

// Places stages in columns: as late as what reads them allows, in an order that crosses few edges.
function layout(stages, heightOf) {
  const byId = new Map(stages.map((stage) => [stage.stage_id, stage]));
  const inputs = (stage) => stage.inputs.map((id) => byId.get(id)).filter(Boolean);
  const readers = new Map(stages.map((stage) => [stage, []]));
  for (const stage of stages) for (const input of inputs(stage)) readers.get(input).push(stage);
  const levels = new Map();
  const level = (stage) => {
    if (!levels.has(stage)) {
      levels.set(stage, 0);
      levels.set(stage, Math.max(-1, ...readers.get(stage).map(level)) + 1);
    }
    return levels.get(stage);
  };
  stages.forEach(level);
  const last = Math.max(...levels.values());
  const columns = Array.from({ length: last + 1 }, () => []);
  for (const stage of stages) columns[last - levels.get(stage)].push(stage);
  // From the output back to the inputs: each stage beside what reads it.
  const ranks = new Map();
  for (const column of [...columns].reverse()) {
    const wanted = (stage) => {
      const of = readers.get(stage).map((reader) => ranks.get(reader) ?? 0);
      return of.length ? of.reduce((a, b) => a + b, 0) / of.length : 0;
    };
    column.sort((a, b) => wanted(a) - wanted(b) || a.stage_id - b.stage_id);
    column.forEach((stage, at) => ranks.set(stage, (at + 0.5) / column.length));
  }
  const heights = columns.map((column) => column.reduce((sum, stage) => sum + heightOf(stage) + GAP_Y, -GAP_Y));
  const height = Math.max(...heights) + 2 * PAD;
  const places = new Map();
  columns.forEach((column, c) => {
    let y = PAD + (height - 2 * PAD - heights[c]) / 2;
    for (const stage of column) {
      places.set(stage.stage_id, { x: PAD + c * (CARD + GAP_X), y, h: heightOf(stage) });
      y += heightOf(stage) + GAP_Y;
    }
  });
  return { places, height, width: columns.length * (CARD + GAP_X) - GAP_X + 2 * PAD };
}

// Breaks a text into two lines of words, the second one cut.
function twoLines(text, most) {
  const words = text.split(' ');
  let first = words.shift();
  while (words.length && `${first} ${words[0]}`.length <= most) first += ` ${words.shift()}`;
  return [shortened(first, most), shortened(words.join(' '), most)];
}

export function graph(job, stages, ranks) {
  const { places, width, height } = layout(stages, (stage) => stage.kind === 'training' ? ROW + 24 * Math.max(1, Math.ceil(ranks.length / 2)) : ROW);
  const [wide, tall] = [room(), Math.min(TALLEST, Math.max(120, height))];
  const fit = Math.min(1, wide / width, TALLEST / height);
  if (!looks.has(job.job_id)) {
    // A large graph begins where it can be read, at its output; the smaller ones are seen whole.
    const scale = Math.max(fit, 0.7);
    looks.set(job.job_id, { scale, x: Math.min(0, wide - width * scale), y: (tall - height * scale) / 2 });
  }
  const look = looks.get(job.job_id);
  const content = draw('g', {});
  const picture = draw('svg', { class: 'graph', viewBox: `0 0 ${wide} ${tall}`, width: wide, height: tall, role: 'group', tabindex: 0,
    'aria-label': `Graph of ${stages.length} stages; arrow keys move it, plus and minus zoom, 0 shows all of it. The table below has the same data.` }, content);
  const move = (by = {}) => {
    Object.assign(look, by);
    content.setAttribute('transform', `translate(${look.x.toFixed(1)} ${look.y.toFixed(1)}) scale(${look.scale.toFixed(3)})`);
  };
  const zoom = (by, [x, y] = [wide / 2, tall / 2]) => {
    const scale = Math.min(MOST, Math.max(Math.min(LEAST, fit), look.scale * by));
    move({ scale, x: x - (x - look.x) * scale / look.scale, y: y - (y - look.y) * scale / look.scale });
  };
  const whole = () => move({ scale: fit, x: (wide - width * fit) / 2, y: (tall - height * fit) / 2 });
  move();
  const at = (event) => {
    const box = picture.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width * wide, (event.clientY - box.top) / box.height * tall];
  };
  let held = null;
  picture.addEventListener('pointerdown', (event) => { held = { from: at(event), x: look.x, y: look.y }; });
  picture.addEventListener('pointermove', (event) => {
    if (!held || !event.buttons) return;
    const [x, y] = at(event);
    move({ x: held.x + x - held.from[0], y: held.y + y - held.from[1] });
  });
  picture.addEventListener('wheel', (event) => {
    // Without a key, the wheel scrolls the page.
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    zoom(event.deltaY < 0 ? 1.15 : 1 / 1.15, at(event));
  }, { passive: false });
  picture.addEventListener('keydown', (event) => {
    const acts = {
      ArrowLeft: () => move({ x: look.x + 60 }), ArrowRight: () => move({ x: look.x - 60 }),
      ArrowUp: () => move({ y: look.y + 60 }), ArrowDown: () => move({ y: look.y - 60 }),
      '+': () => zoom(1.25), '-': () => zoom(0.8), 0: whole,
    };
    if (!acts[event.key] || event.target !== picture) return;
    event.preventDefault();
    acts[event.key]();
  });
  for (const stage of stages) {
    const to = places.get(stage.stage_id);
    for (const input of stage.inputs.filter((input) => places.has(input))) {
      const from = places.get(input);
      const [x1, y1, x2, y2] = [from.x + CARD, from.y + from.h / 2, to.x, to.y + to.h / 2];
      const bend = Math.max(24, (x2 - x1) / 2);
      content.append(draw('path', { class: 'edge', d: `M${x1} ${y1}C${x1 + bend} ${y1} ${x2 - bend} ${y2} ${x2} ${y2}` }));
    }
  }
  for (const stage of stages) content.append(card(stage, places.get(stage.stage_id), ranks));
  return make('div', {},
    make('div', { class: 'tools' },
      button('+', () => zoom(1.25), { 'aria-label': 'Zoom in' }),
      button('−', () => zoom(0.8), { 'aria-label': 'Zoom out' }),
      button('Fit', whole, { 'aria-label': 'Show the whole graph' }),
      make('span', { class: 'quiet' }, 'Drag to move; a stage opens its plan.')),
    picture);
}

function card(stage, { x, y, h }, ranks) {
  const isTraining = stage.kind === 'training';
  const done = stage.partitions ? stage.partitions_done / stage.partitions : 0;
  const [first, second] = twoLines(`${stage.stage_id}  ${does(stage)}`, 29);
  const parts = isTraining ? `${whole(stage.partitions)} shards` : `${stage.partitions_done} of ${stage.partitions} partitions`;
  const rows = stage.rows === null || isTraining ? '' : `, ${whole(stage.rows)} rows`;
  const state = isTraining ? `barrier stage, ${stage.state}` : stage.state + rows;
  const node = draw('g', { class: `stage ${stage.state} ${stage.kind}`, transform: `translate(${x} ${y})`, role: 'button', tabindex: 0,
    'aria-label': `Stage ${stage.stage_id}: ${does(stage)}; ${state}, ${parts}` },
    draw('title', {}, `${stage.stage_id}: ${does(stage)}`),
    draw('rect', { class: 'card', width: CARD, height: h, rx: 9 }),
    draw('text', { class: 'title', x: 12, y: 20 }, first),
    draw('text', { class: 'title', x: 12, y: 36 }, second),
    draw('text', { x: 12, y: 54 }, shortened(state, 34)),
    draw('text', { x: 12, y: 70 }, parts + (stage.seconds !== null && !isTraining ? `, ${time(stage.seconds)}` : '')),
    draw('rect', { class: 'track', x: 12, y: 79, width: CARD - 24, height: 4, rx: 2 }),
    draw('rect', { class: 'done', x: 12, y: 79, width: (CARD - 24) * done, height: 4, rx: 2 }));
  if (isTraining) {
    ranks.forEach((rank, at) => node.append(draw('g', { class: 'rank', transform: `translate(${12 + (at % 2) * 100} ${ROW + 24 * Math.floor(at / 2)})` },
      draw('rect', { width: 94, height: 19, rx: 5 }),
      draw('text', { x: 8, y: 14 }, `rank ${rank.rank}`))));
  }
  return acts(node, () => openPlan(stage));
}

/// ---- the table

export function stageTable(stages) {
  return table([
    { name: 'Stage', number: true, of: (s) => s.stage_id },
    { name: 'State', of: (s) => pill(s.state) },
    { name: 'What it does', wide: true, of: (s) => [does(s), s.inputs.length ? make('div', { class: 'minor' }, `reads ${s.inputs.length > 1 ? 'stages' : 'stage'} ${s.inputs.join(', ')}`) : ''] },
    { name: 'Partitions', number: true, of: (s) => `${whole(s.partitions_done)} of ${whole(s.partitions)}` },
    { name: 'Time', number: true, of: (s) => time(s.seconds) },
    { name: 'Read', number: true, of: (s) => amount(s.rows_read, s.bytes_read) },
    { name: 'Output', number: true, of: (s) => amount(s.rows, s.tasks_done ? s.bytes : null) },
    { name: 'Tasks', number: true, of: spread },
    ...stages.some((s) => s.spilled_bytes) ? [{ name: 'Spilled', number: true, of: (s) => s.spilled_bytes ? bytes(s.spilled_bytes) : '' }] : [],
    { name: 'Executors', of: ran },
    ...stages.some((s) => s.attempts > 1 || s.tasks_failed) ? [{ name: 'Attempts', number: true, of: (s) => s.attempts + (s.tasks_failed ? `, ${whole(s.tasks_failed)} tasks failed` : '') }] : [],
  ], stages, 'Stages');
}

const amount = (rows, size) => rows === null && size === null ? ''
  : [rows === null ? '' : make('div', {}, `${whole(rows)} rows`), size === null ? '' : make('div', { class: 'minor' }, bytes(size))];

// Times of the tasks that are done: their median, the slowest one, and how many took how long.
function spread(stage) {
  if (!stage.tasks_done) return stage.running ? `${whole(stage.running)} run` : '';
  if (stage.tasks_done === 1) return `1 of ${time(stage.slowest_seconds) || '0 s'}`;
  const said = `${whole(stage.tasks_done)} tasks: fastest ${time(stage.fastest_seconds)}, median ${time(stage.median_seconds)}, slowest ${time(stage.slowest_seconds)}`;
  return [make('div', {}, `${whole(stage.tasks_done)}, median ${time(stage.median_seconds)}`),
    make('div', { class: 'minor' }, `slowest ${time(stage.slowest_seconds)}`,
      stage.median_seconds > 0 && stage.slowest_seconds > 2 * stage.median_seconds ? ` (${(stage.slowest_seconds / stage.median_seconds).toFixed(1)}×)` : ''),
    stage.task_histogram.length ? histogram(stage.task_histogram, said) : ''];
}

// Executors of a stage: a few as links, more as a number.
function ran(stage) {
  const all = stage.executors;
  const shown = all.length <= 3 ? all : all.slice(0, 2);
  return [...shown.map(({ executor_id, tasks, running }) => make('div', { class: 'nowrap' },
    link(`#/executor/${encodeURIComponent(executor_id)}`, executor_id), ` ${whole(tasks + running)}`)),
  all.length > shown.length ? make('div', { class: 'minor', title: all.map(({ executor_id }) => executor_id).join(', ') }, `and ${whole(all.length - shown.length)} more`) : ''];
}

/// ---- the plans

// Plans, an operator a line below the one that reads it, whole: with its rows and time, and its metrics when it is opened.
export function plans(stages) {
  return make('details', { id: 'plans' }, make('summary', {}, 'Plans, with rows and time of each operator'),
    stages.map((stage) => {
      const all = stage.operators.reduce((sum, operator) => sum + (operator.seconds ?? 0), 0);
      return make('details', { id: `plan-${stage.stage_id}`, class: 'plan' },
        make('summary', {}, `Stage ${stage.stage_id}: ${does(stage)}`),
        table([
          { name: 'Operator', wide: true, of: (operator) => operatorOf(operator) },
          { name: 'Rows', number: true, of: (operator) => whole(operator.rows) },
          { name: 'Time', number: true, of: (operator) => operator.seconds === null ? '' : [time(operator.seconds),
            all > 0 ? bar([[operator.seconds / all, 'one']], `${share(operator.seconds, all)} of the stage's computing`) : ''] },
        ], stage.operators, `Plan of stage ${stage.stage_id}`));
    }));
}

function operatorOf({ depth, text, metrics }) {
  const [name, ...rest] = text.split(': ');
  const node = make('div', { class: 'operator' }, make('b', {}, name.replace(/Exec$/, '')),
    rest.length ? make('span', { class: 'mono' }, ` ${rest.join(': ')}`) : '',
    metrics ? make('div', { class: 'metrics mono' }, metrics) : '');
  // A policy of the page forbids style attributes in markup.
  node.style.setProperty('--depth', Math.min(depth, 24));
  return node;
}
