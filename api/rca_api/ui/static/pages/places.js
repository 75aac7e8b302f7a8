// The inputs for nodes and ranks.

import { field, h } from "../dom.js";

/**
 * Make the inputs.
 * @param {string[]} labels  Of nodes and of ranks.
 * @param {string} hint
 * @returns {{fields: Node[], given: () => {nodes: string[], ranks: number[]}}}
 */
export function places([onNodes, onRanks], hint) {
  const nodes = h("input", { placeholder: "node-1, node-2" });
  const ranks = h("input", { placeholder: "8, 9", inputmode: "numeric", pattern: "[0-9]+( *, *[0-9]+)*" });
  return {
    fields: [...field(onNodes, nodes, hint), ...field(onRanks, ranks, hint)],
    given: () => ({ nodes: split(nodes.value), ranks: split(ranks.value).map(Number) }),
  };
}

/** The entries of a list separated by commas. */
const split = (text) => text.split(",").map((each) => each.trim()).filter(Boolean);
