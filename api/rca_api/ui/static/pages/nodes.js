// Nodes by the probability that they are faulty, and the history of one node.

import { get } from "../api.js";
import { facts, h, table } from "../dom.js";
import { probability, seconds, utc, whole, words } from "../format.js";

export async function page({ params, signal }) {
  return params.name ? history(decodeURIComponent(params.name), signal) : ranking(signal);
}

async function ranking(signal) {
  const { items, next } = await get("/v1/nodes?limit=100", signal);
  return h("div", {}, h("h1", {}, "Nodes"),
    h("p", {}, "A node counts as faulty if several jobs blame it, at least six hours apart."),
    items.length
      ? table("Most suspect first, last 90 days", ["Node", "Faulty", "Probability", "Jobs that blame it", "Highest cost per step", "Last seen"], items.map((each) => [
        h("a", { href: `#/nodes/${encodeURIComponent(each.node)}` }, each.node), each.is_lemon ? "▲ yes" : "no", probability(each.lemon_probability),
        `${whole(each.jobs_blamed)} of ${whole(each.jobs)}`, seconds(each.highest_seconds_per_step), utc(each.last_seen),
      ]))
      : h("p", {}, "No diagnosis has a verdict about a node yet."),
    next ? h("p", { class: "quiet" }, "Only the first 100 nodes are shown. The API has all: GET /v1/nodes.") : null);
}

async function history(node, signal) {
  const { summary, items } = await get(`/v1/nodes/${encodeURIComponent(node)}/history?limit=100`, signal);
  return h("div", {}, h("h1", {}, `Node ${node}`),
    summary ? facts([
      ["Faulty", `${summary.is_lemon ? "▲ probably" : "probably not"} (${probability(summary.lemon_probability)})`],
      ["Jobs", `${whole(summary.jobs_blamed)} of ${whole(summary.jobs)} blame it, ${whole(summary.independent_blames)} independently`],
      ["Seen", `${utc(summary.first_seen)} to ${utc(summary.last_seen)}, ${whole(summary.windows)} windows`],
    ]) : h("p", {}, "No job of the last 90 days ran on it."),
    items.length
      ? table("Blames, newest first", ["Window", "Job", "Cause", "Probability", "Cost per step", "Counts"], items.map((each) => [
        h("a", { href: `#/diagnoses/${each.diagnosis_id}` }, utc(each.window_start)), each.job_id, words(each.cause), probability(each.probability), seconds(each.seconds_per_step), counts(each),
      ]))
      : h("p", {}, "No diagnosis blames it."),
    h("p", {}, h("a", { href: "#/nodes" }, "All nodes")));
}

function counts(each) {
  if (each.overruled) return "no: feedback gave another cause";
  if (each.abstained) return "no: undecided";
  return each.owner === "workload" ? "no: the workload's cause" : "yes";
}
