// Starts the page and shows the part that the address names after `#`.

import { access, key, Problem } from "./api.js";
import { announce, h } from "./dom.js";
import { finish } from "./issuer.js";
import { problem } from "./pages/problem.js";
import { signIn } from "./pages/sign-in.js";
import * as overview from "./pages/overview.js";
import * as incident from "./pages/incident.js";
import * as upload from "./pages/upload.js";
import * as diagnosis from "./pages/diagnosis.js";
import * as compare from "./pages/compare.js";
import * as models from "./pages/models.js";
import * as training from "./pages/training.js";
import * as nodes from "./pages/nodes.js";
import * as runbook from "./pages/runbook.js";

const ROUTES = [
  [/^\/$/, overview],
  [/^\/incidents\/(?<id>[0-9a-f]{32})$/, incident],
  [/^\/upload$/, upload],
  [/^\/diagnoses\/(?<id>[0-9a-f]{32})$/, diagnosis],
  [/^\/compare$/, compare],
  [/^\/models$/, models],
  [/^\/training$/, training],
  [/^\/nodes(\/(?<name>.+))?$/, nodes],
  [/^\/runbooks\/(?<cause>[a-z_]+)$/, runbook],
];

const main = document.getElementById("main");
const signOut = document.getElementById("sign-out");
let leaving = new AbortController();

/** Show the part of the address; what the last one still does is stopped. */
async function show() {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  const [path, query = ""] = (location.hash.slice(1) || "/").split("?");
  const [match, page] = found(path);
  mark(path);
  signOut.hidden = key.get() === null;
  try {
    if (!page) throw new Problem(404, { title: "There is no such page", detail: path });
    const context = { params: match.groups ?? {}, query: new URLSearchParams(query), signal };
    const content = await page.page(context);
    if (!signal.aborted) place(content);
  } catch (error) {
    if (signal.aborted) return;
    if (error.status === 401) place(signIn(key.get() === null ? null : error, show));
    else place(h("div", {}, h("h1", {}, "This page cannot be shown"), problem(error), retry()));
  }
}

function found(path) {
  for (const [pattern, page] of ROUTES) {
    const match = pattern.exec(path);
    if (match) return [match, page];
  }
  return [null, null];
}

function retry() {
  return h("div", { class: "actions" }, h("button", { type: "button", onclick: show }, "Try again"));
}

function place(content) {
  main.replaceChildren(content);
  const title = main.querySelector("h1");
  document.title = `${title?.textContent ?? "straggler-rca"} · straggler-rca`;
  if (title) {
    title.tabIndex = -1;
    title.focus({ preventScroll: true });
    announce(title.textContent);
  }
  scrollTo(0, 0);
}

/** Mark the page in the navigation. */
function mark(path) {
  for (const link of document.querySelectorAll("nav a")) {
    const own = link.hash.slice(1);
    const current = own === "/" ? path === "/" || path.startsWith("/incidents") : path.startsWith(own);
    if (current) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

signOut.addEventListener("click", () => {
  key.clear();
  show();
});
document.getElementById("skip").addEventListener("click", (event) => {
  // Not through the address: that names the page.
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", show);

finish()
  .then(access)
  .then((state) => (state === "key needed" ? place(signIn(null, show)) : show()))
  .catch((error) => place(error.status === 401 ? signIn(error, show) : h("div", {}, h("h1", {}, "The service cannot be used now"), problem(error), retry())));
