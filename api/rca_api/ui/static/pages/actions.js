// What was done about an incident: the list with outcomes, and the form that records an action.

import { catalogue, get, send } from "../api.js";
import { field, h, table } from "../dom.js";
import { place, seconds, utc, words } from "../format.js";
import { split } from "./feedback.js";
import { attempt, done } from "./problem.js";

/**
 * The section of an incident.
 * @param {object} incident
 * @param {string|null} diagnosis  Its newest diagnosis, whose actions come first in the form.
 */
export async function actions(incident, diagnosis, signal) {
  const list = h("div", {}, taken(incident.actions));
  const [known, advised] = await Promise.all([catalogue(), advice(diagnosis, signal)]);
  return h("section", {}, h("h2", {}, "Actions taken"), list, form(incident, known.actions, advised, async () => {
    const { items } = await get(`/v1/incidents/${incident.id}/actions?limit=200`);
    list.replaceChildren(taken(items));
  }));
}

/** Names of the actions that a diagnosis advises, the best first. */
async function advice(diagnosis, signal) {
  if (diagnosis === null) return [];
  try {
    const { actions: found = [] } = await get(`/v1/diagnoses/${diagnosis}`, signal);
    return [...new Set(found.map((each) => each.action))];
  } catch (error) {
    if (signal.aborted) throw error;
    // The form is of use without it.
    return [];
  }
}

function taken(items) {
  if (!items.length) return h("p", {}, "No action is recorded.");
  return table("Newest first", ["When", "Action", "On", "Predicted gain", "Outcome", "Note"], items.map((each) => [
    utc(each.taken_at), words(each.action), place(each), gain(each.predicted), outcome(each), each.note || "none",
  ]));
}

const gain = (told) => (told ? `${seconds(told.seconds_per_step_saved)} per step` : "unknown");

function outcome(action) {
  if (action.outcome === "pending") return `pending: ${action.windows_after} of 3 later windows`;
  return action.observed ? `${words(action.outcome)}, ${gain(action.observed)}` : words(action.outcome);
}

function form(incident, names, advised, refresh) {
  const told = h("div", {});
  const option = (name) => h("option", { value: name }, words(name));
  const group = (label, found) => (found.length ? h("optgroup", { label }, found.map(option)) : null);
  const first = advised.filter((name) => names.includes(name));
  const action = h("select", {}, group("Advised by the newest diagnosis", first), group("Others", names.filter((name) => !first.includes(name))));
  const at = h("input", { type: "datetime-local", step: 1 });
  const nodes = h("input", { placeholder: "node-1, node-2" });
  const who = h("input", { placeholder: "8, 9", inputmode: "numeric", pattern: "[0-9]+( *, *[0-9]+)*" });
  const note = h("textarea", { rows: 3, maxlength: 4000 });
  const button = h("button", { class: "main" }, "Record the action");
  // A repeated request with the same key is the same action: nothing is recorded twice after a lost answer.
  let key = random();
  async function record() {
    const kept = await send(`/v1/incidents/${incident.id}/actions`, {
      action: action.value, nodes: split(nodes.value), ranks: split(who.value).map(Number), note: note.value, key,
      ...(at.value ? { taken_at: new Date(`${at.value}Z`).toISOString() } : {}),
    });
    key = random();
    await refresh();
    return done(`The action is recorded (${words(kept.action)}). Three later windows show whether it helped.`);
  }
  return h("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(button, told, record);
  } },
  h("fieldset", {}, h("legend", {}, "Record an action"),
    field("Action", action),
    field("When it took effect (UTC)", at, "On the clock of the job. Empty: now."),
    field("On nodes", nodes, "Separated by commas. Empty: those of the diagnosis."),
    field("On ranks", who, "Separated by commas. Empty: those of the diagnosis."),
    field("What was done", note, "Such as the part that was replaced."),
    h("div", { class: "actions" }, button)), told);
}

/** A random name; `crypto.randomUUID` does not exist without HTTPS. */
function random() {
  return [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
