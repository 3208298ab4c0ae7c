// The list of executors, and the page of one: its memory, CPU, disks, network, devices, tasks and log.

import { bytes, clock, facts, lines, link, make, quiet, read, readNewer, section, share, table, whole } from './base.js';
import { bar, chart } from './charts.js';

// Samples kept of an executor: as many as the scheduler keeps.
const SAMPLES = 200;
const cores = (n) => n === null || n === undefined ? '' : n.toFixed(n < 10 ? 2 : 0);
const page = (id) => `#/executor/${encodeURIComponent(id)}`;
const unlimited = (n) => n > 2 ** 60;

const memory = (executor) => executor.process_bytes === null ? '' : [bytes(executor.process_bytes),
  executor.machine_bytes ? bar([[executor.process_bytes / executor.machine_bytes, 'one']],
    `${bytes(executor.process_bytes)} of ${bytes(executor.machine_bytes)}`) : ''];

export function executorTable(executors) {
  if (!executors.length) return quiet('No executor has registered yet: jobs wait until one does.');
  return table([
    { name: 'Executor', of: (e) => link(page(e.executor_id), e.executor_id, 'mono') },
    { name: 'Host', of: (e) => `${e.host}:${e.port}` },
    { name: 'Role', of: (e) => e.role },
    { name: 'Slots', number: true, of: (e) => `${e.slots - e.free_slots} of ${e.slots} busy` },
    { name: 'CPU cores', number: true, of: (e) => cores(e.cpu_cores) },
    { name: 'Memory', number: true, of: memory },
    { name: 'Queries', number: true, of: (e) => e.reserved_bytes === null ? bytes(e.memory_bytes) : `${bytes(e.reserved_bytes)} of ${bytes(e.memory_bytes)}` },
    { name: 'Ranks', number: true, of: (e) => whole(e.ranks) },
    { name: 'Device', of: (e) => e.device },
    ...executors.some((e) => e.gpus.length) ? [{ name: 'GPUs', of: (e) => e.gpus.map((gpu) => make('div', {}, gpu)) }] : [],
    { name: 'Version', of: (e) => e.version },
    { name: 'Since', of: (e) => clock(e.since) },
    ...executors.some((e) => e.draining) ? [{ name: 'State', of: (e) => e.draining ? 'draining' : '' }] : [],
  ], executors, 'Executors');
}

export async function executorsPage() {
  const executors = await read('executors');
  return [make('h1', {}, 'Executors'), section('Registered', executorTable(executors))];
}

export async function executorPage(id) {
  const of = { executor: id };
  const [[executor], vitals, log] = await Promise.all([read('executors', of),
    readNewer('executor_vitals', of, { most: SAMPLES }), read('log', of)]);
  if (!executor) {
    return [make('h1', {}, `Executor ${id}`),
      make('p', { class: 'notice' }, 'Unknown executor: it has left, or has not registered.'),
      section('Log', lines(log.reverse().slice(0, 500), true))];
  }
  const line = (name, hue, value, more = {}) => ({ name, hue, points: vitals.filter((v) => v[value] !== null).map((v) => [v.at, v[value]]), ...more });
  const level = (name, hue, value) => ({ name, hue, dashed: true, points: vitals.length ? [vitals[0], vitals.at(-1)].map((v) => [v.at, value]) : [] });
  const rate = (n) => `${bytes(n)}/s`;
  const drawn = (title, series, how) => section(title, vitals.length
    ? chart(`${title} of ${id}`, series.filter(({ points }) => points.length), { time: true, zero: true, half: true, ...how })
    : quiet('No samples yet: the executor sends one every three seconds.'));
  return [
    make('h1', {}, `Executor ${id}`),
    facts([
      ['Host', `${executor.host}:${executor.port}`],
      ['Role', executor.role],
      ['State', executor.draining ? 'draining' : 'ready'],
      ['Slots', `${executor.slots - executor.free_slots} of ${executor.slots} busy`],
      ['Ranks', executor.ranks],
      ['CPU cores in use', cores(executor.cpu_cores)],
      ['Process memory', executor.process_bytes === null ? '' : bytes(executor.process_bytes)],
      ['Memory of the host or container', executor.machine_bytes ? bytes(executor.machine_bytes) : ''],
      ['Memory of ranks, at least', executor.ranks ? bytes(executor.rank_bytes) : ''],
      ['Reserved by queries', `${bytes(executor.reserved_bytes ?? 0)} of ${bytes(executor.memory_bytes)} (${share(executor.reserved_bytes ?? 0, executor.memory_bytes)})`],
      ['Limit of each rank', unlimited(executor.rank_memory_bytes) ? 'none' : bytes(executor.rank_memory_bytes)],
      ['Version', executor.version],
      ['Since', new Date(executor.since).toLocaleString('en-GB')],
    ]),
    section('Running now', executor.running.length ? table([
      { name: 'Job', of: (t) => link(`#/job/${t.job_id}`, t.job_id, 'mono') },
      { name: 'Stage', number: true, of: (t) => t.stage_id },
      { name: 'Tasks', number: true, of: (t) => whole(t.tasks) },
      { name: 'Slots', number: true, of: (t) => whole(t.slots) },
    ], executor.running, 'Running tasks') : quiet('No tasks of yours run here now.')),
    make('div', { class: 'columns' },
      drawn('Memory', [line('process', 'one', 'process_bytes'), line('reserved by queries', 'two', 'reserved_bytes'),
        line('ranks, at least', 'four', 'rank_bytes'), level('limit of queries', 'three', executor.memory_bytes)], { level: bytes, binary: true }),
      drawn('CPU', [line('cores in use', 'one', 'cpu_cores')], { level: cores }),
      drawn('Disk', [line('read', 'one', 'disk_read_rate'), line('written', 'two', 'disk_write_rate')], { level: rate, binary: true }),
      drawn('Network', [line('rows sent to others', 'one', 'served_rate'), line('host received', 'four', 'network_in_rate'), line('host sent', 'two', 'network_out_rate')], { level: rate, binary: true })),
    section('Devices', executor.gpus.length ? make('ul', {}, executor.gpus.map((gpu) => make('li', {}, gpu)))
      : quiet(`No GPU; ranks compute on ${executor.device}.`)),
    section('Log', log.length ? lines(log.reverse().slice(0, 500), true) : quiet('No warnings or errors.')),
  ];
}
