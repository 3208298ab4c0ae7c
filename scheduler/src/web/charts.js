// Charts: lines over steps or time, and small histograms.

import { clock, draw, isNarrow, loss, make, quiet, room, toggle, whole } from './base.js';

const HUES = ['one', 'two', 'four', 'five', 'six', 'three'];
export const hue = (at) => HUES[at % HUES.length];

// How a chart is looked at, by its title: it outlives the drawing.
const views = new Map();
const view = (title) => {
  if (!views.has(title)) views.set(title, { log: false, whole: false });
  return views.get(title);
};

// Most values, by their share, are drawn on an axis of their own height; those that are so many times that height above
// are left out, as they would flatten the others.
const [MOST, FAR] = [0.98, 2];

// A chart of series of points, each with a name and a hue; `key` is its name in the legend, if that is another one or
// none. `scales` offers a logarithmic axis; `time` says that x is a
// time; `zero` begins the axis at 0; `level` formats values, which are bytes if it is `binary`; `half` is for two charts beside each other.
export function chart(title, series, { x: xName = 'steps', scales = false, time = false, zero = false, level = loss, binary = false, half = false, controls = [], legend = null } = {}) {
  const width = half && !isNarrow() ? (room() - 62) / 2 : room();
  const [height, left, bottom, top, right] = [isNarrow() || half ? 200 : 250, 66, time ? 26 : 38, 12, 24];
  const looks = view(title);
  const log = scales && looks.log;
  const drawn = series.map((line) => ({ ...line, points: log ? line.points.filter(([, y]) => y > 0) : line.points }));
  const all = drawn.flatMap(({ points }) => points);
  const lost = series.reduce((sum, { points }, at) => sum + points.length - drawn[at].points.length, 0);
  const cut = scales && !log ? cutOff(all.map(([, y]) => y)) : null;
  const notes = [
    lost ? `${whole(lost)} points of 0 or less have no place on a logarithmic axis.` : null,
    cut && !looks.whole ? `Cut at ${level(cut.at)}: ${whole(cut.above)} of ${whole(all.length)} points are above, up to ${level(cut.highest)}.` : null,
  ].filter(Boolean);
  const tools = make('div', { class: 'tools' }, controls,
    scales ? toggle('Log axis', log, (on) => { looks.log = on; }) : null,
    cut ? toggle('Whole range', looks.whole, (on) => { looks.whole = on; }) : null);
  const note = notes.length ? make('p', { class: 'cut' }, notes.join(' ')) : null;
  const keys = make('figcaption', {}, series.filter(({ key }) => key !== null).map(({ name, key, hue }) => make('span', { class: `key hue-${hue}` }, key ?? name)), legend);
  if (all.length === 0) return make('figure', {}, tools, keys, quiet('No data yet: the curve begins with the first points.'), note);

  const x = span(all.map(([x]) => x), time ? 60e3 : null);
  const values = cut && !looks.whole ? all.map(([, y]) => y).filter((y) => y <= cut.at) : all.map(([, y]) => y);
  const y = span(zero ? [0, ...values] : values);
  const scaled = log ? Math.log10 : (v) => v;
  const [low, high] = [scaled(y[0]), scaled(y[1])];
  const atX = (v) => left + (v - x[0]) / (x[1] - x[0]) * (width - left - right);
  const atY = (v) => height - bottom - (Math.min(Math.max(scaled(v), low), high) - low) / (high - low) * (height - bottom - top);
  const picture = draw('svg', { viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', tabindex: 0, 'aria-label': describe(title, drawn, level) });
  for (const tick of log ? powers(y) : ticks(y, 5, binary)) {
    picture.append(
      draw('line', { class: 'axis', x1: left, x2: width - right, y1: atY(tick), y2: atY(tick) }),
      draw('text', { x: left - 8, y: atY(tick) + 4, 'text-anchor': 'end' }, binary ? level(tick) : plain(tick)));
  }
  for (const tick of time ? times(x, width / 95) : ticks(x, width / 120)) {
    picture.append(draw('text', { x: atX(tick), y: height - bottom + 18, 'text-anchor': 'middle' }, time ? clock(tick) : whole(tick)));
  }
  if (!time) picture.append(draw('text', { x: width - right, y: height - 2, 'text-anchor': 'end' }, xName));
  for (const { points, hue, dots, dashed } of drawn) {
    const d = points.map(([px, py], at) => `${at ? 'L' : 'M'}${atX(px).toFixed(1)} ${atY(py).toFixed(1)}`).join('');
    picture.append(draw('path', { class: `curve hue-${hue}${dashed ? ' dashed' : ''}`, d }));
    // Many dots would hide their line; a single point has no line.
    if (points.length === 1 || (dots && points.length <= 60)) points.forEach(([px, py]) => picture.append(draw('circle', { class: `dot hue-${hue}`, cx: atX(px), cy: atY(py), r: 3.5 })));
  }
  const cross = draw('line', { class: 'cross', y1: top, y2: height - bottom, visibility: 'hidden' });
  picture.append(cross);
  const reading = make('p', { class: 'reading', role: 'status' });
  const readAt = (wanted) => {
    const found = drawn.map(({ name, points }) => [name, nearest(points, wanted)]).filter(([, point]) => point);
    const at = nearest(found.map(([, point]) => point), wanted)[0];
    for (const end of ['x1', 'x2']) cross.setAttribute(end, atX(at));
    cross.setAttribute('visibility', 'visible');
    reading.textContent = `${time ? clock(at) : `${xName.replace(/s$/, '')} ${whole(at)}`}: ` + found.map(([name, [, v]]) => `${name} ${level(v)}`).join(', ');
    return at;
  };
  const unread = () => { cross.setAttribute('visibility', 'hidden'); reading.textContent = ''; };
  picture.addEventListener('pointermove', (event) => {
    const box = picture.getBoundingClientRect();
    readAt(x[0] + ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * (x[1] - x[0]));
  });
  picture.addEventListener('pointerleave', unread);
  // Arrow keys read the longest line, point by point.
  const longest = drawn.reduce((best, { points }) => points.length > best.length ? points : best, []);
  let read = longest.length;
  picture.addEventListener('keydown', (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    read = Math.min(Math.max(read + by * Math.max(1, Math.round(longest.length / 100)), 0), longest.length - 1);
    readAt(longest[read][0]);
  });
  picture.addEventListener('blur', unread);
  return make('figure', {}, tools, keys, picture, note, reading);
}

function span(values, least = null) {
  let [low, high] = values.reduce(([low, high], v) => [Math.min(low, v), Math.max(high, v)], [Infinity, -Infinity]);
  if (least && high - low < least) low = high - least;
  if (low === high) { const pad = Math.abs(low) * 0.1 || 1; low -= low > 0 ? Math.min(pad, low / 2) : pad; high += pad; }
  return [low, high];
}

// Where to cut an axis, if a few values are so far above the others that these would be flat.
function cutOff(values) {
  if (values.length <= 50) return null;
  const sorted = [...values].sort((a, b) => a - b);
  const most = sorted[Math.floor(sorted.length * MOST)];
  const near = sorted.filter((v) => v <= most + FAR * (most - sorted[0]));
  const above = sorted.length - near.length;
  return above ? { at: near[near.length - 1], highest: sorted[sorted.length - 1], above } : null;
}

// Round numbers in a range; of bytes, if these are binary.
function ticks([low, high], count, binary = false) {
  if (binary && high >= 1024) {
    const unit = 1024 ** Math.floor(Math.log2(high) / 10);
    return ticks([low / unit, high / unit], count).map((tick) => tick * unit);
  }
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= rough * 0.999);
  const found = [];
  for (let v = Math.ceil(low / step) * step; v <= high + step * 1e-9; v += step) found.push(Number(v.toPrecision(12)));
  return found;
}
// Powers of ten, with 2 and 5 times these where there are few.
function powers([low, high]) {
  const exponents = [];
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e += 1) exponents.push(e);
  const steps = exponents.length <= 3 ? [1, 2, 5] : [1];
  const found = exponents.flatMap((e) => steps.map((step) => Number((step * 10 ** e).toPrecision(3)))).filter((v) => v >= low && v <= high);
  return found.length ? found : [low, high];
}
// Round times in a range of milliseconds, a few of them.
const STEPS = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400];
export function times([low, high], count) {
  const step = 1e3 * (STEPS.find((step) => (high - low) / 1e3 / step <= count) ?? 86400 * Math.ceil((high - low) / 86400e3 / count));
  const found = [];
  for (let at = Math.ceil(low / step); at * step <= high; at += 1) found.push(at * step);
  return found;
}
const plain = (v) => Math.abs(v) >= 1e4 || (v !== 0 && Math.abs(v) < 1e-3) ? v.toExponential(1) : String(Number(v.toPrecision(4)));
const nearest = (points, wanted) => points.reduce((best, point) =>
  !best || Math.abs(point[0] - wanted) < Math.abs(best[0] - wanted) ? point : best, null);
function describe(title, series, level) {
  return `${title}. ` + series.filter(({ points }) => points.length).map(({ name, points }) =>
    `${name}: from ${level(points[0][1])} to ${level(points[points.length - 1][1])} over ${points.length} points`).join('; ');
}

// Counts as bars, the height of each by its square root: a single slow task is seen beside thousands.
export function histogram(counts, label) {
  const [width, height] = [4 * counts.length, 18];
  const most = Math.sqrt(counts.reduce((a, b) => Math.max(a, b), 1));
  return draw('svg', { class: 'histogram', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': label },
    draw('title', {}, label),
    counts.map((count, at) => {
      const tall = count ? Math.max(2, Math.sqrt(count) / most * height) : 0;
      return draw('rect', { x: 4 * at, y: height - tall, width: 3, height: tall });
    }));
}

// A part of a whole as a bar; `label` says what it is.
export function bar(parts, label) {
  let x = 0;
  return make('div', { class: 'bar' }, draw('svg', { viewBox: '0 0 100 10', preserveAspectRatio: 'none', role: 'img', 'aria-label': label },
    draw('title', {}, label),
    parts.map(([part, hue]) => {
      const rect = draw('rect', { class: `hue-${hue}`, x, width: Math.max(0, Math.min(100 * part, 100 - x)), height: 10 });
      x += 100 * part;
      return rect;
    })));
}
