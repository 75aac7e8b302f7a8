// Champion beside challenger, promotion and rollback.

import { get, send, text } from "../api.js";
import { confirmed, h, table } from "../dom.js";
import { digits, utc, whole, words } from "../format.js";
import { rendered } from "../markdown.js";
import { attempt, done } from "./problem.js";

export async function page({ signal }) {
  const found = await get("/v1/models", signal);
  const told = h("div", {});
  const champion = found.items.find((each) => each.aliases.includes("champion"));
  const challenger = found.items.find((each) => each.aliases.includes("challenger")) ?? found.items.find((each) => each !== champion);
  return h("div", {},
    h("h1", {}, "Models"),
    answering(found.answering),
    told,
    h("h2", {}, "Champion beside challenger"),
    champion || challenger ? scores(champion, challenger) : h("p", {}, "No version is registered. ", h("a", { href: "#/training" }, "Train one"), "."),
    champion ? h("div", { class: "actions" }, rollback(champion, told)) : null,
    h("h2", {}, "All versions"),
    ...found.items.map((each) => version(each, champion, told)),
  );
}

function answering(now) {
  const which = now.version === null ? "The shipped bundle, or the operator's, answers" : `Version ${now.version} answers`;
  return h("div", {}, h("p", {}, `✓ ${which}${now.sha256 ? ` (${now.sha256.slice(0, 12)})` : ""}.`, now.challenger === null ? "" : ` Version ${now.challenger} diagnoses beside it, without answering.`),
    now.registry_failure ? h("p", { class: "problem" }, `The registry does not answer: ${now.registry_failure}`) : null);
}

function scores(champion, challenger) {
  const names = [...new Set([champion, challenger].flatMap((each) => Object.keys(each?.scores ?? {})))].sort();
  const title = (each, name) => (each ? `${name}: version ${each.version}` : `${name}: none`);
  return table("On held-out windows, with 95 % intervals", ["Score", title(champion, "Champion"), title(challenger, "Challenger"), "Gate"],
    names.map((name) => [words(name), score(champion?.scores[name]), score(challenger?.scores[name]), challenger?.gate?.outcome ?? "not compared"]));
}

function score(found) {
  if (!found) return "not measured";
  const interval = found.low === null || found.high === null ? "" : ` [${digits(found.low)}, ${digits(found.high)}]`;
  return `${digits(found.value)}${interval}${found.n ? `, ${whole(found.n)} windows` : ""}`;
}

function version(each, champion, told) {
  const card = h("div", {});
  const promote = h("button", { type: "button", class: "main", onclick: () => ask(each, promote, told) }, `Promote version ${each.version}`);
  const show = h("button", { type: "button", onclick: () => attempt(show, card, async () => rendered(await text(`/v1/models/${each.version}`, "text/markdown"), 3)) }, `Model card of version ${each.version}`);
  const verdict = each.gate ? `${each.gate.passed ? "✓ passed" : "✕ refused"}: ${each.gate.outcome} against ${each.gate.against}. ${each.gate.reasons}` : "? not compared yet";
  return h("section", {},
    h("h3", {}, `Version ${each.version}${each.aliases.length ? ` (${each.aliases.join(", ")})` : ""}`),
    h("p", {}, `Registered ${utc(each.created_at)}. Gate: ${verdict}`, each.answers ? " ✓ It answers now." : ""),
    each.rejected ? h("p", { class: "problem" }, `Not used: ${each.rejected}`) : null,
    h("div", { class: "actions" }, each === champion ? null : promote, show), card);
}

async function ask(each, button, told) {
  const refused = each.gate && !each.gate.passed;
  const text_ = refused
    ? `The gate refused it: ${each.gate.reasons}. It answers all callers from the next poll on. Give the reason for promoting it all the same.`
    : "It answers all callers from the next poll on. A roll back brings the present champion back.";
  const reason = await confirmed(`Promote version ${each.version}?`, text_, { reason: refused, verb: "Promote" });
  if (reason === null) return;
  await attempt(button, told, async () => {
    const result = await send(`/v1/models/${each.version}/promote`, reason ? { force: reason } : {});
    if ("phase" in result) return done("The gate compares it first. ", h("a", { href: "#/training" }, "Follow the run"), ".");
    return done(`Version ${result.version} is the champion now.`);
  });
}

function rollback(champion, told) {
  const button = h("button", { type: "button", onclick: async () => {
    const reason = await confirmed("Roll back?", `Version ${champion.version} stops answering, and the champion before it answers.`, { reason: true, verb: "Roll back" });
    if (reason === null) return;
    await attempt(button, told, async () => {
      const result = await send("/v1/models/rollback", { from: champion.version, reason });
      return done(result.to === null ? "The shipped bundle answers now." : `Version ${result.to} is the champion again.`);
    });
  } }, `Roll back version ${champion.version}`);
  return button;
}
