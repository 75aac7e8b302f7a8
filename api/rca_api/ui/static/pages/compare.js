// Two diagnoses side by side, with one colour scale.

import { get } from "../api.js";
import { field, h, table } from "../dom.js";
import { digits, place, probability, seconds, utc, words } from "../format.js";
import { scaleOf, stored } from "../window.js";
import { finished } from "./diagnosis.js";
import { badge } from "./overview.js";
import { explored, marksOf } from "./pictures.js";
import { problem } from "./problem.js";

export async function page({ query, signal }) {
  const { items } = await get("/v1/diagnoses?state=done&limit=100", signal);
  const ids = [query.get("left") ?? items[0]?.diagnosis_id, query.get("right") ?? ""];
  const chosen = ["left", "right"].map((side, at) => choice(items, ids[at]));
  const go = () => { location.hash = `#/compare?left=${chosen[0].value}&right=${chosen[1].value}`; };
  const form = h("form", { onsubmit: (event) => { event.preventDefault(); go(); } },
    h("div", { class: "columns" }, h("div", {}, field("First window", chosen[0])), h("div", {}, field("Second window", chosen[1]))),
    h("div", { class: "actions" }, h("button", { class: "main" }, "Compare")));
  const both = ids.every((id) => /^[0-9a-f]{32}$/.test(id ?? ""));
  return h("div", {}, h("h1", {}, "Compare two windows"), items.length ? form : h("p", {}, "There is no diagnosis yet. ", h("a", { href: "#/upload" }, "Diagnose a window"), "."), both ? await compared(ids, signal) : null);
}

function choice(items, chosen) {
  const known = items.some((each) => each.diagnosis_id === chosen);
  const options = items.map((each) => [each.diagnosis_id, `${each.job_id}, ${utc(each.window_start)}, ${each.abstained ? "undecided" : words(each.failure_mode)}`]);
  if (chosen && !known) options.unshift([chosen, `diagnosis ${chosen.slice(0, 8)}`]);
  return h("select", { required: true }, h("option", { value: "" }, "choose"), options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

async function compared(ids, signal) {
  const two = await Promise.all(ids.map(async (id) => {
    const diagnosis = await finished(id, signal);
    const text = await get(`/ui/diagnoses/${id}`, signal);
    const { rows_used: used, rows_unused: unused } = diagnosis.quality;
    const window = await stored(text.window_digest, used + unused, signal).catch((error) => ({ grid: null, error }));
    return { diagnosis, text, window };
  }));
  const scale = Math.max(...two.map(({ window }) => (window.grid ? scaleOf(window.grid) : 0)));
  return h("div", {},
    table("Side by side", ["", "First", "Second"], rows(two)),
    h("p", { class: "quiet" }, "Both pictures have the same colour scale."),
    h("div", { class: "columns" }, two.map(({ diagnosis, text, window }, at) => h("section", {},
      h("h2", {}, at ? "Second window" : "First window"),
      h("p", {}, h("a", { href: `#/diagnoses/${diagnosis.diagnosis_id}` }, text.headline)),
      window.grid ? explored(window.grid, marksOf(diagnosis), scale) : window.error ? problem(window.error) : h("p", { class: "note" }, window.reason)))),
  );
}

function rows(two) {
  const each = (name, of) => [name, ...two.map(of)];
  const cause = ({ diagnosis }) => diagnosis.causes[0];
  return [
    each("Job", ({ diagnosis }) => diagnosis.job_id),
    each("Verdict", ({ text }) => badge(text.verdict)),
    each("Step time", ({ diagnosis: { slowdown } }) => (slowdown.ratio > 1 ? seconds((slowdown.seconds_per_step / (slowdown.ratio - 1)) * slowdown.ratio) : "not known")),
    each("Slowdown", ({ diagnosis }) => (diagnosis.slowdown.ratio ? `${digits(diagnosis.slowdown.ratio)} times the ideal` : "not known")),
    each("Cost per step", ({ diagnosis }) => seconds(diagnosis.slowdown.seconds_per_step)),
    each("Cause", (one) => (cause(one) ? `${words(cause(one).cause)} (${probability(cause(one).probability)})` : "none")),
    each("Where", (one) => (cause(one) ? place(cause(one)) : "nowhere")),
    each("Steps used", ({ diagnosis }) => String(diagnosis.quality.steps_used)),
    each("Model", ({ diagnosis }) => `${diagnosis.model.name} ${diagnosis.model.version}`),
  ];
}
