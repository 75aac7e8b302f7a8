// The Markdown that this service writes, as elements: headings, lists, tables, code, bold.

import { h } from "./dom.js";

const ITEM = /^(\s*)([-*]|\d+\.)\s+(.*)$/;
const FENCE = /^\s*```/;

/** Elements of a Markdown page; `below` is the level of the heading that it stands under. */
export function rendered(source, below = 0) {
  const lines = source.replaceAll("\r", "").split("\n");
  const out = h("div", {});
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    const heading = /^(#{1,4})\s+(.*)$/.exec(line);
    if (line.trim() === "") at += 1;
    else if (heading) {
      out.append(h(`h${Math.min(heading[1].length + below, 6)}`, {}, inline(heading[2])));
      at += 1;
    } else if (/^\s*```/.test(line)) {
      const end = after(lines, at + 1, (each) => !/^\s*```/.test(each));
      out.append(h("pre", { tabindex: 0 }, dedented(lines.slice(at + 1, end))));
      at = end + 1;
    } else if (line.startsWith("|")) {
      const end = after(lines, at, (each) => each.startsWith("|"));
      out.append(asTable(lines.slice(at, end)));
      at = end;
    } else if (ITEM.test(line)) {
      const end = endOfList(lines, at);
      out.append(asList(lines.slice(at, end)));
      at = end;
    } else {
      const end = after(lines, at, (each) => each.trim() !== "" && !/^(#|\||\s*```|\s*([-*]|\d+\.)\s)/.test(each));
      out.append(h("p", {}, inline(lines.slice(at, end).join(" "))));
      at = Math.max(end, at + 1);
    }
  }
  return out;
}

function after(lines, from, belongs) {
  let end = from;
  while (end < lines.length && belongs(lines[end])) end += 1;
  return end;
}

function dedented(lines) {
  const margin = Math.min(...lines.filter((each) => each.trim()).map((each) => each.search(/\S/)));
  return lines.map((each) => each.slice(Number.isFinite(margin) ? margin : 0)).join("\n");
}

/** Where a list ends: to its items belong the indented lines and code below them. */
function endOfList(lines, from) {
  const [, margin, marker] = ITEM.exec(lines[from]);
  const numbered = /\d/.test(marker);
  let end = from;
  while (end < lines.length) {
    const line = lines[end];
    const item = ITEM.exec(line);
    if (FENCE.test(line)) {
      if (!/^\s/.test(line)) break;
      end = after(lines, end + 1, (each) => !FENCE.test(each));
    } else if (line.trim() === "") {
      if (!/^\s+\S/.test(lines[end + 1] ?? "")) break;
    } else if (/^[#|]/.test(line) || (item && item[1].length <= margin.length && /\d/.test(item[2]) !== numbered)) break;
    end += 1;
  }
  return Math.min(end, lines.length);
}

function asList(lines) {
  const [, margin, marker] = ITEM.exec(lines[0]);
  const items = [];
  let code = false;
  for (const line of lines) {
    const item = ITEM.exec(line);
    if (item && !code && item[1].length <= margin.length) items.push([item[3]]);
    else items.at(-1).push(line);
    if (FENCE.test(line)) code = !code;
  }
  const numbered = /\d/.test(marker);
  return h(numbered ? "ol" : "ul", { start: numbered ? parseInt(marker, 10) : null }, items.map((each) => h("li", {}, contents(each))));
}

/** The text of an item, and the blocks below it. */
function contents([first, ...rest]) {
  const end = after(rest, 0, (each) => each.trim() !== "" && !ITEM.test(each) && !FENCE.test(each));
  const text = [first, ...rest.slice(0, end).map((each) => each.trim())].join(" ");
  const below = rest.slice(end);
  return [inline(text), below.length ? [...rendered(dedented(below)).childNodes] : null];
}

function asTable(lines) {
  const cells = (line) => line.replace(/^\||\|\s*$/g, "").split(/(?<!\\)\|/).map((each) => each.trim().replaceAll("\\|", "|"));
  const body = lines.slice(2).map((line) => h("tr", {}, cells(line).map((each) => h("td", {}, inline(each)))));
  const head = h("tr", {}, cells(lines[0]).map((each) => h("th", { scope: "col" }, inline(each))));
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "table" }, h("table", {}, h("thead", {}, head), h("tbody", {}, body)));
}

/** Code, bold and emphasis; a link shows its text. */
function inline(text) {
  const parts = [];
  const pattern = /(`+)(.+?)\1|\*\*(.+?)\*\*|\[([^\]]+)\]\([^)]*\)|\\([\\`*_{}[\]()#+\-.!|<>&~$])/g;
  let last = 0;
  for (const match of text.matchAll(pattern)) {
    parts.push(text.slice(last, match.index));
    if (match[2] !== undefined) parts.push(h("code", {}, match[2].trim()));
    else if (match[3] !== undefined) parts.push(h("strong", {}, inline(match[3])));
    else parts.push(match[4] ?? match[5]);
    last = match.index + match[0].length;
  }
  parts.push(text.slice(last));
  return parts;
}
