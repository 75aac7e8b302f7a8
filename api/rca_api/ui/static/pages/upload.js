// Sends a window and goes to its diagnosis.

import { call, Problem } from "../api.js";
import { field, h } from "../dom.js";
import { attempt } from "./problem.js";

const TABLE = /\.(csv|tsv|jsonl)(\.gz|\.zst)?$/i;

export async function page() {
  const file = h("input", { type: "file", accept: ".json,.gz,.zst,.arrow,.multipart,.csv,.tsv,.jsonl,application/json,text/csv" });
  const pasted = h("textarea", { spellcheck: "false", rows: 8 });
  const told = h("div", {});
  const button = h("button", { class: "main" }, "Diagnose");
  const form = h("form", { onsubmit: (event) => {
    event.preventDefault();
    attempt(button, told, async () => {
      const sent = file.files.length ? await ofFile(file.files[0]) : ofText(pasted.value);
      location.hash = `#/diagnoses/${await diagnosed(sent)}`;
      return null;
    });
  } },
  field("File with a telemetry window", file, "A table of steps, metrics or events (CSV, TSV, JSON lines), a window as JSON, plain or packed with gzip or zstd, or the Arrow form of rca."),
  field("or JSON to paste", pasted),
  h("div", { class: "actions" }, button), told);
  return h("div", {},
    h("h1", {}, "Diagnose a window"),
    h("p", {}, "The service stores the window and its diagnosis."),
    form,
    h("p", { class: "quiet" }, "A folder of Parquet files becomes one file to send: ", h("code", {}, "rca validate FOLDER --output window.arrow"), "."),
  );
}

/** Post a window; gives the id of its diagnosis, which may still be in the queue. */
async function diagnosed({ body, headers, job }) {
  const answer = await call("POST", job ? `/v1/diagnoses?job=${encodeURIComponent(job)}` : "/v1/diagnoses", { body, headers: { ...headers, Prefer: "respond-async" } });
  return (await answer.json()).diagnosis_id;
}

function ofText(text) {
  if (text.trim() === "") throw new Problem(400, { title: "There is no window", detail: "Neither a file nor text is given.", hint: "Choose a file, or paste a window as JSON." });
  return { body: text, headers: { "Content-Type": "application/json" } };
}

async function ofFile(file) {
  const start = new Uint8Array(await file.slice(0, 300).arrayBuffer());
  const line = new TextDecoder("latin1").decode(start).split(/\r?\n/, 1)[0];
  const headers = { "Content-Type": "application/json" };
  // The Arrow form is a multipart body; its first line has the boundary.
  if (line.startsWith("--")) headers["Content-Type"] = `multipart/form-data; boundary=${line.slice(2)}`;
  if (TABLE.test(file.name)) headers["Content-Type"] = "text/csv";
  if (start[0] === 0x1f && start[1] === 0x8b) headers["Content-Encoding"] = "gzip";
  if (start[0] === 0x28 && start[1] === 0xb5 && start[2] === 0x2f && start[3] === 0xfd) headers["Content-Encoding"] = "zstd";
  return { body: file, headers, job: headers["Content-Type"] === "text/csv" ? file.name : null };
}
