// The pictures of a window: the heat map with its filters, and one signal beside its peers.

import { heatMap } from "../charts/heat-map.js";
import { lines } from "../charts/lines.js";
import { field, h, table } from "../dom.js";
import { seconds, words } from "../format.js";
import { compareMetric, comparePhase, latest, scaleOf, separation } from "../window.js";

const SHOWN = 8;

/** Heat map and signal of a diagnosis. */
export function pictures(diagnosis, window, known) {
  const marks = marksOf(diagnosis);
  return h("div", {}, h("section", {}, h("h2", {}, "Lateness of each rank in each step"), explored(window.grid, marks)), signals(diagnosis, window, known, marks));
}

/** Blamed ranks, their nodes, and the steps in which they are late. */
export function marksOf(diagnosis) {
  const groups = diagnosis.stragglers.length ? diagnosis.stragglers : diagnosis.causes;
  const first = groups.map((each) => each.first_step).filter((each) => each !== null && each !== undefined);
  const last = groups.map((each) => each.last_step).filter((each) => each !== null && each !== undefined);
  return {
    blamed: new Set(groups.flatMap((each) => each.ranks)), nodes: new Set(groups.flatMap((each) => each.nodes)),
    from: first.length ? Math.min(...first) : null, until: last.length && last.length === groups.length ? Math.max(...last) : null,
  };
}

/** The heat map with its filters. `scale` may be shared with another map. */
export function explored(grid, marks, scale = scaleOf(grid)) {
  const whole = { rows: grid.ranks.map((_, at) => at), first: 0, last: grid.steps.length - 1, scale };
  let view = whole;
  const nodes = [...new Set(grid.nodes)].filter(Boolean).sort((a, b) => a.localeCompare(b, "en", { numeric: true }));
  const node = h("select", { onchange: filter }, h("option", { value: "" }, "all nodes"), nodes.map((each) => h("option", { value: each }, each)));
  const first = h("input", { type: "number", min: grid.steps[0], max: grid.steps.at(-1), onchange: filter });
  const last = h("input", { type: "number", min: grid.steps[0], max: grid.steps.at(-1), onchange: filter });
  const all = h("button", { type: "button", onclick: () => { node.value = ""; choose(whole); } }, "Show all");
  const drawn = h("div", {});
  function filter() {
    const rows = whole.rows.filter((row) => node.value === "" || grid.nodes[row] === node.value);
    const from = Math.max(grid.steps.findIndex((each) => each >= Number(first.value)), 0);
    const to = grid.steps.findLastIndex((each) => each <= Number(last.value));
    choose({ ...view, rows, first: from, last: Math.max(to, from) });
  }
  function choose(next) {
    view = next;
    first.value = grid.steps[view.first];
    last.value = grid.steps[view.last];
    drawn.replaceChildren(
      heatMap(grid, view, marks, (from, to) => choose({ ...view, first: from, last: to })),
      worst(grid, view, marks),
    );
  }
  choose(whole);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.isConnected && choose(view));
  return h("div", {},
    h("div", { class: "actions" },
      h("div", {}, field("Node", node)), h("div", {}, field("From step", first)), h("div", {}, field("To step", last)), all),
    drawn);
}

function worst(grid, view, marks) {
  const rows = latest(grid, view.rows, view.first, view.last).slice(0, SHOWN);
  return h("details", {}, h("summary", {}, "The latest ranks as a table"),
    table(`Mean over steps ${grid.steps[view.first]} to ${grid.steps[view.last]}`, ["Rank", "Node", "Later than the middle rank", "Blamed"], rows.map(({ row, mean }) => [
      `${grid.ranks[row]}`, grid.nodes[row] || "not known", seconds(Math.max(mean, 0)), marks.blamed.has(grid.ranks[row]) ? "▐ yes" : "no",
    ])));
}

function signals(diagnosis, window, known, marks) {
  const { grid } = window;
  if (!marks.blamed.size || marks.blamed.size >= grid.ranks.length) {
    return h("section", {}, h("h2", {}, "The blamed signal beside its peers"), h("p", {}, "No rank is blamed alone, so there are no peers to compare with."));
  }
  const choices = offered(diagnosis, window, known, marks);
  const chart = h("div", {});
  const select = h("select", { onchange: show }, choices.map((each, at) => h("option", { value: at }, each.name)));
  function show() {
    const chosen = choices[Number(select.value)];
    const told = compared(chosen, window, marks);
    const place = (step) => (step === null || chosen.column ? step : grid.began[Math.max(grid.steps.findIndex((each) => each >= step), 0)]);
    chart.replaceChildren(lines(told, { name: chosen.name, seconds: Boolean(chosen.column), time: !chosen.column, from: place(marks.from), until: place(marks.until) }));
  }
  show();
  return h("section", {}, h("h2", {}, "The blamed signal beside its peers"), field("Signal", select, "Signals of the evidence come first."), chart);
}

function compared(choice, { grid, job }, marks) {
  return choice.column ? comparePhase(grid, choice.column, marks.blamed) : compareMetric(choice.series, job, marks.blamed, marks.nodes);
}

/** Signals of the evidence, the one that differs most first; then the other phases and metrics. */
function offered(diagnosis, window, known, marks) {
  const { grid, metrics } = window;
  const evidence = diagnosis.causes.flatMap((each) => each.evidence.map((one) => one.signal));
  const choices = [...grid.phases.keys()].filter((name) => name !== "communication_wait_seconds")
    .map((name) => ({ name: words(name.replace(/_seconds$/, "")), column: name, evident: evidence.includes(name) }));
  const groups = Map.groupBy(metrics, (each) => (each.device && each.rank === undefined ? `${each.name} ${each.device}` : each.device ? `${each.name} (${each.device})` : each.name));
  for (const [name, series] of groups) {
    const channels = Object.entries(known.signals).filter(([, names]) => names.some((each) => same(each, series[0].name))).map(([channel]) => channel);
    choices.push({ name, series, evident: channels.some((each) => evidence.includes(each)) });
  }
  for (const each of choices) each.differs = each.evident ? separation(compared(each, window, marks)) : -1;
  return choices.sort((a, b) => b.differs - a.differs);
}

const plain = (name) => name.toLowerCase().replace(/_total$/, "");
const same = (a, b) => plain(a) === plain(b);
