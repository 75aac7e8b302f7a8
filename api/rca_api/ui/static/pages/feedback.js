// Was the diagnosis right? The answer is kept and used in training.

import { get, send } from "../api.js";
import { field, h } from "../dom.js";
import { utc, words } from "../format.js";
import { places } from "./places.js";
import { attempt, done, stale } from "./problem.js";

/** The form, and what others have said. */
export function feedback(diagnosis, known) {
  const told = h("div", {});
  const earlier = h("div", {});
  const note = h("textarea", { rows: 3, maxlength: 4000 });
  const cause = h("select", {}, h("option", { value: "healthy" }, "none: the job was healthy"),
    known.causes.map((each) => h("option", { value: each.id }, `${words(each.id)}: ${each.meaning}`)));
  const where = places(["Nodes", "Ranks"], "Separated by commas; may be empty.");
  // A suspected machine can be confirmed by those who looked at it.
  const open = diagnosis.abstained && diagnosis.abstention_reason?.code !== "machine_stands_out";
  const right = h("button", { type: "button", disabled: open, onclick: () => attempt(right, told, () => given({ verdict: "confirmed" })) }, "✓ The diagnosis is right");
  const wrong = h("button", {}, "✕ The diagnosis is wrong");
  async function given(body) {
    const kept = await send(`/v1/diagnoses/${diagnosis.diagnosis_id}/feedback`, { ...body, note: note.value });
    const settled = kept.conflict ? " Others disagree, so no side is used until that is settled." : "";
    return done(`Your feedback is stored (${kept.verdict}). It is used in training.`, settled, await stale(() => list(earlier, diagnosis)));
  }
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(wrong, told, () => given({ verdict: "corrected", label: labelled(cause.value, where.given(), known) }));
  } },
  h("fieldset", {}, h("legend", {}, "It is wrong: the right cause"),
    field("Cause", cause), where.fields,
    h("div", { class: "actions" }, wrong)));
  list(earlier, diagnosis).catch(() => earlier.replaceChildren());
  return h("section", {}, h("h2", {}, "Was it right?"),
    field("Note", note, "Such as what was found or repaired."),
    h("div", { class: "actions" }, right, open ? h("span", { class: "quiet" }, "An undecided answer cannot be confirmed. Give the right cause.") : null),
    form, told, earlier);
}

/** The label of a correction. */
function labelled(cause, where, known) {
  if (cause === "healthy") return { failure_mode: "healthy" };
  const spec = known.causes.find((each) => each.id === cause);
  const stopped = spec.type === "fail_stop";
  return {
    failure_mode: stopped ? "fail_stop" : "fail_slow",
    causes: [{ cause, ...where }],
  };
}

async function list(where, diagnosis) {
  const { items, conflict } = await get(`/v1/diagnoses/${diagnosis.diagnosis_id}/feedback`);
  where.replaceChildren(...(items.length ? [
    h("h3", {}, conflict ? "▲ Feedback disagrees" : "Feedback so far"),
    h("ul", {}, items.map((each) => h("li", {},
      `${utc(each.created_at)}, ${each.given_by_name}: ${each.verdict}, ${each.label.causes.map((one) => words(one.cause)).join(", ") || words(each.label.failure_mode)}`,
      each.withdrawn_at ? " (withdrawn)" : "", each.note ? `. ${each.note}` : ""))),
  ] : []));
}
