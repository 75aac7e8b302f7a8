// Jobs and incidents now.

import { get } from "../api.js";
import { h, table } from "../dom.js";
import { digits, seconds, utc, verdict, whole, words } from "../format.js";
import { problem } from "./problem.js";

const EVERY_SECONDS = 15;
//: Open incidents whose summary is looked up.
const MOST_SUMMARIES = 10;

export async function page({ signal }) {
  const content = h("div", {});
  const update = h("p", { class: "quiet" });
  async function refresh() {
    const parts = await loaded(signal);
    // A person who is inside a table keeps the place until the next time.
    if (content.childElementCount && content.contains(document.activeElement)) return;
    content.replaceChildren(...parts);
    update.textContent = `As of ${utc(Date.now() / 1000)}. It is read again every ${EVERY_SECONDS} s.`;
  }
  await refresh();
  again(refresh, update, signal);
  return h("div", {}, h("h1", {}, "Jobs and incidents"), content, update);
}

function again(refresh, update, signal) {
  const timer = setInterval(async () => {
    if (document.hidden) return;
    try {
      await refresh();
    } catch (error) {
      if (!signal.aborted) update.replaceChildren(problem(error));
    }
  }, EVERY_SECONDS * 1000);
  signal.addEventListener("abort", () => clearInterval(timer));
}

async function loaded(signal) {
  const [open, resolved, jobs, recent] = await Promise.all([
    get("/v1/incidents?state=open&limit=50", signal),
    get("/v1/incidents?state=resolved&limit=10", signal),
    get("/v1/jobs?limit=50", signal),
    get("/v1/diagnoses?limit=20", signal),
  ]);
  const summaries = await Promise.all(open.items.slice(0, MOST_SUMMARIES).map((each) => summary(each, signal)));
  return [
    h("section", {}, h("h2", {}, "Open incidents"), open.items.length
      ? table(`${open.items.length} open`, ["Job", "What", "Who", "Since", "Cost so far", "How sure", "Do now"],
        open.items.map((each, at) => [...row(each), summaries[at]?.["How sure"] ?? "see the incident", link(each, summaries[at]?.["Do this"] ?? "see the incident")]))
      : h("p", {}, "✓ No incident is open.")),
    h("section", {}, h("h2", {}, "Jobs that send telemetry"), jobs.items.length
      ? table("Newest telemetry first", ["Job", "State", "Ranks", "Step time", "Last telemetry", "Diagnosis"], jobs.items.map(jobRow))
      : h("p", {}, "No job sends telemetry. ", h("a", { href: "#/upload" }, "Diagnose a window"), " of one.")),
    h("section", {}, h("h2", {}, "Latest diagnoses"), recent.items.length
      ? table("Newest first", ["Job", "Verdict", "Cause", "Cost per step", "When"], recent.items.map(diagnosisRow))
      : h("p", {}, "There is no diagnosis yet. ", h("a", { href: "#/upload" }, "Diagnose a window"), ".")),
    resolved.items.length ? h("section", {}, h("h2", {}, "Resolved incidents"),
      table("Newest first", ["Job", "What", "Who", "Since", "Cost", "Resolved"],
        resolved.items.map((each) => [...row(each), `${utc(each.resolved_at)} (${each.resolution})`]))) : null,
  ].filter(Boolean);
}

const link = (incident, text) => h("a", { href: `#/incidents/${incident.id}` }, text);

function row(incident) {
  return [
    link(incident, incident.job_id),
    [badge(incident.failure_mode), incident.suspected ? " ? suspected, " : " ", incident.cause ? words(incident.cause) : "cause not known"],
    incident.place.join(", ") || "not known",
    utc(incident.began),
    cost(incident),
  ];
}

export function cost(incident) {
  if (incident.failure_mode === "fail_stop" && !incident.seconds_lost) return "the job stands still";
  return `the job lost ${seconds(incident.seconds_lost)} (${digits(incident.gpu_hours_lost)} GPU-hours)`;
}

export function badge(name) {
  const [kind, text] = verdict(name);
  return h("span", { class: `badge ${kind}` }, text);
}

/** First lines of the summary of an incident, by title; null if there is none. */
async function summary(incident, signal) {
  try {
    const { summary: found } = await get(`/v1/incidents/${incident.id}`, signal);
    return found ? Object.fromEntries(found.parts.map((each) => [each.title, each.lines[0]])) : null;
  } catch (error) {
    if (signal.aborted) throw error;
    // The table is of use without it.
    return null;
  }
}

function jobRow(job) {
  const state = job.ended_at ? `ended ${utc(job.ended_at)}` : job.changed_step === null ? "✓ steady" : `▲ changed at step ${job.changed_step}`;
  return [
    job.job_id, state, whole(job.world_size), seconds(job.step_seconds),
    `${utc(job.updated_at)}${job.last_step === null ? "" : `, step ${job.last_step}`}`,
    job.diagnosis_id ? h("a", { href: `#/diagnoses/${job.diagnosis_id}` }, "newest diagnosis") : "none",
  ];
}

export function diagnosisRow(each) {
  const shown = each.state !== "done" ? words(each.state) : badge(each.abstained ? "undecided" : each.failure_mode);
  return [
    h("a", { href: `#/diagnoses/${each.diagnosis_id}` }, each.job_id), shown,
    each.cause ? words(each.cause) : each.problem ? each.problem.detail : "none", seconds(each.seconds_per_step), utc(each.created_at),
  ];
}

