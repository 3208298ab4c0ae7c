// Elements, formats, and access to the scheduler, for all parts of the page.
// Text from the cluster is inserted as text, never as markup.

const SVG = 'http://www.w3.org/2000/svg';
export const main = document.getElementById('main');
const PHONE = 672;
const WIDEST = 1216;

/// ---- elements

export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(node, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) node.setAttribute(key, value);
  }
  node.append(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

export const section = (title, ...content) => {
  const id = 's-' + title.toLowerCase().replace(/[^a-z]+/g, '-');
  return make('section', { 'aria-labelledby': id }, make('h2', { id }, title), ...content);
};

export const quiet = (text) => make('p', { class: 'quiet' }, text);
export const pill = (state) => make('span', { class: `pill ${state}` }, state);
export const facts = (pairs) => make('dl', { class: 'facts' }, pairs
  .filter(([, value]) => value !== null && value !== undefined && value !== '')
  .map(([name, value]) => make('div', {}, make('dt', {}, name), make('dd', {}, value))));
export const link = (href, text, kind = null) => make('a', { href, class: kind }, text);

export function button(name, act, attributes = {}) {
  const node = make('button', { type: 'button', ...attributes }, name);
  node.addEventListener('click', () => act(node));
  return node;
}

// A button that is on or off. `act` gets the new state.
export const toggle = (name, on, act) => button(name, () => { act(!on); redraw(); }, { class: 'toggle', 'aria-pressed': String(on) });

// A list to choose from; `values` are pairs of a value and its name.
export function choice(name, values, chosen, act) {
  const node = make('select', { 'aria-label': name }, values.map(([value, shown]) => make('option', { value, selected: value === chosen }, shown)));
  node.addEventListener('change', () => { act(node.value); redraw(); });
  return node;
}

// With an order, the names of columns that have a key are buttons that sort by it. Columns marked `wide` are text.
export function table(columns, rows, caption, order = null, kind = '') {
  const head = columns.map(({ name, number, key }) => {
    if (!order || !key) return make('th', { scope: 'col', class: number && 'number' }, name);
    const sorted = order.name === name && (order.down ? 'descending' : 'ascending');
    const sign = sorted ? make('span', { 'aria-hidden': 'true' }, order.down ? ' ↓' : ' ↑') : '';
    return make('th', { scope: 'col', class: number && 'number', 'aria-sort': sorted },
      button(name, () => order.by(name), { class: 'sort' }), sign);
  });
  const body = rows.map((row) => make('tr', {}, columns.map(({ of, number, wide, name }) =>
    make('td', { class: number ? 'number' : wide ? 'name' : null, 'data-name': name }, of(row) ?? ''))));
  return make('div', { class: `scroll ${kind}`, tabindex: 0, role: 'region', 'aria-label': caption },
    make('table', {}, make('thead', {}, make('tr', {}, head)), make('tbody', {}, body)));
}

// Draws the page again, as its data are.
export const redraw = () => dispatchEvent(new Event('redraw'));

// Width of what is in a section, in pixels.
export const isNarrow = () => innerWidth < PHONE;
export const room = () => Math.max(280, Math.min(main.clientWidth, WIDEST) - (isNarrow() ? 60 : 92));

/// ---- formats of numbers and times

export const whole = (n) => n === null || n === undefined ? '' : Number(n).toLocaleString('en-US');
export const loss = (n) => n === null || n === undefined ? '' : Number(n).toPrecision(4);
export const clock = (ms) => new Date(ms).toLocaleTimeString('en-GB');
// A time of today, or a day and a time.
export const moment = (ms) => new Date(ms).toDateString() === new Date().toDateString() ? clock(ms) : new Date(ms).toLocaleString('en-GB');
export function bytes(n) {
  if (n === null || n === undefined) return '';
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB'];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${n.toFixed(n < 10 && at ? 1 : 0)} ${units[at]}`;
}
export function time(seconds) {
  if (seconds === null || seconds === undefined) return '';
  if (seconds > 0 && seconds < 0.0995) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  const all = Math.round(seconds);
  const minutes = Math.floor(all / 60);
  if (minutes < 60) return `${minutes} min${all % 60 ? ` ${all % 60} s` : ''}`;
  return `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ''}`;
}
export const share = (part, all) => all > 0 ? `${Math.round(100 * part / all)} %` : '–';
export const shortened = (text, most) => text.length > most ? `${text.slice(0, Math.max(1, most - 1))}…` : text;

/// ---- the scheduler

export async function read(name, of = {}) {
  const answer = await fetch(`/api/volley/${name}?${new URLSearchParams(of)}`);
  // The login has ended, or the scheduler has been restarted.
  if (answer.status === 401) location.assign('/login');
  if (!answer.ok) throw new Error(`${answer.status} ${await answer.text()}`);
  return answer.json();
}

// Reads only the new rows of a known table, which has their time as `at`; `most` are kept. Where a table of more is
// thinned by the scheduler, `afresh` is the length from which it is read again in full.
const known = new Map();
export async function readNewer(name, of, { most = Infinity, afresh = Infinity } = {}) {
  const key = `${name}?${new URLSearchParams(of)}`;
  const before = known.get(key) ?? [];
  const last = before.length < afresh ? before.at(-1) : undefined;
  const rows = last ? before.concat(await read(name, { ...of, after: last.at })) : await read(name, of);
  const kept = rows.slice(Math.max(0, rows.length - most));
  known.set(key, kept);
  return kept;
}
export const readCurve = (of) => readNewer('training_steps', of, { afresh: 6000 });

// Reads a table again only while it may change.
const settled = new Map();
export async function readUntil(isSettled, name, of) {
  const key = `${name}?${new URLSearchParams(of)}`;
  if (settled.has(key)) return settled.get(key);
  const rows = await read(name, of);
  if (isSettled) settled.set(key, rows);
  return rows;
}

/// ---- the clipboard

// Copies a text, also where the browser gives pages no clipboard: over plain HTTP. Returns whether it was copied.
async function copy(text) {
  try {
    if (navigator.clipboard) {
      await navigator.clipboard.writeText(text);
      return true;
    }
  } catch { /* The other way may be permitted. */ }
  const area = make('textarea', { class: 'unseen', readonly: '', 'aria-hidden': 'true', tabindex: -1 });
  area.value = text;
  document.body.append(area);
  const focused = document.activeElement;
  try {
    area.select();
    return document.execCommand('copy');
  } catch {
    return false;
  } finally {
    area.remove();
    focused?.focus({ preventScroll: true });
  }
}

// The button stays the same node while its text does, so that its answer stays to be read.
const copies = { text: null, node: null };
export function copyButton(text) {
  if (copies.text !== text) {
    copies.text = text;
    copies.node = button('Copy', async (node) => {
      node.textContent = await copy(text) ? 'Copied' : 'Not copied: select the text and copy it';
      setTimeout(() => { node.textContent = 'Copy'; }, 3000);
    }, { class: 'copy', 'aria-live': 'polite' });
  }
  return copies.node;
}

/// ---- lines of logs

const teller = (line) => line.rank !== null ? `rank ${line.rank}` : line.executor_id ?? (line.job_id ? 'job' : 'training');

// Lines of a log; in a log of several jobs, each line links to its job.
export function lines(log, linked = false) {
  if (!log.length) return quiet('No events yet.');
  return make('ol', { class: 'log' }, log.map((line) => make('li', {},
    make('time', { datetime: new Date(line.at).toISOString() }, moment(line.at)),
    make('span', { class: 'who' }, linked && line.job_id ? link(`#/job/${line.job_id}`, teller(line)) : teller(line)),
    make('span', { class: line.failure && 'bad' }, line.text))));
}
export const tells = (line, text) => `${teller(line)} ${line.job_id ?? ''} ${line.text}`.toLowerCase().includes(text);
