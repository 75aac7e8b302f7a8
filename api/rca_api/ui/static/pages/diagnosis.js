// One diagnosis in depth: words, pictures, feedback.

import { catalogue, get, send } from "../api.js";
import { probabilities, waterfall } from "../charts/bars.js";
import { facts, h, table } from "../dom.js";
import { digits, place, probability, seconds, utc, whole, words } from "../format.js";
import { stored } from "../window.js";
import { feedback } from "./feedback.js";
import { badge } from "./overview.js";
import { pictures } from "./pictures.js";
import { problem } from "./problem.js";

const PAUSE_MILLISECONDS = 500;

export async function page({ params, signal }) {
  const diagnosis = await finished(params.id, signal);
  const [text, known] = await Promise.all([get(`/ui/diagnoses/${params.id}`, signal), catalogue()]);
  const drawn = h("div", {}, h("p", { class: "quiet" }, "Fetching the window for the pictures."));
  draw(drawn, diagnosis, text, known, signal);
  return h("div", {}, head(diagnosis, text), await plan(diagnosis, signal), drawn, causes(diagnosis), moreText(text), feedback(diagnosis, known));
}

/** Wait until a diagnosis is there. */
export async function finished(id, signal) {
  for (;;) {
    const found = await get(`/v1/diagnoses/${id}`, signal);
    if ("failure_mode" in found) return found;
    document.getElementById("main").replaceChildren(h("h1", {}, "Diagnosing"), h("p", {}, `The diagnosis is ${found.state}.`));
    await new Promise((resolve) => setTimeout(resolve, PAUSE_MILLISECONDS));
    if (signal.aborted) throw new DOMException("left", "AbortError");
  }
}

function head(diagnosis, text) {
  const ways = [...new Set(diagnosis.causes.map((each) => each.cause))].filter((each) => each !== "unknown").slice(0, 3);
  return h("section", {},
    h("h1", {}, text.headline),
    h("p", {}, badge(text.verdict), ` Job ${diagnosis.job_id}, diagnosed ${utc(diagnosis.created_at)}.`),
    facts([
      // The runbook is a link below.
      ...text.rows.filter((row) => row.title !== "Runbook").map((row) => [row.title, row.lines]),
      ["Probabilities", probabilities(diagnosis)],
    ]),
    h("div", { class: "actions" },
      text.incident_id ? h("a", { class: "button", href: `#/incidents/${text.incident_id}` }, "Its incident") : null,
      ways.map((each) => h("a", { class: "button", href: `#/runbooks/${each}?diagnosis=${diagnosis.diagnosis_id}` }, `Runbook: ${words(each)}`)),
      h("a", { class: "button", href: `#/compare?left=${diagnosis.diagnosis_id}` }, "Compare with another window"),
    ),
  );
}

/** Every action that applies, with its price at this site. */
async function plan(diagnosis, signal) {
  const heading = h("h2", {}, "Plan");
  let found;
  try {
    found = await send("/v1/plans", { diagnosis_id: diagnosis.diagnosis_id });
  } catch (error) {
    if (signal.aborted) throw error;
    // The diagnosis is of use without it.
    return h("section", {}, heading, problem(error));
  }
  if (!found.options.length) return null;
  return h("section", {}, heading, h("p", {}, `${found.first === "none" ? "Wait" : words(found.first)}: ${found.why}.`),
    table("In the order to take them", ["Action", "On", "Saves per step", "Costs once", "Due", "Risk"], found.options.map((each) => [
      words(each.action), place(each), seconds(each.seconds_per_step_saved), each.one_off_seconds ? seconds(each.one_off_seconds) : "nothing", due(each), each.risk,
    ])));
}

function due({ escalate_after_steps: steps }) {
  if (steps === null) return "";
  return steps === 0 ? "now" : `in ${whole(steps)} steps`;
}

async function draw(where, diagnosis, text, known, signal) {
  try {
    const window = await stored(text.window_digest, diagnosis.quality.rows_used + diagnosis.quality.rows_unused, signal);
    if (signal.aborted) return;
    where.replaceChildren(fall(diagnosis), window.grid ? pictures(diagnosis, window, known) : h("p", { class: "note" }, window.reason));
  } catch (error) {
    if (!signal.aborted) where.replaceChildren(fall(diagnosis), h("h2", {}, "Pictures of the window"), problem(error));
  }
}

function fall(diagnosis) {
  const shown = waterfall(diagnosis);
  return h("section", {}, h("h2", {}, "From the measured step to the ideal step"),
    shown ?? h("p", {}, diagnosis.slowdown.seconds_per_step === null ? "The cost is unknown." : "No cause costs time per step."));
}

function causes(diagnosis) {
  if (!diagnosis.causes.length) return null;
  return h("section", {}, h("h2", {}, "Causes"),
    table("The costliest first", ["Cause", "Where", "Cost per step", "Share", "Probability", "Owner"], diagnosis.causes.map((each) => [
      words(each.cause), place(each), seconds(each.seconds_per_step),
      each.share ? `${digits(each.share * 100)} %` : "not known", probability(each.probability), each.owner,
    ])));
}

function moreText(text) {
  if (!text.more.length) return null;
  return h("details", {}, h("summary", {}, "More evidence, other actions, quality of the window"), facts(text.more.map((row) => [row.title, row.lines])));
}
