// The list of jobs, and what the page of a job says of the job itself.

import { button, copyButton, link, make, moment, pill, redraw, table, time, whole } from './base.js';

export const jobColumns = [
  { name: 'Job', key: (job) => job.job_id, of: (job) => link(`#/job/${job.job_id}`, job.job_id, 'mono') },
  { name: 'State', key: (job) => job.state, of: (job) => pill(job.state) },
  { name: 'User', key: (job) => job.owner, of: (job) => job.owner },
  { name: 'Queue', key: (job) => job.queue, of: (job) => job.queue },
  { name: 'Wait reason', of: (job) => job.waits || '' },
  { name: 'Statement', wide: true, key: (job) => job.name, of: (job) => make('span', { class: 'clamp', title: job.name }, job.name) },
  { name: 'Submitted', key: (job) => job.submitted, of: (job) => moment(job.submitted) },
  { name: 'Time', number: true, key: (job) => job.seconds, of: (job) => time(job.seconds) },
  { name: 'Attempts', number: true, key: (job) => job.attempts, of: (job) => job.attempts },
];

// Jobs as a table; on a phone, as cards with the statement below the state. Columns that say nothing are left out.
export function jobTable(jobs, caption, order = null) {
  const waits = jobs.some((job) => job.waits);
  const columns = jobColumns.filter(({ name }) => name !== 'Wait reason' || waits);
  return table(columns, jobs, caption, order, 'cards');
}

// Filters and order of the listed jobs. The form stays the same node, which keeps the typed text.
const listed = { text: '', state: '', owner: '', kind: '', hours: '', by: 'Submitted', down: true, page: 0 };
const PAGE = 50;
const jobForm = make('form', { class: 'filters', role: 'search', 'aria-label': 'Jobs' });
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
  field.addEventListener('input', () => { listed[name] = field.value; listed.page = 0; redraw(); });
}
function choices(name, all, values) {
  const field = fields[name];
  const wanted = [['', all], ...values];
  const there = [...field.options].map((option) => option.value);
  if (there.join('\n') === wanted.map(([value]) => value).join('\n')) return;
  const chosen = field.value;
  field.replaceChildren(...wanted.map(([value, shown]) => make('option', { value }, shown)));
  field.value = wanted.some(([value]) => value === chosen) ? chosen : '';
  listed[name] = field.value;
}

export function jobList(jobs) {
  const distinct = (of) => [...new Set(jobs.map(of))].sort().map((value) => [value, value]);
  choices('state', 'All states', distinct((job) => job.state));
  choices('owner', 'All users', distinct((job) => job.owner));
  choices('kind', 'Queries and training', [['query', 'Queries'], ['training', 'Training']]);
  choices('hours', 'Any time', [['1', 'Last hour'], ['24', 'Last day'], ['168', 'Last week']]);
  const text = listed.text.trim().toLowerCase();
  const since = listed.hours ? Date.now() - Number(listed.hours) * 3600e3 : 0;
  const kept = jobs.filter((job) => (!text || `${job.job_id} ${job.name}`.toLowerCase().includes(text))
    && (!listed.state || job.state === listed.state) && (!listed.owner || job.owner === listed.owner)
    && (!listed.kind || (job.train_id ? 'training' : 'query') === listed.kind) && job.submitted >= since);
  const { key } = jobColumns.find(({ name }) => name === listed.by);
  const compare = (a, b) => typeof a === 'number' ? a - b : String(a) < String(b) ? -1 : Number(String(a) > String(b));
  kept.sort((a, b) => compare(key(a), key(b)) * (listed.down ? -1 : 1));
  const pages = Math.max(1, Math.ceil(kept.length / PAGE));
  listed.page = Math.min(listed.page, pages - 1);
  const from = listed.page * PAGE;
  const order = { name: listed.by, down: listed.down, by: (name) => {
    listed.down = listed.by === name ? !listed.down : true;
    listed.by = name;
    redraw();
  } };
  const turn = (name, by, able) => button(name, () => { listed.page += by; redraw(); }, { disabled: !able });
  const shown = kept.length
    ? `${from + 1} to ${Math.min(from + PAGE, kept.length)} of ${whole(kept.length)}` : 'No matching jobs';
  return [jobForm,
    kept.length ? jobTable(kept.slice(from, from + PAGE), 'Jobs', order) : null,
    make('p', { class: 'pages', role: 'status' }, make('span', {}, kept.length < jobs.length ? `${shown} (${whole(jobs.length)} in total)` : shown),
      pages > 1 ? [turn('Previous', -1, listed.page > 0), turn('Next', 1, listed.page < pages - 1)] : [])];
}

// Asks for confirmation, cancels the job, and shows the scheduler's answer.
const answers = new Map();
export function cancelButton(job) {
  const node = button('Cancel job', async () => {
    if (!confirm(`Cancel job ${job.job_id}?`)) return;
    const answer = await fetch(`/api/volley/jobs/${encodeURIComponent(job.job_id)}/cancel`, { method: 'POST' });
    answers.set(job.job_id, answer.ok ? '' : (await answer.text()).trim());
    redraw();
  }, { class: 'danger', id: 'cancel' });
  const said = answers.get(job.job_id);
  return make('p', {}, node, said ? make('span', { class: 'refused', role: 'alert' }, ` ${said}`) : null);
}

// The statement of a job, whole where the scheduler has it.
export function statementOf(job) {
  const text = job.statement || job.name;
  if (!text) return null;
  return make('div', { class: 'statement' }, make('pre', { class: 'mono', tabindex: 0, role: 'region', 'aria-label': 'Statement' }, text), copyButton(text));
}
