// Signs a person in: with an account at the token issuer, or with a key. Both are kept in this tab only.

import { access, get, key, Problem } from "../api.js";
import { field, h } from "../dom.js";
import { begin } from "../issuer.js";
import { attempt, problem } from "./problem.js";

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
  const account = h("div", {});
  offer(account, told);
  return h("div", {},
    h("h1", {}, "Sign in"),
    account,
    h("form", { onsubmit: submit },
      field("API key or token", input, "It stays in this tab and is sent to this service only."),
      h("div", { class: "actions" }, h("button", { class: "main" }, "Sign in")),
    ),
    told,
    h("p", { class: "quiet" }, "No key yet? An administrator makes one: ",
      h("code", {}, "rca keys create --scope read --scope diagnose --scope feedback --name YOU")),
  );
}

/** Add the button for an account, if the service has an issuer. */
async function offer(account, told) {
  const { sign_in: offered } = await get("/ui/access").catch(() => ({}));
  if (!offered) return;
  const button = h("button", { type: "button", class: "main", onclick: () => attempt(button, told, begin) }, "Sign in with your account");
  account.replaceChildren(h("div", { class: "actions" }, button), h("p", { class: "quiet" }, "Or with a key or token:"));
}
