// Asks for a key. The key is kept in this tab only.

import { access, key, Problem } from "../api.js";
import { field, h } from "../dom.js";
import { problem } from "./problem.js";

/**
 * The form.
 * @param {Problem|null} refused  Why the last key is not accepted.
 * @param {() => void} next  Called with an accepted key.
 */
export function signIn(refused, next) {
  const input = h("input", { type: "password", autocomplete: "off", required: true, spellcheck: "false", size: 40 });
  const told = h("div", {}, refused ? problem(refused) : null);
  async function submit(event) {
    event.preventDefault();
    const given = input.value.trim();
    // Other characters cannot be sent in a header.
    if (!/^[!-~]+$/.test(given)) {
      told.replaceChildren(problem(new Problem(401, { title: "This is no key", detail: "A key has letters, digits and signs without spaces." })));
      return;
    }
    key.set(given);
    try {
      if ((await access()) !== "refused") return next();
      throw new Problem(401, { title: "The key is not valid", detail: "It may be mistyped, expired or revoked." });
    } catch (error) {
      key.clear();
      told.replaceChildren(problem(error));
      input.focus();
    }
  }
  return h("div", {},
    h("h1", {}, "Sign in"),
    h("form", { onsubmit: submit },
      field("API key or token", input, "It stays in this tab and is sent to this service only."),
      h("div", { class: "actions" }, h("button", { class: "main" }, "Sign in")),
    ),
    told,
    h("p", { class: "quiet" }, "No key yet? An administrator makes one: ",
      h("code", {}, "rca keys create --scope read --scope diagnose --scope feedback --name YOU")),
  );
}
