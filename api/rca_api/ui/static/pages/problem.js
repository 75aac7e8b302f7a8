// An error as a person needs it: what is wrong, where, and what to do.

import { announce, h } from "../dom.js";

/** Show an error. */
export function problem(error) {
  if (!("advice" in error)) {
    // A mistake of this page: the console has the place.
    console.error(error);
    return h("div", { class: "problem", role: "alert" }, h("strong", {}, "✕ This page has an error"), h("p", {}, String(error)));
  }
  const { body } = error;
  const place = [body.table, body.column].filter(Boolean).join(".");
  return h("div", { class: "problem", role: "alert" },
    h("strong", {}, `✕ ${error.title}`),
    h("p", {}, error.message),
    place ? h("p", {}, `Place: ${place}`) : null,
    body.rows?.length ? h("pre", {}, body.rows.slice(0, 3).map((row) => JSON.stringify(row)).join("\n")) : null,
    body.expected ? h("p", {}, `Expected: ${body.expected}`) : null,
    h("p", {}, `What to do: ${error.advice}`),
  );
}

/**
 * Run what a button starts: it is off meanwhile, and an error is shown in `where`.
 * @param {HTMLButtonElement} button
 * @param {HTMLElement} where
 * @param {() => Promise<Node|null>} work  Gives what to show when it is done.
 */
export async function attempt(button, where, work) {
  button.disabled = true;
  where.replaceChildren(h("p", { class: "quiet" }, "Working."));
  try {
    const done = await work();
    where.replaceChildren(...(done ? [done] : []));
    if (done) announce(done.textContent);
  } catch (error) {
    where.replaceChildren(problem(error));
  } finally {
    button.disabled = false;
  }
}

/**
 * Load again what a stored request has changed; gives what to say if that fails.
 * It is no error: people would store the same thing again.
 * @param {() => Promise<unknown>} load
 */
export async function stale(load) {
  try {
    await load();
    return null;
  } catch {
    return " The list is not up to date: load this page again.";
  }
}

/** A message about something that worked. */
export const done = (...parts) => h("div", { class: "note done" }, "✓ ", ...parts);
