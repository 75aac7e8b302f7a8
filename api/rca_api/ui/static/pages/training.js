// Training runs: order, follow, cancel.

import { get, send } from "../api.js";
import { confirmed, facts, field, h } from "../dom.js";
import { digits, utc, whole, words } from "../format.js";
import { attempt, done, problem } from "./problem.js";

const EVERY_SECONDS = 2;
const ACTIVE = new Set(["queued", "running"]);

export async function page({ signal }) {
  const list = h("div", {});
  const told = h("div", {});
  const shown = new Map();
  async function refresh() {
    const { items } = await get("/v1/training-runs?limit=20", signal);
    for (const run of items.toReversed()) {
      const text = JSON.stringify(run);
      const known = shown.get(run.id);
      if (known?.text === text) continue;
      const entry = entryOf(run, told, refresh);
      if (known) known.entry.replaceWith(entry);
      else list.prepend(entry);
      shown.set(run.id, { text, entry, active: ACTIVE.has(run.state) });
    }
    if (!items.length) list.replaceChildren(h("p", {}, "No run yet."));
    else list.querySelector(":scope > p")?.remove();
  }
  await refresh();
  const timer = setInterval(async () => {
    // A finished run does not change.
    if (document.hidden || ![...shown.values()].some((each) => each.active)) return;
    try {
      await refresh();
    } catch (error) {
      if (!signal.aborted) told.replaceChildren(problem(error));
    }
  }, EVERY_SECONDS * 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
  return h("div", {}, h("h1", {}, "Training runs"), order(told, refresh), told, h("h2", {}, "Runs"), list);
}

function order(told, refresh) {
  const windows = h("input", { type: "number", min: 200, max: 200000, value: 96000, required: true });
  const collections = h("input", { placeholder: "my-incidents" });
  const include = h("input", { type: "checkbox", checked: true });
  const button = h("button", { class: "main" }, "Start training");
  return h("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(button, told, async () => {
      const run = await send("/v1/training-runs", {
        windows: Number(windows.value), include_feedback: include.checked,
        collections: collections.value.split(",").map((each) => each.trim()).filter(Boolean),
      });
      await refresh();
      return done(`The run is ${run.state}. A worker (rca worker) does it.`);
    });
  } },
  h("fieldset", {}, h("legend", {}, "A new version"),
    field("Simulated windows", windows), field("Labelled collections", collections, "Names in the operator's folder, separated by commas; may be empty."),
    h("label", { class: "inline" }, include, " Also train on windows with feedback"),
    h("div", { class: "actions" }, button)));
}

function entryOf(run, told, refresh) {
  const amount = run.total ? `${whole(run.completed)} of ${whole(run.total)} ${run.unit ?? ""}` : "";
  const cancel = h("button", { type: "button", onclick: async () => {
    if ((await confirmed("Cancel the run?", "Its work is lost.", { verb: "Cancel the run" })) === null) return;
    await attempt(cancel, told, async () => {
      await send(`/v1/training-runs/${run.id}/cancel`, undefined);
      await refresh();
      return done("The run ends within seconds.");
    });
  } }, "Cancel");
  const signs = { succeeded: "✓", failed: "✕", cancelled: "–", queued: "…", running: "▶" };
  return h("section", {},
    h("h3", {}, `${signs[run.state] ?? ""} ${run.kind === "train" ? "Training" : `Promotion of version ${run.order.version}`}, ${run.state}`),
    facts([
      ["Ordered", `${utc(run.created_at)} by ${run.asked_by}`],
      ["Phase", `${words(run.phase)}${amount ? `, ${amount}` : ""}`],
      ["Progress", run.state === "running" && run.total ? h("progress", { max: run.total, value: run.completed, "aria-label": "progress of the phase" }) : ""],
      ["Finished", run.finished_at ? utc(run.finished_at) : ""],
      ["Result", run.result ? result(run.result) : ""],
      ["Problem", run.problem ? `✕ ${run.problem.detail}` : ""],
    ]),
    ACTIVE.has(run.state) ? h("div", { class: "actions" }, run.cancel_requested_at ? "It is being cancelled." : cancel) : null);
}

function result(told) {
  const scores = Object.entries(told.scores).slice(0, 4).map(([name, score]) => `${words(name)} ${digits(score.value)}`).join(", ");
  const gate = told.gate ? ` Gate: ${told.gate.outcome}, ${told.gate.passed ? "passed" : "refused"}.` : "";
  return h("span", {}, h("a", { href: "#/models" }, `Version ${told.version}`), `. ${scores}.${gate}`);
}
