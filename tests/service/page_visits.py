"""A browser on the page, and what is read from it by scripts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from oidc_provider import Provider

#: Texts whose contrast with the ground behind them is too low for WCAG AA.
PALE = """() => {
  const numbers = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, at) => sum + v * [0.2126, 0.7152, 0.0722][at], 0);
  const ground = (element) => {
    for (let at = element; at; at = at.parentElement) {
      const found = numbers(getComputedStyle(at).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found;
    }
    throw new Error("no ground");
  };
  const pale = [];
  let n = 0;
  for (const element of document.querySelectorAll("body *")) {
    const texts = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!texts || !element.getClientRects().length || element.disabled || element.closest("option")) continue;
    const style = getComputedStyle(element);
    const ink = element instanceof SVGElement ? style.fill : style.color;
    const [a, b] = [light(numbers(ink)), light(ground(element))];
    n += 1;
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) pale.push(`${element.tagName} ${ratio.toFixed(2)} ${element.textContent.slice(0, 40)}`);
  }
  return { n, pale };
}"""
#: Show a part, also the one that is shown already.
GO = """part => {
  document.querySelector("main").replaceChildren();
  if (location.hash === `#${part}`) dispatchEvent(new Event("hashchange"));
  else location.hash = part;
}"""
#: Controls that a pointer reaches, and what is focused now.
CONTROLS = "a[href], button:not([disabled]), input, select, textarea, summary, [tabindex='0']"
REACHABLE = f"""() => [...document.querySelectorAll("{CONTROLS}")]
  .map((each, at) => [each, at]).filter(([each]) => each.checkVisibility()).map(([, at]) => at)"""
FOCUSED = f"""() => {{
  const style = getComputedStyle(document.activeElement);
  const all = [...document.querySelectorAll("{CONTROLS}")];
  const shows = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
  return [all.indexOf(document.activeElement), shows];
}}"""
#: 10,000 ranks of which one is late: its row has to be seen although several ranks share a row of pixels.
MANY = """async () => {
  const { gridOf, latest, scaleOf } = await import("/ui/files/window.js");
  const { heatMap } = await import("/ui/files/charts/heat-map.js");
  const [nRanks, nSteps, late] = [10000, 20, 7777];
  const [rank, step, whole, wait] = [[], [], [], []];
  for (let r = 0; r < nRanks; r += 1) for (let s = 0; s < nSteps; s += 1) {
    const noise = ((r * 7919 + s * 104729) % 1000) / 1e4;
    rank.push(r); step.push(s); whole.push(1); wait.push(r === late ? 0 : 0.6 - noise);
  }
  const steps = { rank, step, start_time: step, step_seconds: whole, communication_wait_seconds: wait };
  const grid = gridOf({ job: { ranks: [] }, steps });
  const rows = grid.ranks.map((_, at) => at);
  const view = { rows, first: 0, last: nSteps - 1, scale: scaleOf(grid) };
  const drawn = heatMap(grid, view, { blamed: new Set([late]), from: null, until: null }, () => {});
  const canvas = drawn.querySelector("canvas");
  const image = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  const marked = new Set();
  // Late cells are dark red: little green.
  for (let at = 0; at < image.data.length / 4; at += 1) {
    if (image.data[4 * at + 1] < 100) marked.add(Math.floor(at / canvas.width));
  }
  return { height: canvas.height, marked: [...marked], worst: latest(grid, rows, 0, nSteps - 1)[0] };
}"""


@dataclass
class Visit:
    """A signed-in browser on the page, with a diagnosis of a node under load."""

    page: Any
    url: str
    diagnosis: str
    provider: Provider
    incident: str = ""
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def go(self, part: str, wait: str = "h1") -> None:
        """Show a part of the page."""
        self.page.evaluate(GO, part)
        self.page.wait_for_selector(f"main {wait}")
