// One incident: who, since when, cost, what to do, and how it went on.

import { get } from "../api.js";
import { facts, h, table } from "../dom.js";
import { probability, seconds, utc, words } from "../format.js";
import { actions } from "./actions.js";
import { badge, cost } from "./overview.js";

const SHOWN = ["Do this", "Check", "Why", "How sure", "Owner"];
const SAID = { suspect: "▲ faulty, cause not certain", sick: "▲ faulty", unsure: "? undecided", healthy: "✓ healthy" };

/** The newest window with the incident's cause: one of another cause would fill the runbook with its places. */
export const blamingWindow = ({ cause, diagnoses }) => diagnoses.find((each) => each.cause === cause);

export async function page({ params, signal }) {
  const incident = await get(`/v1/incidents/${params.id}`, signal);
  const newest = incident.diagnoses.find((each) => each.verdict !== "healthy") ?? incident.diagnoses[0];
  const blaming = blamingWindow(incident);
  const taken = await actions(incident, newest?.diagnosis_id ?? null, signal);
  return h("div", {},
    h("h1", {}, `${incident.job_id}: ${incident.cause ? words(incident.cause) : "cause not known"}`),
    h("p", {}, badge(incident.failure_mode), ` ${incident.state}`, incident.suspected ? " · ? suspected: no window with step times is certain of the cause yet" : "", incident.uncertain ? " · ? the diagnoses do not agree on the cause" : ""),
    facts([
      ["Who", incident.place.join(", ") || "not known"],
      ["Since", `${utc(incident.began)}, last seen ${utc(incident.ended)}`],
      ["Cost so far", cost(incident)],
      ...(incident.summary?.parts ?? []).filter((part) => SHOWN.includes(part.title)).map((part) => [part.title, part.lines]),
      ["Resolved", incident.resolved_at ? `${utc(incident.resolved_at)} (${incident.resolution})` : ""],
    ]),
    h("div", { class: "actions" },
      newest ? h("a", { class: "button", href: `#/diagnoses/${newest.diagnosis_id}` }, "Newest diagnosis with pictures") : null,
      incident.cause ? h("a", { class: "button", href: `#/runbooks/${incident.cause}${blaming ? `?diagnosis=${blaming.diagnosis_id}` : ""}` }, "Runbook") : null,
    ),
    h("h2", {}, "Stages"),
    table("On the clock of the job (UTC)", ["Stage", "Reached", "After the onset"], incident.stages.map((each) => [
      words(each.name), each.at ? `✓ ${utc(each.at)}` : "not yet", each.seconds === null ? "not yet" : seconds(each.seconds),
    ])),
    h("h2", {}, "Nodes"),
    incident.nodes.length
      ? table("Blamed in it", ["Node", "Probability", "Earlier faults"], incident.nodes.map((each) => [
        h("a", { href: `#/nodes/${encodeURIComponent(each.node)}` }, each.node), probability(each.probability), lemon(incident, each.node),
      ]))
      : h("p", {}, "No node is blamed."),
    h("h2", {}, "Timeline"),
    table("Oldest first, on the clock of the job (UTC)", ["When", "What", "Cause", "Where"], incident.timeline.map((each) => [
      utc(each.window_end), words(each.kind) + (each.reason ? ` (${each.reason})` : ""), each.cause ? words(each.cause) : "not known", each.place.join(", ") || "not known",
    ])),
    taken,
    h("h2", {}, "Windows"),
    table("Newest first", ["Window", "Verdict", "Cause", "Lost"], incident.diagnoses.map((each) => [
      h("a", { href: `#/diagnoses/${each.diagnosis_id}` }, utc(each.window_start)), SAID[each.verdict] ?? words(each.verdict), each.cause ? words(each.cause) : "none", seconds(each.seconds_lost),
    ])),
  );
}

function lemon(incident, node) {
  const found = (incident.lemons ?? []).find((each) => each.node === node);
  return found ? `▲ probably faulty in other jobs as well (${probability(found.probability)})` : "none known";
}
