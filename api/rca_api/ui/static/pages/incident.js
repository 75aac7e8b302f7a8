// One incident: who, since when, cost, what to do, and how it went on.

import { get, send } from "../api.js";
import { facts, h, table } from "../dom.js";
import { probability, seconds, utc, words } from "../format.js";
import { actions } from "./actions.js";
import { badge, cost } from "./overview.js";
import { attempt, done } from "./problem.js";

const SHOWN = ["Do this", "Check", "Why", "How sure", "Owner"];
const SAID = { suspect: "▲ faulty, cause not certain", sick: "▲ faulty", unsure: "? undecided", healthy: "✓ healthy" };

/** The newest window with the incident's cause: one of another cause would fill the runbook with its places. */
export const blamingWindow = ({ cause, diagnoses }) => diagnoses.find((each) => each.cause === cause);

export async function page({ params, signal }) {
  const incident = await get(`/v1/incidents/${params.id}`, signal);
  const newest = incident.diagnoses.find((each) => each.verdict !== "healthy") ?? incident.diagnoses[0];
  const blaming = blamingWindow(incident);
  // The diagnosis whose words are on the page: its actions are the advised ones.
  const shown = incident.summary?.diagnosis_id ?? newest?.diagnosis_id ?? null;
  const taken = await actions(incident, shown, signal);
  return h("div", {},
    h("h1", {}, `${incident.job_id}: ${incident.cause ? words(incident.cause) : "cause not known"}`),
    h("p", {}, badge(incident.failure_mode), ` ${incident.state}`, incident.suspected ? " · ? suspected: no window with step times is certain of the cause yet" : "", incident.uncertain ? " · ? the diagnoses do not agree on the cause" : ""),
    facts([
      ["Who", incident.place.join(", ") || "not known"],
      ["Since", `${utc(incident.began)}, last seen ${utc(incident.ended)}`],
      ["Cost so far", cost(incident)],
      ...(incident.summary?.parts ?? []).filter((part) => SHOWN.includes(part.title)).map((part) => [part.title, part.lines]),
      ["Acknowledged", incident.acknowledged_at ? `${utc(incident.acknowledged_at)} by ${incident.acknowledged_by}` : ""],
      ["Assigned to", incident.assigned_to ?? ""],
      ["No messages until", new Date(incident.muted_until) > new Date() ? utc(incident.muted_until) : ""],
      ["Resolved", incident.resolved_at ? `${utc(incident.resolved_at)} (${[incident.resolution, incident.closing_note].filter(Boolean).join(": ")})` : ""],
    ]),
    h("div", { class: "actions" },
      shown ? h("a", { class: "button", href: `#/diagnoses/${shown}` }, "Diagnosis with plan and pictures") : null,
      incident.cause ? h("a", { class: "button", href: `#/runbooks/${incident.cause}${blaming ? `?diagnosis=${blaming.diagnosis_id}` : ""}` }, "Runbook") : null,
    ),
    incident.state === "open" ? people(incident) : null,
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

/** Buttons of a person on call: seen, mine, quiet for an hour, closed. */
function people(incident) {
  const told = h("div", {});
  const who = h("input", { maxlength: 128, "aria-label": "Assign to" });
  const why = h("input", { maxlength: 2000, "aria-label": "Reason to close it" });
  const button = (label, said, change) => {
    const made = h("button", { type: "button", onclick: () => attempt(made, told, async () => {
      await send(`/v1/incidents/${incident.id}`, change(), "PATCH");
      return done(said);
    }) }, label);
    return made;
  };
  return h("section", {}, h("h2", {}, "On call"), h("div", { class: "actions" },
    button("Acknowledge", "It is acknowledged.", () => ({ acknowledged: true })),
    button("Mute for an hour", "Webhooks get no message for an hour.", () => ({ muted_until: new Date(Date.now() + 3600e3).toISOString() })),
    who, button("Assign", "It is assigned.", () => ({ assigned_to: who.value.trim() || null })),
    why, button("Close", "It is closed. A fault that goes on reopens it.", () => ({ close: why.value })),
  ), told);
}

function lemon(incident, node) {
  const found = (incident.lemons ?? []).find((each) => each.node === node);
  return found ? `▲ probably faulty in other jobs as well (${probability(found.probability)})` : "none known";
}
