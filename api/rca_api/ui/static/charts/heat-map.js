// Rank by step: how late each rank is. Drawn once into an image; hover and brush move elements above it.

import { h } from "../dom.js";
import { seconds, whole } from "../format.js";

const MOST_ROWS = 480;
const MOST_COLUMNS = 1200;
const HEIGHT = [120, 420];
//: Pixels that the name of a rank needs.
const NAME_HEIGHT = 14;
//: From on time to late; the lightness changes in one direction, so that it reads in grey.
const LIGHT = [[247, 248, 250], [253, 212, 158], [239, 101, 72], [127, 0, 0]];
const DARK = [[29, 35, 45], [107, 58, 42], [222, 105, 56], [255, 237, 160]];
const NO_ROW = { light: [160, 168, 180], dark: [90, 100, 115] };
const dark = matchMedia("(prefers-color-scheme: dark)");

/**
 * Draw a heat map.
 * @param {Grid} grid
 * @param {object} view  `rows` (of the grid, shown), `first` and `last` (columns shown), `scale` (s).
 * @param {object} marks  `blamed` (Set of ranks), `from` and `until` (steps, or null).
 * @param {(first: number, last: number) => void} onBrush  Called with columns of the grid.
 */
export function heatMap(grid, view, marks, onBrush) {
  const canvas = h("canvas", { tabindex: 0, role: "application", "aria-roledescription": "heat map", "aria-label": label(grid, view) });
  const cursor = h("div", { class: "cursor", hidden: true });
  const brush = h("div", { class: "brush", hidden: true });
  const readout = h("p", { class: "readout", role: "status" }, "Point at a cell, or focus the picture and use the arrow keys. Drag to choose steps.");
  const bins = binning(view);
  paint(canvas, grid, view, bins);
  const picture = h("div", { class: "picture" }, canvas, onset(grid, view, marks), cursor, brush, blamedMarks(grid, view, marks, bins), rankNames(grid, view, marks));
  listen(canvas, { grid, view, bins, cursor, brush, readout, onBrush });
  return h("div", { class: "heat" },
    picture,
    h("div", { class: "axis" }, h("span", {}, `step ${whole(grid.steps[view.first])}`), h("span", {}, `step ${whole(grid.steps[view.last])}`)),
    legend(view, bins, grid),
    readout,
  );
}

function label(grid, view) {
  return `Lateness of ${view.rows.length} ranks in steps ${grid.steps[view.first]} to ${grid.steps[view.last]}. The table below has the latest ranks. Arrow keys read single cells.`;
}

function binning(view) {
  const columns = view.last - view.first + 1;
  return {
    height: Math.min(view.rows.length, MOST_ROWS), width: Math.min(columns, MOST_COLUMNS),
    perRow: view.rows.length / Math.min(view.rows.length, MOST_ROWS), perColumn: columns / Math.min(columns, MOST_COLUMNS),
  };
}

const heightOf = (view) => Math.min(Math.max(view.rows.length * 14, HEIGHT[0]), HEIGHT[1]);

/** The latest value of each bin, so that one late rank of ten thousand is seen. */
function paint(canvas, grid, view, bins) {
  canvas.width = bins.width;
  canvas.height = bins.height;
  canvas.style.height = `${heightOf(view)}px`;
  const image = new ImageData(bins.width, bins.height);
  const pixels = new Uint32Array(image.data.buffer);
  const colours = table();
  for (let y = 0; y < bins.height; y += 1) {
    for (let x = 0; x < bins.width; x += 1) {
      const { value } = peak(grid, view, bins, x, y);
      const at = Number.isNaN(value) ? 256 : Math.min(255, Math.max(0, Math.round((value / view.scale) * 255)));
      pixels[y * bins.width + x] = colours[at];
    }
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
}

/** The latest cell of a bin. */
function peak(grid, view, bins, x, y) {
  const width = grid.steps.length;
  const told = { value: NaN, row: view.rows[Math.floor(y * bins.perRow)], column: view.first + Math.floor(x * bins.perColumn) };
  const rowEnd = Math.max(Math.floor((y + 1) * bins.perRow), Math.floor(y * bins.perRow) + 1);
  const columnEnd = Math.max(Math.floor((x + 1) * bins.perColumn), Math.floor(x * bins.perColumn) + 1);
  for (let r = Math.floor(y * bins.perRow); r < rowEnd; r += 1) {
    for (let c = Math.floor(x * bins.perColumn); c < columnEnd; c += 1) {
      const value = grid.late[view.rows[r] * width + view.first + c];
      if (value > told.value || (Number.isNaN(told.value) && !Number.isNaN(value))) Object.assign(told, { value, row: view.rows[r], column: view.first + c });
    }
  }
  return told;
}

function table() {
  const stops = dark.matches ? DARK : LIGHT;
  const colours = new Uint32Array(257);
  for (let i = 0; i < 256; i += 1) {
    const at = (i / 255) * (stops.length - 1);
    const low = Math.min(Math.floor(at), stops.length - 2);
    colours[i] = packed(stops[low].map((from, part) => from + (stops[low + 1][part] - from) * (at - low)));
  }
  colours[256] = packed(dark.matches ? NO_ROW.dark : NO_ROW.light);
  return colours;
}

const packed = ([red, green, blue]) => ((255 << 24) | (Math.round(blue) << 16) | (Math.round(green) << 8) | Math.round(red)) >>> 0;

function legend(view, bins, grid) {
  const ramp = h("canvas", { width: 256, height: 1, role: "img", "aria-label": "colours from on time to late" });
  const image = new ImageData(256, 1);
  new Uint32Array(image.data.buffer).set(table().subarray(0, 256));
  ramp.getContext("2d").putImageData(image, 0, 0);
  return h("p", { class: "legend" },
    h("span", {}, "on time"), ramp, h("span", {}, `${seconds(view.scale)} late or more (${grid.meaning})`),
    h("span", {}, "▐ blamed rank   ┆ onset and end"),
    bins.perRow > 1 ? h("span", {}, `each row shows the latest of ${Math.ceil(bins.perRow)} ranks`) : null,
  );
}

function onset(grid, view, marks) {
  const span = view.last - view.first + 1;
  return [[marks.from, 0], [marks.until, 1]].map(([step, after]) => {
    const column = step === null || step === undefined ? -1 : grid.steps.findIndex((each) => each >= step);
    if (column < view.first || column > view.last) return null;
    const line = h("div", { class: "line", title: after ? `until step ${step}` : `from step ${step}` });
    line.style.left = `calc(${((column + after - view.first) / span) * 100}% + 0px)`;
    return line;
  });
}

function blamedMarks(grid, view, marks, bins) {
  const found = [];
  const seen = new Set();
  view.rows.forEach((row, at) => {
    const y = Math.floor(at / bins.perRow);
    if (!marks.blamed.has(grid.ranks[row]) || seen.has(y)) return;
    seen.add(y);
    const mark = h("div", { class: "blamed" });
    mark.style.top = `${(y / bins.height) * 100}%`;
    mark.style.height = `max(3px, ${100 / bins.height}%)`;
    found.push(mark);
  });
  return found;
}

/** Names of as many ranks as have room, to the left of their rows. */
function rankNames(grid, view, marks) {
  const every = Math.ceil((view.rows.length * NAME_HEIGHT) / heightOf(view));
  return view.rows.map((row, at) => {
    if (at % every) return null;
    const rank = grid.ranks[row];
    const name = h("span", { class: marks.blamed.has(rank) ? "rank own" : "rank", "aria-hidden": "true" }, `rank ${rank}`);
    name.style.top = `${((at + 0.5) / view.rows.length) * 100}%`;
    return name;
  });
}

function listen(canvas, parts) {
  const { grid, view, bins, cursor, brush, readout, onBrush } = parts;
  const at = { x: 0, y: 0 };
  let from = null;
  const show = () => {
    const cell = peak(grid, view, bins, at.x, at.y);
    const node = grid.nodes[cell.row] ? `, ${grid.nodes[cell.row]}` : "";
    const value = Number.isNaN(cell.value) ? "no row" : cell.value >= 0 ? `${seconds(cell.value)} later than the middle rank` : `${seconds(-cell.value)} earlier than the middle rank`;
    readout.textContent = `Rank ${grid.ranks[cell.row]}${node}, step ${grid.steps[cell.column]}: ${value}.`;
    cursor.hidden = false;
    cursor.style.left = `${(at.x / bins.width) * 100}%`;
    cursor.style.top = `${(at.y / bins.height) * 100}%`;
    cursor.style.width = `max(4px, ${100 / bins.width}%)`;
    cursor.style.height = `max(4px, ${100 / bins.height}%)`;
  };
  const point = (event) => {
    const box = canvas.getBoundingClientRect();
    at.x = limited(Math.floor(((event.clientX - box.left) / box.width) * bins.width), bins.width);
    at.y = limited(Math.floor(((event.clientY - box.top) / box.height) * bins.height), bins.height);
  };
  const column = (x, end) => view.first + Math.min(Math.floor((x + end) * bins.perColumn) - end, view.last - view.first);
  const drawBrush = () => {
    brush.hidden = from === null || from === at.x;
    brush.style.left = `${(Math.min(from, at.x) / bins.width) * 100}%`;
    brush.style.width = `${((Math.abs(at.x - from) + 1) / bins.width) * 100}%`;
  };
  canvas.addEventListener("pointermove", (event) => {
    point(event);
    show();
    if (from !== null) drawBrush();
  });
  canvas.addEventListener("pointerdown", (event) => {
    point(event);
    from = at.x;
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointerup", () => {
    const [first, last] = [Math.min(from ?? at.x, at.x), Math.max(from ?? at.x, at.x)];
    from = null;
    brush.hidden = true;
    if (last > first) onBrush(column(first, 0), column(last, 1));
  });
  canvas.addEventListener("pointercancel", () => { from = null; brush.hidden = true; });
  canvas.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    at.x = limited(at.x + move[0], bins.width);
    at.y = limited(at.y + move[1], bins.height);
    show();
  });
}

const limited = (value, size) => Math.min(Math.max(value, 0), size - 1);
