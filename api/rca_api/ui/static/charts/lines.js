// The blamed ranks beside their peers, over steps or time.

import { h, s } from "../dom.js";
import { digits, seconds, utc, whole } from "../format.js";

const HEIGHT = 220;
const MARGIN = { left: 64, right: 12, top: 10, bottom: 28 };

/**
 * Draw a comparison.
 * @param {Comparison} told
 * @param {object} how  `seconds` (unit of y), `time` (x is Unix seconds), `from` and `until` (on x, or null), `name`.
 */
export function lines(told, how) {
  const holder = h("div", {});
  const draw = () => {
    const width = Math.max(holder.clientWidth || 600, 240);
    holder.replaceChildren(drawn(told, how, width));
  };
  new ResizeObserver(draw).observe(holder);
  return h("figure", { class: "figure" }, holder,
    h("figcaption", { class: "legend" },
      h("span", {}, "━ blamed ranks, mean"), h("span", {}, "╌ peers, median"), h("span", {}, "▒ eight of ten peers"), h("span", {}, "┆ onset and end")),
  );
}

function drawn(told, how, width) {
  const known = [...told.own, ...told.low, ...told.high].filter((each) => Number.isFinite(each));
  if (!known.length) return h("p", {}, "This signal has no values in the window.");
  const low = Math.min(0, ...known);
  const high = Math.max(...known) * 1.05 || 1;
  const [first, last] = [told.x[0], told.x.at(-1)];
  const x = (value) => MARGIN.left + ((value - first) / (last - first || 1)) * (width - MARGIN.left - MARGIN.right);
  const y = (value) => HEIGHT - MARGIN.bottom - ((value - low) / (high - low || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const shown = how.seconds ? seconds : digits;
  const ticks = [low, low + (high - low) / 2, high];
  const place = how.time ? (value) => utc(value).slice(11) : (value) => `step ${whole(value)}`;
  return s("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "img", "aria-label": summary(told, how, shown) },
    ticks.map((each) => [
      s("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: y(each), y2: y(each) }),
      s("text", { x: MARGIN.left - 6, y: y(each) + 4, "text-anchor": "end" }, shown(each)),
    ]),
    s("path", { class: "band", d: band(told, x, y) }),
    s("path", { class: "peer", d: path(told.x, told.peer, x, y) }),
    s("path", { class: "own", d: path(told.x, told.own, x, y) }),
    [how.from, how.until].filter((each) => each !== null && each !== undefined && each >= first && each <= last).map((each) =>
      s("line", { class: "onset", x1: x(each), x2: x(each), y1: MARGIN.top, y2: HEIGHT - MARGIN.bottom })),
    s("text", { x: MARGIN.left, y: HEIGHT - 8 }, place(first)),
    s("text", { x: width - MARGIN.right, y: HEIGHT - 8, "text-anchor": "end" }, place(last)),
  );
}

function summary(told, how, shown) {
  const late = told.x.map((each) => (how.from === null || how.from === undefined || each >= how.from) && (how.until === null || how.until === undefined || each <= how.until));
  const mean = (values) => {
    const kept = values.filter((each, at) => late[at] && Number.isFinite(each));
    return kept.length ? kept.reduce((sum, each) => sum + each, 0) / kept.length : NaN;
  };
  return `${how.name}, in the late time: blamed ranks ${shown(mean(told.own))}, peers ${shown(mean(told.peer))}`;
}

function path(xs, values, x, y) {
  let pen = "M";
  return xs.map((each, at) => {
    if (!Number.isFinite(values[at])) {
      pen = "M";
      return "";
    }
    const part = `${pen}${x(each).toFixed(1)} ${y(values[at]).toFixed(1)}`;
    pen = "L";
    return part;
  }).join("");
}

function band(told, x, y) {
  const kept = told.x.map((_, at) => at).filter((at) => Number.isFinite(told.low[at]));
  if (kept.length < 2) return "";
  const there = kept.map((at) => `${x(told.x[at]).toFixed(1)} ${y(told.high[at]).toFixed(1)}`);
  const back = kept.reverse().map((at) => `${x(told.x[at]).toFixed(1)} ${y(told.low[at]).toFixed(1)}`);
  return `M${there.join("L")}L${back.join("L")}Z`;
}
