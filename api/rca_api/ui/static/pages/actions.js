// What was done about an incident: the list with outcomes, and the form that records an action.

import { catalogue, get, send } from "../api.js";
import { field, h, table } from "../dom.js";
import { place, seconds, utc, words } from "../format.js";
import { random } from "../random.js";
import { places } from "./places.js";
import { attempt, done, problem, stale } from "./problem.js";

/**
 * The section of an incident.
 * @param {object} incident
 * @param {string|null} diagnosis  The one that the page shows, whose actions come first in the form.
 */
export async function actions(incident, diagnosis, signal) {
  const list = h("div", {}, taken(incident.actions));
  const heading = h("h2", {}, "Actions taken");
  let known, advised;
  try {
    [known, advised] = await Promise.all([catalogue(), advice(diagnosis, signal)]);
  } catch (error) {
    if (signal.aborted) throw error;
    // The rest of the incident is of use without the form.
    return h("section", {}, heading, list, h("p", {}, "No action can be recorded now:"), problem(error));
  }
  return h("section", {}, heading, list, form(incident, known.actions, advised, async () => {
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
  const action = h("select", {}, group("Advised by the diagnosis", first), group("Others", names.filter((name) => !first.includes(name))));
  const at = h("input", { type: "datetime-local", step: 1 });
  const where = places(["On nodes", "On ranks"], "Separated by commas. Empty: those of the diagnosis.");
  const note = h("textarea", { rows: 3, maxlength: 4000 });
  const button = h("button", { class: "main" }, "Record the action");
  // A repeated request with the same key is the same action: nothing is recorded twice after a lost answer.
  let key = random();
  async function record() {
    let kept;
    try {
      kept = await send(`/v1/incidents/${incident.id}/actions`, {
        action: action.value, ...where.given(), note: note.value, key,
        ...(at.value ? { taken_at: new Date(`${at.value}Z`).toISOString() } : {}),
      });
    } catch (error) {
      if (error.status !== 409) throw error;
      // The answer to an earlier request was lost, and the form has changed since.
      key = random();
      return done("The action was recorded before, without your last changes. Record it again only if this is another action.", await stale(refresh));
    }
    key = random();
    inputs.reset();
    return done(`The action is recorded (${words(kept.action)}). Three later windows show whether it helped.`, await stale(refresh));
  }
  const inputs = h("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(button, told, record);
  } },
  h("fieldset", {}, h("legend", {}, "Record an action"),
    field("Action", action),
    field("When it took effect (UTC)", at, "On the clock of the job. Empty: now."),
    where.fields,
    field("What was done", note, "Such as the part that was replaced."),
    h("div", { class: "actions" }, button)), told);
  return inputs;
}
