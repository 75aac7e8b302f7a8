// Numbers, times and places as a tired person reads them.

const DIGITS = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const WHOLE = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });

export const whole = (value) => WHOLE.format(value);
export const digits = (value) => (Number.isFinite(value) ? DIGITS.format(value) : "unknown");

/** 0.0321 as "32.1 ms". */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "unknown";
  const size = Math.abs(value);
  if (size === 0) return "0 s";
  if (size < 1e-3) return `${digits(value * 1e6)} µs`;
  if (size < 1) return `${digits(value * 1e3)} ms`;
  if (size < 120) return `${digits(value)} s`;
  return size < 7200 ? `${digits(value / 60)} min` : `${digits(value / 3600)} h`;
}

export function probability(value) {
  if (value === null || value === undefined) return "unknown";
  if (value >= 0.995 && value < 1) return ">0.99";
  return value < 0.005 ? "<0.01" : value.toFixed(2);
}

/** A time in UTC, from ISO text or Unix seconds. */
export function utc(moment) {
  if (moment === null || moment === undefined) return "unknown";
  const at = typeof moment === "number" ? new Date(moment * 1000) : new Date(moment);
  return Number.isNaN(at.getTime()) ? "unknown" : `${at.toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** Ranks with runs folded: "0-7, 12". */
export function ranks(list) {
  const sorted = [...new Set(list)].sort((a, b) => a - b);
  const runs = [];
  for (const rank of sorted) {
    const last = runs.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else runs.push([rank, rank]);
  }
  const shown = runs.slice(0, 8).map(([a, b]) => (a === b ? `${a}` : `${a}-${b}`)).join(", ");
  return runs.length > 8 ? `${shown} and more (${whole(sorted.length)} ranks)` : shown;
}

/** Nodes and ranks of a cause or straggler. */
export function place(group) {
  const nodes = group.nodes ?? [];
  const shown = nodes.slice(0, 4).join(", ") + (nodes.length > 4 ? ` and ${nodes.length - 4} more` : "");
  const list = group.ranks ?? [];
  const who = list.length ? `${list.length === 1 ? "rank" : "ranks"} ${ranks(list)}` : "";
  return [shown, who].filter(Boolean).join(", ") || "the whole job";
}

export const words = (id) => (id ?? "").replaceAll("_", " ");

const VERDICTS = {
  healthy: ["good", "✓ healthy"],
  fail_slow: ["bad", "▲ fail-slow"],
  fail_stop: ["bad", "■ fail-stop"],
  undecided: ["warn", "? undecided"],
};

/** Class and text of a verdict; the sign says it without colour. */
export const verdict = (name) => VERDICTS[name] ?? ["", words(name)];
