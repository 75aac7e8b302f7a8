// A telemetry window as arrays: rank by step, and the samples of metrics.

import { call } from "./api.js";

//: Largest window that is fetched for pictures: rows of `steps`, and bytes of JSON.
const MOST_ROWS = 500_000;
const MOST_BYTES = 160 << 20;
const BINS = 80;

/**
 * Fetch a stored window.
 * @returns {Promise<{grid: Grid|null, metrics: Array, job: object, reason: string|null}>} `reason` says why there is no picture.
 */
export async function stored(digest, rows, signal) {
  if (digest === null) return { grid: null, reason: "Retention has deleted the window, so there are no pictures of it." };
  if (rows > MOST_ROWS) return { grid: null, reason: `The window has ${rows.toLocaleString("en")} rows. Pictures are drawn up to ${MOST_ROWS.toLocaleString("en")}. The answer above is complete.` };
  const answer = await call("GET", `/v1/windows/${digest}`, { signal });
  if (Number(answer.headers.get("Content-Length")) > MOST_BYTES) {
    await answer.body?.cancel();
    return { grid: null, reason: "The window is too large for pictures in a browser. The answer above is complete." };
  }
  const window = await answer.json();
  const grid = window.steps?.rank?.length ? gridOf(window) : null;
  return { grid, job: window.job, metrics: window.metrics ?? [], reason: grid ? null : "The window has no steps, so no step can be drawn." };
}

/**
 * @typedef {object} Grid
 * @property {number[]} ranks  Ranks, by row.
 * @property {number[]} steps  Steps, by column.
 * @property {string[]} nodes  Node of each row; empty if unknown.
 * @property {Float32Array} late  Seconds that a rank is later than the middle rank; NaN without a row.
 * @property {string} meaning  What `late` is in this window.
 * @property {Float64Array} began  Earliest start of each step, Unix seconds.
 * @property {Map<string, Float32Array>} phases  Seconds, by name of the column.
 */

/** Arrange the rows of `steps`. */
export function gridOf(window) {
  const { rank, step, start_time: start } = window.steps;
  const ranks = sorted(rank);
  const steps = sorted(step);
  const rowOf = indexed(ranks);
  const columnOf = indexed(steps);
  const size = ranks.length * steps.length;
  const place = new Int32Array(rank.length);
  const began = new Float64Array(steps.length).fill(Infinity);
  for (let i = 0; i < rank.length; i += 1) {
    const column = columnOf.get(step[i]);
    place[i] = rowOf.get(rank[i]) * steps.length + column;
    if (start?.[i] < began[column]) began[column] = start[i];
  }
  const phases = new Map();
  for (const [name, values] of Object.entries(window.steps)) {
    if (!name.endsWith("_seconds") || !Array.isArray(values)) continue;
    const filled = new Float32Array(size).fill(NaN);
    for (let i = 0; i < values.length; i += 1) if (values[i] !== null) filled[place[i]] = values[i];
    phases.set(name, filled);
  }
  const named = new Map((window.job.ranks ?? []).map((each) => [each.rank, each.node ?? ""]));
  const own = ownSeconds(phases, size);
  return {
    ranks, steps, began, phases, meaning: own.meaning,
    nodes: ranks.map((each) => named.get(each) ?? ""),
    late: excess(own.values, ranks.length, steps.length),
  };
}

const sorted = (values) => [...new Set(values)].sort((a, b) => a - b);
const indexed = (values) => new Map(values.map((each, at) => [each, at]));

/** The time that a rank does not spend on waiting for others. */
function ownSeconds(phases, size) {
  const whole = phases.get("step_seconds");
  const wait = phases.get("communication_wait_seconds") ?? phases.get("communication_seconds");
  if (!wait) return { values: whole, meaning: "whole step; the window has no waiting times, so late ranks may not show" };
  const moved = phases.get("communication_wait_seconds") ? phases.get("communication_transfer_seconds") : null;
  const values = new Float32Array(size);
  for (let i = 0; i < size; i += 1) values[i] = whole[i] - (wait[i] || 0) - (moved?.[i] || 0);
  return { values, meaning: "own work without communication, compared with the middle rank of the step" };
}

/** Values less the median of their column. */
function excess(values, nRows, nColumns) {
  const late = new Float32Array(values.length);
  const column = new Float32Array(nRows);
  for (let c = 0; c < nColumns; c += 1) {
    let n = 0;
    for (let r = 0; r < nRows; r += 1) {
      const value = values[r * nColumns + c];
      if (!Number.isNaN(value)) column[n++] = value;
    }
    const middle = quantile(column.subarray(0, n).sort(), 0.5);
    for (let r = 0; r < nRows; r += 1) late[r * nColumns + c] = values[r * nColumns + c] - middle;
  }
  return late;
}

/** Quantile of sorted values. */
export function quantile(ordered, share) {
  if (ordered.length === 0) return NaN;
  const at = share * (ordered.length - 1);
  const low = Math.floor(at);
  return ordered[low] + (ordered[Math.min(low + 1, ordered.length - 1)] - ordered[low]) * (at - low);
}

/**
 * Upper end of the colour scale. A rank that is late in a fifth of the steps has full colour. Otherwise nearly the
 * latest cell counts, so that one outlier does not hide the others.
 */
export function scaleOf(grid) {
  const { late } = grid;
  const width = grid.steps.length;
  const every = Math.max(1, Math.floor(late.length / 200_000));
  const some = [];
  for (let i = 0; i < late.length; i += every) if (late[i] > 0) some.push(late[i]);
  let scale = quantile(Float32Array.from(some).sort(), 0.995) || 0;
  for (let row = 0; row < grid.ranks.length; row += 1) {
    const known = late.slice(row * width, (row + 1) * width).filter((each) => !Number.isNaN(each)).sort();
    scale = Math.max(scale, quantile(known, 0.8) || 0);
  }
  return Math.max(scale, 1e-4);
}

/** Mean lateness of each row of `rows` over the columns from `first` to `last`, the latest first. */
export function latest(grid, rows, first, last) {
  const width = grid.steps.length;
  return rows.map((row) => {
    let sum = 0;
    let n = 0;
    for (let c = first; c <= last; c += 1) {
      const value = grid.late[row * width + c];
      if (!Number.isNaN(value)) { sum += value; n += 1; }
    }
    return { row, mean: n ? sum / n : NaN };
  }).filter((each) => !Number.isNaN(each.mean)).sort((a, b) => b.mean - a.mean);
}

/**
 * @typedef {object} Comparison  Blamed ranks beside their peers, by point of x.
 * @property {number[]} x
 * @property {number[]} own  Mean of the blamed.
 * @property {number[]} peer  Median of the others; `low` and `high` hold eight of ten of them.
 */

/** Compare a timed phase, by step. */
export function comparePhase(grid, name, blamed) {
  const values = grid.phases.get(name);
  const width = grid.steps.length;
  const lines = grid.ranks.map((rank, row) => ({ own: blamed.has(rank), values: values.subarray(row * width, (row + 1) * width) }));
  return compared(lines, grid.steps);
}

/** Compare the series of one metric over time; counters become rates. */
export function compareMetric(series, job, blamedRanks, blamedNodes) {
  const width = (job.end - job.start) / BINS;
  const x = Array.from({ length: BINS }, (_, i) => job.start + (i + 0.5) * width);
  const lines = series.map((each) => ({
    own: each.rank !== null && each.rank !== undefined ? blamedRanks.has(each.rank) : blamedNodes.has(each.node),
    values: binned(each, job.start, width),
  }));
  return compared(lines, x);
}

/** Time-weighted means: a counter's rate holds between two samples, a gauge holds until the next one. */
function binned(series, start, width) {
  const sums = new Float64Array(BINS);
  const spans = new Float64Array(BINS);
  const { times, values } = series;
  const counter = /(_total|_count)$|Segs$|Retrans/.test(series.name);
  for (let i = 0; i + 1 < times.length; i += 1) {
    if (values[i] === null || (counter && values[i + 1] === null)) continue;
    const value = counter ? (values[i + 1] - values[i]) / (times[i + 1] - times[i]) : values[i];
    // A counter that falls was reset.
    if (!Number.isFinite(value) || (counter && value < 0)) continue;
    const last = Math.min(Math.floor((times[i + 1] - start) / width), BINS - 1);
    for (let bin = Math.max(Math.floor((times[i] - start) / width), 0); bin <= last; bin += 1) {
      const from = Math.max(times[i], start + bin * width);
      const span = Math.min(times[i + 1], start + (bin + 1) * width) - from;
      if (span <= 0) continue;
      sums[bin] += value * span;
      spans[bin] += span;
    }
  }
  return sums.map((sum, at) => (spans[at] ? sum / spans[at] : NaN));
}

function compared(lines, x) {
  const told = { x, own: [], peer: [], low: [], high: [] };
  const peers = new Float64Array(lines.length);
  for (let c = 0; c < x.length; c += 1) {
    let sum = 0;
    let nOwn = 0;
    let nPeers = 0;
    for (const { own, values } of lines) {
      const value = values[c];
      if (Number.isNaN(value)) continue;
      if (own) { sum += value; nOwn += 1; } else peers[nPeers++] = value;
    }
    const ordered = peers.subarray(0, nPeers).sort();
    told.own.push(nOwn ? sum / nOwn : NaN);
    told.peer.push(quantile(ordered, 0.5));
    told.low.push(quantile(ordered, 0.1));
    told.high.push(quantile(ordered, 0.9));
  }
  return told;
}

/** How far the blamed are from their peers, in widths of the peers; the mean over x, 0 if they are alike. */
export function separation(told) {
  const size = Math.max(...told.peer.map((each) => Math.abs(each)).filter(Number.isFinite), 1e-12);
  let sum = 0;
  let n = 0;
  told.own.forEach((own, at) => {
    const width = told.high[at] - told.low[at];
    const apart = Math.abs(own - told.peer[at]) / (width + 0.02 * size);
    if (Number.isFinite(apart)) { sum += Math.min(apart, 20); n += 1; }
  });
  return n ? sum / n : 0;
}
