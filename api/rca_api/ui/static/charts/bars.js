// Bars with their numbers as text: the steps from measured to ideal, and probabilities.

import { h } from "../dom.js";
import { digits, probability, seconds, words } from "../format.js";

/** From the measured step to the ideal one; null if the cost is unknown. */
export function waterfall(diagnosis) {
  const { ratio, seconds_per_step: lost } = diagnosis.slowdown;
  if (!(lost > 0) || !(ratio > 1)) return null;
  const ideal = lost / (ratio - 1);
  const measured = ideal + lost;
  const rows = [[`measured step (${digits(ratio)} times the ideal)`, 0, measured, false, seconds(measured)]];
  let end = measured;
  for (const cause of diagnosis.causes) {
    if (!(cause.seconds_per_step > 0)) continue;
    const size = Math.min(cause.seconds_per_step, end - ideal);
    rows.push([words(cause.cause), end - size, end, true, `+${seconds(cause.seconds_per_step)}`]);
    end -= size;
  }
  const left = diagnosis.unexplained_seconds_per_step;
  if (left > 0) {
    rows.push(["unexplained", Math.max(end - left, ideal), end, true, `+${seconds(left)}`]);
  }
  rows.push(["ideal step, without stragglers", 0, ideal, false, seconds(ideal)]);
  return bars(rows, measured);
}

/** Probabilities of the failure modes. */
export function probabilities(diagnosis) {
  const rows = Object.entries(diagnosis.failure_mode_probability).map(([mode, value]) => [words(mode), 0, value, false, probability(value)]);
  return bars(rows, 1);
}

function bars(rows, whole) {
  return h("div", { class: "bars" }, rows.map(([name, from, to, lost, text]) => {
    const fill = h("div", { class: lost ? "fill lost" : "fill" });
    fill.style.left = `${(from / whole) * 100}%`;
    fill.style.width = `${Math.max(((to - from) / whole) * 100, 0.3)}%`;
    return h("div", { class: "bar" }, h("span", {}, name), h("div", { class: "track", "aria-hidden": "true" }, fill), h("span", {}, text));
  }));
}
